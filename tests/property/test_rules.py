"""Whatever is asked: deciding changes nothing, facts alone rebuild the state, and a log stays a log."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.models.rules import PARTITION, TOPIC_ID, Rules, header

from semel.core.facts import BatchAppended
from semel.core.groups.offsets import Committer
from semel.core.log.partition import (
    AllocateProducerId,
    Append,
    DeleteRecords,
    ExpireProducer,
    TransactionContext,
)
from semel.core.state import BrokerState
from semel.core.topics import AddPartitions, AlterTopic, CreateTopic, DeleteTopic
from semel.core.transactions import commands as transactions
from semel.core.types import ClusterKey, CommittedOffset, ErrorCode, OffsetKey, PartitionKey, ProducerKey

producers = st.integers(-1, 3)
partitions = st.builds(PartitionKey, st.just(TOPIC_ID), st.integers(0, 2))
ids = st.sampled_from(["x", "y"])
epochs = st.integers(0, 2)
# Near the wrap and near the beginning, where the mistakes are.
sequences = st.one_of(st.integers(0, 8), st.integers(2**31 - 4, 2**31 - 1))


@st.composite
def appends(draw: st.DrawFn) -> Append:
    producer_id = draw(producers)
    sequence = -1 if producer_id < 0 else draw(sequences)
    batch = header(
        sequence,
        producer_id=producer_id,
        epoch=-1 if producer_id < 0 else draw(st.integers(0, 2)),
        count=draw(st.integers(1, 3)),
        timestamp=draw(st.integers(0, 50)),
    )
    version = draw(st.sampled_from([0, 0, 0, 1, 2])) if producer_id >= 0 else 0
    transaction_context = TransactionContext(draw(ids), version) if version else None
    partition = draw(partitions)
    # As if each partition were a topic of its own: the last one has journal visibility.
    return Append(
        partition, batch, b"", transaction_context=transaction_context, is_journal=partition.index == 2
    )


pairs = (ids, st.integers(0, 3), epochs)
offsets = st.builds(
    lambda partition, offset: ((OffsetKey("g", "t", partition), CommittedOffset(offset)),),
    st.integers(0, 2),
    st.integers(0, 9),
)
connections = st.integers(-1, 2)
coordination = st.one_of(
    st.builds(transactions.InitProducer, ids, st.integers(1, 50), timeout_max_ms=st.just(50)),
    st.builds(
        transactions.InitProducer,
        ids,
        st.integers(1, 50),
        st.integers(0, 3),
        epochs,
        timeout_max_ms=st.just(50),
        is_two_phase=st.booleans(),
        keep_prepared=st.booleans(),
        may_two_phase=st.just(True),
        connection=connections,
    ),
    st.builds(transactions.AddPartitions, *pairs, st.tuples(partitions), connection=connections),
    st.builds(transactions.AddPartitions, *pairs, st.tuples(partitions), connection=connections),
    st.builds(transactions.AddOffsets, *pairs, st.just("g"), connection=connections),
    st.builds(
        transactions.CommitPending,
        *pairs,
        st.just("g"),
        st.just(Committer()),
        offsets,
        st.integers(1, 2),
        connection=connections,
    ),
    st.builds(transactions.EndTransaction, *pairs, st.booleans(), st.integers(1, 2), connection=connections),
    st.builds(transactions.EndTransaction, *pairs, st.booleans(), st.integers(1, 2), connection=connections),
    st.builds(transactions.AbortOpen, ids, st.booleans(), connections),
    st.builds(transactions.ForgetTransaction, ids, st.integers(999_990, 1_000_010)),
    st.builds(transactions.ChangeFeature, st.integers(0, 2)),
    st.builds(
        lambda partition, *rest: transactions.WriteMarker(partition, *rest).but(
            is_journal=partition.index == 2
        ),
        partitions,
        st.integers(0, 3),
        epochs,
        st.integers(0, 1),
        st.booleans(),
        st.integers(0, 2),
    ),
)
commands = st.one_of(
    appends(),
    appends(),
    appends(),
    coordination,
    coordination,
    st.builds(DeleteRecords, partitions, st.integers(-2, 12), st.integers(0, 3), st.just(0)),
    st.just(AllocateProducerId()),
    st.builds(
        ExpireProducer,
        st.builds(ProducerKey, st.just(TOPIC_ID), st.integers(0, 2), st.integers(0, 3)),
        st.integers(999_990, 1_000_010),
    ),
    st.builds(AddPartitions, st.just("t"), st.integers(0, 3)),
    st.builds(AlterTopic, st.just("t"), st.just((("retention.ms", 0, "1"),)), st.booleans()),
    st.builds(DeleteTopic, st.just("t")),
    st.builds(CreateTopic, st.just("t"), st.just(TOPIC_ID), st.integers(1, 3), st.just({})),
)


def snapshot(state: BrokerState) -> dict[str, Any]:
    tables: tuple[str, ...]
    tables = ("topics", "partitions", "producers", "offsets", "groups", "cluster", "sessions")
    tables += ("transactions", "pending", "ongoing", "latest_connections", "latest_offset_connections")
    return {name: dict(getattr(state, name)) for name in tables}


def known(state: BrokerState) -> dict[str, Any]:
    """Without what is only known to be absent: that is not a fact. Nor are the latest connections."""
    return {
        name: {key: value for key, value in table.items() if value is not None}
        for name, table in snapshot(state).items()
        if not name.endswith("_connections")
    }


@examples(80)
@given(st.lists(commands, max_size=40))
def test_facts_alone_rebuild_the_state(asked: list[Any]) -> None:
    rules = Rules()
    for number, command in enumerate(asked):
        rules.now += number
        rules.run(command)
    replayed = BrokerState()
    replayed.put(ClusterKey(), None)
    for fact in rules.facts:
        replayed.apply(fact)
    assert known(replayed) == known(rules.state)


@examples(80)
@given(st.lists(commands, max_size=30), commands)
def test_deciding_changes_nothing(asked: list[Any], last: Any) -> None:
    rules = Rules()
    for command in asked:
        rules.run(command)
    rules.decide(last)  # loads what it needs
    before = snapshot(rules.state)
    first = rules.decide(last)
    assert snapshot(rules.state) == before
    assert rules.decide(last) == first


@examples(80)
@given(st.lists(appends(), max_size=60))
def test_a_log_stays_a_log(asked: list[Append]) -> None:
    rules = Rules()
    for command in asked:
        before = rules.state.partitions.get(command.partition)
        answer: Any = rules.run(command)
        partition = rules.state.partitions[command.partition]
        if partition is None:
            assert answer.error
            continue
        assert partition.log_start_offset <= partition.last_stable_offset <= partition.high_watermark
        if answer.error:
            assert partition == before
    following = 0
    for fact in rules.facts:
        if isinstance(fact, BatchAppended) and fact.partition == PARTITION:
            assert fact.base_offset == following
            following = fact.last_offset + 1
    assert following == rules.partition.high_watermark


@examples(80)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=40))
def test_an_idempotent_producer_that_retries_writes_each_batch_once(
    sent: list[tuple[int, int, bool]],
) -> None:
    """A retry of any of the last five batches is answered with the offset of the first try."""
    rules = Rules()
    following: dict[int, int] = {}
    history: dict[int, list[tuple[int, int, int]]] = {}
    for producer_id, count, again in sent:
        earlier = history.setdefault(producer_id, [])
        if again and earlier:
            sequence, repeated, offset = earlier[-min(5, len(earlier))]
            assert rules.append(sequence, producer_id=producer_id, count=repeated).base_offset == offset
            continue
        sequence = following.get(producer_id, 0)
        answer = rules.append(sequence, producer_id=producer_id, count=count)
        assert answer.error is ErrorCode.NONE
        earlier.append((sequence, count, answer.base_offset))
        following[producer_id] = sequence + count
    assert rules.partition.high_watermark == sum(following.values())
