"""The same connection behind TLS, whose transport hides what it has not sent; and how clients get in."""

import asyncio
import logging
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.brokers.serving import ServerUnderTest, serving
from support.certificates import Certificate, make_certificate, needs_openssl
from support.waiting import until_async

from semel.config import Settings
from semel.server.tls import ServerTls, server
from semel.wire.messages import ApiVersionsRequest, FetchRequest, FetchResponse
from semel.wire.messages.fetch import FetchableTopicResponse, PartitionData

pytestmark = needs_openssl

API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")
BIG = 20 << 20


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "broker")


@pytest.fixture(scope="module")
def contexts(certificate: Certificate) -> tuple[ServerTls, ssl.SSLContext]:
    """Of the server and of the client."""
    return ServerTls(settings_of(certificate)), client_context(certificate)


def settings_of(certificate: Certificate, **settings: Any) -> Settings:
    return Settings(
        ssl_certificate_location=str(certificate.certificate),
        ssl_key_location=str(certificate.key),
        **settings,
    )


def client_context(trusted: Certificate) -> ssl.SSLContext:
    client = ssl.create_default_context(cafile=str(trusted.certificate))
    client.check_hostname = False
    return client


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
        async with serving({1: big_fetch}, tls=contexts[0]) as under_test:
            client = await under_test.connect(ssl=contexts[1])
            for _ in range(3):
                sent = [
                    client.send(API_VERSIONS, 3),
                    client.send(FetchRequest(), 12),
                    client.send(API_VERSIONS, 3),
                ]
                received = [await client.receive() for _ in sent]
                assert [correlation_id for correlation_id, _ in received] == sent
                assert len(received[1][1]) > BIG

    run(main())


def test_what_the_client_does_not_take_is_counted_and_it_is_closed(run: Any, contexts: Any) -> None:
    async def main() -> None:
        async with serving({1: big_fetch}, tls=contexts[0], semel_write_timeout_ms=300) as under_test:
            client = await under_test.connect(ssl=contexts[1], limit=1024)
            for _ in range(5):
                client.send(FetchRequest(), 12)
            await until_async(lambda: under_test.context.responses.used > BIG // 4)
            assert under_test.broker.metrics.apis[1].requests == 1
            await until_async(lambda: not under_test.context.connections)
            assert under_test.broker.metrics.connections_closed == {"slow reader": 1}

    run(main())


def test_plain_bytes_to_a_tls_listener_are_refused(run: Any, contexts: Any) -> None:
    async def main() -> None:
        async with serving(tls=contexts[0]) as under_test:
            client = await under_test.connect()
            client.send(API_VERSIONS, 3)
            assert await client.is_closed()

    run(main())


def shake_hands(port: int, context: ssl.SSLContext) -> tuple[str | None, str, bytes]:
    """A real handshake: the version, the cipher and the certificate that was shown."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as secured:
        secured.settimeout(10)
        # With TLS 1.3 a client learns only from an answer that its certificate was accepted.
        secured.sendall(bytes([0, 0, 0, 12, 0, 18, 0, 0, 0, 0, 0, 1, 0, 2]) + b"me")
        if not secured.recv(4):
            raise ConnectionError("closed instead of answered")
        cipher, shown = secured.cipher(), secured.getpeercert(binary_form=True)
        assert cipher is not None
        assert shown is not None
        return secured.version(), cipher[0], shown


async def knock(under_test: ServerUnderTest, context: ssl.SSLContext) -> tuple[str | None, str, bytes]:
    return await asyncio.to_thread(shake_hands, under_test.server.ports["test"], context)


def only(
    client: ssl.SSLContext, *, ciphers: str = "", version: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    if ciphers:
        client.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    if version is not None:
        client.minimum_version = client.maximum_version = version
    return client


TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
GCM, CBC, STATIC = "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA256", "AES128-GCM-SHA256"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@pytest.mark.parametrize(
    ("settings", "ciphers", "version", "accepted"),
    [
        ({}, GCM, TLS_1_2, GCM),
        ({}, CBC, TLS_1_2, None),
        ({}, STATIC, TLS_1_2, None),
        ({}, "DHE-RSA-AES128-SHA256", TLS_1_2, None),
        ({}, "", TLS_1_3, "TLS_AES_256_GCM_SHA384"),
        ({}, "ECDHE-RSA-AES128-SHA", ssl.TLSVersion.TLSv1_1, None),
        ({"ssl_cipher_suites": CBC}, CBC, TLS_1_2, CBC),
        ({"ssl_cipher_suites": CBC}, GCM, TLS_1_2, None),
        ({"ssl_cipher_suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}, GCM, TLS_1_2, GCM),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_AES_128_CBC_SHA256"}, "AES128-SHA256", TLS_1_2, "AES128-SHA256"),
        ({"ssl_cipher_suites": "TLS_AES_256_GCM_SHA384"}, GCM, TLS_1_2, None),
        ({"ssl_enabled_protocols": "TLSv1.3"}, GCM, TLS_1_2, None),
        ({"ssl_enabled_protocols": "TLSv1.3"}, "", TLS_1_3, "TLS_AES_256_GCM_SHA384"),
        ({"ssl_enabled_protocols": "TLSv1.2"}, "", TLS_1_3, None),
    ],
    ids=str,
)
def test_which_handshakes_succeed(
    certificate: Certificate,
    settings: dict[str, str],
    ciphers: str,
    version: ssl.TLSVersion,
    accepted: str | None,
) -> None:
    client = only(client_context(certificate), ciphers=ciphers, version=version)

    async def main() -> None:
        async with serving(tls=ServerTls(settings_of(certificate, **settings))) as under_test:
            try:
                _, cipher, _ = await knock(under_test, client)
            except OSError:
                cipher = None
            assert cipher == accepted
            closed = under_test.broker.metrics.connections_closed
            assert closed.get("tls handshake", 0) == (accepted is None)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"},
            "ssl.enabled.protocols.* TLSv1.2 .*TLSv1.3",
        ),
        ({"ssl_enabled_protocols": ""}, "ssl.enabled.protocols"),
        ({"ssl_cipher_suites": f"{GCM},nonsense"}, "ssl.cipher.suites"),
    ],
)
def test_settings_that_cannot_be_are_named(
    certificate: Certificate, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        server(settings_of(certificate, **settings))


def test_rejected_handshakes_are_logged_a_few_times(
    run: Any, contexts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Plain bytes, a client that does not trust us, one that leaves: each is told, at a bounded rate."""
    stranger = ssl.create_default_context()
    stranger.check_hostname = False

    async def main() -> None:
        async with serving(tls=contexts[0]) as under_test:
            for _ in range(12):
                with pytest.raises(ssl.SSLError):
                    await knock(under_test, stranger)
            closed = under_test.broker.metrics.connections_closed
            await until_async(lambda: closed.get("tls handshake", 0) == 12)
            await knock(under_test, contexts[1])

    with caplog.at_level(logging.WARNING, "semel.server"):
        run(main())
    lines = [each for each in caplog.records if each.message == "tls handshake failed"]
    assert 1 <= len(lines) <= 5
    fields = lines[0].fields  # type: ignore[attr-defined]
    assert fields["client"] == "127.0.0.1"
    assert "alert" in str(fields["detail"]).lower()


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(run: Any, contexts: Any) -> None:
    """One write of the client holds both, so both are there before anyone heard of the first."""
    frame = bytes([0, 0, 0, 12, 0, 18, 0, 0, 0, 0, 0, 1, 0, 2]) + b"me"

    def ask(port: int) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = contexts[1].wrap_bio(incoming, outgoing)
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            while True:
                try:
                    secured.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    incoming.write(plain.recv(65_536))
            secured.write(frame)
            plain.sendall(outgoing.read())
            while True:
                try:
                    return bytes(secured.read(4))
                except ssl.SSLWantReadError:
                    incoming.write(plain.recv(65_536))

    async def main() -> None:
        async with serving(tls=contexts[0]) as under_test:
            for _ in range(5):
                assert len(await asyncio.to_thread(ask, under_test.server.ports["test"])) == 4

    run(main())


def replace(source: Path, target: Path) -> None:
    """As tools do it: another file takes the name. Its time is another one, however coarse the clock is."""
    fresh = target.with_suffix(".fresh")
    shutil.copyfile(source, fresh)
    os.utime(fresh, (time.time(), target.stat().st_mtime + 1))
    fresh.replace(target)


def look_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.server.tls.LOOK_SECONDS", 0.01)


def logged(caplog: pytest.LogCaptureFixture, sentence: str) -> Callable[[], bool]:
    return lambda: any(each.message == sentence for each in caplog.records)


def test_certificates_are_read_again(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look_soon(monkeypatch)
    served, renewed = make_certificate(tmp_path, "served"), make_certificate(tmp_path, "renewed")
    before, after = client_context(served), client_context(renewed)

    async def main() -> None:
        async with serving(tls=ServerTls(settings_of(served))) as under_test:
            old = await under_test.connect(ssl=before)
            with pytest.raises(ssl.SSLError):
                await knock(under_test, after)
            # The certificate comes first, and for a moment it has the key of another.
            replace(renewed.certificate, served.certificate)
            await until_async(logged(caplog, "new certificates cannot be used, the old ones stay"))
            await knock(under_test, before)
            replace(renewed.key, served.key)
            await until_async(logged(caplog, "certificates were read again"))
            await knock(under_test, after)
            with pytest.raises(ssl.SSLError):
                await knock(under_test, before)
            # Who was there before stays.
            sent = old.send(API_VERSIONS, 3)
            assert (await old.receive())[0] == sent

    with caplog.at_level(logging.INFO, "semel.server"):
        run(main())


def test_a_file_that_is_damaged_keeps_the_old_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look_soon(monkeypatch)
    served = make_certificate(tmp_path, "served")
    client = client_context(served)
    damaged = tmp_path / "damaged"
    damaged.write_text("no certificate")

    async def main() -> None:
        async with serving(tls=ServerTls(settings_of(served))) as under_test:
            replace(damaged, served.certificate)
            await until_async(logged(caplog, "new certificates cannot be used, the old ones stay"))
            await knock(under_test, client)
            served.certificate.unlink()
            caplog.clear()
            await until_async(logged(caplog, "new certificates cannot be used, the old ones stay"))
            await knock(under_test, client)

    with caplog.at_level(logging.INFO, "semel.server"):
        asyncio.run(main())
    # Once for each change, not for each look.
    refused = [each for each in caplog.records if each.message.startswith("new certificates cannot be used")]
    assert len(refused) <= 2


def test_issuers_of_clients_are_read_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever lost the trust gets in no more: the old issuers are replaced, not added to."""
    look_soon(monkeypatch)
    served = make_certificate(tmp_path, "served")
    one, other = make_certificate(tmp_path, "one"), make_certificate(tmp_path, "other")
    trusted = tmp_path / "trusted.pem"
    shutil.copyfile(one.certificate, trusted)

    def as_client(certificate: Certificate) -> ssl.SSLContext:
        context = client_context(served)
        context.load_cert_chain(certificate.certificate, certificate.key)
        return context

    async def main() -> None:
        async with serving(tls=ServerTls(settings_of(served, ssl_ca_location=str(trusted)))) as under_test:
            await knock(under_test, as_client(one))
            with pytest.raises(OSError, match=r"alert|reset|closed"):
                await knock(under_test, as_client(other))
            replace(other.certificate, trusted)
            await until_async(logged(caplog, "certificates were read again"))
            await knock(under_test, as_client(other))
            with pytest.raises(OSError, match=r"alert|reset|closed"):
                await knock(under_test, as_client(one))

    with caplog.at_level(logging.INFO, "semel.server"):
        asyncio.run(main())


def test_a_client_that_never_begins_does_not_hold_up_the_end(run: Any, contexts: Any) -> None:
    async def main() -> None:
        async with serving(tls=contexts[0]) as under_test:
            silent = socket.create_connection(("127.0.0.1", under_test.server.ports["test"]), 10)
            await knock(under_test, contexts[1])
        silent.close()

    run(main())


def test_clients_that_never_begin_count_for_the_limits(run: Any, contexts: Any) -> None:
    """They take descriptors, without which the store cannot write."""

    async def main() -> None:
        async with serving(tls=contexts[0], max_connections_per_ip=3) as under_test:
            where = ("127.0.0.1", under_test.server.ports["test"])
            silent = [socket.create_connection(where, 10) for _ in range(3)]
            with pytest.raises((ssl.SSLError, OSError)):
                await knock(under_test, contexts[1])
            for each in silent:
                each.close()
            await until_async(lambda: not under_test.server._server._by_host)
            await knock(under_test, contexts[1])

    run(main())


def test_handshakes_count_for_the_connection_rate(run: Any, contexts: Any) -> None:
    async def main() -> None:
        async with serving(tls=contexts[0]) as under_test:
            context = under_test.server._server
            context.throttling.may_connect = lambda host, now: 60_000  # type: ignore[method-assign]  # patched
            silent = socket.create_connection(("127.0.0.1", under_test.server.ports["test"]), 10)
            await until_async(lambda: bool(context._arriving))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await knock(under_test, contexts[1])
            assert not context.connections
            silent.close()

    run(main())
