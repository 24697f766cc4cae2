"""Connections and routing, against a broker that misbehaves on purpose."""

import socket
import threading
from typing import Any

import pytest

from semel.client import (
    BrokerUnreachable,
    Client,
    ConnectionLost,
    KafkaError,
    RequestTimedOut,
    UnsupportedRequest,
)
from semel.client.errors import ErrorCode, check
from semel.client.net.connection import Connection, VersionRange
from semel.wire.addresses import parse_address, parse_addresses
from semel.wire.frames import FrameParser, encode_response
from semel.wire.messages import (
    ApiVersion,
    ApiVersionsResponse,
    Coordinator,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:1234", ("localhost", 1234)),
        ("localhost", ("localhost", 9092)),
        ("[::1]:9094", ("::1", 9094)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":9092", "host:port", "host:70000", "host:-1", "[::1]9092", "[::1", "host:٣"]
)
def test_wrong_addresses_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT"):
        parse_addresses([text, text] if text else "")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        Client(f"127.0.0.1:{port}") as client,
        pytest.raises(BrokerUnreachable),
    ):
        client.describe()


def test_second_bootstrap_server_is_tried(fake_broker: Any) -> None:
    broker = fake_broker(lambda request, version: None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = free.getsockname()[1]
    with Client(["127.0.0.1:" + str(gone), broker.address]) as client:
        assert [node.port for node in client.describe().nodes] == [broker.port]


def test_an_answer_that_does_not_come_closes_the_connection(fake_broker: Any) -> None:
    broker = fake_broker(lambda request, version: None)
    with Connection("127.0.0.1", broker.port) as connection:
        with pytest.raises(RequestTimedOut):
            connection.send(DescribeClusterRequest(), timeout_s=0.05)
        assert not connection.is_open


def test_hanging_up_before_the_answer(fake_broker: Any, hang_up: Any) -> None:
    def script(request: Any, version: int) -> Any:
        raise hang_up

    broker = fake_broker(script)
    with Client(broker.address) as client, pytest.raises(ConnectionLost):
        client.send(DescribeClusterRequest())


def test_a_connection_that_the_broker_closed_while_idle_is_made_anew(fake_broker: Any) -> None:
    broker = fake_broker(lambda request, version: DescribeClusterResponse(cluster_id="c"))
    with Client(broker.address) as client:
        client.send(DescribeClusterRequest())
        connection = client.connection()
        broker.hang_up()
        assert connection._socket is not None
        connection._socket.settimeout(5)  # the end of the stream arrives, however long it takes
        assert connection._socket.recv(1, socket.MSG_PEEK) == b""
        assert client.send(DescribeClusterRequest()).cluster_id == "c"
        assert broker.connections == 2


def test_posted_requests_are_answered_in_order(fake_broker: Any) -> None:
    names = iter("abc")
    broker = fake_broker(lambda request, version: DescribeClusterResponse(cluster_id=next(names)))
    with Client(broker.address) as client:
        first, second, third = [client.post(DescribeClusterRequest()) for _ in range(3)]
        assert third.wait().cluster_id == "c"
        assert first.wait().cluster_id == "a"
        assert second.wait().cluster_id == "b"


def test_versions_that_do_not_meet(fake_broker: Any) -> None:
    broker = fake_broker(lambda request, version: None)
    with Connection("127.0.0.1", broker.port) as connection:
        connection.versions[DescribeClusterRequest.api_key] = VersionRange(7, 9)
        with pytest.raises(UnsupportedRequest, match="7 to 9"):
            connection.send(DescribeClusterRequest())
        del connection.versions[DescribeClusterRequest.api_key]
        with pytest.raises(UnsupportedRequest):
            connection.send(DescribeClusterRequest())


def test_an_older_broker_answers_api_versions_in_version_0() -> None:
    """Section 1.2: an unknown version of ApiVersions gets a version 0 body with error 35."""
    older = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=1)],
    )
    served = ApiVersionsResponse(api_keys=[ApiVersion(api_key=3, min_version=0, max_version=5)])
    asked: list[int] = []

    def serve(listening: socket.socket) -> None:
        client, _ = listening.accept()
        parser = FrameParser(1 << 20)
        answers = iter([(older, 0), (served, 1)])
        with client:
            while data := client.recv(1 << 16):
                for frame in parser.feed(data):
                    asked.append(int.from_bytes(frame[2:4], "big"))
                    response, version = next(answers)
                    client.sendall(
                        b"".join(encode_response(response, version, int.from_bytes(frame[4:8], "big")))
                    )

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        with Connection("127.0.0.1", listening.getsockname()[1]) as connection:
            assert connection.versions == {3: VersionRange(0, 5)}
        thread.join(10)
    assert asked == [4, 1]


def test_the_coordinator_is_followed_when_it_moves(fake_broker: Any) -> None:
    listed = iter([ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE])

    def script(request: Any, version: int) -> Any:
        if isinstance(request, FindCoordinatorRequest):
            here = Coordinator(key=request.coordinator_keys[0], node_id=0, host="127.0.0.1", port=broker.port)
            return FindCoordinatorResponse(coordinators=[here])
        return ListGroupsResponse(error_code=next(listed))

    broker = fake_broker(script)
    with Client(broker.address, timeout_s=5) as client:
        response = client.ask_coordinator("g", ListGroupsRequest(), lambda answer: [answer.error_code])
    assert response.error_code == 0
    kinds = [type(request).__name__ for request in broker.requests]
    assert kinds == ["FindCoordinatorRequest", "ListGroupsRequest"] * 3


def test_errors_say_what_to_do() -> None:
    with pytest.raises(KafkaError, match="'x'") as raised:
        check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic 'x'")
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError, match="7777"):
        check(7777, "it did not work")
    check(0, "nothing")


def test_a_connection_to_itself_is_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may give an outgoing connection the very port on which a dead broker listened."""
    connect = socket.create_connection

    def from_there(address: tuple[str, int], timeout: float) -> socket.socket:
        return connect(address, timeout, source_address=address)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(socket, "create_connection", from_there)
    with pytest.raises(BrokerUnreachable):
        Connection("127.0.0.1", port, timeout_s=5.0)
