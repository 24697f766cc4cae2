"""Facts and answers as text: names, offsets, epochs and outcomes. Sizes and timestamps are left out."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transcripts.broker import durable

from semel.core import facts
from semel.core.groups import ClassicGroup, ConsumerGroup, ShareGroup
from semel.core.log.partition import SEQUENCES
from semel.core.shares.partition import SharePartition
from semel.core.transactions.commands import ProducerGiven
from semel.core.transactions.model import is_open, previous_producer
from semel.core.types import (
    Buffer,
    CommittedOffset,
    Decision,
    ErrorCode,
    Fact,
    GroupKey,
    Key,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingKey,
    PendingOffset,
    PolicyKey,
    ProducerKey,
    ProducerState,
    SentBatch,
    ShareKey,
    Transaction,
    TransactionKey,
)
from semel.wire.records import read_header

TOPIC_ID_BYTES = 16
DAY_MS = 86_400_000


def topic_id(name: str) -> bytes:
    """The id of a topic in transcripts: its name, padded."""
    return name.encode().ljust(TOPIC_ID_BYTES, b"\0")


def name_of(partition: Any) -> str:
    """``orders/0``."""
    if isinstance(partition, OffsetKey):
        return f"{partition.topic}/{partition.partition}"
    return f"{partition.topic_id.rstrip(bytes(1)).decode()}/{partition.index}"


def names_of(partitions: Iterable[PartitionKey]) -> str:
    """``orders/0 orders/1``."""
    return " ".join(map(name_of, partitions))


def error_text(error: ErrorCode) -> str:
    """``PRODUCER_FENCED (90)``, or ``ok``."""
    return f"{error.name} ({error.value})" if error else "ok"


def given_text(given: ProducerGiven) -> str:
    """The producer id and epoch to go on with."""
    if given.error:
        return error_text(given.error)
    text = f"producer {given.producer_id}, epoch {given.epoch}"
    if given.ongoing_producer_id >= 0:
        text += f"; prepared by producer {given.ongoing_producer_id}, epoch {given.ongoing_epoch}"
    return text


def duration_text(milliseconds: int) -> str:
    """``60s``, ``1d``."""
    days, rest = divmod(milliseconds, DAY_MS)
    return f"{days}d" if days and not rest else f"{milliseconds / 1_000:.10g}s"


def facts_text(decision: Decision) -> Iterator[str]:
    """The durable facts of a decision, in order, each on a line."""
    if not durable(decision):
        yield "facts: none"
        return
    yield "facts (unsynced):" if decision.defers_sync else "facts:"
    batches = iter(decision.batches)
    for fact in decision.facts:
        data = next(batches) if isinstance(fact, facts.BatchAppended | facts.BatchStaged) else None
        if isinstance(fact, facts.DURABLE):
            yield f"  {fact_name(fact)} {fact_text(fact, data)}"


def fact_name(fact: Fact) -> str:
    """``BatchAppended``, ``Put transaction``."""
    return f"Put {KINDS[type(fact.key)]}" if isinstance(fact, facts.Put) else type(fact).__name__


def fact_text(fact: Fact, data: Buffer | None = None) -> str:
    """One fact, without its name."""
    if isinstance(fact, facts.BatchAppended) and fact.closes is not None:
        assert data is not None
        return _marker(fact, fact.closes, data)
    return FACTS[type(fact)](fact)


def span(first: int, last: int) -> str:
    """``offset 3``, ``offsets 3-5``."""
    return f"offset {first}" if first == last else f"offsets {first}-{last}"


def records_text(count: int) -> str:
    """``1 record``, ``2 records``."""
    return f"{count} record" if count == 1 else f"{count} records"


def _topic(fact: facts.TopicCreated | facts.TopicChanged) -> str:
    topic = fact.topic
    configs = "".join(f", {name}={value}" for name, value in sorted(topic.configs.items()))
    return f"{topic.name}, {topic.partitions} partition{'s' * (topic.partitions > 1)}{configs}"


def _appended(fact: facts.BatchAppended) -> str:
    text = f"{name_of(fact.partition)} {span(fact.base_offset, fact.last_offset)}"
    if fact.producer_id >= 0:
        text += f" of producer {fact.producer_id}"
    if fact.opens_transaction:
        return f"{text}, opens its transaction"
    return f"{text}, in its transaction" if fact.is_transactional else text


def _marker(fact: facts.BatchAppended, closes: facts.Closing, data: Buffer) -> str:
    kind = "commit" if closes.is_commit else "abort"
    producer = f"producer {fact.producer_id} epoch {read_header(data).producer_epoch}"
    return (
        f"{name_of(fact.partition)} offset {fact.base_offset}: {kind} marker of {producer} "
        f"from offset {closes.first_offset} on, last stable offset {closes.last_stable_offset}"
    )


def _put(fact: facts.Put) -> str:
    value, names = fact.value, name_of_key(fact.key)
    if value is None:
        return f"{names}: none"
    match value:
        case Partition():
            return f"{names} {_partition(value)}"
        case ProducerState():
            return f"{names} {_producer(value)}"
        case Transaction():
            return transaction_text(value)
        case CommittedOffset():
            return f"{names}={value.offset}"
        case SharePartition():
            return f"{names} from {value.start_offset} {value.runs}"
        case ClassicGroup() | ConsumerGroup() | ShareGroup():
            return f"{names}: {value.kind}, {value.state_name}"
        case tuple():
            return f"{names}: {pending_text(value)}"
    return f"{names} {value}"


def name_of_key(key: Key) -> str:
    """The name of an entity: ``orders/0 producer 5``, ``packers: orders/0``."""
    match key:
        case PartitionKey():
            return name_of(key)
        case ProducerKey():
            return f"{name_of(key)} producer {key.producer_id}"
        case OffsetKey():
            return f"{key.group_id}: {name_of(key)}"
        case ShareKey():
            return key.group_id
    return " ".join(map(str, key.values()))


def _producer(state: ProducerState) -> str:
    text = f"epoch {state.epoch}, "
    if state.batches:
        text += f"sequences {' '.join(map(_sequences, state.batches))}"
    else:
        text += "no sequences"
    if state.staged is not None:
        return f"{text}, {records_text(state.staged.offsets)} staged"
    if state.has_open_transaction:
        return f"{text}, transaction from offset {state.transaction_first_offset}"
    return text


def _sequences(batch: SentBatch) -> str:
    first = (batch.last_sequence - batch.offset_delta) % SEQUENCES
    return f"{first}-{batch.last_sequence}"


def transaction_text(transaction: Transaction) -> str:
    """A transactional id and what it is doing."""
    parts = [
        f"{transaction.transactional_id} {transaction.state.label}",
        f"producer {transaction.producer_id} epoch {transaction.epoch}",
    ]
    if transaction.partitions:
        parts.append(f"partitions {names_of(transaction.partitions)}")
    if transaction.groups:
        parts.append(f"groups {' '.join(transaction.groups)}")
    if transaction.deadline_ms >= 0:
        parts.append(f"deadline {duration_text(transaction.deadline_ms)}")
    if transaction.is_two_phase:
        parts.append("two-phase")
    if transaction.prepared_epoch >= 0:
        parts.append(f"prepared with epoch {transaction.prepared_epoch}")
    before = previous_producer(transaction)
    if before is not None and not is_open(transaction):
        other = before.producer_id != transaction.producer_id
        parts.append(f"retry with {f'producer {before.producer_id} ' * other}epoch {before.epoch}")
    return ", ".join(parts)


def pending_text(pending: Iterable[PendingOffset]) -> str:
    """The offsets of a group that open transactions hold."""
    return ", ".join(_pending(each) for each in pending) or "none"


def _pending(each: PendingOffset) -> str:
    superseded = " (superseded)" if each.is_superseded else ""
    return f"{name_of(each.key)}={each.value.offset} of producer {each.producer_id}{superseded}"


def _replaced(fact: facts.BatchesReplaced) -> str:
    rewritten = " ".join(f"{each.base_offset}-{each.last_offset}" for each in fact.rewritten) or "none"
    removed = " ".join(map(str, fact.removed)) or "none"
    return f"{name_of(fact.partition)} rewritten {rewritten}, removed {removed}"


def partition_text(partition: Partition) -> str:
    """How far a log reaches, and how far its readers."""
    return (
        f"log start {partition.log_start_offset}, high watermark {partition.high_watermark}, "
        f"last stable offset {partition.last_stable_offset}"
    )


def _partition(partition: Partition) -> str:
    parts = [partition_text(partition), f"{partition.size_bytes} bytes"]
    if partition.open_transactions:
        opened = (
            f"producer {each.producer_id} from {each.first_offset}" for each in partition.open_transactions
        )
        parts.append(f"open: {' and '.join(opened)}")
    if partition.last_aborted_offset >= 0:
        parts.append(f"last aborted {partition.last_aborted_offset}")
    if partition.compactions:
        parts.append(f"cleaned up to {partition.cleaned_offset}")
    return ", ".join(parts)


KINDS: dict[type, str] = {
    PartitionKey: "partition",
    ProducerKey: "producer",
    OffsetKey: "offset",
    GroupKey: "group",
    PendingKey: "pending offsets",
    TransactionKey: "transaction",
    PolicyKey: "policy",
    ShareKey: "share-partition",
}
FACTS: dict[type, Callable[[Any], str]] = {
    facts.Put: _put,
    facts.TopicCreated: _topic,
    facts.TopicChanged: _topic,
    facts.TopicDeleted: lambda fact: fact.topic.name,
    facts.BatchAppended: _appended,
    facts.LogStartAdvanced: lambda fact: f"{name_of(fact.partition)} to {fact.log_start_offset}",
    facts.BatchesReplaced: _replaced,
    facts.BatchStaged: lambda fact: (
        f"{name_of(fact.partition)} {records_text(fact.offsets)} of producer {fact.producer_id}"
    ),
    facts.StagedCommitted: lambda fact: (
        f"{name_of(fact.partition)} {span(fact.base_offset, fact.last_offset)} of producer {fact.producer_id}"
    ),
    facts.StagedDropped: lambda fact: f"{name_of(fact.partition)} of producer {fact.producer_id}",
    facts.ProducerIdAllocated: lambda fact: str(fact.producer_id),
    facts.FeatureChanged: lambda fact: f"transaction.version {fact.transaction_version}",
    facts.GroupDeleted: lambda fact: fact.group_id,
}
