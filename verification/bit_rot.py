"""Damages a data directory and opens it: removes, truncates or restores old files, or flips a bit.

One seed is one store (``store_life``). It runs, is stopped, and runs again. An older copy is taken of each
run. The last copies are two as after kill -9, with and without commits that the ledger lacks, and one after a
clean stop. Then one fault is applied to one of the last copies, and the real store is opened in it. Either
the store refuses to start, or to read what it cannot prove, or everything acknowledged is there. A batch with
a wrong checksum counts as refused, because a broker never serves it. There is no third outcome.

One undetectable case is left out: an older copy of the WAL that lacks commits which no other file records.
These are the commits of the last moments before a kill.
"""

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from semel.config import Settings
from semel.store import opening
from semel.store.contract import BatchLocation, LedgerDamaged, StoreBroken
from semel.store.embedded.store import EmbeddedStore
from verification.recorded_disk import lay_out
from verification.seeds import memory_directory, try_seeds
from verification.store_history import History, Torn
from verification.store_life import Life, Told
from verification.turns import small_store

STATES_PER_SEED: Final = 200
STEPS: Final = 12
FLIPS: Final = 6
"""The number of bits to flip in each file, one at a time."""
SETTINGS: Final = Settings(semel_chunk_bytes_max=12 * 1024, semel_disk_reserve_bytes=0)
BOOT: Final = "boot"

Files = dict[str, bytes]


@dataclass
class BitRot:
    """The results of all directories."""

    states: int = 0
    refused: int = 0
    served: int = 0
    seeds: range = range(0)
    problems: list[str] = field(default_factory=list)
    """Third outcomes: silent loss or change of data."""


class Fault(NamedTuple):
    """One change to a directory."""

    name: str
    act: Callable[[Files], None]


class Copies(NamedTuple):
    """Copies of a store at the relevant times."""

    older: list[Files]
    """Earlier copies, each followed by batches that are certainly flushed."""
    damaged: dict[str, Files]
    """The copies to which faults are applied, by name."""
    history: History
    told: Told


def run(states: int, first_seed: int = 0) -> BitRot:
    """Damage and open this many directories."""
    return try_seeds(BitRot(), one, states, first_seed, STATES_PER_SEED)


def one(seed: int, found: BitRot, states: int = STATES_PER_SEED) -> None:
    """Try the faults of one store."""
    chance = random.Random(seed)
    with memory_directory() as directory, small_store(lambda: BOOT, seed):
        copies = asyncio.run(_lived(directory / "life", chance))
        faults = [(name, fault) for name in copies.damaged for fault in _faults(name, copies, chance)]
        chance.shuffle(faults)
        for number, (name, fault) in enumerate(faults[:states]):
            found.states += 1
            files = dict(copies.damaged[name])
            fault.act(files)
            location = directory / f"state-{number}"
            try:
                was_refused = asyncio.run(_opened(location, files, copies))
                found.refused += was_refused
                found.served += not was_refused
            except Exception as error:  # noqa: BLE001 - any error is reported
                found.problems.append(f"seed {seed}: {name}, {fault.name}: {error!r}")
            finally:
                shutil.rmtree(location)


# -- copies -------------------------------------------------------------------------------------------------


async def _lived(directory: Path, chance: random.Random) -> Copies:
    async def opened() -> EmbeddedStore:
        return await opening.open_store(directory, SETTINGS)

    life = Life(history := History(), chance, opened, lambda told: None)
    life.use(await opened())
    life.know(Told())
    await life.go(STEPS)
    await life.close()
    older = [_files_in(directory)]
    life.use(await opened())
    await life.go(STEPS)
    await life.flush()
    older.append(_files_in(directory))
    # Ensure that every part of the store has durable commits which are newer than the older copies.
    await life.go(STEPS)
    await life.settle()
    await life.go(3)
    await life.flush()
    damaged = {"killed": _files_in(directory)}
    await life.store.ledger.topics()
    damaged["killed when the ledger had it all"] = _files_in(directory)
    told = life.told
    await life.close()
    damaged["stopped"] = _files_in(directory)
    return Copies(older, damaged, history, told)


def _files_in(directory: Path) -> Files:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    }


# -- faults -------------------------------------------------------------------------------------------------


def _faults(name: str, copies: Copies, chance: random.Random) -> Iterator[Fault]:
    files = copies.damaged[name]
    for path, data in files.items():
        yield Fault(f"{path} is removed", lambda files, path=path: files.pop(path))  # type: ignore[misc]  # a default: mypy infers no such lambda
        lengths = {0, 1, len(data) // 2, max(len(data) - 1, 0), chance.randrange(len(data) + 1)}
        for length in sorted(lengths - {len(data)}):
            yield Fault(f"{path} is cut off at {length}", _cut(path, length))
        for at in _bits(data, chance):
            yield Fault(f"bit {at % 8} of byte {at // 8} in {path} is flipped", _flip(path, at))
    for number, older in enumerate(copies.older):
        for group in _groups(name, files, chance):
            if any(older.get(path) != files.get(path) for path in group):
                yield Fault(f"{', '.join(sorted(group))} as in older copy {number}", _swap(group, older))


def _groups(name: str, files: Files, chance: random.Random) -> Iterator[set[str]]:
    """Yield groups of files to restore from an older copy: single files, and parts of a backup."""
    parts = {
        "ledger": {path for path in files if path.startswith("ledger.db")} | {"ledger.db-wal"},
        "wal": {path for path in files if path.startswith("wal-")},
        "chunks": {path for path in files if path.startswith("chunks")},
        "lock": {"lock"},
    }
    # An older WAL is detectable only if the ledger has all commits.
    old_wal = name != "killed"
    for path in files:
        if old_wal or not path.startswith("wal-"):
            yield {path}
    for _ in range(6):
        chosen = chance.sample(sorted(parts), chance.randint(1, 3))
        if old_wal or "wal" not in chosen or "ledger" in chosen:
            yield set().union(*(parts[part] for part in chosen))


def _cut(path: str, length: int) -> Callable[[Files], None]:
    def act(files: Files) -> None:
        files[path] = files[path][:length]

    return act


def _flip(path: str, bit: int) -> Callable[[Files], None]:
    def act(files: Files) -> None:
        data = bytearray(files[path])
        data[bit // 8] ^= 1 << bit % 8
        files[path] = bytes(data)

    return act


def _swap(group: set[str], older: Files) -> Callable[[Files], None]:
    def act(files: Files) -> None:
        for path in group:
            files.pop(path, None)
            if path in older:
                files[path] = older[path]

    return act


def _bits(data: bytes, chance: random.Random) -> Iterator[int]:
    """Yield bits of a file, most of them in bytes that are not zero."""
    if not data:
        return
    written = [at for at in range(len(data)) if data[at]]
    for number in range(FLIPS):
        at = chance.choice(written) if written and number else chance.randrange(len(data))
        yield at * 8 + chance.randrange(8)


# -- outcomes -----------------------------------------------------------------------------------------------


async def _opened(directory: Path, files: Files, copies: Copies) -> bool:
    """Open a directory twice. Return whether it was refused. Torn if something is missing or changed."""
    lay_out(files, directory)
    was_refused = False
    for _ in range(2):
        try:
            store = await opening.open_store(directory, SETTINGS)
        except StoreBroken:
            return True
        try:
            was_refused |= await _check(store, copies)
        except (StoreBroken, LedgerDamaged):
            return True
        finally:
            await store.close()
    return was_refused


async def _check(store: EmbeddedStore, copies: Copies) -> bool:
    """Whether a batch is detected as damaged. Torn or StoreBroken if anything else is changed or missing."""
    damaged: list[BatchLocation] = []
    copies.history.damaged = damaged
    count = await copies.history.check(store)
    if count < copies.told.answered:
        raise Torn(f"{copies.told.answered} commits were answered, {count} are there")
    await store.sweep_orphans()
    return bool(damaged)
