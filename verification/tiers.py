"""Which checks there are, how much of each belongs to which size, and what they must come to."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from simulation.__main__ import killed_by, one
from simulation.mutants import MUTANTS
from verification import chaos, fuzzing, machines, power_loss, store_mutants

SIZES = ("test", "verify", "long")


@dataclass(frozen=True, slots=True)
class Found:
    """One number and what it should be: at least so much work, or none of what must not be."""

    name: str
    value: int
    target: int
    seeds: str = ""
    detail: str = ""

    @property
    def met(self) -> bool:
        """Zero is met by zero, everything else by as much or more."""
        return self.value == 0 if self.target == 0 else self.value >= self.target


Check = Callable[[int], Iterator[Found]]


def histories(count: int) -> Iterator[Found]:
    """Simulated histories, and what was wrong in them."""
    wrong: list[str] = []
    faults = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for seed, problems, _, counts in pool.map(one, range(count), chunksize=10):
            faults += sum(counts.values())
            if problems:
                wrong.append(f"seed {seed}: {problems[0]}")
    seeds = f"0–{count - 1}"
    yield Found("simulated histories", count, count, seeds)
    yield Found("faults injected into them", faults, count)
    yield Found("anomalies in them", len(wrong), 0, seeds, "; ".join(wrong[:3]))


def defects(count: int) -> Iterator[Found]:
    """Defects of the rules and of the store, each of which must be found."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(MUTANTS, pool.map(killed_by, MUTANTS), strict=True))
        stored = store_mutants.MUTANTS
        found.update(zip(stored, pool.map(store_mutants.killed_by, stored), strict=True))
    survivors = [mutant.name for mutant, by in found.items() if by is None]
    yield Found("defects found", len(found) - len(survivors), len(found), "", "; ".join(survivors))


def rules(count: int) -> Iterator[Found]:
    """Steps of the state machines."""
    ran = machines.run(count)
    yield Found("state machine rules", ran.rules, count)
    yield Found("failures of state machines", len(ran.failures), 0, "", "; ".join(ran.failures[:3]))


def power(count: int) -> Iterator[Found]:
    """Disks as a power cut could have left them."""
    ran = power_loss.run(count)
    yield Found("power-loss states", ran.states, count, f"{len(ran.seeds)} recordings")
    yield Found("acknowledged commits lost in them", ran.lost, 0, "", "; ".join(ran.problems[:3]))
    yield Found("torn or invented commits in them", ran.torn, 0)


def fuzz(count: int) -> Iterator[Found]:
    """Damaged bytes."""
    ran = fuzzing.run(count)
    yield Found("fuzz inputs", ran.inputs, count, f"{ran.seeds.start}–{ran.seeds.stop - 1}")
    told = "; ".join(f"{each.target} {each.seed}: {each.what}" for each in ran.failures[:3])
    yield Found("failures by them", len(ran.failures), 0, "", told)


def _chaos(name: str, run: Callable[[int], chaos.Chaos]) -> Check:
    def check(count: int) -> Iterator[Found]:
        ran = run(count)
        seeds = ", ".join(map(str, ran.seeds[:3])) + (
            "" if len(ran.seeds) <= 3 else f" and {len(ran.seeds) - 3}"
        )
        yield Found(name, ran.episodes, count, seeds)
        bad = sum(ran.anomalies.values()) + len(ran.problems) + len(ran.failures) + ran.hangs_unexplained
        told = "; ".join([*map(str, ran.anomalies), *ran.problems, *ran.failures, *ran.kept][:3])
        yield Found(f"lost, doubled, torn, aborted or hanging by {name}", bad, 0, seeds, told)

    return check


CHECKS: dict[str, tuple[Check, Sequence[int]]] = {
    "histories": (histories, (2_000, 100_000, 1_000_000)),
    "defects": (defects, (1, 1, 1)),
    "rules": (rules, (20_000, 1_000_000, 10_000_000)),
    "power": (power, (3_000, 50_000, 500_000)),
    "fuzz": (fuzz, (100_000, 2_000_000, 20_000_000)),
    "kills": (_chaos("kill -9", chaos.kills), (10, 500, 5_000)),
    "pauses": (_chaos("pauses", chaos.pauses), (5, 100, 1_000)),
    "ends": (_chaos("EndTxn faults", chaos.end_faults), (200, 10_000, 100_000)),
    "disk": (_chaos("disk faults", chaos.disk_faults), (6, 100, 500)),
}
"""How many of each, by size."""
