"""One client must not stop the others: legal requests of the worst kind, beside a client that behaves.

The pauses of the event loop are measured in units of a calibrated loop (``support.pauses``), so that a slow
or busy machine does not fail a test, and a loop that is held up does.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.clients.raw import batch, produce_request
from support.waiting import until

from semel.config import Settings
from semel.wire.errors import ErrorCode
from semel.wire.frames import encode_request
from semel.wire.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    ProduceRequest,
)
from semel.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from semel.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    InitProducerIdRequest,
)
from semel.wire.schema import Request

MIB = 1 << 20
LONGEST = 2**31 - 1


@pytest.fixture
def served(serve_broker: Callable[..., Any]) -> Iterator[Any]:
    with serve_broker(
        queued_max_request_bytes=32 * MIB,
        socket_request_max_bytes=16 * MIB,
        group_initial_rebalance_delay_ms=0,
    ) as served:
        with served.connect() as wire:
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
        yield served


def produces(wire: Any) -> bool:
    answer = wire.ask(produce_request("t", batch(timestamp=int(time.time() * 1000))), 9)
    return bool(answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE)


def with_unknown_tag(request: Request, version: int, size: int) -> bytes:
    """A frame with an unknown tagged field at the end, of so many bytes."""
    frame = b"".join(encode_request(request, version, 1, "greedy"))
    length = bytearray()
    left = size
    while left >= 0x80:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    body = frame[4:-1] + b"\x01" + b"\x63" + bytes(length) + bytes(size)
    return struct.pack(">i", len(body)) + body


def send(wire: Any, frame: bytes) -> None:
    """Send a frame; the broker may close the connection before it has taken all."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 2, 0))
    try:
        wire.socket.sendall(frame)
    except OSError:
        return


def test_fetches_that_wait_for_ever_give_their_bytes_back(served: Any) -> None:
    """Each frame is as large as a Fetch may be, and all of them together are more than the budget."""
    waits = FetchRequest(max_wait_ms=LONGEST, min_bytes=LONGEST, max_bytes=LONGEST, topics=[])
    waits.topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1)])]
    frame = with_unknown_tag(waits, 12, 4 * MIB - 1_000)
    with ExitStack() as stack:
        for _ in range(10):
            send(stack.enter_context(served.connect()), frame)
        with served.connect() as neighbour:
            assert produces(neighbour)
            assert neighbour.ask(MetadataRequest(topics=None), 9).brokers


def test_joins_that_wait_for_other_members_give_their_bytes_back(served: Any) -> None:
    """Each is charged for 14 MB when it is decoded. The producer must be read from while they wait."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(220_000))]
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    requests = served.server._server.requests
    with ExitStack() as stack:
        neighbour = stack.enter_context(served.connect())
        joining = [stack.enter_context(served.connect()) for _ in range(6)]
        for wire in joining:
            wire.send(join, 3)
        until(lambda: requests.in_flight == 5, what="five joins that wait for the first member")
        until(lambda: requests.used < MIB, what="bytes that are given back")
        for _ in range(3):
            assert produces(neighbour)
        # The first member has to join again, and does not: it leaves, and the others are a generation.
        joining[0].socket.close()


@pytest.mark.parametrize("pieces", [1, 3, 5, 7])
def test_only_produce_may_be_large(served: Any, pieces: int) -> None:
    """The frame is refused by its first bytes, however they arrive, and before the others are sent."""
    frame = with_unknown_tag(MetadataRequest(topics=None), 9, 5 * MIB)
    with served.connect() as wire:
        wire.socket.sendall(frame[:pieces])
        time.sleep(0.01)
        wire.socket.sendall(frame[pieces:100])
        assert wire.receive_frame() is None
    large = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[])
    with served.connect() as wire:
        wire.socket.sendall(with_unknown_tag(large, 9, 5 * MIB))
        assert wire.receive(0, 9).responses == []


def test_a_fetch_waits_no_longer_than_the_broker_allows(serve_broker: Callable[..., Any]) -> None:
    with serve_broker(semel_fetch_wait_max_ms=50) as served, served.connect() as wire:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
        wanted = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1)])
        waits = FetchRequest(max_wait_ms=LONGEST, min_bytes=LONGEST, max_bytes=LONGEST, topics=[wanted])
        assert wire.ask(waits, 11).responses[0].partitions[0].error_code == ErrorCode.NONE


def test_large_fetches_cannot_take_all_the_room_for_waiting(serve_broker: Callable[..., Any]) -> None:
    """Beyond the limit a fetch is answered at once with what there is; small ones still find room."""
    with serve_broker(semel_fetch_waiting_partitions_max=80) as served, served.connect() as wire:
        topic = CreatableTopic(name="t", num_partitions=100, replication_factor=1)
        wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)

        def waits(partitions: int) -> FetchRequest:
            wanted = [FetchPartition(partition=each, partition_max_bytes=1) for each in range(partitions)]
            topics = [FetchTopic(topic="t", partitions=wanted)]
            return FetchRequest(max_wait_ms=LONGEST, min_bytes=1, max_bytes=1, topics=topics)

        assert len(wire.ask(waits(100), 11).responses[0].partitions) == 100
        with served.connect() as small:
            small.send(waits(5), 11)
            small.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                small.receive_frame()


def test_one_address_cannot_take_all_connections(serve_broker: Callable[..., Any]) -> None:
    with serve_broker(max_connections_per_ip=3) as served, ExitStack() as stack:
        let_in = [stack.enter_context(served.connect()) for _ in range(3)]
        assert all(wire.ask(MetadataRequest(topics=None), 9).brokers for wire in let_in)
        with served.connect() as refused:
            assert refused.receive_frame() is None
        let_in.pop().socket.close()

        def comes_in() -> bool:
            with served.connect() as wire:
                wire.send(MetadataRequest(topics=None), 9)
                return wire.receive_frame() is not None

        until(comes_in, what="room for another connection")


def test_an_address_may_have_a_limit_of_its_own(serve_broker: Callable[..., Any]) -> None:
    with (
        serve_broker(max_connections_per_ip=1, max_connections_per_ip_overrides="127.0.0.1:2") as served,
        served.connect() as first,
        served.connect() as second,
    ):
        assert first.ask(MetadataRequest(topics=None), 9).brokers
        assert second.ask(MetadataRequest(topics=None), 9).brokers
    with pytest.raises(ValueError, match="ADDRESS:NUMBER"):
        Settings(max_connections_per_ip_overrides="127.0.0.1")


def test_a_transaction_is_given_ten_thousand_partitions_at_once_at_most(served: Any) -> None:
    """It is decided and written as a whole, so more would hold up all others."""

    def add(partitions: int) -> AddPartitionsToTxnRequest:
        topic = AddPartitionsToTxnTopic(name="nowhere", partitions=list(range(partitions)))
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[topic],
        )

    with served.connect() as wire:
        assert wire.ask(add(9_999), 3).results_by_topic_v3_and_below
        wire.send(add(10_000), 3)
        assert wire.receive_frame() is None


LONG = "x" * 30_000


def test_ids_are_bounded(served: Any) -> None:
    """Ids of 30 KB are refused wherever something would be made of them, each with its own error."""
    with served.connect() as wire:
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        join = JoinGroupRequest(
            group_id=LONG, session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols
        )
        assert wire.ask(join, 5).error_code == ErrorCode.INVALID_GROUP_ID
        join.group_id, join.group_instance_id = "g", LONG
        assert wire.ask(join, 5).error_code == ErrorCode.INVALID_REQUEST
        beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id=LONG)
        assert wire.ask(beat, 1).error_code == ErrorCode.INVALID_REQUEST
        begin = InitProducerIdRequest(transactional_id=LONG, transaction_timeout_ms=1_000)
        assert wire.ask(begin, 4).error_code == ErrorCode.INVALID_REQUEST
        assert commit(wire, LONG) == ErrorCode.INVALID_GROUP_ID
        assert commit(wire, "g") == ErrorCode.NONE


def commit(wire: Any, group_id: str) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = wire.ask(OffsetCommitRequest(group_id=group_id, member_id="", topics=topics), 8)
    error: int = answer.topics[0].partitions[0].error_code
    return error


def test_what_clients_can_make_is_bounded(serve_broker: Callable[..., Any]) -> None:
    """Partitions at once; groups and transactional ids when they were counted."""
    with (
        serve_broker(semel_partitions_max=5, semel_groups_max=1, semel_transactional_ids_max=1) as served,
        served.connect() as wire,
    ):

        def create(name: str, partitions: int) -> int:
            topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            error: int = wire.ask(CreateTopicsRequest(topics=[topic]), 5).topics[0].error_code
            return error

        def begin(transactional_id: str) -> int:
            asked = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1_000)
            error: int = wire.ask(asked, 4).error_code
            return error

        assert [create("t", 3), create("u", 3), create("v", 2)] == [0, ErrorCode.POLICY_VIOLATION, 0]
        assert [begin("first"), commit(wire, "first")] == [0, 0]
        served.passes(5)  # It counts them so often.
        assert served.server.broker.counts == (5, 1, 1)
        assert [begin("first"), commit(wire, "first")] == [0, 0]
        assert begin("second") == ErrorCode.POLICY_VIOLATION
        assert commit(wire, "second") == ErrorCode.COORDINATOR_NOT_AVAILABLE
