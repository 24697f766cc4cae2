"""The same connection behind TLS, whose transport hides what it has not sent."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.edge import serving

from semel.wire.messages import ApiVersionsRequest, FetchRequest, FetchResponse
from semel.wire.messages.fetch import FetchableTopicResponse, PartitionData

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")

API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")
BIG = 20 << 20


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server and of the client."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "2",
    ]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    client.check_hostname = False
    return server, client


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main)

    return run


async def big_fetch(broker: Any, request: Any, context: Any) -> FetchResponse:
    partition = PartitionData(partition_index=0, records=bytes(BIG))
    return FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])


def test_small_and_large_responses(run: Any, contexts: Any) -> None:
    async def main() -> None:
        async with serving({1: big_fetch}, ssl_context=contexts[0]) as under_test:
            client = await under_test.connect(ssl=contexts[1])
            for _ in range(3):
                sent = [
                    client.send(API_VERSIONS, 3),
                    client.send(FetchRequest(), 12),
                    client.send(API_VERSIONS, 3),
                ]
                received = [await client.receive(20) for _ in sent]
                assert [correlation_id for correlation_id, _ in received] == sent
                assert len(received[1][1]) > BIG

    run(main())


def test_what_the_client_does_not_take_is_counted_and_it_is_closed(run: Any, contexts: Any) -> None:
    async def main() -> None:
        async with serving({1: big_fetch}, ssl_context=contexts[0], semel_write_timeout_ms=300) as under_test:
            client = await under_test.connect(ssl=contexts[1], limit=1024)
            for _ in range(5):
                client.send(FetchRequest(), 12)
            await under_test.until(lambda: under_test.edge.responses.used > BIG // 4)
            assert under_test.broker.metrics.apis[1].requests == 1
            await under_test.until(lambda: not under_test.edge.connections)
            assert under_test.broker.metrics.connections_closed == {"slow reader": 1}

    run(main())


def test_plain_bytes_to_a_tls_listener_are_refused(run: Any, contexts: Any) -> None:
    async def main() -> None:
        async with serving(ssl_context=contexts[0]) as under_test:
            client = await under_test.connect()
            client.send(API_VERSIONS, 3)
            assert await client.is_closed()

    run(main())
