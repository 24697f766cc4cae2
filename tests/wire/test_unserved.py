"""Requests that are not served: what Apache Kafka 4.3 does with them, before and after authentication.

A client that asks ApiVersions first never sends one. Others are sent away: an answer in a form that the
client does not expect would do more harm.
"""

import struct
from collections.abc import Iterator

import pytest
from support.brokers.secured_broker import secured
from support.clients.raw import RawClient

import semel

HEADER = struct.Struct(">hhih")
UNSERVED = {
    "an unknown API": (999, 0),
    "a negative API": (-1, 0),
    "an API that was removed (LeaderAndIsr)": (4, 0),
    "an API that is not advertised (ShareGroupHeartbeat)": (76, 1),
    "a version to come": (3, 99),
    "a version that was removed": (0, 2),
    "a negative version": (3, -1),
}
UNSUPPORTED_VERSION = 35


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with semel.embedded() as broker, secured(tmp_path_factory.mktemp("secured")) as guarded:
        yield {"open": broker.bootstrap_servers, "before authentication": guarded.address("SASL_PLAINTEXT")}


@pytest.mark.parametrize("where", ["open", "before authentication"])
@pytest.mark.parametrize("what", UNSERVED)
def test_the_connection_is_closed(addresses: dict[str, str], where: str, what: str) -> None:
    with RawClient(addresses[where]) as client:
        client.send_frame(HEADER.pack(*UNSERVED[what], 7, -1))
        assert client.is_closed_by_broker()


@pytest.mark.parametrize("where", ["open", "before authentication"])
def test_api_versions_of_an_unknown_version_is_answered_in_version_0(
    addresses: dict[str, str], where: str
) -> None:
    with RawClient(addresses[where]) as client:
        client.send_frame(HEADER.pack(18, 99, 7, -1) + b"\0")
        answer = client.receive_frame()
        assert answer is not None
        correlation_id, error, count, key, _, newest = struct.unpack(">ihihhh", answer)
        assert (correlation_id, error, count, key) == (7, UNSUPPORTED_VERSION, 1, 18)
        assert newest >= 3
