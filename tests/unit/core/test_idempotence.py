"""What a partition accepts from an idempotent producer.

Numbers in names are those of docs/behaviours.md. 14, 24 and 26 also have tests on the wire, and 23 one with
a real restart.
"""

import pytest
from support.models.rules import Rules

from semel.core.log.partition import AllocateProducerId, Append, ExpireProducer
from semel.core.types import ErrorCode

LAST = 2**31 - 1


@pytest.fixture
def rules() -> Rules:
    return Rules()


def test_behaviour_14_every_producer_id_is_new(rules: Rules) -> None:
    given = [rules.run(AllocateProducerId()) for _ in range(3)]
    assert given == [0, 1, 2]


def test_behaviour_15_a_batch_sent_again_gets_its_first_offset(rules: Rules) -> None:
    first = [rules.append(sequence).base_offset for sequence in range(3)]
    assert first == [0, 1, 2]
    again = rules.append(1)
    assert (again.error, again.base_offset) == (ErrorCode.NONE, 1)
    assert rules.partition.high_watermark == 3


def test_a_duplicate_is_answered_with_the_time_of_the_first(rules: Rules) -> None:
    rules.append(0, timestamp=4_242)
    assert rules.append(0, timestamp=4_242).log_append_time == 4_242


def test_behaviour_16_only_the_last_five_batches_are_remembered(rules: Rules) -> None:
    for sequence in range(6):
        rules.append(sequence)
    assert [rules.append(sequence).base_offset for sequence in range(1, 6)] == [1, 2, 3, 4, 5]
    assert rules.append(0).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(("sequence", "count"), [(5, 1), (1, 4), (2, 1), (3, 1), (0, 4)])
def test_behaviour_17_gaps_and_overlaps_are_refused(rules: Rules, sequence: int, count: int) -> None:
    rules.append(0, count=2)
    rules.append(2, count=2)
    before = rules.partition
    assert rules.append(sequence, count=count).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert rules.partition == before


def test_behaviour_18_an_unknown_producer_may_start_anywhere(rules: Rules) -> None:
    assert rules.append(7).error is ErrorCode.NONE
    assert rules.append(3, producer_id=8, transaction=1).error is ErrorCode.NONE


def test_behaviour_19_but_not_in_a_transaction_of_version_2(rules: Rules) -> None:
    assert rules.append(7, transaction=2).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert rules.append(0, transaction=2).error is ErrorCode.NONE


def test_behaviour_20_a_new_epoch_starts_at_zero(rules: Rules) -> None:
    rules.append(0)
    assert rules.append(1, epoch=1).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert rules.append(0, epoch=1).error is ErrorCode.NONE


def test_behaviour_21_an_older_epoch_is_fenced_with_47(rules: Rules) -> None:
    rules.append(0, epoch=1)
    assert rules.append(0, epoch=0).error is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_forgets_the_batches_of_the_old_one(rules: Rules) -> None:
    rules.append(0)
    rules.append(0, epoch=1)
    state = rules.state.producers[rules.producer_key()]
    assert state is not None
    assert [batch.last_offset for batch in state.batches] == [1]


def test_behaviour_22_sequences_wrap(rules: Rules) -> None:
    rules.append(LAST)
    assert rules.append(0).error is ErrorCode.NONE


def test_behaviour_22_a_batch_may_straddle_the_wrap(rules: Rules) -> None:
    rules.append(LAST - 1, count=3)
    assert rules.append(LAST - 1, count=3).base_offset == 0
    assert rules.append(1).error is ErrorCode.NONE
    assert rules.append(1, count=3).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_behaviour_25_a_silent_producer_is_forgotten(rules: Rules) -> None:
    rules.append(0)
    seen = rules.now
    assert rules.run(ExpireProducer(rules.producer_key(), seen - 1)) is False
    assert rules.run(ExpireProducer(rules.producer_key(), seen)) is True
    assert rules.append(9).error is ErrorCode.NONE


def test_behaviour_25_but_not_while_its_transaction_is_open(rules: Rules) -> None:
    rules.append(0, transaction=1)
    assert rules.run(ExpireProducer(rules.producer_key(), rules.now + 1)) is False
    assert rules.append(9, transaction=1).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("version", [1, 2])
def test_behaviour_26_a_transaction_needs_no_acks_of_all(rules: Rules, version: int) -> None:
    """The rules are not even told the acks: they only say when a client is answered."""
    assert "acks" not in Append.__struct_fields__
    assert rules.append(0, transaction=version).error is ErrorCode.NONE


def test_expiry_goes_by_the_brokers_clock_not_by_record_timestamps(rules: Rules) -> None:
    rules.append(0, timestamp=1)
    assert rules.run(ExpireProducer(rules.producer_key(), rules.now - 1)) is False


def test_behaviour_68_a_plain_batch_inside_a_transaction_is_refused(rules: Rules) -> None:
    rules.append(0, transaction=1)
    assert rules.append(1).error is ErrorCode.INVALID_TXN_STATE


def test_an_open_transaction_holds_the_last_stable_offset(rules: Rules) -> None:
    rules.append()
    rules.append(0, transaction=1)
    rules.append()
    assert (rules.partition.last_stable_offset, rules.partition.high_watermark) == (1, 3)


def test_producers_do_not_disturb_each_other(rules: Rules) -> None:
    rules.append(0, producer_id=1)
    rules.append(0, producer_id=2)
    assert rules.append(1, producer_id=1).base_offset == 2
    assert rules.append(0, producer_id=2).base_offset == 1


def test_refusals_leave_no_trace(rules: Rules) -> None:
    rules.append(0, epoch=3)
    state = dict(rules.state.producers), dict(rules.state.partitions)
    for sequence, epoch in [(0, 2), (5, 3), (1, 4)]:
        assert rules.append(sequence, epoch=epoch).error
    assert (dict(rules.state.producers), dict(rules.state.partitions)) == state
