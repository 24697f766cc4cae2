"""Reads the status of a cluster's pipelines from the cluster itself, without Spark.

A pipeline is a group with notes in its offsets (see `decision`), and its transactional ids start with its
name. So this works for a pipeline that runs anywhere, or does not run at all, and on every Kafka broker.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from semel.client import LATEST, Admin, Client, CommittedOffset, Isolation, Partition, ProducerIdAndEpoch
from semel.client.admin.transactions import TransactionDescription, describe_transactions, list_transactions
from semel.client.consume.offsets import list_offsets
from semel.spark.delta import group as tables
from semel.spark.delta.group import TableName
from semel.spark.errors import PipelineError
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import BatchDecision, read_committed
from semel.spark.sink.summary import Ended
from semel.spark.sink.versions import is_write
from semel.wire.messages import ListTransactionsRequest

ONGOING = "Ongoing"
MARKS = (f"{decisions.MARK} ", f"{tables.MARK} ")


class Kind(StrEnum):
    """What a pipeline writes to."""

    TOPICS = "topics"
    TABLE = "table"
    WRITE = "batch write"  # of a DataFrame, once; it has no input to follow


class Doing(StrEnum):
    """What an open transaction of a pipeline is for."""

    WRITING = "writing"  # by a task of the newest run
    DECIDED = "decided"  # decided, and still to be committed
    DECIDING = "deciding"  # the driver is making a decision
    LEFT = "left over"  # of an older run; the next batch ends it
    RETRYING = "retrying"  # dead letters are being retried


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a pipeline has read a partition, and how far it could."""

    topic: str
    partition: int
    offset: int
    latest: int | None  # None if the partition no longer exists

    @property
    def behind(self) -> int:
        """The difference between the two; 0 if the partition no longer exists."""
        return 0 if self.latest is None else max(0, self.latest - self.offset)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction of a pipeline."""

    transactional_id: str
    doing: Doing
    age_ms: int
    is_two_phase: bool
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last batch of a pipeline: a decision, or a commit to a table."""

    number: int  # of the decision or commit
    batch_id: int | None  # None if no batch has been decided yet, or Spark numbers none
    run: str
    read: int | None = None  # offsets
    written: Mapping[str, int] | None = None  # rows by output
    dead: int | None = None  # records that could not be parsed
    before: Ended | None = None  # what Spark has reported of the batch before

    @classmethod
    def of_decision(cls, made: BatchDecision) -> "LastBatch":
        """Return what a decision says."""
        read = sum(each.end - each.start for each in made.spans.values())
        found = cls(made.number, _batch(made.batch_id), f"{made.run.producer_id}.{made.run.epoch}", read)
        if made.summary is None:
            return found
        return replace(
            found, written=made.summary.written, dead=made.summary.dead, before=made.summary.before
        )

    @classmethod
    def of_table(cls, table: TableName) -> "LastBatch | None":
        """Return what the group that follows a table says; None if nothing was committed yet."""
        last = table.last
        if last is None:
            return None
        written = None if last.rows is None else {table.location: last.rows}
        return cls(last.number, _batch(last.batch_id), last.run, written=written)


def _batch(number: int) -> int | None:
    return number if number >= 0 else None


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that a cluster knows of a pipeline."""

    pipeline: str
    kind: Kind
    table: str | None
    decision: BatchDecision | None  # a pipeline to a table by itself has none
    last: LastBatch | None
    lags: tuple[Lag, ...]
    open: tuple[OpenTransaction, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topics and tables that it has written to, as far as its last decision remembers them."""
        if self.table is not None:
            return (self.table,)
        return () if self.decision is None else (*self.decision.outputs, *self.decision.tables)

    @property
    def writes_to(self) -> str:
        """The outputs in words."""
        return ", ".join(self.outputs) or self.kind.value

    @property
    def behind(self) -> int:
        """The number of offsets still to be read."""
        return sum(each.behind for each in self.lags)

    @property
    def batch_age_ms(self) -> int | None:
        """How long the current batch has been writing; None if there is none."""
        ages = [each.age_ms for each in self.open if each.doing not in (Doing.LEFT, Doing.RETRYING)]
        return max(ages, default=None)


def dead_id(pipeline_id: str) -> str:
    """Return the transactional id under which dead letters are retried."""
    return f"{pipeline_id}/dead"


def pipelines(client: Client) -> list[str]:
    """List the pipelines of a cluster, ordered by name."""
    admin = Admin(client)
    return [each.group_id for each in admin.groups.all() if _is_pipeline(admin.groups.offsets(each.group_id))]


def status(client: Client, pipeline_id: str) -> Status:
    """Return one pipeline. PipelineError if the cluster does not know it."""
    offsets = Admin(client).groups.offsets(pipeline_id)
    if not _is_pipeline(offsets):
        raise PipelineError(
            f"there is no pipeline {pipeline_id!r}. 'semel pipeline list' shows all pipelines"
        )
    table = tables.read_group(client, pipeline_id).table if _has(offsets, tables.MARK) else None
    decision = None if table else read_committed(client, pipeline_id, require_stable=False).decision
    if table is not None:
        kind = Kind.TABLE
    else:
        kind = Kind.WRITE if decision is not None and is_write(decision) else Kind.TOPICS
    return Status(
        pipeline=pipeline_id,
        kind=kind,
        table=None if table is None else table.location,
        decision=decision,
        last=_last(decision, table),
        lags=() if kind is Kind.WRITE else _lags(client, offsets),
        open=open_transactions(client, pipeline_id, decision),
    )


def _last(decision: BatchDecision | None, table: TableName | None) -> LastBatch | None:
    if table is not None:
        return LastBatch.of_table(table)
    return None if decision is None else LastBatch.of_decision(decision)


def _has(offsets: dict[Partition, CommittedOffset], mark: str) -> bool:
    return any(each.metadata.startswith(f"{mark} ") for each in offsets.values())


def _is_pipeline(offsets: dict[Partition, CommittedOffset]) -> bool:
    return any(each.metadata.startswith(MARKS) for each in offsets.values())


def _lags(client: Client, offsets: dict[Partition, CommittedOffset]) -> tuple[Lag, ...]:
    known = {topic.name: len(topic.partitions) for topic in Admin(client).topics.all()}
    present = [key for key in offsets if key[1] < known.get(key[0], 0)]
    # A pipeline reads committed records, so an open transaction of others is no lag.
    ends = list_offsets(client, dict.fromkeys(present, LATEST), isolation=Isolation.READ_COMMITTED)
    return tuple(
        Lag(*key, at.offset, ends[key].offset if key in ends else None) for key, at in sorted(offsets.items())
    )


def open_transactions(
    client: Client, pipeline_id: str, decision: BatchDecision | None
) -> tuple[OpenTransaction, ...]:
    """Return the open transactions of a pipeline, and what they are for."""
    prefix = f"{pipeline_id}/"
    can_choose = client.serves(ListTransactionsRequest.api_key, 2)
    pattern = f"{re.escape(prefix)}.*" if can_choose else None
    listed = list_transactions(client, states=[ONGOING], pattern=pattern)
    names = [each.transactional_id for each in listed if each.transactional_id.startswith(prefix)]
    described = describe_transactions(client, names)
    newest = max((run for run in map(_run, names) if run is not None), default=None)
    found = []
    for name, each in described.items():
        age_ms = each.open_for_ms()
        if age_ms is not None:  # else it ended between the two queries
            doing = _doing(each, pipeline_id, newest, decision)
            found.append(OpenTransaction(name, doing, age_ms, each.is_two_phase, each.partitions))
    return tuple(found)


def _doing(
    each: TransactionDescription,
    pipeline_id: str,
    newest: ProducerIdAndEpoch | None,
    decision: BatchDecision | None,
) -> Doing:
    if each.transactional_id == decisions.driver_id(pipeline_id):
        return Doing.DECIDING
    if each.transactional_id == dead_id(pipeline_id):
        return Doing.RETRYING
    if decision is not None and any(
        each.transactional_id == one.transactional_id for one in decision.winners
    ):
        return Doing.DECIDED
    run = _run(each.transactional_id)
    # The run that decided last has nothing left to write.
    is_over = run is not None and decision is not None and run <= decision.run
    return Doing.LEFT if is_over or run != newest else Doing.WRITING


def _run(transactional_id: str) -> ProducerIdAndEpoch | None:
    """Return the run that a task's transaction belongs to."""
    found = re.search(r"/(\d+)\.(\d+)/[^/]*$", transactional_id)
    return ProducerIdAndEpoch(int(found[1]), int(found[2])) if found else None
