"""What may be written in a transaction: adding by request, adding by writing, and verification, as rules."""

import pytest
from support.models.rules import header
from support.models.transaction_rules import (
    ID,
    J0,
    J1,
    M0,
    M1,
    M2,
    Producer,
    TransactionRules,
    holds_together,
)

from semel.core.log.partition import Append, ExpireProducer
from semel.core.topics import CreateTopic, DeleteTopic
from semel.core.transactions.commands import AddOffsets, AddPartitions, VerifyPartitions
from semel.core.types import ErrorCode, PartitionKey, TransactionKey, TransactionState

ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
FENCED = ErrorCode.PRODUCER_FENCED
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
UNMAPPED = ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.fixture
def rules() -> TransactionRules:
    return TransactionRules()


@pytest.fixture
def first(rules: TransactionRules) -> Producer:
    return Producer(rules, 1)


@pytest.fixture
def second(rules: TransactionRules) -> Producer:
    return Producer(rules, 2)


@pytest.mark.parametrize(
    ("pair", "code"), [((0, 1), FENCED), ((0, -1), FENCED), ((5, 0), UNMAPPED), ((5, 1), UNMAPPED)]
)
def test_behaviour_30_31_only_the_pair_of_the_id_adds(
    rules: TransactionRules, pair: tuple[int, int], code: ErrorCode
) -> None:
    producer = Producer(rules)
    assert producer.pair == (0, 0)
    assert producer.add(M0, pair=pair) is code
    assert producer.add_offsets(pair=pair) is code
    assert producer.send(M0, pair=pair, version=2).error is code
    assert producer.send_offset(1, pair=pair, version=2) is code
    assert rules.state_of() is TransactionState.EMPTY
    producer.transactional_id = "nobody"
    assert producer.add(M0) is UNMAPPED
    assert producer.add_offsets() is UNMAPPED
    assert producer.send(M0, version=2).error is UNMAPPED


def test_behaviour_32_adding_again_changes_nothing(rules: TransactionRules, first: Producer) -> None:
    assert first.add(M0, M1, M2) is ErrorCode.NONE
    assert first.add_offsets() is ErrorCode.NONE
    assert rules.decide(AddPartitions(ID, *first.pair, (M2, M0))).facts == ()
    assert rules.decide(AddOffsets(ID, *first.pair, "g")).facts == ()
    assert rules.transaction().partitions == (M0, M1, M2)


def test_a_transaction_starts_with_the_first_addition(rules: TransactionRules, first: Producer) -> None:
    rules.now += 100
    started = rules.now
    first.add(M0)
    rules.now += 100
    first.add(M1)
    found = rules.transaction()
    assert (found.state, found.started_ms) == (TransactionState.ONGOING, started)
    assert (found.deadline_ms, found.updated_ms) == (started + found.timeout_ms, rules.now)
    first.commit()
    first.add(M2)
    found = rules.transaction()
    assert (found.partitions, found.started_ms) == ((M2,), rules.now), "nothing is left of the one before"


def test_behaviour_48_the_first_write_adds(rules: TransactionRules, second: Producer) -> None:
    second.write(M1)
    second.write(J0)
    found = rules.transaction()
    assert (found.state, found.partitions) == (TransactionState.ONGOING, (M1, J0))


def test_behaviour_48_a_refused_write_adds_nothing(rules: TransactionRules, second: Producer) -> None:
    assert second.send(M0, sequence=1).error is OUT_OF_ORDER
    assert second.send(PartitionKey(b"unknown".ljust(16), 0)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rules.state_of() is TransactionState.EMPTY


def test_partitions_of_one_request_join_with_the_first(rules: TransactionRules, second: Producer) -> None:
    """A transaction that five partitions join changes once, not five times."""
    second.write(M2)
    before = rules.count(TransactionKey)
    assert second.send(M0, also=(M1, M2, J0)).error is ErrorCode.NONE
    assert rules.transaction().partitions == (M2, M0, M1, J0)
    for key in (M1, J0):
        assert second.send(key).error is ErrorCode.NONE
    assert rules.count(TransactionKey) == before + 1
    second.commit()
    assert rules.at(M0).high_watermark == rules.at(M1).high_watermark == 2, "a record and a marker"


def test_behaviour_48_what_comes_with_a_refused_write_does_not_join(
    rules: TransactionRules, second: Producer
) -> None:
    assert second.send(M0, sequence=1, also=(M1,)).error is OUT_OF_ORDER
    assert rules.state_of() is TransactionState.EMPTY


def test_what_has_joined_and_was_refused_gets_no_marker(rules: TransactionRules, second: Producer) -> None:
    assert second.send(M0, also=(M1,)).error is ErrorCode.NONE
    assert second.send(M1, sequence=1).error is OUT_OF_ORDER
    second.commit()
    assert (rules.at(M0).high_watermark, rules.at(M1).high_watermark) == (2, 0)


def test_behaviour_50_a_late_write_is_refused(rules: TransactionRules, second: Producer) -> None:
    late = second.pair
    second.write(M0)
    second.commit()
    for _ in range(2):
        assert second.send(M0, pair=late, sequence=1).error is FENCED
        assert second.send(J0, pair=late, sequence=0).error is FENCED
        assert second.send(M1, pair=late, sequence=0).error is FENCED, "also where it was never seen"
        second.write(M2)
    assert rules.transaction().partitions == (M2,)


def test_behaviour_61_what_was_not_added_is_not_written(rules: TransactionRules, first: Producer) -> None:
    assert first.send(M0).error is ABORTABLE
    first.add(M1)
    for key in (M0, J0):
        assert first.send(key).error is ABORTABLE
        assert rules.at(key).high_watermark == 0
    assert first.send(M1).error is ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("key", [M0, J0])
def test_behaviour_62_a_late_write_opens_nothing(
    rules: TransactionRules, first: Producer, key: PartitionKey, commit: bool
) -> None:
    """Catalogue 75 and 76: it would hold the last stable offset for ever."""
    first.write(key)
    first.finish(commit=commit)
    assert first.send(key).error is ABORTABLE
    assert rules.at(key).open_transactions == ()
    holds_together(rules)


def test_behaviour_65_verification_can_be_turned_off(rules: TransactionRules, first: Producer) -> None:
    """The write joins the transaction, so that its end finds it: nothing hangs."""
    assert first.send(M0, must_be_added=False).error is ErrorCode.NONE
    assert rules.transaction().partitions == (M0,)
    assert first.send_offset(3, must_be_added=False) is ErrorCode.NONE
    first.commit()
    assert rules.at(M0).last_stable_offset == 2
    assert rules.committed() == 3
    holds_together(rules)


@pytest.mark.parametrize("version", [1, 2])
def test_behaviour_66_between_the_check_and_the_write_there_is_nothing(
    rules: TransactionRules, version: int
) -> None:
    """Whichever is decided first: the write is in the transaction, or it is refused."""
    producer = Producer(rules, version)
    producer.write(M0)
    late = producer.command(M0)
    producer.commit()
    answer = rules.run(late)
    assert answer.error is (ABORTABLE if version == 1 else FENCED)
    assert rules.at(M0).last_stable_offset == rules.at(M0).high_watermark == 2


def test_behaviour_67_nothing_overtakes_the_first_batch(rules: TransactionRules, second: Producer) -> None:
    """Catalogue 45."""
    assert second.send(M0, sequence=5).error is OUT_OF_ORDER
    assert second.send(M0, 5).error is ErrorCode.NONE
    assert second.send(M0).error is ErrorCode.NONE


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("key", [M0, J0])
def test_behaviour_68_a_plain_batch_inside_a_transaction_is_refused(
    rules: TransactionRules, version: int, key: PartitionKey
) -> None:
    producer = Producer(rules, version)
    producer.write(key)
    plain = header(1, producer_id=producer.producer_id, epoch=producer.epoch)
    answer = rules.run(Append(key, plain, b"", is_journal=key == J0))
    assert answer.error is ErrorCode.INVALID_TXN_STATE


def test_a_fenced_producer_is_refused_where_the_log_does_not_know_it(rules: TransactionRules) -> None:
    for version in (1, 2):
        old = Producer(rules, version)
        Producer(rules, version)
        assert old.send(M0).error is FENCED
    assert rules.at(M0).high_watermark == 0


def test_verify_only_asks(rules: TransactionRules, first: Producer) -> None:
    first.add(M0, J0)
    wanted = (M0, M1, J0)
    assert rules.run(VerifyPartitions(ID, *first.pair, wanted)) == (0, ABORTABLE, 0)
    assert rules.run(VerifyPartitions(ID, first.producer_id, 5, wanted)) == (FENCED,) * 3
    assert rules.run(VerifyPartitions(ID, 5, 0, wanted)) == (UNMAPPED,) * 3
    assert rules.run(VerifyPartitions("nobody", 0, 0, wanted)) == (UNMAPPED,) * 3
    first.commit()
    assert rules.run(VerifyPartitions(ID, *first.pair, wanted)) == (ABORTABLE,) * 3
    assert rules.decide(VerifyPartitions(ID, *first.pair, wanted)).facts == ()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("key", [M0, J0])
def test_a_batch_sent_again_is_written_once(rules: TransactionRules, version: int, key: PartitionKey) -> None:
    """Catalogue 36 and 37: each of the last five, and not the sixth."""
    producer = Producer(rules, version)
    producer.write(key)
    offsets = [producer.send(key).base_offset for _ in range(6)]
    again = [producer.send(key, sequence=1 + at) for at in range(6)]
    assert again[0].error is OUT_OF_ORDER
    assert [each.base_offset for each in again[1:]] == offsets[1:]
    assert {each.error for each in again[1:]} == {ErrorCode.NONE}
    producer.commit()
    assert rules.at(key).high_watermark == (8 if key == M0 else 7)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("key", [M0, J0])
def test_a_batch_of_the_transaction_before_is_not_taken_for_one_of_this(
    rules: TransactionRules, first: Producer, key: PartitionKey, commit: bool
) -> None:
    """Catalogue 38: an acknowledged record that nobody reads, because its offset was an aborted one's."""
    first.write(key, 2)
    first.finish(commit=commit)
    first.add(key)
    assert first.send(key, 2, sequence=0).error is OUT_OF_ORDER
    assert first.send(key, 2).error is ErrorCode.NONE
    assert first.send(key, 2, sequence=0).error is OUT_OF_ORDER
    assert first.send(key, 2, sequence=2).error is ErrorCode.NONE, "but one of this is"


def test_sequences_start_anew_in_every_partition(rules: TransactionRules, second: Producer) -> None:
    """Catalogue 42: one partition was written to, the other not; the epoch moves for both."""
    second.write(M0, 3)
    second.write(M1, 3)
    second.commit()
    second.write(M0)
    second.commit()
    second.write(M1)
    second.write(M0)
    second.commit()


def test_a_topic_made_anew_knows_no_producers(rules: TransactionRules, second: Producer) -> None:
    """Catalogue 51: state by topic id, not by name."""
    second.write(M0, 4)
    rules.run(DeleteTopic("marked"))
    anew = bytes(16)
    rules.run(CreateTopic("marked", anew, 1, {}))
    assert second.send(M0).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    key = PartitionKey(anew, 0)
    assert second.send(key, sequence=4).error is OUT_OF_ORDER
    assert second.send(key).base_offset == 0
    second.commit()
    assert rules.at(key).last_stable_offset == 2


def test_a_producer_with_only_markers_is_in_use(rules: TransactionRules, first: Producer) -> None:
    """Catalogue 47: a marker refreshes what the partition remembers, and the coordinator epoch stays."""
    first.write(M0)
    rules.now += 1_000
    first.commit()
    key = M0.of(first.producer_id)
    assert rules.run(ExpireProducer(key, rules.now - 1)) is False
    assert rules.remembered(M0, first.producer_id).coordinator_epoch == rules.state.term
    assert rules.run(ExpireProducer(key, rules.now)) is True
    first.add(M0)
    assert first.send(M0).error is ErrorCode.NONE, "forgotten, and accepted where it goes on"


@pytest.mark.parametrize("key", [M0, J0])
def test_behaviour_25_a_producer_with_an_open_transaction_is_not_forgotten(
    rules: TransactionRules, second: Producer, key: PartitionKey
) -> None:
    second.write(key)
    assert rules.run(ExpireProducer(key.of(second.producer_id), rules.now + 1)) is False


def test_work_inside_a_transaction_may_be_answered_early(rules: TransactionRules, second: Producer) -> None:
    assert rules.decide(AddPartitions(ID, *second.pair, (M0,))).defers_sync
    assert rules.decide(AddOffsets(ID, *second.pair, "g")).defers_sync
    for key in (M0, J1):
        assert rules.decide(second.command(key)).defers_sync
    assert not rules.decide(Append(M0, header(producer_id=-1, epoch=-1), b"")).defers_sync
