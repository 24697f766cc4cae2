"""The commit loop: the one task that decides and writes.

How it works. Commands are put in a queue with ``submit``. The loop takes what has arrived, loads the
entities that are not in memory, decides the commands one after another (each sees the facts of those before
it), hands all bytes and facts to the store in one commit, and only then answers. While a commit is under
way the next commands gather, so a busy broker commits many requests with one flush: group commit without a
timer.

What must stay true:

- Nobody is answered before the commit that holds the facts behind the answer. That includes a command
  without facts of its own: it may have read what an earlier command of the same tick made true.
- The loop never awaits between a decision and applying it.
- Readers see only what was published after a commit (``Reads.publish``, ``Catalog.publish``).
- A failed commit has an unknown outcome. The loop stops without answering, and the process with it.
- Records for which there is no room are refused before anything is decided, so that a full disk disturbs
  nobody who needs no room: groups live on, and what deletes is done.
- A store that turns out to be full in a commit has written nothing. The tick is answered with ``StoreFull``
  and the loop forgets all it holds in memory, which is what a restart does: one recovery path.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from semel.broker.clock import Clock
from semel.broker.metrics import Metrics
from semel.config import Settings
from semel.core.facts import DURABLE
from semel.core.partition import Append
from semel.core.state import BrokerState
from semel.core.types import PARKED, Buffer, Command, Fact, Key, Ticket
from semel.store.interface import Store, StoreFull

Outcome = list[Any] | StoreFull
Done = Callable[[Outcome], None]
Publish = Callable[[BrokerState, Sequence[Fact], Sequence[Buffer]], None]

_DURABLE = frozenset(DURABLE)


class _Asked:
    """Commands that were submitted together, and their answers so far."""

    __slots__ = ("answers", "append_bytes", "commands", "done", "parked")

    def __init__(self, commands: Sequence[Command], done: Done) -> None:
        self.commands = commands
        self.done = done
        self.answers: list[Any] = []
        self.parked = 0
        self.append_bytes = 0
        for command in commands:
            if isinstance(command, Append):
                self.append_bytes += command.header.length


class CommitLoop:
    """Owns the state. Everyone else sends commands."""

    def __init__(
        self, store: Store, settings: Settings, clock: Clock, metrics: Metrics, publish: Publish
    ) -> None:
        self.state = BrokerState()
        self._store = store
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._publish = publish
        self._queue: deque[_Asked] = deque()
        self._parked: dict[Ticket, tuple[_Asked, int]] = {}
        self._wake = asyncio.Event()
        self._stopping = False

    def submit(self, commands: Sequence[Command], done: Done) -> None:
        """Ask. ``done`` is called on the event loop, with one answer per command, when all are durable."""
        self._queue.append(_Asked(commands, done))
        self._wake.set()

    def stop(self) -> None:
        """Finish what was submitted, then return from ``run``."""
        self._stopping = True
        self._wake.set()

    def end_waits(self) -> None:
        """Tell those who wait for others, as joins do, to come back later. What was decided stays decided."""
        self._fail_parked(StoreFull("the broker stops"))

    async def run(self) -> None:
        """Turn until stopped. Any exception is fatal to the process: see the module's rules."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                asked, append_bytes = self._take()
                if append_bytes and (full := await self._is_full_for(append_bytes)) is not None:
                    asked = _without_records(asked, full)
                if asked:
                    await self._tick(asked)
            if self._stopping:
                return

    def _take(self) -> tuple[list[_Asked], int]:
        """What has arrived, within the bytes of one commit (but always one), and the bytes of its records."""
        taken = [self._queue.popleft()]
        total = taken[0].append_bytes
        while self._queue:
            size = self._queue[0].append_bytes
            if total + size > self._settings.semel_tick_bytes_max:
                break
            total += size
            taken.append(self._queue.popleft())
        return taken, total

    async def _is_full_for(self, append_bytes: int) -> StoreFull | None:
        try:
            await self._store.make_room(append_bytes)
        except StoreFull as full:
            return full
        return None

    async def _tick(self, asked: list[_Asked]) -> None:
        await self._load(asked)
        started = time.perf_counter()
        facts, batches, replies = self._decide(asked)
        decided = time.perf_counter()
        durable = [fact for fact in facts if type(fact) in _DURABLE]
        if durable:
            try:
                await self._store.commit(durable, batches)
            except StoreFull as full:
                self._forget(asked, full)
                return
        committed = time.perf_counter()
        self._publish(self.state, durable, batches)
        self._answer(asked, replies)
        self.state.evict(self._settings.semel_entities_max)
        self._metrics.observe_tick(
            commands=sum(len(each.commands) for each in asked),
            facts=len(durable),
            batch_bytes=sum(len(batch) for batch in batches),
            decide_seconds=decided - started,
            commit_seconds=committed - decided if durable else 0.0,
            flush_seconds=self._store.flush_seconds if durable else 0.0,
        )

    async def _load(self, asked: list[_Asked]) -> None:
        missing: dict[Key, None] = {}
        tables = self.state.tables
        for each in asked:
            for command in each.commands:
                for key in command.keys():  # noqa: SIM118 - not a dictionary
                    if key not in tables[type(key)]:
                        missing[key] = None
        if missing:
            keys = list(missing)
            for key, value in zip(keys, await self._store.ledger.load(keys), strict=True):
                self.state.put(key, value)

    def _decide(self, asked: list[_Asked]) -> tuple[list[Fact], list[Buffer], list[tuple[Ticket, Any]]]:
        state = self.state
        now = self._clock.now()
        facts: list[Fact] = []
        batches: list[Buffer] = []
        replies: list[tuple[Ticket, Any]] = []
        for each in asked:
            for command in each.commands:
                decision = state.decide(command, now)
                for fact in decision.facts:
                    state.apply(fact)
                facts.extend(decision.facts)
                batches.extend(decision.batches)
                replies.extend(decision.replies)
                if decision.answer is PARKED:
                    # Only commands that carry a ticket are ever parked.
                    self._parked[command.ticket] = (each, len(each.answers))  # type: ignore[attr-defined]
                    each.parked += 1
                each.answers.append(decision.answer)
        return facts, batches, replies

    def _answer(self, asked: list[_Asked], replies: list[tuple[Ticket, Any]]) -> None:
        for each in asked:
            if not each.parked:
                each.done(each.answers)
        for ticket, answer in replies:
            waiting = self._parked.pop(ticket, None)
            if waiting is None:
                continue
            each, index = waiting
            each.answers[index] = answer
            each.parked -= 1
            if not each.parked:
                each.done(each.answers)

    def _forget(self, asked: list[_Asked], full: StoreFull) -> None:
        """Nothing of this tick happened: drop the state that says otherwise, tell all who asked or wait."""
        self.state = BrokerState()
        parked = self._fail_parked(full)
        for each in asked:
            if id(each) not in parked:
                each.done(full)

    def _fail_parked(self, full: StoreFull) -> set[int]:
        waiting = {id(each): each for each, _ in self._parked.values()}
        self._parked.clear()
        for each in waiting.values():
            each.done(full)
        return set(waiting)


def _without_records(asked: list[_Asked], full: StoreFull) -> list[_Asked]:
    """Refuse those who want to append; the others."""
    rest: list[_Asked] = []
    for each in asked:
        if each.append_bytes:
            each.done(full)
        else:
            rest.append(each)
    return rest
