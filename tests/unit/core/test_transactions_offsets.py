"""Consumer offsets inside transactions, as rules."""

import pytest
from support.models.group_rules import subscription
from support.models.transaction_rules import GROUP, ID, M0, Producer, TransactionRules, holds_together

from semel.core.groups.commands import DeleteGroup, ExpireOffsets, JoinGroup
from semel.core.groups.offsets import CommitOffsets, Committer, DeleteOffsets
from semel.core.topics import DeleteTopic
from semel.core.types import CommittedOffset, ErrorCode, GroupKey, OffsetKey, TransactionState

KEY = OffsetKey(GROUP, "marked", 0)


@pytest.fixture
def rules() -> TransactionRules:
    return TransactionRules()


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def producer(rules: TransactionRules, request: pytest.FixtureRequest) -> Producer:
    return Producer(rules, request.param)


def test_behaviour_82_offsets_count_when_the_transaction_commits(
    rules: TransactionRules, producer: Producer
) -> None:
    """A transaction of offsets alone is one (catalogue 88)."""
    rules.commit_plainly(1)
    producer.write_offset(3)
    assert (rules.committed(), rules.state_of()) == (1, TransactionState.ONGOING)
    producer.abort()
    assert (rules.committed(), rules.pending()) == (1, ())
    producer.write_offset(4)
    producer.commit()
    assert (rules.committed(), rules.pending()) == (4, ())
    holds_together(rules)


def test_behaviour_83_pending_offsets_are_unstable(rules: TransactionRules, producer: Producer) -> None:
    rules.commit_plainly(1)
    producer.write_offset(2)
    assert not rules.is_stable()
    assert rules.is_stable(partition=1)
    assert rules.is_stable(group_id="other")
    assert rules.committed() == 1
    producer.commit()
    assert rules.is_stable()


def test_behaviour_84_who_may_commit_to_a_classic_group(rules: TransactionRules, producer: Producer) -> None:
    group = join(rules)
    producer.write_offset(1)
    member = next(iter(group.members))

    def send(generation: int, member_id: str, instance_id: str | None = None) -> ErrorCode:
        answer = producer.send_offset(2, committer=Committer(generation, member_id, instance_id))
        assert isinstance(answer, ErrorCode)
        return answer

    assert send(group.generation, member) is ErrorCode.NONE
    assert send(group.generation - 1, member) is ErrorCode.ILLEGAL_GENERATION
    assert send(group.generation + 1, member) is ErrorCode.ILLEGAL_GENERATION
    assert send(group.generation, "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert send(-1, "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert send(group.generation, member, "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert send(-1, "") is ErrorCode.NONE, "catalogue 87: without any of it"


def join(rules: TransactionRules):  # type: ignore[no-untyped-def]
    """A classic group that waits for its leader: completing a rebalance."""
    rules.run(
        JoinGroup(
            group_id=GROUP,
            member_id="",
            instance_id=None,
            protocol_type="consumer",
            protocols=(("range", subscription("marked")),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            client_id="client",
            client_host="/host",
            new_member_id="member",
            ticket=1,
            requires_member_id=False,
            initial_delay_ms=0,
        )
    )
    group = rules.state.groups[GroupKey(GROUP)]
    assert group is not None
    return group


def test_a_commit_does_not_bring_an_overdue_member_back(rules: TransactionRules, producer: Producer) -> None:
    generation = join(rules).generation
    assert producer.version == 2 or producer.add_offsets() is ErrorCode.NONE
    rules.now += 10_000
    refused = producer.send_offset(1, committer=Committer(generation, "member"))
    assert refused is ErrorCode.UNKNOWN_MEMBER_ID
    assert GROUP not in rules.state.sessions


def test_behaviour_85_a_group_that_nobody_knows(rules: TransactionRules, producer: Producer) -> None:
    assert producer.version == 2 or producer.add_offsets() is ErrorCode.NONE
    refused = producer.send_offset(1, committer=Committer(5, "m"))
    assert refused is ErrorCode.ILLEGAL_GENERATION
    newer = producer.send_offset(1, committer=Committer(5, "m"), knows_consumer_groups=True)
    assert newer is ErrorCode.GROUP_ID_NOT_FOUND
    assert rules.state.groups.get(GroupKey(GROUP)) is None
    assert producer.send_offset(1) is ErrorCode.NONE
    assert rules.state.groups[GroupKey(GROUP)] is not None


def test_behaviour_86_the_first_generation_must_add_the_group(rules: TransactionRules) -> None:
    producer = Producer(rules, 1)
    assert producer.send_offset(1) is ErrorCode.TRANSACTION_ABORTABLE
    producer.add(M0)
    assert producer.send_offset(1) is ErrorCode.TRANSACTION_ABORTABLE
    assert producer.add_offsets("other") is ErrorCode.NONE
    assert producer.send_offset(1) is ErrorCode.TRANSACTION_ABORTABLE
    assert producer.add_offsets() is ErrorCode.NONE
    assert producer.send_offset(1) is ErrorCode.NONE
    producer.commit()
    assert producer.send_offset(2) is ErrorCode.TRANSACTION_ABORTABLE, "and in every transaction again"


def test_behaviour_86_the_second_generation_adds_it_by_writing(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    producer.write_offset(1)
    assert rules.transaction().groups == (GROUP,)


def test_behaviour_87_a_later_plain_commit_wins(rules: TransactionRules, producer: Producer) -> None:
    producer.write_offset(7)
    rules.commit_plainly(3)
    assert not rules.is_stable(), "the transaction still holds it"
    producer.commit()
    assert rules.committed() == 3
    producer.write_offset(8)
    producer.commit()
    assert rules.committed() == 8


def test_behaviour_87_an_offset_after_the_plain_one_wins(rules: TransactionRules, producer: Producer) -> None:
    producer.write_offset(7)
    rules.commit_plainly(3)
    producer.write_offset(9)
    producer.commit()
    assert rules.committed() == 9


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(0, True), (1, True)], 2),
        ([(1, True), (0, True)], 2),
        ([(1, False), (0, True)], 1),
        ([(0, True), (1, False)], 1),
        ([(1, True), (0, False)], 2),
        ([(0, False), (1, False)], None),
    ],
)
def test_behaviour_87_between_transactions_the_order_of_writing_counts(
    rules: TransactionRules, ends: list[tuple[int, bool]], expected: int | None
) -> None:
    """Not the order in which they end. Catalogue 84."""
    producers = [Producer(rules, 1, "one"), Producer(rules, 2, "two")]
    for number, producer in enumerate(producers):
        producer.write_offset(1 + number)
    for at, commit in ends:
        assert not rules.is_stable()
        producers[at].finish(commit=commit)
    assert (rules.committed(), rules.is_stable()) == (expected, True)
    holds_together(rules)


def test_behaviour_87_a_repeated_commit_moves_behind_the_others(rules: TransactionRules) -> None:
    one, two = Producer(rules, 1, "one"), Producer(rules, 2, "two")
    one.write_offset(1)
    two.write_offset(2)
    one.write_offset(3)
    two.commit()
    one.commit()
    assert rules.committed() == 3


def test_behaviour_88_deleted_offsets_do_not_come_back(rules: TransactionRules, producer: Producer) -> None:
    rules.commit_plainly(1)
    producer.write_offset(2)
    producer.write_offset(5, partition=1)
    rules.run(DeleteOffsets(GROUP, (KEY,)))
    assert (rules.committed(), rules.is_stable(), rules.is_stable(1)) == (None, True, False)
    producer.commit()
    assert (rules.committed(), rules.committed(1)) == (None, 5)


def test_behaviour_88_nor_does_a_deleted_group(rules: TransactionRules, producer: Producer) -> None:
    rules.commit_plainly(1)
    producer.write_offset(2)
    assert rules.run(DeleteGroup(GROUP)) is ErrorCode.NONE
    assert rules.pending() == ()
    producer.commit()
    assert rules.committed() is None
    holds_together(rules)


def test_behaviour_88_nor_those_of_a_deleted_topic(rules: TransactionRules, producer: Producer) -> None:
    producer.write_offset(2)
    producer.write_offset(3, topic="staged")
    rules.run(DeleteTopic("marked"))
    producer.commit()
    assert rules.committed() is None
    assert rules.committed(topic="staged") == 3


def test_a_group_with_pending_offsets_is_not_forgotten(rules: TransactionRules, producer: Producer) -> None:
    """Catalogue 84: expiry looked only at what was committed."""
    rules.commit_plainly(1)
    producer.write_offset(2)
    producer.write_offset(3, partition=1)
    rules.commit_plainly(4, partition=2)
    rules.now += 1_000_000
    keys = tuple(OffsetKey(GROUP, "marked", index) for index in range(3))
    assert rules.run(ExpireOffsets(GROUP, keys, rules.now, forget_group=True)) == 1
    assert rules.state.groups[GroupKey(GROUP)] is not None
    assert (rules.committed(), rules.committed(2)) == (1, None)
    producer.commit()
    assert (rules.committed(), rules.committed(1)) == (2, 3)


def test_behaviour_89_metadata_that_is_too_long_is_refused_alone(
    rules: TransactionRules, producer: Producer
) -> None:
    producer.write_offset(1)
    assert producer.send_offset(2, note="m" * 4_097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert producer.send_offset(3, partition=1, note="m" * 4_096) is ErrorCode.NONE
    producer.commit()
    assert (rules.committed(), rules.committed(1)) == (1, 3)


def test_behaviour_90_a_rebalance_does_not_refuse_them(rules: TransactionRules, producer: Producer) -> None:
    """Catalogue 86: nor does it keep the end of the transaction from being applied."""
    group = join(rules)
    member = Committer(group.generation, next(iter(group.members)))
    assert producer.version == 2 or producer.add_offsets() is ErrorCode.NONE
    assert producer.send_offset(4, committer=member) is ErrorCode.NONE
    plain = rules.run(CommitOffsets(GROUP, member, ((KEY, CommittedOffset(9)),)))
    assert plain == (ErrorCode.REBALANCE_IN_PROGRESS,)
    producer.commit()
    assert rules.committed() == 4


def test_behaviour_91_a_zombie_commits_nothing(rules: TransactionRules, producer: Producer) -> None:
    producer.write_offset(1)
    newer = Producer(rules, producer.version)
    assert producer.send_offset(2) is ErrorCode.PRODUCER_FENCED
    assert producer.add_offsets() is ErrorCode.PRODUCER_FENCED
    newer.write_offset(3)
    newer.commit()
    assert rules.committed() == 3


def test_behaviour_92_pending_offsets_are_facts(rules: TransactionRules, producer: Producer) -> None:
    rules.commit_plainly(1)
    producer.write_offset(2)
    fresh = rules.restarted()
    assert (fresh.committed(), fresh.is_stable()) == (1, False)
    producer.rules = fresh
    producer.commit()
    assert (fresh.committed(), fresh.is_stable()) == (2, True)


def test_offsets_do_not_leak_into_the_next_transaction(rules: TransactionRules, producer: Producer) -> None:
    """Catalogue 83."""
    for number in range(6):
        producer.write_offset(number, partition=number % 3)
        producer.finish(commit=number % 2 == 0)
    assert [rules.committed(index) for index in range(3)] == [0, 4, 2]
    assert rules.pending() == ()


def test_a_second_offset_for_the_partition_replaces_the_first(
    rules: TransactionRules, producer: Producer
) -> None:
    producer.write_offset(1)
    producer.write_offset(1)
    producer.write_offset(2)
    assert len(rules.pending()) == 1
    producer.commit()
    assert rules.committed() == 2
    assert rules.count(OffsetKey) == 1


def test_the_broker_aborts_them_too(rules: TransactionRules, producer: Producer) -> None:
    """Catalogue 86: a group must not wait for a producer that is gone."""
    producer.write_offset(1)
    assert rules.abort_open(ID) is True
    assert (rules.is_stable(), rules.committed()) == (True, None)
