"""Samples a cluster in the background, so that pages are fast and can show history.

An `Observer` belongs to one user, because what it sees depends on the rights of the principal. Each of its
sections (the catalogue of topics, the ends of partitions, open transactions, groups and their lag, pipelines)
is refreshed at its own pace. Large clusters are queried in portions with pauses between them, so that
sampling a section takes at most `sample_share` of the time of the console and of the broker.

Without a login, the observer runs as long as the console, so that the history of transactions has no gaps.
With a login, it runs until `observed_seconds` after the last request of its user.

Spark pipelines are sampled from the cluster, without Spark. The cluster has the newest decision of a
pipeline, but not its time. So the console records when it first saw a decision, and how many offsets its
batch has read.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from anyio import EndOfStream, create_task_group, fail_after, move_on_after, to_thread
from anyio.abc import TaskGroup

from semel.client import (
    Admin,
    AuthenticationFailed,
    ClientError,
    KafkaError,
    Partition,
    ProtocolError,
    TransactionDescription,
)
from semel.client.admin.transactions import describe_transactions
from semel.console import sampling
from semel.console.clients import StoppableClient
from semel.console.sampling import Catalogue, GroupSample, PartitionEnds, PipelineSample, TransactionSample
from semel.console.sessions import Identity, LoginSession
from semel.console.settings import ConsoleSettings
from semel.console.workers import OVER, Busy, SessionOver, TookTooLong, Workers
from semel.spark.pipeline.status import MARKS as PIPELINE_MARKS

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_PAUSE_SECONDS = 30.0
ABORTED_MAX = 100
#: Items per request, with a pause after each: a request takes a broker a few milliseconds, so that other
#: clients hardly wait.
PARTITIONS_PER_REQUEST = 500
TRANSACTIONS_PER_REQUEST = 50
GROUPS_PER_REQUEST = 10
#: Partitions whose blockers are asked for at each sample, those with most waiting offsets first.
BLOCKED_MAX = 50
#: Groups whose lag is sampled, and pipelines.
GROUPS_MAX = 2_000
PIPELINES_MAX = 200
OPEN_STATE = "Ongoing"
#: The event that cuts short the pauses of the current task; None if the task makes no pauses. The first
#: sample of a section, and a sample after a change, are made without pauses: a page waits for them.
_hurry: ContextVar[asyncio.Event | None] = ContextVar("hurry", default=None)
_rests_until: ContextVar[float] = ContextVar("rests_until", default=0.0)


#: Errors whose text is sufficient. Any other error is a bug, and is logged.
_EXPECTED = (KafkaError, ClientError, ProtocolError, TookTooLong, Busy)


class Section(Generic[T]):
    """One thing that is sampled: its newest value, or why there is none."""

    def __init__(self, sample: Callable[["Observer"], Awaitable[T]], within_s: float) -> None:
        """`within_s` is how long a page waits for the first value."""
        self._sample = sample
        self._within_s = within_s
        self._lock = asyncio.Lock()
        self._waiting = 0
        # Not anyio's event, which cannot be cleared.
        self.hurry = asyncio.Event()
        """Set while a page waits for a new sample: a background sample then makes no pauses."""
        self._first = asyncio.Event()
        self.value: T | None = None
        self.error: Exception | None = None
        self.at: float | None = None
        """When the value was sampled, as a time of day."""
        self.version = 0

    @property
    def problem(self) -> str | None:
        """Why the last sample failed; None if it succeeded."""
        if self.error is None:
            return None
        is_clear = isinstance(self.error, _EXPECTED)
        return str(self.error) if is_clear else f"{type(self.error).__name__}: {self.error}"

    @property
    def as_of_ms(self) -> int:
        """The time for which the value holds: now, or that of the last success if the last sample failed."""
        return int(1000 * (time.time() if self.error is None or self.at is None else self.at))

    async def refresh(self, observer: "Observer") -> None:
        """Sample now. An error is kept for the pages and does not end sampling: it may be temporary."""
        async with self._lock:
            try:
                self.value, self.error = await self._sample(observer), None
                self.at = time.time()
            except Exception as error:
                if not isinstance(error, _EXPECTED) and repr(error) != repr(self.error):
                    LOG.error("sampling failed", exc_info=error)
                self.error = error
            self.version += 1
            self._first.set()

    async def refresh_now(self, observer: "Observer") -> None:
        """Sample after a change. A background sample in progress finishes first, without further pauses."""
        self._waiting += 1
        self.hurry.set()
        try:
            await self.refresh(observer)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.hurry.clear()

    def publish(self, value: T) -> None:
        """Let pages see a part of the first sample before it is complete."""
        self.value = value
        self._first.set()

    def drop(self, why: Exception) -> None:
        """Forget the value: its principal may no longer see it."""
        self.value, self.error, self.at = None, why, None

    def give_up(self, why: Exception) -> None:
        """Fail the tasks that wait for the first value: it will not arrive."""
        if not self._first.is_set():
            self.error = why
            self._first.set()

    async def get(self) -> T:
        """Return the newest value; wait for the first one. If there is none, raise the sample's error."""
        try:
            with fail_after(self._within_s):
                await self._first.wait()
        except TimeoutError:
            raise TookTooLong(
                f"the broker did not answer within {self._within_s:g} seconds. Try again."
            ) from None
        if self.value is None:
            assert self.error is not None
            raise self.error.with_traceback(None)  # Each raise adds to the traceback of a kept error.
        return self.value


async def _sample_catalogue(observer: "Observer") -> Catalogue:
    return await observer.ask(sampling.describe)


async def _sample_ends(observer: "Observer") -> PartitionEnds:
    """List the ends of all partitions, in portions."""
    catalogue = await observer.catalogue.get()
    before = observer.ends.value
    partitions = [(topic.name, each.partition) for topic in catalogue.topics for each in topic.partitions]
    first: dict[Partition, int] = {}
    high: dict[Partition, int] = {}
    stable: dict[Partition, int] = {}
    for portion in _portions(partitions, PARTITIONS_PER_REQUEST):
        starts, ends, steady = await observer.ask(sampling.spans_of, portion)
        first |= starts
        high |= ends
        stable |= steady
    # On a thread: there may be tens of thousands of partitions, and pages wait for the event loop.
    ends_now = await to_thread.run_sync(sampling.compared, before, high, stable, observer.settings.points_max)
    ends_now.first = first
    ends_now.blockers = await _sample_blockers(observer, ends_now, before)
    return ends_now


async def _sample_blockers(
    observer: "Observer", ends: PartitionEnds, before: PartitionEnds | None
) -> dict[Partition, int]:
    """Return the id of the producer that blocks each partition, where it is known.

    While the last stable offset does not move, its blocker stays the same and is not asked for again.
    """
    known = {}
    if before is not None:
        known = {
            key: before.blockers[key]
            for key in ends.waiting
            if key in before.blockers and before.stable.get(key) == ends.stable[key]
        }
    unknown = [key for key in ends.waiting if key not in known][:BLOCKED_MAX]
    return known | (await observer.ask(sampling.first_producers, unknown) if unknown else {})


async def _sample_transactions(observer: "Observer") -> TransactionSample:
    """List the open transactions, and record those that ended since the last sample."""
    before = observer.transactions.value
    listed = await observer.ask(sampling.list_all)
    now_ms = int(time.time() * 1000)
    wanted = {name for name, state in listed.items() if state == OPEN_STATE}
    if before is not None:
        wanted |= before.open.keys() & listed.keys()  # to learn how they ended
    described: dict[str, TransactionDescription] = {}
    for portion in _portions(sorted(wanted), TRANSACTIONS_PER_REQUEST):
        described |= await observer.ask(describe_transactions, portion)
    now_open = {name: each for name, each in described.items() if each.state == OPEN_STATE}
    finished = before.finished if before is not None else deque(maxlen=observer.settings.history_max)
    for name, was in before.open.items() if before is not None else ():
        after = described.get(name)
        # Only the start tells a transaction from the next of its id: many clients keep their epoch.
        is_same = after is not None and after.started_ms == was.started_ms
        if name not in now_open or not is_same:
            is_abort = (name, was.started_ms) in observer.aborted
            finished.appendleft(sampling.finished(was, after if is_same else None, now_ms, is_abort))
    return TransactionSample(now_open, finished, Counter(listed.values()))


async def _sample_groups(observer: "Observer") -> GroupSample:
    """List all groups and, in portions, their offsets, and compare them with the ends."""
    before = observer.groups.value
    listed = tuple(await observer.ask(lambda client: Admin(client).groups.all()))
    sample = GroupSample(listed)
    if before is None:
        observer.groups.publish(sample)
    ends = await observer.ends.get()
    names = [each.group_id for each in listed if each.kind != "share"][:GROUPS_MAX]
    for portion in _portions(names, GROUPS_PER_REQUEST):
        found = await observer.ask(sampling.offsets_of, portion)
        now = time.time()
        for name, committed in found.items():
            if any(each.metadata.startswith(PIPELINE_MARKS) for each in committed.values()):
                sample.pipelines.add(name)
            lag = sampling.lag_of({key: at.offset for key, at in committed.items()}, ends, now)
            sample.lags[name] = lag
            for kept, earlier, value in (
                (sample.lag_series, before.lag_series if before else {}, float(lag.lag)),
                (sample.age_series, before.age_series if before else {}, lag.age_seconds),
            ):
                kept[name] = earlier.get(name) or sampling.Series(observer.settings.points_max)
                kept[name].add(now, value)
    return sample


async def _sample_pipelines(observer: "Observer") -> dict[str, PipelineSample]:
    """Read the status of every pipeline, one after the other."""
    groups = await observer.groups.get()
    if observer.groups.error is not None:
        # The pipelines are found in the list of groups.
        raise observer.groups.error.with_traceback(None)
    before = observer.pipelines.value or {}
    found: dict[str, PipelineSample] = {}
    for name in sorted(groups.pipelines)[:PIPELINES_MAX]:
        sample = found[name] = before.get(name) or PipelineSample()
        sample.status, sample.problem = await observer.ask(sampling.status_of, name)
        if sample.status is not None:
            sample.note(sample.status)
    return found


def _portions(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    """Split items into lists of at most `size`."""
    iterator = iter(items)
    while portion := list(islice(iterator, size)):
        yield portion


class Observer:
    """Samples what one principal sees of a cluster."""

    def __init__(
        self,
        session: LoginSession,
        workers: Workers,
        settings: ConsoleSettings,
        on_refused: Callable[[LoginSession], None],
    ) -> None:
        """`on_refused` is called when the broker rejects the credentials of the session."""
        self.session = session
        self._on_refused = on_refused
        self.settings = settings
        self.used = time.monotonic()
        self._workers = workers
        self._tasks = create_task_group()
        self._changed = asyncio.Event()
        self.is_stopped = False
        self.aborted: deque[tuple[str, int]] = deque(maxlen=ABORTED_MAX)
        """Transactions that this user aborted in the console: ids and start times."""
        within_s = settings.request_seconds
        self.catalogue = Section(_sample_catalogue, within_s)
        self.ends = Section(_sample_ends, within_s)
        self.transactions = Section(_sample_transactions, within_s)
        self.groups = Section(_sample_groups, within_s)
        self.pipelines = Section(_sample_pipelines, within_s)
        self.sections: Mapping[str, Section[Any]] = {
            "catalogue": self.catalogue,
            "ends": self.ends,
            "transactions": self.transactions,
            "groups": self.groups,
            "pipelines": self.pipelines,
        }

    async def run(self) -> None:
        """Sample until `stop`."""
        async with self._tasks:
            for each in self.sections.values():
                self._tasks.start_soon(self._run, each)

    def stop(self) -> None:
        """Stop sampling, and wake the tasks that wait for a sample or for a change."""
        self.is_stopped = True
        for section in self.sections.values():
            section.give_up(Busy("the session has ended, or too many users look at once. Try again."))
        self._announce()
        self._tasks.cancel_scope.cancel()

    async def ask(
        self, function: Callable[Concatenate[StoppableClient, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Query the cluster. The task's next query pauses first, in proportion to how long this one took."""
        hurry = _hurry.get()
        if hurry is not None:
            with move_on_after(_rests_until.get() - time.monotonic()):
                await hurry.wait()
        started = time.monotonic()
        answer = await self._workers.run_as(self.session, function, *args, **kwargs)
        ended = time.monotonic()
        rest = (ended - started) * (1 / self.settings.sample_share - 1)
        _rests_until.set(ended + min(LONGEST_PAUSE_SECONDS, rest))
        return answer

    async def refresh(self, *names: str) -> None:
        """Sample these sections now, after a change that the user has made."""
        for name in names:
            await self.sections[name].refresh_now(self)
        self._announce()

    def versions(self, names: Iterable[str]) -> dict[str, int]:
        """Return the versions of these sections."""
        return {name: self.sections[name].version for name in names}

    async def next_versions(self, seen: dict[str, int]) -> dict[str, int]:
        """Wait until one of these sections is newer. EndOfStream if the observer stops."""
        while not self.is_stopped:
            now = self.versions(seen)
            if now != seen:
                return now
            await self._changed.wait()
        raise EndOfStream

    def refused(self, why: AuthenticationFailed) -> None:
        """Drop all values, because the broker no longer accepts the credentials, and report the session."""
        for section in self.sections.values():
            section.drop(why)
        self._on_refused(self.session)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, section: Section[Any]) -> None:
        while True:
            started = time.monotonic()
            await section.refresh(self)
            if isinstance(section.error, AuthenticationFailed):
                self.refused(section.error)
            self._announce()
            _hurry.set(section.hurry)
            await asyncio.sleep(max(0.05, self.settings.sample_seconds - (time.monotonic() - started)))


class Observers:
    """The observers of all users, started on first use and stopped when unused.

    Sessions of the same user with the same password share one. Beyond `observers_max`, the least recently
    used observer is stopped. It starts again at the next request of its user, without its history.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        workers: Workers,
        settings: ConsoleSettings,
        everyone: LoginSession | None,
        on_refused: Callable[[LoginSession], None],
        is_here: Callable[[LoginSession], bool],
    ) -> None:
        """Run in `tasks`. `is_here` returns whether the user of a session is still logged in."""
        self._tasks = tasks
        self._on_refused = on_refused
        self._is_here = is_here
        self._workers = workers
        self._settings = settings
        self._everyone = everyone
        self._by_identity: dict[Identity, Observer] = {}

    def of(self, session: LoginSession) -> Observer:
        """Return the observer of a session. SessionOver if its user has logged out."""
        found = self._by_identity.get(session.identity)
        if found is None:
            if not self._is_here(session):
                raise SessionOver(OVER)
            while len(self._by_identity) >= self._settings.observers_max:
                self._retire(min(self._by_identity, key=lambda each: self._by_identity[each].used))
            found = Observer(session, self._workers, self._settings, self._on_refused)
            self._by_identity[session.identity] = found
            self._tasks.start_soon(found.run)
        found.used = time.monotonic()
        return found

    def retire(self, identities: Iterable[Identity]) -> None:
        """Stop the observers of users who are no longer logged in."""
        for identity in identities:
            self._retire(identity)

    def retire_unused(self) -> None:
        """Stop observers without a request for `observed_seconds`, except that of a console without login."""
        before = time.monotonic() - self._settings.observed_seconds
        kept = self._everyone.identity if self._everyone is not None else None
        self.retire(
            [
                identity
                for identity, each in self._by_identity.items()
                if each.used < before and identity != kept
            ]
        )

    def _retire(self, identity: Identity) -> None:
        found = self._by_identity.pop(identity, None)
        if found is not None:
            found.stop()
