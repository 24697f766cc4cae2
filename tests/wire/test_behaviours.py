"""The behaviours of docs/behaviours.md that can be seen on the wire, by their numbers.

Each test speaks to a real broker over a socket and states exact error codes. What is not here: 19, 25 and 26
need transactions or the passing of a day, so `tests/unit/core/test_idempotence.py` has them as rules (25 also
has a test here with a short `producer.id.expiration.ms`).
"""

import itertools
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.peer import PEER, broker_or_peer
from support.clients.raw import KEEPS_RECORDS, RawClient, batch, produce_request
from support.waiting import until

import semel
from semel.wire.batch import CONTROL, read_header, seal
from semel.wire.compression import Codec
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    APIS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from semel.wire.partitioner import coordinator_partition, java_hash
from semel.wire.records import HEADER_BYTES

LAST = 2**31 - 1
_run = uuid.uuid4().hex[:8]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker for all tests here; SEMEL_PEER names another one to hold them against (see `tests/client`)."""
    with broker_or_peer(KEEPS_RECORDS) as address:
        yield address


class Producer:
    """One producer id on one new topic; every answer as (error, base offset)."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.topic = f"behaviour-{_run}-{next(_numbers)}"
        client.create_topic(self.topic)
        if PEER:
            # Elsewhere a topic may need a moment. Here it is there when its creation was answered.
            until(lambda: client.fetch(self.topic).error_code == ErrorCode.NONE, what="a leader")
        self.producer_id = client.new_producer()

    def send(self, sequence: int, count: int = 1, *, epoch: int = 0) -> tuple[int, int]:
        records = batch(sequence, count, producer_id=self.producer_id, producer_epoch=epoch)
        answer = self.client.produce(self.topic, records)
        return answer.error_code, answer.base_offset

    @property
    def high_watermark(self) -> int:
        return self.client.fetch(self.topic).high_watermark


@pytest.fixture
def producer(client: RawClient) -> Producer:
    return Producer(client)


REFUSED = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


@pytest.mark.parametrize("version", range(6))
def test_behaviour_14_every_producer_id_is_new(client: RawClient, version: int) -> None:
    answers = [client.ask(InitProducerIdRequest(transactional_id=None), version) for _ in range(3)]
    assert [(each.error_code, each.producer_epoch) for each in answers] == [(0, 0)] * 3
    assert len({each.producer_id for each in answers}) == 3


def test_behaviour_14_id_and_epoch_of_the_request_are_ignored(client: RawClient) -> None:
    first = client.new_producer()
    request = InitProducerIdRequest(transactional_id=None, producer_id=first, producer_epoch=5)
    answer = client.ask(request, 4)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id != first


def test_behaviour_15_a_batch_sent_again_gets_its_first_offset(producer: Producer) -> None:
    assert [producer.send(sequence) for sequence in range(3)] == [(0, 0), (0, 1), (0, 2)]
    assert producer.send(1) == (0, 1)
    assert producer.high_watermark == 3


def test_behaviour_15_also_when_all_five_are_under_way_at_once(producer: Producer) -> None:
    """A client may have five requests under way, and repeats them all after a lost connection."""
    requests = [
        produce_request(producer.topic, batch(at, producer_id=producer.producer_id, producer_epoch=0))
        for at in range(5)
    ]
    client = producer.client
    for request in requests * 2:
        client.send(request, 9)
    offsets = []
    for _ in range(10):
        frame = client.receive_frame()
        assert frame is not None
        answer = APIS[0].response.decode(frame, 9, 5)
        part = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
        assert part.error_code == ErrorCode.NONE
        offsets.append(part.base_offset)
    assert offsets == [0, 1, 2, 3, 4] * 2
    assert producer.high_watermark == 5


def test_behaviour_16_the_sixth_latest_batch_is_forgotten(producer: Producer) -> None:
    for sequence in range(6):
        assert producer.send(sequence) == (0, sequence)
    assert producer.send(1) == (0, 1)
    assert producer.send(0) == REFUSED
    assert producer.high_watermark == 6


@pytest.mark.parametrize(("sequence", "count"), [(5, 1), (1, 2), (1, 1), (0, 3), (2, 1)])
def test_behaviour_17_gaps_and_overlaps_are_refused(producer: Producer, sequence: int, count: int) -> None:
    assert producer.send(0, 2) == (0, 0)
    assert producer.send(2, 2) == (0, 2)
    assert producer.send(sequence, count) == REFUSED
    assert producer.high_watermark == 4
    assert producer.send(4) == (0, 4)


def test_behaviour_18_an_unknown_producer_may_start_anywhere(producer: Producer) -> None:
    assert producer.send(7) == (0, 0)
    assert producer.send(8) == (0, 1)


def test_behaviour_20_a_higher_epoch_starts_at_zero(producer: Producer) -> None:
    assert producer.send(0) == (0, 0)
    assert producer.send(1, epoch=1) == REFUSED
    assert producer.send(0, epoch=1) == (0, 1)


def test_behaviour_21_a_lower_epoch_is_fenced_with_47(producer: Producer) -> None:
    assert producer.send(0, epoch=3) == (0, 0)
    assert producer.send(0, epoch=2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert producer.high_watermark == 1


def test_behaviour_22_zero_follows_the_last_sequence(producer: Producer) -> None:
    assert producer.send(LAST) == (0, 0)
    assert producer.send(0) == (0, 1)


def test_behaviour_22_a_batch_may_straddle_the_wrap(producer: Producer) -> None:
    assert producer.send(LAST - 1, 3) == (0, 0)
    assert producer.send(1) == (0, 3)
    assert producer.send(LAST - 1, 3) == (0, 0)


def test_behaviour_23_a_restart_does_not_forget_batches(tmp_path: Path) -> None:
    """Kafka keeps the last batch only, if a snapshot was taken. All five survive here, which is stronger."""
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        producer = Producer(client)
        for sequence in range(6):
            assert producer.send(sequence) == (0, sequence)
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        producer.client = client
        assert [producer.send(sequence) for sequence in range(1, 6)] == [(0, at) for at in range(1, 6)]
        assert producer.send(0) == REFUSED
        assert producer.send(6) == (0, 6)
        assert producer.high_watermark == 7


def test_behaviour_23_a_restart_never_gives_a_producer_id_twice(tmp_path: Path) -> None:
    given = []
    for _ in range(3):
        with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
            given += [client.new_producer(), client.new_producer()]
    assert len(set(given)) == len(given)


def changed(records: bytes, **fields: int) -> bytes:
    """The batch with other header fields and the checksum that belongs to them."""
    return seal(read_header(records)._replace(**fields), records[HEADER_BYTES:])


PLAIN = batch()
VIOLATIONS = {
    "control bit": changed(PLAIN, attributes=CONTROL),
    "producer id without a sequence": changed(PLAIN, producer_id=1, producer_epoch=0),
    "two batches": PLAIN + PLAIN,
    "base offset is not zero": changed(PLAIN, base_offset=1),
    "no records at all": b"",
    "cut off": PLAIN[:-1],
    "record count is zero": changed(PLAIN, record_count=0, last_offset_delta=-1),
    "fewer offsets than records": changed(batch(count=3), last_offset_delta=1),
    "message format 1": PLAIN[:16] + b"\x01" + PLAIN[17:],
}


@pytest.mark.parametrize("records", VIOLATIONS.values(), ids=VIOLATIONS)
@pytest.mark.parametrize("version", [3, 8, 12])
def test_behaviour_24_what_is_not_one_proper_batch_is_refused_with_87(
    producer: Producer, records: bytes, version: int
) -> None:
    answer = producer.client.produce(producer.topic, records, version=version)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert producer.high_watermark == 0


@pytest.mark.parametrize("records", [None, changed(PLAIN, attributes=5)], ids=["null", "codec 5"])
def test_behaviour_24_also_where_kafka_has_no_proper_answer(
    producer: Producer, records: bytes | None
) -> None:
    """Kafka 4.3 answers an unknown codec with UNKNOWN_SERVER_ERROR, and null not at all."""
    answer = producer.client.produce(producer.topic, records)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert producer.high_watermark == 0


def test_a_wrong_checksum_is_corrupt_message(producer: Producer) -> None:
    """The client sends it again, which helps if the network was to blame."""
    damaged = PLAIN[:-1] + bytes([PLAIN[-1] ^ 1])
    assert producer.client.produce(producer.topic, damaged).error_code == ErrorCode.CORRUPT_MESSAGE
    assert producer.high_watermark == 0


def test_one_refused_partition_does_not_touch_the_others(client: RawClient) -> None:
    topic = f"behaviour-{_run}-{next(_numbers)}"
    client.create_topic(topic, partitions=2)
    request = produce_request(topic, PLAIN)
    request.topic_data[0].partition_data += (
        produce_request(topic, VIOLATIONS["two batches"], partition=1).topic_data[0].partition_data
    )
    answers = client.ask(request, 9).responses[0].partition_responses
    assert [each.error_code for each in answers] == [ErrorCode.NONE, ErrorCode.INVALID_RECORD]
    assert client.fetch(topic).high_watermark == 1


@pytest.mark.parametrize("records", [VIOLATIONS["two batches"], VIOLATIONS["control bit"]])
def test_with_acks_0_an_error_closes_the_connection(
    bootstrap: str, producer: Producer, records: bytes
) -> None:
    with RawClient(bootstrap) as other:
        other.send(produce_request(producer.topic, PLAIN, acks=0), 9)
        other.send(produce_request(producer.topic, records, acks=0), 9)
        assert other.is_closed_by_broker()
    until(lambda: producer.high_watermark == 1, what="the first batch")


def test_acks_other_than_these_three_are_refused(producer: Producer) -> None:
    answer = producer.client.produce(producer.topic, PLAIN, acks=2)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_behaviour_25_a_silent_producer_is_forgotten() -> None:
    settings = {"producer.id.expiration.ms": 200, "producer.id.expiration.check.interval.ms": 100}
    with semel.embedded(settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        producer = Producer(client)
        assert producer.send(0) == (0, 0)
        # The first answer that is not a refusal: a refusal changes nothing, so asking again is no activity.
        until(lambda: producer.send(9) == (0, 1), what="forgetting")
        assert producer.send(10) == (0, 2)


@pytest.mark.parametrize("version", [5, 9, 32767])
def test_behaviour_93_api_versions_of_an_unknown_version_gets_version_0(
    client: RawClient, version: int
) -> None:
    # The layout of a version that does not exist is unknown; it begins with the client's software.
    correlation_id = client.send_header(18, version, b"\x00\x04raw\x041.0\x00")
    frame = client.receive_frame()
    assert frame is not None
    assert struct.unpack_from(">i", frame) == (correlation_id,)
    answer = ApiVersionsResponse.decode(frame, 0, 4)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert ranges == {18: (0, 4)}
    # The client asks again on the same connection, now with a version that it was told.
    assert client.ask(asking(), ranges[18][1]).error_code == ErrorCode.NONE


def asking() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


def test_behaviour_94_version_3_leaves_out_features_with_minimum_0(client: RawClient) -> None:
    third, fourth = client.ask(asking(), 3), client.ask(asking(), 4)
    assert third.supported_features
    assert all(each.min_version > 0 for each in third.supported_features)
    levels = {each.name: (each.min_version, each.max_version) for each in fourth.supported_features}
    assert levels["transaction.version"] == (0, 2)
    assert levels["group.version"] == (0, 1)
    for answer in third, fourth:
        assert answer.finalized_features_epoch >= 0
        finalized = {each.name: each.max_version_level for each in answer.finalized_features}
        assert finalized["group.version"] == 1
        assert all(each.max_version_level == each.min_version_level > 0 for each in answer.finalized_features)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_is_answered_in_every_version(client: RawClient, version: int) -> None:
    answer = client.ask(asking(), version)
    assert answer.error_code == ErrorCode.NONE
    assert {0, 1, 2, 3, 18} <= {each.api_key for each in answer.api_keys}


@pytest.mark.parametrize("name", ["", "-raw", "ra w", "raw-"])
def test_the_name_of_the_client_software_is_checked(client: RawClient, name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
    assert client.ask(request, 3).error_code == ErrorCode.INVALID_REQUEST


def test_behaviour_95_produce_is_advertised_from_0(client: RawClient) -> None:
    """KAFKA-18659: librdkafka stops compressing if it is not."""
    ranges = {each.api_key: (each.min_version, each.max_version) for each in client.ask(asking(), 4).api_keys}
    assert ranges[0] == (0, 13)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_behaviour_95_a_real_produce_below_3_closes_the_connection(bootstrap: str, version: int) -> None:
    with RawClient(bootstrap) as client:
        client.send_header(0, version, struct.pack(">hii", 1, 1_000, 0))
        assert client.is_closed_by_broker()


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(0, 14), (1, 3), (4, 0), (3, 14), (22, 6), (999, 0), (-1, 0), (19, 1)],
    ids=lambda each: str(each),
)
def test_what_is_not_advertised_closes_the_connection(bootstrap: str, api_key: int, version: int) -> None:
    with RawClient(bootstrap) as client:
        client.send_header(api_key, version, bytes(8))
        assert client.is_closed_by_broker()


@pytest.mark.parametrize("codec", list(Codec))
def test_behaviour_96_batches_are_stored_as_they_were_compressed(producer: Producer, codec: Codec) -> None:
    """The broker's half; that clients compress is checked in `tests/client` with each of them."""
    sent = batch(count=20, value=b"compressible " * 50, codec=codec)
    assert producer.client.produce(producer.topic, sent).error_code == ErrorCode.NONE
    answer = producer.client.fetch(producer.topic)
    stored = bytes(answer.records or b"")
    assert read_header(stored).codec is codec
    # All but base offset and leader epoch, which are the broker's, is what was sent.
    assert stored[16:] == sent[16:]


@pytest.mark.parametrize(("version", "error"), [(6, 76), (7, 0)])
def test_zstd_needs_produce_7(producer: Producer, version: int, error: int) -> None:
    answer = producer.client.produce(producer.topic, batch(codec=Codec.ZSTD), version=version)
    assert answer.error_code == error


@pytest.mark.parametrize("key_type", [0, 1])
def test_behaviour_103_the_coordinator_is_the_same_in_every_version(client: RawClient, key_type: int) -> None:
    """Kafka answers 15 while it makes an internal topic; there is none to be made here."""
    found = set()
    for version in range(7):
        if version == 0 and key_type == 1:
            continue
        keys = ["orders-1"]
        request = FindCoordinatorRequest(key=keys[0], key_type=key_type, coordinator_keys=keys)
        answer = client.ask(request, version)
        one = answer.coordinators[0] if version >= 4 else answer
        assert one.error_code == ErrorCode.NONE
        found.add((one.node_id, one.host, one.port))
    assert len(found) == 1


def test_behaviour_103_every_connection_hears_the_same(bootstrap: str) -> None:
    found = set()
    for client_id in "one", "two", None:
        with RawClient(bootstrap, client_id) as client:
            request = FindCoordinatorRequest(key_type=1, coordinator_keys=["orders-1", "orders-2", ""])
            answers = client.ask(request, 4).coordinators
            assert [each.key for each in answers] == ["orders-1", "orders-2", ""]
            found |= {(each.node_id, each.host, each.port) for each in answers}
    assert len(found) == 1


# What `hashCode()` of a Java string says, printed by Java itself, and the partition of 50, which is the
# default number of partitions of __transaction_state.
JAVA_HASHES = {
    "": (0, 0),
    "a": (97, 47),
    "my-transactional-id": (-959_806_496, 46),
    "polygenelubricants": (-(2**31), 0),
    "größe": (98_762_257, 7),
    "😀": (1_772_899, 49),
    "orders-ñandú-7": (61_647_926, 26),
    "事务-0": (619_337_113, 13),
    "spark-query/3/7/0": (196_651_397, 47),
}


@pytest.mark.parametrize("key", JAVA_HASHES)
def test_behaviour_104_the_coordinator_partition_follows_javas_hash(key: str) -> None:
    hashed, partition = JAVA_HASHES[key]
    assert java_hash(key) == hashed
    assert coordinator_partition(key, 50) == partition
