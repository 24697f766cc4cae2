"""Lists the dead letters of a pipeline, and retries them.

A retry writes the record of a dead letter to the topic that it was read from, where the pipeline finds it
like any other input. A row that a topic could not take is written to that topic. In the same transaction a
*mark* is written next to the dead letters: a record that says which of them were retried. So however a retry
ends, a letter is retried once, or it is still there for the next one; and the marks live as long as the
letters, while committed offsets and transactional ids expire.

All retries of a pipeline use one transactional id. A newer one fences an older one and reads the marks only
then, so no two retries send the same letter. A mark may be behind an open transaction of another producer in
the same partition, where no reader sees it yet. So a retry waits until all that was written is decided.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from semel.client import (
    LATEST,
    Client,
    Codec,
    Consumer,
    Isolation,
    Partition,
    TransactionalProducer,
    TransactionError,
)
from semel.client.consume.fetch import ConsumedRecord
from semel.client.consume.offsets import list_offsets
from semel.spark.columns import ARROW_TYPES
from semel.spark.errors import OptionError, PipelineError, PipelineFenced
from semel.spark.pipeline.status import dead_id, status
from semel.spark.sink.batch_commit import FENCED
from semel.spark.sink.dead_letters import (
    KEY_BYTES,
    OURS,
    PIPELINE,
    PLACES,
    REASON,
    SINK,
    TABLE,
    VALUE_BYTES,
)
from semel.spark.sink.row_faults import TopicLimits, find_faults
from semel.spark.sink.writing import topic_configs

#: The header of a retried record: the place of the record that it repeats, as TOPIC/PARTITION/OFFSET.
RETRY: Final = "semel.retry"
#: The header of a mark: how many ranges of offsets its value has. They are of letters in the same partition.
RETRIED: Final = "semel.retried"
#: The limits for one transaction, and for the ranges of offsets in a mark.
LETTERS_MAX, LETTERS_BYTES, RANGES_MAX = 1_000, 8 << 20, 10
#: How long a retry waits for transactions of others among the dead letters, and how often it looks.
DECIDED_S, LOOK_S = 30.0, 0.2
#: How many different reasons are counted.
REASONS_MAX = 1_000
OTHER_REASONS = "other reasons"
#: What SQL expressions see of a letter.
_SCHEMA = (
    "at INT, key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, reason STRING, "
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, sink STRING"
)

#: Ranges of offsets, both ends included, by partition.
Ranges: TypeAlias = Mapping[Partition, Sequence[tuple[int, int]]]


class DeadLetter(NamedTuple):
    """A dead letter as it was read."""

    record: ConsumedRecord
    about: Mapping[str, str]

    @property
    def place(self) -> str | None:
        """The record that it comes from, as TOPIC/PARTITION/OFFSET; None if that is not known."""
        found = [self.about.get(each) for each in list(PLACES)[:3]]
        return None if None in found else "/".join(map(str, found))

    @property
    def sink(self) -> str | None:
        """The topic or the table that could not take the row; None for a record that was not parsed."""
        return self.about.get(SINK) or self.about.get(TABLE)

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers of the record or the row itself."""
        return [(each.key, each.value) for each in self.record.headers if not each.key.startswith(OURS)]

    @property
    def target(self) -> str:
        """The topic that a retry writes to. PipelineError if it cannot be retried."""
        if TABLE in self.about:
            raise PipelineError("a row of a table cannot be retried; write it yourself")
        for name, what in ((KEY_BYTES, "key"), (VALUE_BYTES, "value")):
            if name in self.about:
                raise PipelineError(f"its {what} was cut; it had {self.about[name]} bytes")
        topic = self.about.get(SINK) if SINK in self.about else self.about.get("semel.topic")
        if not topic:
            raise PipelineError("it names no topic")
        return topic


@dataclass(frozen=True, slots=True)
class Change:
    """Which letters are meant, and what a retry makes of their keys and values, as SQL expressions."""

    where: str | None = None
    key: str | None = None
    value: str | None = None

    @property
    def needs_spark(self) -> bool:
        """Whether there is an expression."""
        return (self.where, self.key, self.value) != (None, None, None)


class Changed(NamedTuple):
    """A letter with the key and value of its retry."""

    letter: DeadLetter
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Found:
    """The dead letters of a pipeline that were not retried."""

    most: int
    count: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _newest: list[tuple[int, int, Changed]] = field(default_factory=list)  # a heap, by time and number

    @property
    def newest(self) -> list[Changed]:
        """The newest of them, of all partitions, at most `most`; the oldest first."""
        return [each for _, _, each in sorted(self._newest, key=lambda found: found[:2])]

    def add(self, each: Changed) -> None:
        """Count a letter."""
        self.count += 1
        reason = each.letter.about[REASON]
        is_new = reason not in self.reasons
        self.reasons[OTHER_REASONS if is_new and len(self.reasons) >= REASONS_MAX else reason] += 1
        keep = heappush if len(self._newest) < self.most else heappushpop
        keep(self._newest, (each.letter.record.timestamp, self.count, each))


@dataclass(slots=True)
class Retried:
    """The result of a retry."""

    sent: Counter[str] = field(default_factory=Counter)  # by topic
    kept: Counter[str] = field(default_factory=Counter)  # letters that could not be retried, by the reason


def letter_topics(client: Client, pipeline_id: str, given: Sequence[str] = ()) -> list[str]:
    """Return the topics with dead letters of a pipeline: those that it remembers, or the given ones."""
    decision = status(client, pipeline_id).decision
    wanted = list(given) or ([] if decision is None else sorted(decision.dead))
    present = {each.name for each in client.describe(wanted).topics} if wanted else set()
    if missing := [each for each in given if each not in present]:
        raise OptionError(f"there is no topic {missing[0]!r}")
    return sorted(present)


def find(
    client: Client,
    pipeline_id: str,
    topics: Sequence[str],
    change: Change,
    most: int,
    spark: SparkSession | None,
) -> Found:
    """Return the letters that `change` means, and the newest of them."""
    found = Found(most)
    for chunk in _chunks(pending(client, pipeline_id, topics)):
        for each in apply(spark, chunk, change):
            found.add(each)
    return found


def retry(
    client: Client, pipeline_id: str, topics: Sequence[str], change: Change, spark: SparkSession | None
) -> Retried:
    """Send the letters that `change` means through the pipeline again. Safe to repeat after any failure."""
    done = Retried()
    limits: dict[str, TopicLimits | None] = {}
    with TransactionalProducer(client, dead_id(pipeline_id), timeout_s=client.patience_s) as producer:
        _await_decided(client, topics)
        for chunk in _chunks(pending(client, pipeline_id, topics)):
            fit = _fit(client, apply(spark, chunk, change), limits, done.kept)
            if not fit:
                continue
            try:
                with producer.transaction():
                    for topic, each in fit:
                        _send(producer, topic, each, limits[topic])
                    _mark(producer, pipeline_id, chunk, {_key(each.letter) for _, each in fit})
            except TransactionError as error:
                if error.code in FENCED:
                    raise PipelineFenced(
                        f"another retry of pipeline {pipeline_id!r} has started, so this one stops. The "
                        "other one sends what this one has not"
                    ) from error
                raise PipelineError(
                    f"the retry stopped: {error} Run it again; it sends what is missing"
                ) from error
            done.sent.update(topic for topic, _ in fit)
    return done


def _await_decided(client: Client, topics: Sequence[str]) -> None:
    """Wait until what is in these topics now is committed or aborted. PipelineError if that takes long."""
    keys = _partitions(client, topics)
    wanted = list_offsets(client, dict.fromkeys(keys, LATEST), isolation=Isolation.READ_UNCOMMITTED)
    deadline = time.monotonic() + DECIDED_S
    while True:
        stable = list_offsets(client, dict.fromkeys(keys, LATEST), isolation=Isolation.READ_COMMITTED)
        behind = sorted(key for key in keys if stable[key].offset < wanted[key].offset)
        if not behind:
            return
        if time.monotonic() >= deadline:
            topic, partition = behind[0]
            raise PipelineError(
                f"a transaction is open in {topic}/{partition} since offset {stable[behind[0]].offset}, so "
                "it is not known which letters behind it were retried. Nothing was sent. Try again when it "
                f"has ended; 'semel transactions explain {topic} {partition}' says whose it is"
            )
        time.sleep(LOOK_S)


def _partitions(client: Client, topics: Sequence[str]) -> list[Partition]:
    found = client.describe(topics).topics if topics else ()
    return [(each.name, part.partition) for each in found for part in each.partitions]


def pending(client: Client, pipeline_id: str, topics: Sequence[str]) -> Iterator[DeadLetter]:
    """Read the dead letters that were not retried."""
    keys = _partitions(client, topics)
    if not keys:
        return
    # Marks come after the letters that they are about, so they are read first.
    retried = marks(_marks_of(_read(client, keys), pipeline_id))
    for record in _read(client, keys):
        letter = letter_of(record, pipeline_id)
        ranges = retried.get((record.topic, record.partition), ())
        if letter is not None and not any(first <= record.offset <= last for first, last in ranges):
            yield letter


def marks(found: Iterable[tuple[Partition, bytes]]) -> Ranges:
    """Return the offsets of the letters that were retried, given the places and values of marks."""
    ranges: dict[Partition, list[tuple[int, int]]] = defaultdict(list)
    for partition, value in found:
        for first, last in re.findall(r"(\d+)-(\d+)", value.decode("ascii", "replace")):
            ranges[partition].append((int(first), int(last)))
    return {partition: _merged(each) for partition, each in ranges.items()}


def _marks_of(records: Iterable[ConsumedRecord], pipeline_id: str) -> Iterator[tuple[Partition, bytes]]:
    for record in records:
        about = _about(record)
        if RETRIED in about and about.get(PIPELINE) == pipeline_id:
            yield (record.topic, record.partition), record.value or b""


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def letter_of(record: ConsumedRecord, pipeline_id: str) -> DeadLetter | None:
    """Return the dead letter of this pipeline that a record is, if it is one."""
    about = _about(record)
    if REASON not in about or about.get(PIPELINE) != pipeline_id:
        return None
    return DeadLetter(record, about)


def _about(record: ConsumedRecord) -> dict[str, str]:
    ours = (each for each in record.headers if each.key.startswith(OURS))
    return {each.key: (each.value or b"").decode("utf-8", "replace") for each in ours}


def _read(client: Client, keys: Sequence[Partition]) -> Iterator[ConsumedRecord]:
    """Read what is committed now. PipelineError if the broker stops answering in between."""
    ends = list_offsets(client, dict.fromkeys(keys, LATEST), isolation=Isolation.READ_COMMITTED)
    with Consumer(client) as consumer:
        consumer.assign(keys)
        yield from consumer.read_to_end(client.patience_s)
        at = consumer.positions()
    if short := [key for key, end in ends.items() if at.get(key, 0) < end.offset]:
        raise PipelineError(f"{short[0][0]}/{short[0][1]} could not be read to its end. Try again")


def _chunks(letters: Iterator[DeadLetter]) -> Iterator[list[DeadLetter]]:
    chunk: list[DeadLetter] = []
    size = 0
    for each in letters:
        chunk.append(each)
        size += len(each.record.key or b"") + len(each.record.value or b"")
        if len(chunk) >= LETTERS_MAX or size >= LETTERS_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def apply(spark: SparkSession | None, letters: Sequence[DeadLetter], change: Change) -> list[Changed]:
    """Return the letters that a change means, with their new keys and values."""
    if not change.needs_spark:
        return [Changed(each, each.record.key, each.record.value) for each in letters]
    assert spark is not None, "expressions need Spark"
    rows = spark.createDataFrame([_row(at, each) for at, each in enumerate(letters)], _SCHEMA)
    found = rows.where(change.where or "true").selectExpr(
        "at",
        f"CAST({change.key or 'key'} AS BINARY) AS key",
        f"CAST({change.value or 'value'} AS BINARY) AS value",
    )
    changed = []
    for row in sorted(found.collect()):
        letter = letters[row.at]
        key, value = (None if each is None else bytes(each) for each in (row.key, row.value))
        for what, before, now in (("key", letter.record.key, key), ("value", letter.record.value, value)):
            if now is None and before is not None:
                raise OptionError(
                    f"the expression for the {what} is null for {letter.place or letter.sink}, whose {what} "
                    f"is {before[:200]!r}. A null would delete; use coalesce, or leave the letter out"
                )
        changed.append(Changed(letter, key, value))
    return changed


def _row(at: int, letter: DeadLetter) -> tuple[Any, ...]:
    about, record = letter.about, letter.record
    topic, *numbers = (about.get(name) for name in PLACES)
    place = (None if each is None else int(each) for each in numbers)
    return (at, record.key, record.value, letter.headers, about[REASON], topic, *place, letter.sink)


# ---- sending


def _fit(
    client: Client, letters: Iterable[Changed], limits: dict[str, TopicLimits | None], kept: Counter[str]
) -> list[tuple[str, Changed]]:
    """Return the letters that can be sent, with their topics; count the others."""
    found = []
    for each in letters:
        try:
            topic = each.letter.target
        except PipelineError as error:
            kept[str(error)] += 1
            continue
        if topic not in limits:
            limits[topic] = _limits(client, topic)
        known = limits[topic]
        fault = f"there is no topic {topic!r}" if known is None else _fault(each, known)
        if fault is None:
            found.append((topic, each))
        else:
            kept[fault] += 1
    return found


def _limits(client: Client, topic: str) -> TopicLimits | None:
    found = client.describe([topic]).topics
    return TopicLimits.of(topic, len(found[0].partitions), topic_configs(client, topic)) if found else None


def _fault(each: Changed, limits: TopicLimits) -> str | None:
    """Return why a topic would not take the record; None if it does."""
    headers = [{"key": name, "value": value} for name, value in _headers(each)]
    columns = {"key": each.key, "value": each.value, "headers": headers}
    arrays = [pa.array([value], ARROW_TYPES[name]) for name, value in columns.items()]
    return find_faults(pa.RecordBatch.from_arrays(arrays, list(columns)), limits, Codec.NONE).get(0)


def _headers(each: Changed) -> list[tuple[str, bytes | None]]:
    """Return the headers of the retried record."""
    letter = each.letter
    return [*letter.headers, (RETRY, (letter.place or "/".join(map(str, _key(letter)))).encode())]


def _send(producer: TransactionalProducer, topic: str, each: Changed, limits: TopicLimits | None) -> None:
    letter, partition = each.letter, None
    # A record goes back to its partition. If its key was changed, the new one decides.
    if SINK not in letter.about and each.key == letter.record.key and limits is not None:
        partition = int(letter.about["semel.partition"])
        partition = partition if partition < limits.partitions else None
    producer.send(topic, each.value, key=each.key, headers=_headers(each), partition=partition)


def _key(letter: DeadLetter) -> tuple[str, int, int]:
    return letter.record.topic, letter.record.partition, letter.record.offset


def _mark(
    producer: TransactionalProducer,
    pipeline_id: str,
    chunk: Iterable[DeadLetter],
    sent: set[tuple[str, int, int]],
) -> None:
    """Write which letters of a chunk are sent, as ranges of letters that follow each other."""
    ranges: dict[Partition, list[list[int]]] = defaultdict(list)
    goes_on: dict[Partition, bool] = {}
    for each in chunk:
        key, offset = (each.record.topic, each.record.partition), each.record.offset
        if is_sent := _key(each) in sent:
            if goes_on.get(key):
                ranges[key][-1][1] = offset
            else:
                ranges[key].append([offset, offset])
        goes_on[key] = is_sent
    for (topic, partition), found in ranges.items():
        left = iter(found)
        while part := list(islice(left, RANGES_MAX)):
            value = ",".join(f"{first}-{last}" for first, last in part)
            headers = [(PIPELINE, pipeline_id.encode()), (RETRIED, b"%d" % len(part))]
            producer.send(topic, value.encode(), headers=headers, partition=partition)
