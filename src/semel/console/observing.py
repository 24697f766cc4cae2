"""Samples a cluster in the background, so that pages are quick and know what was before.

An `Observer` belongs to a session, because what it sees depends on the rights of the principal. It has
sections that are refreshed each at its own pace: the catalogue of topics, the ends of partitions, open
transactions, groups and their lag. Large clusters are asked in portions with pauses between them, so that
sampling takes at most `sample_share` of the time, of the console and of the broker.

Without a login it runs as long as the console, so that the history of transactions has no gaps. With a login
it runs while its user looks, and a while longer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from semel.client import ClientError, KafkaError
from semel.console.clients import StoppableClient
from semel.console.pipeline_sampling import PipelineSample
from semel.console.sampling import Catalogue, GroupSample, PartitionEnds, TransactionSample, sections_of
from semel.console.sessions import Session
from semel.console.settings import ConsoleSettings
from semel.console.workers import Workers

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_PAUSE_SECONDS = 30.0
ABORTED_MAX = 100
#: Of the current task. The first sample of a section, and one after a change, is made without rests: somebody
#: waits for it.
_rests: ContextVar[bool] = ContextVar("rests", default=False)
_rests_until: ContextVar[float] = ContextVar("rests_until", default=0.0)


class Section(Generic[T]):
    """One thing that is sampled: its newest value, or why there is none."""

    def __init__(self, sample: Callable[["Observer"], Awaitable[T]]) -> None:
        self._sample = sample
        self._lock = asyncio.Lock()
        self._first = asyncio.Event()
        self.value: T | None = None
        self.error: Exception | None = None
        self.at = 0.0
        self.version = 0

    async def refresh(self, observer: "Observer") -> None:
        """Sample now. An error of the cluster is kept for the pages; it may be over at the next time."""
        async with self._lock:
            try:
                self.value, self.error = await self._sample(observer), None
            except (KafkaError, ClientError) as error:
                self.error = error
            self.at = time.time()
            self.version += 1
            self._first.set()

    def publish(self, value: T) -> None:
        """Give pages a part of the first sample, before the rest of it is there."""
        self.value = value
        self._first.set()

    async def get(self) -> T:
        """Return the newest value; wait for the first one. Raises why there is none."""
        await self._first.wait()
        if self.value is None:
            assert self.error is not None
            raise self.error
        return self.value


class Observer:
    """What one principal sees of a cluster, sampled."""

    def __init__(self, session: Session, workers: Workers, settings: ConsoleSettings) -> None:
        self.session = session
        self.settings = settings
        self.used = time.monotonic()
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self.aborted: deque[tuple[str, int]] = deque(maxlen=ABORTED_MAX)
        """Transactions that were aborted here: by id, and by when they began."""
        self.catalogue: Section[Catalogue]
        self.ends: Section[PartitionEnds]
        self.transactions: Section[TransactionSample]
        self.groups: Section[GroupSample]
        self.pipelines: Section[dict[str, PipelineSample]]
        self.sections: Mapping[str, Section[Any]] = sections_of(self)

    def start(self) -> None:
        """Begin to sample."""
        self._tasks = [asyncio.create_task(self._run(each)) for each in self.sections.values()]

    async def stop(self) -> None:
        """Stop sampling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(
        self, function: Callable[Concatenate[StoppableClient, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Ask the cluster. The same task rests before it asks again, in proportion to how long this took."""
        if _rests.get():
            await asyncio.sleep(max(0.0, _rests_until.get() - time.monotonic()))
        started = time.monotonic()
        answer = await self._workers.run_as(self.session, function, *args, **kwargs)
        ended = time.monotonic()
        rest = (ended - started) * (1 / self.settings.sample_share - 1)
        _rests_until.set(ended + min(LONGEST_PAUSE_SECONDS, rest))
        return answer

    async def refresh(self, *names: str) -> None:
        """Sample these sections now, after a change that the user has made."""
        for name in names:
            await self.sections[name].refresh(self)
        self._announce()

    async def wait_for_change(self, versions: Mapping[str, int], within_s: float) -> dict[str, int]:
        """Wait until one of these sections is newer; return their versions."""
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            now = self.versions(versions)
            if any(now[name] != version for name, version in versions.items()):
                return now
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), left)
            except TimeoutError:
                break
        return self.versions(versions)

    def versions(self, names: Mapping[str, int]) -> dict[str, int]:
        """Return the versions of these sections."""
        return {name: self.sections[name].version for name in names}

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, section: Section[Any]) -> None:
        while True:
            started = time.monotonic()
            await section.refresh(self)
            self._announce()
            _rests.set(True)
            await asyncio.sleep(max(0.05, self.settings.sample_seconds - (time.monotonic() - started)))


class Observers:
    """The observers of all sessions, started when they are needed and stopped when they are not."""

    def __init__(self, workers: Workers, settings: ConsoleSettings, everyone: Session | None) -> None:
        self._workers = workers
        self._settings = settings
        self._everyone = everyone
        self._by_session: dict[Session, Observer] = {}

    def of(self, session: Session) -> Observer:
        """Return the observer of a session."""
        found = self._by_session.get(session)
        if found is None:
            found = self._by_session[session] = Observer(session, self._workers, self._settings)
            found.start()
        found.used = time.monotonic()
        return found

    async def retire(self, sessions: list[Session]) -> None:
        """Stop the observers of sessions that are over."""
        for session in sessions:
            found = self._by_session.pop(session, None)
            if found is not None:
                await found.stop()

    async def retire_unused(self) -> None:
        """Stop observers that nobody has looked at for a while."""
        before = time.monotonic() - self._settings.observed_seconds
        unused = [
            session
            for session, each in self._by_session.items()
            if each.used < before and session is not self._everyone
        ]
        await self.retire(unused)

    async def close(self) -> None:
        """Stop all."""
        await self.retire(list(self._by_session))
