"""What is sampled of a cluster: topics, ends of partitions, transactions, groups and their lag, pipelines.

Keeps bounded time series of samples: the points of a chart, and when a log had reached an offset.

The functions with a client block, so `observing` calls them on threads. One thread may add while another
reads, so a reader takes a consistent state first and works on that.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from itertools import islice
from typing import NamedTuple

from semel.client import (
    EARLIEST,
    LATEST,
    Admin,
    Client,
    ClusterInfo,
    CommittedOffset,
    ErrorCode,
    GroupListing,
    Isolation,
    KafkaError,
    Partition,
    TopicInfo,
    TransactionDescription,
    UnsupportedRequest,
)
from semel.client.admin.transactions import list_transactions
from semel.client.consume.offsets import list_offsets
from semel.spark.errors import PipelineError
from semel.spark.pipeline.status import Status, status


class Point(NamedTuple):
    """A value at a time of day in seconds."""

    at: float
    value: float | None


class Series:
    """The last points of a value."""

    def __init__(self, points_max: int) -> None:
        self._points: deque[Point] = deque(maxlen=points_max)

    def add(self, at: float, value: float | None) -> None:
        """Append a point."""
        self._points.append(Point(at, value))

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self._points[-1].value if self._points else None

    def columns(self) -> tuple[list[float], list[float | None]]:
        """Return times and values, as a chart wants them."""
        points = list(self._points)  # Copied at once: a Python loop over a deque that grows would fail.
        return [each.at for each in points], [each.value for each in points]


class Ends:
    """The times at which the end of a partition was sampled at an offset. Older points are sparser."""

    POINTS_MAX = 32

    def __init__(self) -> None:
        self._seen: tuple[list[float], list[int]] = [], []
        """Times and offsets. Both lists are replaced together, and never modified."""

    def add(self, at: float, offset: int) -> None:
        """Record the end. When the list is full, every second point of its older half is dropped."""
        times, offsets = self._seen
        if offsets and offset <= offsets[-1]:
            if offset == offsets[-1]:
                return
            times, offsets = [], []  # The log was truncated, or the topic was recreated.
        if len(times) >= self.POINTS_MAX:
            half = self.POINTS_MAX // 2
            times = times[:half:2] + times[half:]
            offsets = offsets[:half:2] + offsets[half:]
        self._seen = [*times, at], [*offsets, offset]

    def passed(self, offset: int) -> float | None:
        """Return the first sampled time at which the record at `offset` existed; None if it does not yet.

        It may have existed for longer: what was before the first sample is not known.
        """
        times, offsets = self._seen
        index = bisect_right(offsets, offset)
        return times[index] if index < len(offsets) else None


#: Partitions whose ends are remembered.
ENDS_MAX = 5_000
#: Decisions of a pipeline that are remembered.
DECISIONS_MAX = 300
_FIRST = (EARLIEST, Isolation.READ_UNCOMMITTED)
_HIGH = (LATEST, Isolation.READ_UNCOMMITTED)
_STABLE = (LATEST, Isolation.READ_COMMITTED)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The brokers and all topics, and how many partitions are offline or under-replicated."""

    cluster: ClusterInfo
    topics: tuple[TopicInfo, ...]
    partitions: int
    offline: int
    behind: int
    """Under-replicated partitions that have a leader."""


@dataclass(slots=True)
class PartitionEnds:
    """Where partitions end, and how fast they grow."""

    at: float
    high: Mapping[Partition, int]
    stable: Mapping[Partition, int]
    rates: Mapping[str, float]
    total: Series
    passed: Mapping[Partition, Ends]
    before: InitVar["PartitionEnds | None"] = None
    waiting: Mapping[Partition, int] = field(init=False)
    """The offsets between last stable offset and high watermark, of partitions that have any; most first."""

    held: Mapping[Partition, float] = field(init=False)
    """For each of these, when its last stable offset was first sampled at its present value."""

    blockers: Mapping[Partition, int] = field(default_factory=dict)
    """For each of these, the producer id of the transaction at its last stable offset, if known."""

    first: Mapping[Partition, int] = field(default_factory=dict)
    """The log start offsets."""

    def __post_init__(self, before: "PartitionEnds | None") -> None:
        found = [(key, end - self.stable[key]) for key, end in self.high.items() if end > self.stable[key]]
        self.waiting = dict(sorted(found, key=lambda pair: -pair[1]))
        earlier = before.held if before is not None else {}
        is_still = before.stable if before is not None else {}
        self.held = {
            key: earlier.get(key, self.at) if is_still.get(key) == self.stable[key] else self.at
            for key in self.waiting
        }


@dataclass(frozen=True, slots=True)
class Finished:
    """A transaction that was sampled as open and has ended."""

    transactional_id: str
    producer_id: int
    epoch: int
    started_ms: int
    ended_ms: int
    outcome: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class TransactionSample:
    """The open transactions, those that ended since sampling began, and the number of ids by state."""

    open: Mapping[str, TransactionDescription]
    finished: deque[Finished]
    states: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group, by topic and in total."""

    lag: int
    age_seconds: float | None
    """How long the oldest unread record has existed, as far back as the ends were sampled."""
    topics: Mapping[str, int]


@dataclass(slots=True)
class GroupSample:
    """All groups, and their lag."""

    listed: tuple[GroupListing, ...]
    lags: dict[str, GroupLag] = field(default_factory=dict)
    lag_series: dict[str, Series] = field(default_factory=dict)
    age_series: dict[str, Series] = field(default_factory=dict)
    pipelines: set[str] = field(default_factory=set)
    """The groups whose committed offsets have the metadata of a Spark pipeline."""


def describe(client: Client) -> Catalogue:
    """Describe all topics."""
    cluster = client.describe()
    partitions = [each for topic in cluster.topics for each in topic.partitions]
    return Catalogue(
        cluster,
        tuple(sorted(cluster.topics, key=lambda topic: topic.name)),
        partitions=len(partitions),
        offline=sum(1 for each in partitions if each.leader < 0),
        behind=sum(1 for each in partitions if each.leader >= 0 and len(each.in_sync) < len(each.replicas)),
    )


def compared(
    before: PartitionEnds | None, high: dict[Partition, int], stable: dict[Partition, int], points_max: int
) -> PartitionEnds:
    """Return a sample of ends that continues the rates and the history of the sample before."""
    now = time.time()
    total = before.total if before is not None else Series(points_max)
    rates: dict[str, float] = {}
    passed: dict[Partition, Ends] = {}
    if before is not None:
        seconds = max(0.001, now - before.at)
        for key, end in high.items():
            grown = end - before.high.get(key, end)
            if grown > 0:
                rates[key[0]] = rates.get(key[0], 0.0) + grown / seconds
        total.add(now, sum(rates.values()))
    for key, end in islice(high.items(), ENDS_MAX):
        known = before.passed.get(key) if before is not None else None
        passed[key] = known or Ends()
        passed[key].add(now, end)
    return PartitionEnds(now, high, stable, rates, total, passed, before)


def ends_of(
    client: Client, partitions: Iterable[Partition]
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return the high watermarks and last stable offsets of partitions that exist and have a leader."""
    # In this order, a transaction that ends between the two requests does not seem to block.
    high, stable = _list(client, partitions, _HIGH, _STABLE)
    return high, {key: min(at, high[key]) for key, at in stable.items()}


def spans_of(
    client: Client, partitions: Iterable[Partition]
) -> tuple[dict[Partition, int], dict[Partition, int], dict[Partition, int]]:
    """Return log start offsets, and the ends as `ends_of` does."""
    # The start first: records that are deleted between the requests then cannot put it beyond the end.
    first, high, stable = _list(client, partitions, _FIRST, _HIGH, _STABLE)
    return first, high, {key: min(at, high[key]) for key, at in stable.items()}


def _list(
    client: Client, partitions: Iterable[Partition], *kinds: tuple[int, Isolation]
) -> list[dict[Partition, int]]:
    """List offsets of each kind, one request after the other, of partitions that exist and have a leader."""
    wanted = list(partitions)
    while wanted:
        try:
            listed = [list_offsets(client, dict.fromkeys(wanted, at), isolation=level) for at, level in kinds]
        except KafkaError as error:
            if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
                raise
            present = {
                (topic.name, each.partition)
                for topic in client.describe({name for name, _ in wanted}).topics
                for each in topic.partitions
                if each.leader >= 0
            }
            if present.issuperset(wanted):
                raise
            wanted = [key for key in wanted if key in present]
        else:
            return [{key: at.offset for key, at in each.items()} for each in listed]
    return [{} for _ in kinds]


def list_all(client: Client) -> dict[str, str]:
    """Return the states of all transactional ids. Brokers before Kafka 3.0 do not list them."""
    try:
        return {each.transactional_id: each.state for each in list_transactions(client)}
    except UnsupportedRequest:
        return {}


def finished(
    was: TransactionDescription, after: TransactionDescription | None, now_ms: int, is_abort: bool
) -> Finished:
    """Return an ended transaction. `after` describes it after its end; None if that was not seen."""
    outcomes = {
        "CompleteCommit": "committed",
        "PrepareCommit": "committed",
        "CompleteAbort": "aborted",
        "PrepareAbort": "aborted",
    }
    # If the id is gone, or has had another transaction since, the outcome was not seen.
    outcome = outcomes.get(after.state, "ended") if after is not None else "ended"
    outcome = "aborted" if is_abort else outcome
    return Finished(
        was.transactional_id, was.producer_id, was.epoch, was.started_ms, now_ms, outcome, was.partitions
    )


def offsets_of(client: Client, names: Iterable[str]) -> dict[str, dict[Partition, CommittedOffset]]:
    """Return the committed offsets of groups. Groups that cannot be read are left out."""
    groups = Admin(client).groups
    found: dict[str, dict[Partition, CommittedOffset]] = {}
    for name in names:
        try:
            found[name] = groups.offsets(name)
        except KafkaError as error:
            if error.retriable:
                raise  # Without this answer, the rest of the sample is of no use.
    return found


def lag_of(offsets: Mapping[Partition, int], ends: PartitionEnds, now: float) -> GroupLag:
    """Return the lag of a group with these committed offsets."""
    topics: dict[str, int] = {}
    oldest: float | None = None
    for key, offset in offsets.items():
        end = ends.high.get(key)
        if end is None:
            continue
        behind = max(0, end - offset)
        topics[key[0]] = topics.get(key[0], 0) + behind
        if behind and key in ends.passed:
            since = ends.passed[key].passed(offset)
            if since is not None:
                oldest = since if oldest is None else min(oldest, since)
    lag = sum(topics.values())
    age = 0.0 if not lag else None if oldest is None else now - oldest
    return GroupLag(lag, age, topics)


# ---- blockers: the first open transaction of a partition, which holds back its last stable offset


def first_producers(client: Client, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the producer whose open transaction begins first in each partition. Some may be left out.

    A coordinator knows when a transaction began, but only the leader of a partition knows at which offset.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    found: dict[Partition, int] = {}
    for topic, numbers in by_topic.items():
        try:
            listed = Admin(client).transactions.producers(topic, numbers)
        except UnsupportedRequest:
            return {}
        except KafkaError:
            continue  # Deleted, moving, or not authorized: its blocker stays unknown.
        for number, producers in listed.items():
            begun = [each for each in producers if each.transaction_start_offset >= 0]
            if begun:
                first = min(begun, key=lambda each: each.transaction_start_offset)
                found[topic, number] = first.producer_id
    return found


def blockers_of(
    key: Partition, open_: Mapping[str, TransactionDescription], ends: PartitionEnds
) -> tuple[TransactionDescription | None, list[str]]:
    """Return the transaction that blocks a partition; if it is unknown, the ids of the candidates."""
    here = [each for each in open_.values() if key in each.partitions]
    if key not in ends.blockers:
        return None, [each.transactional_id for each in here]
    return next((each for each in here if each.producer_id == ends.blockers[key]), None), []


# ---- pipelines


@dataclass(frozen=True, slots=True)
class SeenDecision:
    """A decision, and when it was first seen."""

    at: float
    number: int
    batch_id: int
    rows: int
    behind: int


@dataclass(slots=True)
class PipelineSample:
    """The status of a pipeline, or why it cannot be read, and the decisions seen so far."""

    status: Status | None = None
    problem: str | None = None
    decisions: deque[SeenDecision] = field(default_factory=lambda: deque(maxlen=DECISIONS_MAX))

    def note(self, found: Status) -> None:
        """Record the decision of a status if it is new."""
        decision = found.decision
        if decision is not None and not (self.decisions and self.decisions[-1].number == decision.number):
            self.decisions.append(
                SeenDecision(time.time(), decision.number, decision.batch_id, rows_of(found), found.behind)
            )


def status_of(client: Client, name: str) -> tuple[Status | None, str | None]:
    """Return the status of a pipeline, or why it cannot be read."""
    try:
        return status(client, name), None
    except PipelineError as error:
        return None, str(error)


def rows_of(found: Status) -> int:
    """How many offsets the last batch has read."""
    return sum(each.end - each.start for each in found.decision.spans.values()) if found.decision else 0
