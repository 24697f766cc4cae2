"""Records a store, and rebuilds its disk many times as a power failure could have left it.

One seed is one recording: a few lives of one store, each with a random workload, ended by a clean stop, a
killed process, a failed flush, or a power failure (``store_life``). From the events of each life, states are
rebuilt at random points (``recorded_disk``), and the real store is opened in each. It must be exactly as it
was after some commit: the last one answered as durable, or a later one. Unsynced work may be missing only if
a new term has begun. Sometimes the power fails again during recovery.

Nothing depends on time (``turns``), so a failing seed fails again.
"""

import asyncio
import contextlib
import copy
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from semel.config import Settings
from semel.core.facts import ProducerIdAllocated
from semel.core.types import Cluster, ClusterKey
from semel.store import opening
from semel.store.embedded.examination import LOST
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.store import EmbeddedStore
from verification.recorded_disk import MODES, Event, Platter, Recorder, lay_out
from verification.seeds import memory_directory, try_seeds
from verification.store_history import History, Torn
from verification.store_life import Life, Told
from verification.turns import by_turns, replaced, small_store

STATES_PER_SEED: Final = 120
LIVES: Final = 3
STEPS: Final = 28
FAILING: Final = ("wal-", ".chunk", "-wal", ".db")
SETTINGS: Final = Settings(semel_chunk_bytes_max=12 * 1024, semel_disk_reserve_bytes=0)


@dataclass
class PowerLoss:
    """The results of all states."""

    states: int = 0
    lost: int = 0
    """The number of states that lack a commit which was answered."""
    torn: int = 0
    """The number of states in which the store matches no commit, or cannot be opened."""
    seeds: range = range(0)
    """The recordings used."""
    problems: list[str] = field(default_factory=list)
    """What was wrong, and in which recording."""

    def add(self, seed: int, problem: str, *, is_lost: bool = False) -> None:
        """Report a problem of a state."""
        self.lost += is_lost
        self.torn += not is_lost
        self.problems.append(f"seed {seed}: {problem}")


def run(states: int, first_seed: int = 0) -> PowerLoss:
    """Rebuild and recover this many states."""
    return try_seeds(PowerLoss(), one, states, first_seed, STATES_PER_SEED)


def one(seed: int, found: PowerLoss, states: int = STATES_PER_SEED) -> None:
    """Try the states of one recording."""
    with memory_directory() as directory:
        recording = _Recording(seed, found, directory)
        with small_store(recording.boot_id, seed):
            asyncio.run(recording.go(states))


class _Lost(Exception):
    """A commit that was answered is missing."""


def _judge(count: int, term: int, told: Told, *, is_killed: bool = False) -> None:
    """Check that a store may be at this commit and in this term, given the answers. Raises _Lost or Torn."""
    if count < told.durable:
        raise _Lost(f"{told.durable} commits were answered as durable, {count} are there")
    if count > told.asked:
        raise Torn(f"{told.asked} commits were asked for, {count} are there")
    if term < told.term:
        raise Torn(f"the term goes back from {told.term} to {term}")
    if count < told.answered and (term == told.term or is_killed):
        raise _Lost(f"{told.answered} commits were answered in term {term}, {count} are there")


class _Recording:
    """The recording of one seed."""

    def __init__(self, seed: int, found: PowerLoss, directory: Path) -> None:
        self._seed = seed
        self._chance = random.Random(seed)
        self._found = found
        self._directory = directory
        self._history = History()
        self._boot = 0
        self._made = 0

    def boot_id(self) -> str:
        """The id of the current boot."""
        return f"boot {self._boot}"

    async def go(self, states: int) -> None:
        """Run the lives, and check the states of each."""
        platter, is_killed = Platter(), False
        # Whether the power has failed since the last answer: then unsynced work may be lost.
        is_lost = False
        platter.told = Told()
        for number in range(LIVES):
            share = states // LIVES + (states % LIVES if number == 0 else 0)
            events = await self._life(platter, is_killed=is_killed and not is_lost)
            if events is None:
                self._found.states += share
                return
            boot = self._boot
            await self._look_at(events, copy.deepcopy(platter), share)
            self._boot = boot
            cut = self._chance.choice((len(events), self._chance.randint(0, len(events))))
            for event in events[:cut]:
                platter.take(event)
                is_lost = is_lost and event.kind != "told"
            is_killed = self._chance.random() < 0.4
            if not is_killed:
                is_lost = True
                files = platter.lost(self._chance.choice(MODES), self._chance)
                told, platter = platter.told, Platter(files)
                platter.told = told
                self._boot = 1_000_000 + number

    # -- lives --------------------------------------------------------------------------------------------

    async def _life(self, platter: Platter, *, is_killed: bool) -> list[Event] | None:
        """Run a store on the contents of the platter. Return its events; None if there was a problem."""
        recorder = Recorder(self._new_directory())
        lay_out(platter.killed(), recorder.directory)
        life = Life(
            self._history,
            self._chance,
            lambda: open_recorded(recorder),
            lambda told: recorder.note("told", told=told),
        )
        try:
            with by_turns(self._chance):
                await self._live(life, recorder, platter.told, is_killed=is_killed)
        except _Lost as error:
            self._found.add(self._seed, f"at a start: {error}", is_lost=True)
            return None
        except Exception as error:  # noqa: BLE001 - any error is reported
            if isinstance(error, Torn) or not recorder.has_failed:
                self._found.add(self._seed, f"in a life: {error!r}")
                return None
        finally:
            recorder.stop()
            with contextlib.suppress(Exception):
                await life.close()
            recorder.unregister()
        if (recorder.directory / LOST).exists():
            recorder.events.append(Event("create", LOST))
        shutil.rmtree(recorder.directory)
        return recorder.events

    async def _live(self, life: Life, recorder: Recorder, told: Told, *, is_killed: bool) -> None:
        store = await open_recorded(recorder)
        life.use(store)
        count = await self._history.check(store)
        _judge(count, store.term, told, is_killed=is_killed)
        self._history.cut(count)
        # A started store shows its contents to every client, so they must be durable.
        life.know(Told(count, count, count, store.term))
        if self._chance.random() < 0.4:
            # Let flushes of one kind of file fail at random.
            kind, often = self._chance.choice(FAILING), self._chance.choice((0.02, 0.1))
            recorder.fails = lambda name: kind in name and self._chance.random() < often
        await life.go(STEPS)
        if self._chance.random() < 0.2:
            await store.close()

    async def _open(self, recorder: Recorder | None, directory: Path) -> EmbeddedStore:
        if recorder is not None:
            return await open_recorded(recorder)
        return await opening.open_store(directory, SETTINGS)

    def _new_directory(self) -> Path:
        self._made += 1
        return self._directory / f"data-{self._made}"

    # -- states -------------------------------------------------------------------------------------------

    async def _look_at(self, events: list[Event], platter: Platter, states: int) -> None:
        """Check this many states of one life."""
        at, left = 0, states
        for cut in self._cuts(events, states):
            if not left:
                return
            for event in events[at:cut]:
                platter.take(event)
            at = cut
            left -= await self._state(platter, is_again=left > 1 and self._chance.random() < 0.1)

    def _cuts(self, events: list[Event], count: int) -> list[int]:
        """Choose points of a life. Every pair of consecutive kinds of events is equally likely."""
        kinds: dict[Any, list[int]] = {}
        before = None
        for at, event in enumerate(events):
            kind = (event.kind, Path(event.name).suffix or event.name)
            kinds.setdefault((before, kind), []).append(at)
            before = kind
        choice, moments = self._chance.choice, list(kinds.values())
        return [*sorted(choice(choice(moments)) for _ in range(count - 1)), len(events)]

    async def _state(self, platter: Platter, *, is_again: bool) -> int:
        """Cut the power here, and perhaps again during recovery. Return the number of states."""
        mode = self._chance.choice(MODES)
        files = platter.lost(mode, self._chance)
        if not is_again:
            await self._recover(files, platter.told, mode)
            return 1
        events: list[Event] = []
        count_and_term = await self._recover(files, platter.told, mode, events)
        if count_and_term is None:
            return 1
        count, term = count_and_term
        cut = self._chance.randint(0, len(events))
        after = Platter(files)
        for event in events[:cut]:
            after.take(event)
        told = platter.told if cut < len(events) else Told(count, count, count, term)
        mode = self._chance.choice(MODES)
        await self._recover(after.lost(mode, self._chance), told, f"{mode}, in a recovery")
        return 2

    async def _recover(
        self, files: Any, told: Told, mode: str, events: list[Event] | None = None
    ) -> tuple[int, int] | None:
        """Open the store in a state. Return its commit and term; None if there was a problem."""
        self._boot += 1
        self._found.states += 1
        directory = self._new_directory()
        lay_out(files, directory)
        recorder = Recorder(directory) if events is not None else None
        try:
            store = await self._open(recorder, directory)
            try:
                if recorder is not None and events is not None:
                    events += recorder.events
                    recorder.stop()
                count = await self._history.check(store)
                _judge(count, store.term, told)
                if self._chance.random() < 0.2:
                    await _goes_on(store)
                return count, store.term
            finally:
                await store.close()
        except _Lost as error:
            self._found.add(self._seed, f"{mode}: {error}", is_lost=True)
        except Exception as error:  # noqa: BLE001 - any error is reported
            self._found.add(self._seed, f"{mode}: {error!r}")
        finally:
            if recorder is not None:
                recorder.unregister()
            shutil.rmtree(directory)
        return None


async def open_recorded(recorder: Recorder) -> EmbeddedStore:
    """Open the store in a recorded directory."""
    opened = vars(SqliteLedger)["open"].__func__

    async def on_the_recorder(cls: Any, *args: Any, **options: Any) -> Any:
        return await opened(cls, *args, **options, vfs=recorder.vfs)

    with replaced([(SqliteLedger, "open", classmethod(on_the_recorder))]):
        return await opening.open_store(recorder.directory, SETTINGS, files=recorder.files)


async def _goes_on(store: EmbeddedStore) -> None:
    """Check that a recovered store accepts commits. Torn if it does not."""
    (cluster,) = await store.ledger.load([ClusterKey()])
    next_id = (cluster or Cluster()).next_producer_id
    await store.commit([ProducerIdAllocated(next_id)], [])
    (cluster,) = await store.ledger.load([ClusterKey()])
    if cluster is None or cluster.next_producer_id != next_id + 1:
        raise Torn(f"the store does not go on: {cluster} after producer id {next_id} was given away")
