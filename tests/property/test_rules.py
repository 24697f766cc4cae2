"""Whatever is asked: deciding changes nothing, facts alone rebuild the state, and a log stays a log."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.rules import PARTITION, TOPIC_ID, Rules, header

from semel.core.facts import BatchAppended
from semel.core.partition import AllocateProducerId, Append, DeleteRecords, ExpireProducer
from semel.core.state import BrokerState
from semel.core.topics import AddPartitions, AlterTopic, CreateTopic, DeleteTopic
from semel.core.types import ErrorCode, PartitionKey, ProducerKey

producers = st.integers(-1, 3)
partitions = st.builds(PartitionKey, st.just(TOPIC_ID), st.integers(0, 2))
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
    return Append(draw(partitions), batch, b"", transaction_version=version)


commands = st.one_of(
    appends(),
    appends(),
    appends(),
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
    tables = ("topics", "partitions", "producers", "offsets", "groups", "cluster", "sessions")
    return {name: dict(getattr(state, name)) for name in tables}


def known(state: BrokerState) -> dict[str, Any]:
    """Without what is only known to be absent: that is not a fact."""
    return {
        name: {key: value for key, value in table.items() if value is not None}
        for name, table in snapshot(state).items()
    }


@settings(max_examples=200, deadline=None)
@given(st.lists(commands, max_size=40))
def test_facts_alone_rebuild_the_state(asked: list[Any]) -> None:
    rules = Rules()
    for number, command in enumerate(asked):
        rules.now += number
        rules.run(command)
    replayed = BrokerState()
    for fact in rules.facts:
        replayed.apply(fact)
    assert known(replayed) == known(rules.state)


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=200, deadline=None)
@given(st.lists(appends(), max_size=60))
def test_a_log_stays_a_log(asked: list[Append]) -> None:
    rules = Rules()
    for command in asked:
        before = rules.state.partitions.get(command.partition)
        answer: Any = rules.run(command)
        partition = rules.state.partitions[command.partition]
        if partition is None:
            assert answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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


@settings(max_examples=200, deadline=None)
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
