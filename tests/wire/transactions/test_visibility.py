"""What readers see of open, committed and aborted transactions. Behaviours 1 to 13."""

import pytest
from support.clients.raw import NOW, RawClient, batch
from support.clients.raw_log import READ_UNCOMMITTED, Log
from support.clients.raw_transactions import RawProducer, describe, make_topic, soon

from semel.wire.batch import CONTROL, TRANSACTIONAL
from semel.wire.errors import ErrorCode
from semel.wire.frames import decode_response_header
from semel.wire.messages import APIS
from semel.wire.messages.fetch import AbortedTransaction
from semel.wire.records import iter_batches, read_marker

FETCH = 1


def aborted(producer_id: int, first_offset: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id=producer_id, first_offset=first_offset)


def test_behaviour_1_what_is_open_is_not_returned(producer: RawProducer, log: Log) -> None:
    log.client.produce(log.topic, batch())
    assert producer.write(log.topic, b"a", b"b") == 1
    assert (log.stable, log.end) == (1, 3)
    part = log.fetch(1)
    assert (part.error_code, bytes(part.records or b"")) == (ErrorCode.NONE, b"")
    assert (part.last_stable_offset, part.high_watermark) == (1, 3)


def test_behaviour_2_read_uncommitted_returns_it_without_a_list(producer: RawProducer, log: Log) -> None:
    producer.write(log.topic, b"a")
    part = log.fetch(isolation=READ_UNCOMMITTED)
    assert part.aborted_transactions is None
    assert part.last_stable_offset == 0
    assert log.values(isolation=READ_UNCOMMITTED) == [b"a"]


def test_behaviour_3_a_commit_shows_it(producer: RawProducer, log: Log) -> None:
    producer.write(log.topic, b"a", b"b")
    producer.commit()
    soon(lambda: log.stable == 3)
    part = log.fetch()
    assert (part.last_stable_offset, part.high_watermark, part.aborted_transactions) == (3, 3, [])
    assert log.values() == [b"a", b"b"]


def test_behaviour_4_an_abort_names_it(producer: RawProducer, log: Log) -> None:
    producer_id = producer.producer_id
    log.client.produce(log.topic, batch(value=b"plain"))
    assert producer.write(log.topic, b"a", b"b") == 1
    producer.abort()
    soon(lambda: log.is_settled)
    part = log.fetch()
    assert part.aborted_transactions == [aborted(producer_id, 1)]
    headers = [header for _, header in iter_batches(part.records or b"")]
    assert [header.record_count for header in headers][:2] == [1, 2], "the raw data is there"
    assert log.values() == [b"plain"]
    assert log.values(isolation=READ_UNCOMMITTED) == [b"plain", b"a", b"b"]


def test_behaviour_5_a_plain_record_waits_behind_an_open_transaction(producer: RawProducer, log: Log) -> None:
    producer.write(log.topic, b"open")
    log.client.produce(log.topic, batch(value=b"plain"))
    assert (log.values(), log.stable) == ([], 0)
    producer.abort()
    soon(lambda: log.values() == [b"plain"])


def test_behaviour_6_the_oldest_open_transaction_holds_all_later_ones(client: RawClient, log: Log) -> None:
    earlier, later = RawProducer(client), RawProducer(client, generation=2)
    earlier.write(log.topic, b"earlier")
    later.write(log.topic, b"later")
    later.commit()
    assert (log.stable, log.values()) == (0, [])
    earlier.commit()
    soon(lambda: log.values() == [b"earlier", b"later"])
    assert log.is_settled


def test_behaviour_7_one_marker_in_each_partition(producer: RawProducer, client: RawClient) -> None:
    topic = make_topic(client, 3)
    producer_id, epoch = producer.pair
    logs = [Log(client, topic, index) for index in range(3)]
    for index in range(3):
        producer.write(topic, b"v", partition=index)
    producer.commit()
    soon(lambda: describe(client, producer.transactional_id).transaction_state == "CompleteCommit")
    for log in logs:
        part = log.fetch(1)
        data = bytes(part.records or b"")
        ((at, header),) = iter_batches(data)
        assert (header.base_offset, header.record_count, header.base_sequence) == (1, 1, -1)
        assert header.attributes == TRANSACTIONAL | CONTROL
        # In the second generation the marker already has the epoch of the next transaction.
        assert (header.producer_id, header.producer_epoch) == (producer_id, epoch + producer.generation - 1)
        marker = read_marker(data, at)
        assert marker is not None
        assert marker.commit
        assert marker.coordinator_epoch >= 0
        assert log.values() == [b"v"]


def test_behaviour_8_the_marker_and_the_last_stable_offset_move_together(
    producer: RawProducer, log: Log
) -> None:
    """Nobody can see the marker in the log and the transaction still open."""
    producer.write(log.topic, b"a")
    producer.end(commit=True)
    soon(lambda: log.fetch().high_watermark == 2)
    assert log.fetch().last_stable_offset == 2


def test_behaviour_9_the_latest_offset_depends_on_the_isolation(producer: RawProducer, log: Log) -> None:
    log.client.produce(log.topic, batch())
    producer.write(log.topic, b"a", b"b")
    assert log.list_offset() == (ErrorCode.NONE, 1, -1)
    assert log.list_offset(isolation=READ_UNCOMMITTED) == (ErrorCode.NONE, 3, -1)
    producer.commit()
    soon(lambda: log.list_offset() == (ErrorCode.NONE, 4, -1))


def test_behaviour_10_a_time_above_the_last_stable_offset_is_not_found(
    producer: RawProducer, log: Log
) -> None:
    log.client.produce(log.topic, batch(timestamp=NOW))
    if producer.generation == 1:
        producer.add(log.topic)
    assert producer.send(log.topic, b"a", timestamp=NOW + 10).error_code == ErrorCode.NONE
    assert log.list_offset(NOW) == (ErrorCode.NONE, 0, NOW)
    assert log.list_offset(NOW + 1) == (ErrorCode.NONE, -1, -1)
    assert log.list_offset(NOW + 1, isolation=READ_UNCOMMITTED) == (ErrorCode.NONE, 1, NOW + 10)
    producer.commit()
    soon(lambda: log.list_offset(NOW + 1) == (ErrorCode.NONE, 1, NOW + 10))


def test_behaviour_11_between_last_stable_offset_and_end_there_is_nothing(
    producer: RawProducer, log: Log
) -> None:
    producer.write(log.topic, b"a", b"b")
    for offset in range(3):
        part = log.fetch(offset)
        assert (part.error_code, bytes(part.records or b"")) == (ErrorCode.NONE, b"")
    assert log.fetch(3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_12_the_end_of_a_transaction_wakes_readers(
    producer: RawProducer, bootstrap: str, log: Log, commit: bool
) -> None:
    producer_id = producer.producer_id
    producer.write(log.topic, b"a")
    with RawClient(bootstrap) as reader:
        request = Log(reader, log.topic).request(max_wait_ms=10_000, min_bytes=1)
        reader.send(request, 11)
        # Another record does not wake it: it is behind the open transaction.
        assert log.client.produce(log.topic, batch(value=b"plain")).error_code == ErrorCode.NONE
        assert producer.end(commit=commit).error_code == ErrorCode.NONE
        frame = reader.receive_frame()
    assert frame is not None
    _, position = decode_response_header(frame, FETCH, 11)
    answer = APIS[FETCH].response.decode(frame, 11, position)
    part = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
    assert part.records
    expected = [] if commit else [aborted(producer_id, 0)]
    assert part.aborted_transactions == expected, "the list comes with a parked fetch too"


def test_behaviour_13_a_fetch_in_the_middle_still_names_what_was_aborted(
    producer: RawProducer, client: RawClient
) -> None:
    topic = make_topic(client, segment_bytes=str(1 << 20))
    log = Log(client, topic)
    producer_id = producer.producer_id
    size = 300_000
    producer.write(topic, b"a" * size)
    for _ in range(6):
        producer.send(topic, b"a" * size)
    producer.abort()
    soon(lambda: log.is_settled)
    assert log.end == 8
    for offset in range(8):
        assert log.fetch(offset).aborted_transactions == [aborted(producer_id, 0)], offset
    assert log.fetch(8).aborted_transactions == []
    assert log.values() == []


def test_aborted_transactions_that_overlap_are_all_named_in_order(client: RawClient, log: Log) -> None:
    """Catalogue 70: a client that trusts the order reads aborted records if it is another."""
    several = [RawProducer(client, generation=1 + index % 2) for index in range(4)]
    for producer in several:
        producer.write(log.topic, b"first")
    for producer in several:
        assert producer.send(log.topic, b"second").error_code == ErrorCode.NONE
    first_offsets = {producer.producer_id: at for at, producer in enumerate(several)}
    for producer in reversed(several):
        producer.abort()
    soon(lambda: log.is_settled)
    named = log.fetch().aborted_transactions
    assert named is not None
    assert {(each.producer_id, each.first_offset) for each in named} == set(first_offsets.items())
    assert log.values() == []


def test_an_empty_log_has_no_last_stable_offset_of_minus_one(log: Log) -> None:
    part = log.fetch()
    assert (part.last_stable_offset, part.high_watermark, part.aborted_transactions) == (0, 0, [])


def test_a_read_up_to_the_end_reaches_the_end(producer: RawProducer, log: Log) -> None:
    """Catalogue 74: a trailing marker, or aborted data alone, must not keep a reader from the end."""
    producer.write(log.topic, b"a")
    producer.abort()
    soon(lambda: log.is_settled)
    assert log.list_offset() == (ErrorCode.NONE, 2, -1)
    assert log.read() == ([], 2)
