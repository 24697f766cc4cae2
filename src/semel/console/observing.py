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
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from semel.client import AuthenticationFailed, Client, ClientError, KafkaError, ProtocolError
from semel.console.clients import StoppableClient
from semel.console.sampling import sample_catalogue, sample_ends, sample_groups, sample_transactions
from semel.console.sessions import Identity, LoginSession
from semel.console.settings import ConsoleSettings
from semel.console.workers import OVER, Busy, SessionOver, TookTooLong, Workers
from semel.spark.errors import PipelineError
from semel.spark.pipeline.status import LastBatch, Status, status
from semel.spark.sink.summary import Ended

PIPELINES_MAX = 200
DECISIONS_MAX = 300


@dataclass(slots=True)
class SeenDecision:
    """A decision, and when it was first seen."""

    at: float
    batch: LastBatch
    behind: int
    ended: Ended | None = None  # the next decision says what the batch has ended with


@dataclass(slots=True)
class PipelineSample:
    """The status of a pipeline, or why it cannot be read, and the decisions seen so far."""

    status: Status | None = None
    problem: str | None = None
    decisions: deque[SeenDecision] = field(default_factory=lambda: deque(maxlen=DECISIONS_MAX))


async def sample_pipelines(observer: "Observer") -> dict[str, PipelineSample]:
    """Read the status of every pipeline, one after the other."""
    groups = await observer.groups.get()
    if observer.groups.error is not None:
        # The pipelines are found in the list of groups.
        raise observer.groups.error.with_traceback(None)
    before = observer.pipelines.value or {}
    found: dict[str, PipelineSample] = {}
    for name in sorted(groups.pipelines)[:PIPELINES_MAX]:
        sample = found[name] = before.get(name) or PipelineSample()
        sample.status, sample.problem = await observer.ask(_status, name)
        if sample.status is not None:
            _note(sample, sample.status)
    return found


def _status(client: Client, name: str) -> tuple[Status | None, str | None]:
    try:
        return status(client, name), None
    except PipelineError as error:
        return None, str(error)


def _note(sample: PipelineSample, found: Status) -> None:
    last = found.last
    before = sample.decisions[-1] if sample.decisions else None
    if last is None or (before is not None and before.batch.number == last.number):
        return
    # A decision may have been missed in between.
    if before is not None and last.before is not None and last.before.batch_id == before.batch.batch_id:
        before.ended = last.before
    sample.decisions.append(SeenDecision(time.time(), last, found.behind))


LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_PAUSE_SECONDS = 30.0
ABORTED_MAX = 100
#: The event that cuts short the pauses of the current task; None if the task makes no pauses. The first
#: sample of a section, and a sample after a change, are made without pauses: a page waits for them.
_hurry: ContextVar[asyncio.Event | None] = ContextVar("hurry", default=None)
_rests_until: ContextVar[float] = ContextVar("rests_until", default=0.0)


#: Errors whose text is sufficient. Any other error is a bug, and is logged.
_EXPECTED = (KafkaError, ClientError, ProtocolError, TookTooLong, Busy)


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Wait for an event. TimeoutError if it is not set in time."""
    # Not `wait_for`: in Python 3.11 it loses a cancellation that arrives together with the event.
    async with asyncio.timeout(seconds):
        await event.wait()


class Section(Generic[T]):
    """One thing that is sampled: its newest value, or why there is none."""

    def __init__(self, sample: Callable[["Observer"], Awaitable[T]], within_s: float) -> None:
        """`within_s` is how long a page waits for the first value."""
        self._sample = sample
        self._within_s = within_s
        self._lock = asyncio.Lock()
        self._waiting = 0
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
            await _within(self._within_s, self._first)
        except TimeoutError:
            raise TookTooLong(
                f"the broker did not answer within {self._within_s:g} seconds. Try again."
            ) from None
        if self.value is None:
            assert self.error is not None
            raise self.error.with_traceback(None)  # Each raise adds to the traceback of a kept error.
        return self.value


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
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self.is_stopped = False
        self.aborted: deque[tuple[str, int]] = deque(maxlen=ABORTED_MAX)
        """Transactions that this user aborted in the console: ids and start times."""
        within_s = settings.request_seconds
        self.catalogue = Section(sample_catalogue, within_s)
        self.ends = Section(sample_ends, within_s)
        self.transactions = Section(sample_transactions, within_s)
        self.groups = Section(sample_groups, within_s)
        self.pipelines = Section(sample_pipelines, within_s)
        self.sections: Mapping[str, Section[Any]] = {
            "catalogue": self.catalogue,
            "ends": self.ends,
            "transactions": self.transactions,
            "groups": self.groups,
            "pipelines": self.pipelines,
        }

    def start(self) -> None:
        """Begin to sample."""
        self._tasks = [asyncio.create_task(self._run(each)) for each in self.sections.values()]

    async def stop(self) -> None:
        """Stop sampling, and wake the tasks that wait for a sample or for a change."""
        self.is_stopped = True
        for section in self.sections.values():
            section.give_up(Busy("the session has ended, or too many users look at once. Try again."))
        self._announce()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(
        self, function: Callable[Concatenate[StoppableClient, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Query the cluster. The task's next query pauses first, in proportion to how long this one took."""
        hurry = _hurry.get()
        if hurry is not None:
            with suppress(TimeoutError):
                await _within(_rests_until.get() - time.monotonic(), hurry)
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

    async def wait_for_change(self, versions: Mapping[str, int], within_s: float) -> dict[str, int]:
        """Wait until one of these sections is newer, or the observer stops; return their versions."""
        deadline = time.monotonic() + within_s
        while not self.is_stopped and (left := deadline - time.monotonic()) > 0:
            now = self.versions(versions)
            if any(now[name] != version for name, version in versions.items()):
                return now
            changed = self._changed
            try:
                await _within(left, changed)
            except TimeoutError:
                break
        return self.versions(versions)

    def versions(self, names: Mapping[str, int]) -> dict[str, int]:
        """Return the versions of these sections."""
        return {name: self.sections[name].version for name in names}

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
        workers: Workers,
        settings: ConsoleSettings,
        everyone: LoginSession | None,
        on_refused: Callable[[LoginSession], None],
        is_here: Callable[[LoginSession], bool],
    ) -> None:
        """`is_here` returns whether the user of a session is still logged in."""
        self._on_refused = on_refused
        self._is_here = is_here
        self._workers = workers
        self._settings = settings
        self._everyone = everyone
        self._by_identity: dict[Identity, Observer] = {}
        self._stopping: set[asyncio.Task[None]] = set()

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
            found.start()
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

    async def close(self) -> None:
        """Stop all observers, and wait until they have stopped."""
        self.retire(list(self._by_identity))
        await asyncio.gather(*self._stopping, return_exceptions=True)

    def _retire(self, identity: "Identity") -> None:
        found = self._by_identity.pop(identity, None)
        if found is not None:
            task = asyncio.ensure_future(found.stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
