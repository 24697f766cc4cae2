"""One log: offsets, deletion, sizes."""

import pytest
from support.models.rules import PARTITION, Rules, header

from semel.core.log.partition import Append, Appended, DeleteRecords, RecordsDeleted
from semel.core.topics import DeleteTopic
from semel.core.types import ErrorCode, PartitionKey


@pytest.fixture
def rules() -> Rules:
    rules = Rules()
    for _ in range(10):
        rules.append()
    return rules


def test_offsets_are_dense(rules: Rules) -> None:
    assert rules.append(count=5).base_offset == 10
    assert rules.append().base_offset == 15
    assert rules.partition.high_watermark == 16


def test_a_partition_that_does_not_exist_is_refused(rules: Rules) -> None:
    answer = rules.run(Append(PartitionKey(PARTITION.topic_id, 9), header(producer_id=-1, epoch=-1), b""))
    assert answer == Appended(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_delete_records_moves_the_start_and_the_size(rules: Rules) -> None:
    answer = rules.run(DeleteRecords(PARTITION, 4, log_start_seen=0, size_below=400))
    assert answer == RecordsDeleted(ErrorCode.NONE, 4)
    assert (rules.partition.log_start_offset, rules.partition.size_bytes) == (4, 600)


def test_delete_records_up_to_the_end_keeps_the_end(rules: Rules) -> None:
    assert rules.run(DeleteRecords(PARTITION, -1)) == RecordsDeleted(ErrorCode.NONE, 10)
    assert (rules.partition.log_start_offset, rules.partition.high_watermark) == (10, 10)
    assert rules.partition.size_bytes == 0
    assert rules.append().base_offset == 10


@pytest.mark.parametrize("offset", [11, -2])
def test_delete_records_beyond_the_log_is_refused(rules: Rules, offset: int) -> None:
    assert rules.run(DeleteRecords(PARTITION, offset)) == RecordsDeleted(ErrorCode.OFFSET_OUT_OF_RANGE)


def test_delete_records_below_the_start_changes_nothing(rules: Rules) -> None:
    rules.run(DeleteRecords(PARTITION, 4, 0, 400))
    assert rules.run(DeleteRecords(PARTITION, 2, 4, 0)) == RecordsDeleted(ErrorCode.NONE, 4)


def test_an_old_look_at_the_log_start_is_sent_back(rules: Rules) -> None:
    rules.run(DeleteRecords(PARTITION, 4, 0, 400))
    answer = rules.run(DeleteRecords(PARTITION, 6, log_start_seen=0, size_below=600))
    assert answer == RecordsDeleted(ErrorCode.KAFKA_STORAGE_ERROR)
    assert rules.partition.log_start_offset == 4


def test_producers_survive_the_deletion_of_their_records(rules: Rules) -> None:
    """Bug catalogue 48: state dropped with the records made clients fail."""
    rules.append(0)
    rules.run(DeleteRecords(PARTITION, -1))
    assert rules.append(1).error is ErrorCode.NONE
    assert rules.append(5).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_deleted_topic_takes_nothing_more(rules: Rules) -> None:
    rules.run(DeleteTopic("t", None))
    assert rules.append().error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_peak_timestamp_never_falls(rules: Rules) -> None:
    rules.append(timestamp=9_000)
    rules.append(timestamp=2_000)
    assert rules.partition.peak_timestamp == 9_000
