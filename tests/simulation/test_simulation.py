"""A seed is one history, always and everywhere; faults of all kinds happen; what fails is made smaller."""

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from semel.check.history import Produce
from simulation import virtual_time
from simulation.__main__ import killed_by_queue
from simulation.cluster_mutants import CLUSTER_MUTANTS
from simulation.mutants import MUTANTS, Mutant, applied
from simulation.plan import make, make_queue
from simulation.queue_mutants import QUEUE_MUTANTS
from simulation.run import run
from simulation.shrinking import shrink
from verification import ledger_mutants, store_mutants

ROOT = Path(__file__).parents[2]
DIGESTS = """
from simulation.plan import make, make_queue
from simulation.run import run
plans = [make(seed) for seed in range(2 * count)]
plans += [make(seed, 3) for seed in range(count)] + [make_queue(seed, 1 + seed % 3) for seed in range(count)]
print(*(run(plan).digest for plan in plans))
"""


@pytest.mark.parametrize(
    "mutant",
    [
        *(*MUTANTS, *QUEUE_MUTANTS, *CLUSTER_MUTANTS),
        *(*store_mutants.MUTANTS, *store_mutants.ROT, *ledger_mutants.MUTANTS),
    ],
    ids=lambda mutant: mutant.name,
)
def test_the_line_that_a_known_defect_changes_is_there(mutant: Mutant) -> None:
    """The gate that runs them takes a minute; this tells whoever has changed such a line at once."""
    with applied(mutant):
        pass


def test_a_seed_is_the_same_history_every_time() -> None:
    first = [run(make(seed)).digest for seed in range(20)]
    with applied(MUTANTS[0]):
        run(make(0))
    # What is in memory between two runs must not matter.
    between = [object() for _ in range(100_000)]
    del between[::3]
    assert [run(make(seed)).digest for seed in range(20)] == first


@pytest.mark.parametrize(
    ("count", "processes"), [(2, 2), pytest.param(10, 4, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_seed_is_the_same_history_in_every_process(count: int, processes: int) -> None:
    """Addresses and the hashes of strings differ from process to process."""

    def digests(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run(
            [sys.executable, "-c", f"count = {count}{DIGESTS}"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=True,
        )
        return told.stdout.decode().split()

    first, *others = [digests(str(hash_seed)) for hash_seed in range(1, processes + 1)]
    assert len(first) == 4 * count
    assert others == [first] * (processes - 1)


@pytest.mark.parametrize(
    ("brokers", "seeds"),
    [(1, 8), (3, 4), *(pytest.param(each, 15, marks=pytest.mark.slow) for each in (1, 3))],
)
def test_workers_do_every_job_once(brokers: int, seeds: int) -> None:
    taken = 0
    for seed in range(seeds):
        outcome = run(make_queue(seed, brokers))
        assert not outcome.problems, (seed, outcome.problems[0])
        assert run(make_queue(seed, brokers)).digest == outcome.digest
        taken += sum(each.topic == "output" for each in outcome.operations if isinstance(each, Produce))
    assert taken > 100 * seeds // 15


@pytest.mark.parametrize("at", [0, 1, 5])
def test_workers_find_a_defect_of_share_groups(at: int) -> None:
    assert killed_by_queue(QUEUE_MUTANTS[at], 40) is not None


def test_faults_of_every_kind_happen() -> None:
    plans = [make(seed) for seed in range(100)]
    planned = {fault for plan in plans for fault in plan.odds}
    seen: set[str] = set()
    for plan in plans:
        seen |= run(plan).faults.keys()
        if seen >= planned:
            break
    assert seen == planned


def test_a_failing_history_is_made_smaller() -> None:
    plan = make(0)
    smallest = shrink(plan, lambda each: "committed reader" in each.actors and each.seconds > 0.2)
    assert smallest.actors == ("committed reader",)
    assert smallest.odds == {}
    assert 0.2 < smallest.seconds <= 0.4


def test_time_passes_only_when_nobody_has_anything_to_do() -> None:
    told: list[tuple[float, str]] = []
    loop = virtual_time.VirtualLoop()

    async def wait(name: str, seconds: float) -> None:
        await virtual_time.sleep(seconds)
        await asyncio.sleep(0)
        told.append((loop.now, name))

    async def main() -> None:
        await asyncio.gather(wait("third", 3), wait("first", 1), wait("also first", 1), wait("second", 2))
        async with asyncio.timeout(5):
            await asyncio.sleep(2)
        loop.call_later(1, told.append, (0.0, "never")).cancel()
        await asyncio.sleep(2)

    virtual_time.run(loop, main())
    assert told == [(1, "first"), (1, "also first"), (2, "second"), (3, "third")]
    assert loop.now == 7


def test_a_history_without_an_end_is_told() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async def turn() -> None:
        for seconds in itertools.repeat(1):
            await asyncio.sleep(seconds)

    async def turn_at_once() -> None:
        for seconds in itertools.repeat(0):
            await asyncio.sleep(seconds)

    for endless in (wait(), turn(), turn_at_once()):
        with pytest.raises(virtual_time.Standstill):
            virtual_time.run(virtual_time.VirtualLoop(), endless)
