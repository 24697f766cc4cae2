"""Samples the topics of a cluster, the ends of their partitions, transactions, groups and lag.

Keeps bounded time series of samples: the points of a chart, and when a log had reached an offset.

One thread may add while another reads, so a reader takes a consistent state first and works on that.
"""

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

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
from semel.client.admin.transactions import describe_transactions, list_transactions
from semel.client.consume.offsets import list_offsets
from semel.console.blockers import sample_blockers
from semel.spark.pipeline.status import MARKS as PIPELINE_MARKS

if TYPE_CHECKING:
    from semel.console.observing import Observer


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


#: Items per request, with a pause after each: a request takes a broker a few milliseconds, so that other
#: clients hardly wait.
PARTITIONS_PER_REQUEST = 500
TRANSACTIONS_PER_REQUEST = 50
GROUPS_PER_REQUEST = 10
#: Bounds of the history: partitions whose ends are remembered, and groups whose lag is sampled.
ENDS_MAX = 5_000
GROUPS_MAX = 2_000
OPEN_STATE = "Ongoing"
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


async def sample_catalogue(observer: "Observer") -> Catalogue:
    """Describe all topics."""
    return await observer.ask(_describe)


def _describe(client: Client) -> Catalogue:
    cluster = client.describe()
    partitions = [each for topic in cluster.topics for each in topic.partitions]
    return Catalogue(
        cluster,
        tuple(sorted(cluster.topics, key=lambda topic: topic.name)),
        partitions=len(partitions),
        offline=sum(1 for each in partitions if each.leader < 0),
        behind=sum(1 for each in partitions if each.leader >= 0 and len(each.in_sync) < len(each.replicas)),
    )


async def sample_ends(observer: "Observer") -> PartitionEnds:
    """List the ends of all partitions, in portions."""
    catalogue = await observer.catalogue.get()
    before = observer.ends.value
    partitions = [(topic.name, each.partition) for topic in catalogue.topics for each in topic.partitions]
    first: dict[Partition, int] = {}
    high: dict[Partition, int] = {}
    stable: dict[Partition, int] = {}
    for portion in portions(partitions, PARTITIONS_PER_REQUEST):
        starts, ends, steady = await observer.ask(spans_of, portion)
        first |= starts
        high |= ends
        stable |= steady
    # On a thread: there may be tens of thousands of partitions, and pages wait for the event loop.
    ends_now = await asyncio.to_thread(_compared, before, high, stable, observer.settings.points_max)
    ends_now.first = first
    ends_now.blockers = await sample_blockers(observer, ends_now, before)
    return ends_now


def _compared(
    before: PartitionEnds | None, high: dict[Partition, int], stable: dict[Partition, int], points_max: int
) -> PartitionEnds:
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


async def sample_transactions(observer: "Observer") -> TransactionSample:
    """List the open transactions, and record those that ended since the last sample."""
    before = observer.transactions.value
    listed = await observer.ask(list_all)
    now_ms = int(time.time() * 1000)
    states: dict[str, int] = {}
    for each in listed.values():
        states[each] = states.get(each, 0) + 1
    wanted = {name for name, state in listed.items() if state == OPEN_STATE}
    if before is not None:
        wanted |= before.open.keys() & listed.keys()  # to learn how they ended
    described: dict[str, TransactionDescription] = {}
    for portion in portions(sorted(wanted), TRANSACTIONS_PER_REQUEST):
        described |= await observer.ask(describe_transactions, portion)
    now_open = {name: each for name, each in described.items() if each.state == OPEN_STATE}
    finished = before.finished if before is not None else deque(maxlen=observer.settings.history_max)
    for name, was in before.open.items() if before is not None else ():
        after = described.get(name)
        # Only the start tells a transaction from the next of its id: many clients keep their epoch.
        is_same = after is not None and after.started_ms == was.started_ms
        if name not in now_open or not is_same:
            is_abort = (name, was.started_ms) in observer.aborted
            finished.appendleft(_finished(was, after if is_same else None, now_ms, is_abort))
    return TransactionSample(now_open, finished, states)


def list_all(client: Client) -> dict[str, str]:
    """Return the states of all transactional ids. Brokers before Kafka 3.0 do not list them."""
    try:
        return {each.transactional_id: each.state for each in list_transactions(client)}
    except UnsupportedRequest:
        return {}


def _finished(
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


async def sample_groups(observer: "Observer") -> GroupSample:
    """List all groups and, in portions, their offsets, and compare them with the ends."""
    before = observer.groups.value
    listed = tuple(await observer.ask(lambda client: Admin(client).groups.all()))
    sample = GroupSample(listed)
    if before is None:
        observer.groups.publish(sample)
    ends = await observer.ends.get()
    names = [each.group_id for each in listed if each.kind != "share"][:GROUPS_MAX]
    for portion in portions(names, GROUPS_PER_REQUEST):
        found = await observer.ask(_offsets_of, portion)
        now = time.time()
        for name, committed in found.items():
            if any(each.metadata.startswith(PIPELINE_MARKS) for each in committed.values()):
                sample.pipelines.add(name)
            lag = lag_of({key: at.offset for key, at in committed.items()}, ends, now)
            sample.lags[name] = lag
            for kept, earlier, value in (
                (sample.lag_series, before.lag_series if before else {}, float(lag.lag)),
                (sample.age_series, before.age_series if before else {}, lag.age_seconds),
            ):
                kept[name] = earlier.get(name) or Series(observer.settings.points_max)
                kept[name].add(now, value)
    return sample


def _offsets_of(client: Client, names: Iterable[str]) -> dict[str, dict[Partition, CommittedOffset]]:
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


def portions(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    """Split items into lists of at most `size`."""
    iterator = iter(items)
    while portion := list(islice(iterator, size)):
        yield portion
