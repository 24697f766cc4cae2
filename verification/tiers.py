"""Defines the checks, the amount of work of each in every size, and their expected results."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from peers.programs import CannotBuild
from simulation.__main__ import (
    killed_by,
    killed_by_queue,
    killed_by_several,
    one,
    one_of_several,
    one_queue,
)
from simulation.cluster_mutants import CLUSTER_MUTANTS
from simulation.explorer import Explored, explore_with
from simulation.mutants import MUTANTS
from simulation.queue_mutants import QUEUE_MUTANTS
from verification import (
    bit_rot,
    chaos,
    chaos_cluster,
    checking,
    fuzzing,
    java_kills,
    ledger_mutants,
    legal,
    machines,
    named,
    pipeline_brokers,
    pipeline_kills,
    power_loss,
    store_mutants,
    tests,
)
from verification.results import WORDS
from verification.world import runs as world_runs
from verification.world.broker import HOSTS
from verification.world.verdict import End

SIZES: Final = tuple(WORDS)
PROTOCOL_TESTS: Final = ("tests/wire", "tests/client", "tests/cli")
SEEDS_APART: Final = 100_000_000
"""The distance between the first seeds of processes that share a check."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A measured number and its target: at least this much work, or zero problems."""

    name: str
    value: int
    target: int
    seeds: str = ""
    detail: str = ""

    @property
    def met(self) -> bool:
        """Whether the target is met: a target of zero by zero, any other by this much or more."""
        return self.value == 0 if self.target == 0 else self.value >= self.target


Run = Callable[[int], Iterator[Found]]


class Check(NamedTuple):
    """One check."""

    run: Run
    counts: tuple[int, int, int]
    """The amount of work in each size; zero if the size does not include the check."""
    waits: bool = False
    """Whether the check mostly waits for other processes, so that another can run beside it."""


def _shared(run: Callable[[int, int], T], count: int) -> list[T]:
    """Divide the work among one process per processor, each with seeds of its own."""
    processes = min(os.cpu_count() or 1, count)
    counts = [count // processes + (number < count % processes) for number in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(run, counts, range(0, processes * SEEDS_APART, SEEDS_APART)))


def _seeds(ran: list[range]) -> str:
    return ", ".join(f"{each.start}–{each.stop - 1}" for each in ran)


def _histories(name: str, run: Callable[[int], tuple[int, list[str], int, dict[str, int]]]) -> Run:
    def check(count: int) -> Iterator[Found]:
        wrong: list[str] = []
        faults = operations = 0
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            for seed, problems, size, counts in pool.map(run, range(count), chunksize=10):
                operations += size
                faults += sum(counts.values())
                if problems or not size:
                    # A history without operations proves nothing.
                    wrong.append(f"seed {seed}: {problems[0] if problems else 'nothing happened'}")
        seeds = f"0–{count - 1}"
        yield Found(name, count, count, seeds)
        yield Found(f"operations in {name}", operations, count)
        yield Found(f"faults in {name}", faults, count)
        yield Found(f"anomalies in {name}", len(wrong), 0, seeds, "; ".join(wrong[:3]))

    return check


def small_cluster(count: int) -> Iterator[Found]:
    """Explore every state of a small cluster, with the faults of this size."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        parts: list[Explored] = list(pool.map(explore_with, _FAULTS[count]))
    problems = [problem for part in parts for problem in part.problems]
    states = sum(part.states for part in parts)
    yield Found("states of a small cluster, all that there are", states, _STATES_MIN[count])
    yield Found("violations in states of a small cluster", len(problems), 0, "", "; ".join(problems[:3]))


_FAULTS: Final = {
    1: [(0, 0, 0), (0, 1, 0)],
    2: [(1, 1, 0), (0, 1, 1), (1, 0, 1)],
}
"""For each size, the numbers of crashes, lost responses and expired leases to combine."""
_STATES_MIN: Final = {1: 10_000, 2: 1_000_000}


def defects(count: int) -> Iterator[Found]:
    """Switch on defects of the rules, the store and the ledger, or a sample. Each must be found."""
    kinds: tuple[tuple[Sequence[Any], Callable[..., Any]], ...] = (
        (MUTANTS, killed_by),
        (QUEUE_MUTANTS, killed_by_queue),
        (store_mutants.MUTANTS, store_mutants.killed_by),
        (store_mutants.ROT, store_mutants.rot_killed_by),
        (ledger_mutants.MUTANTS, ledger_mutants.killed_by),
    )
    every = max(1, sum(len(mutants) for mutants, _ in kinds) // count)
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for mutants, finder in kinds:
            some = mutants[::every]
            found.update(zip((each.name for each in some), pool.map(finder, some), strict=True))
    survivors = [name for name, by in found.items() if by is None]
    yield Found("defects found", len(found) - len(survivors), len(found), "", "; ".join(survivors))


def cluster_defects(count: int) -> Iterator[Found]:
    """Switch on defects of a cluster, up to this many. Each must be found."""
    some = CLUSTER_MUTANTS[:count]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip((each.name for each in some), pool.map(killed_by_several, some), strict=True))
    survivors = [name for name, by in found.items() if by is None]
    yield Found(
        "defects of a cluster found", len(found) - len(survivors), len(found), "", "; ".join(survivors)
    )


def checker(count: int) -> Iterator[Found]:
    """Give the checker correct histories."""
    parts = _shared(checking.run, count)
    problems = [problem for ran in parts for problem in ran.problems]
    seeds = _seeds([ran.seeds for ran in parts])
    yield Found("correct histories for the checker", sum(ran.histories for ran in parts), count, seeds)
    yield Found("false alarms of the checker", len(problems), 0, "", "; ".join(problems[:3]))


def rules(count: int) -> Iterator[Found]:
    """Run steps of the state machines."""
    parts = _shared(machines.run, count)
    failures = [failure for ran in parts for failure in ran.failures]
    yield Found(
        "state machine steps", sum(ran.rules for ran in parts), count, _seeds([r.seeds for r in parts])
    )
    yield Found("state machine failures", len(failures), 0, "", "; ".join(failures[:3]))


def properties(count: int) -> Iterator[Found]:
    """Run the property tests with this many times the examples of `make test`."""
    cases = tests.run("tests/property", "--timeout", "36000", SEMEL_EXAMPLES=str(count))
    failures = [case.attrib["name"] for case in cases if len(case)]
    yield Found(f"property tests with {count} times the examples", len(cases) - len(failures), 1)
    yield Found("failed property tests", len(failures), 0, "", "; ".join(failures[:3]))


def power(count: int) -> Iterator[Found]:
    """Recover disks as a power failure could have left them."""
    parts = _shared(power_loss.run, count)
    problems = [problem for ran in parts for problem in ran.problems]
    seeds = _seeds([ran.seeds for ran in parts])
    yield Found("power-loss states", sum(ran.states for ran in parts), count, seeds)
    yield Found(
        "acknowledged commits lost by power loss",
        sum(ran.lost for ran in parts),
        0,
        "",
        "; ".join(problems[:3]),
    )
    yield Found("torn or invented commits after power loss", sum(ran.torn for ran in parts), 0)


def rot(count: int) -> Iterator[Found]:
    """Open data directories with a file that is missing, truncated, old, or has one bit flipped."""
    parts = _shared(bit_rot.run, count)
    problems = [problem for ran in parts for problem in ran.problems]
    seeds = _seeds([ran.seeds for ran in parts])
    yield Found("damaged data directories", sum(ran.states for ran in parts), count, seeds)
    yield Found(
        "damaged directories neither refused nor served completely",
        len(problems),
        0,
        "",
        "; ".join(problems[:3]),
    )


def fuzz(count: int) -> Iterator[Found]:
    """Give every decoder damaged bytes."""
    parts = _shared(fuzzing.run, count)
    failures = [failure for ran in parts for failure in ran.failures]
    yield Found("fuzz inputs", sum(ran.inputs for ran in parts), count, _seeds([r.seeds for r in parts]))
    told = "; ".join(f"{each.target} {each.seed}: {each.what}" for each in failures[:3])
    yield Found("fuzzing failures", len(failures), 0, "", told)


def legal_requests(count: int) -> Iterator[Found]:
    """Send legal requests at the edges of the limits."""
    ran = legal.run(count)
    seeds = _seeds([ran.seeds])
    yield Found("legal requests at the limits", ran.requests, count, seeds, f"longest pause: {ran.longest}")
    told = "; ".join(f"{each.seed} {each.request}: {each.what}" for each in ran.failures[:3])
    yield Found("event loop pauses caused by legal requests", len(ran.failures), 0, seeds, told)


def _chaos(name: str, run: Callable[[int], chaos.Chaos]) -> Run:
    def check(count: int) -> Iterator[Found]:
        ran = run(count)
        seeds = ", ".join(map(str, ran.seeds[:3])) + (
            "" if len(ran.seeds) <= 3 else f" and {len(ran.seeds) - 3} more"
        )
        yield Found(name, ran.episodes, count, seeds)
        yield Found(f"transactions committed under {name}", ran.committed, count // 4, seeds)
        yield Found(f"transactions aborted under {name}", ran.aborted, 1, seeds)
        bad = sum(ran.anomalies.values()) + len(ran.problems) + len(ran.failures) + ran.hangs_unexplained
        # Failures of the run first: other problems follow from them.
        told = "; ".join([*map(str, ran.anomalies), *ran.failures, *ran.problems, *ran.kept][:3])
        yield Found(f"anomalies and hangs under {name}", bad, 0, seeds, told)

    return check


def pipeline(count: int) -> Iterator[Found]:
    """Kill processes of a pipeline on Spark."""
    ran = pipeline_kills.run(count)
    yield Found("pipeline kills", ran.kills, count, str(ran.seed), str(ran))
    yield Found("pipeline kills in the middle of a batch", ran.in_batch, count, str(ran.seed))
    bad = len(ran.lost) + len(ran.doubled) + len(ran.problems)
    yield Found(
        "records lost or doubled, and transactions left open, by pipeline kills", bad, 0, str(ran.seed)
    )


def cluster_pipeline(count: int) -> Iterator[Found]:
    """Kill brokers of a cluster under a pipeline on Spark."""
    ran = pipeline_kills.run(count, pipeline_brokers.three)
    seed = str(ran.seed)
    yield Found("pipeline kills of a cluster in the middle of a batch", ran.in_batch, count, seed, str(ran))
    bad = len(ran.lost) + len(ran.doubled) + len(ran.torn) + len(ran.problems)
    told = "records lost, doubled or torn, and transactions left open, by pipeline kills of a cluster"
    yield Found(told, bad, 0, seed, "; ".join([*ran.problems, *ran.torn][:3]))


def java_loop(count: int) -> Iterator[Found]:
    """Kill a broker and Java clients that consume, transform and produce."""
    try:
        ran = java_kills.run(count)
    except CannotBuild as error:
        # Reported as zero: nothing was killed, so the target is missed.
        yield Found("kills of a broker and Java clients in transactions", 0, count, "", f"skipped: {error}")
        return
    seed = str(ran.seed)
    yield Found("kills of a broker and Java clients in transactions", ran.kills, count, seed, str(ran))
    bad = len(ran.lost) + len(ran.doubled) + len(ran.problems)
    told = "records lost or doubled, transactions left open and hangs by kills of a broker and Java clients"
    yield Found(told, bad, 0, seed, "; ".join(ran.problems[:3]))


def protocol(count: int) -> Iterator[Found]:
    """Run the tests of the protocol over a cluster of three brokers; at least this many must pass."""
    cases = tests.run(*PROTOCOL_TESTS, "--over", "cluster", "--timeout", "600")
    failed = [
        f"{case.attrib['classname']}::{case.attrib['name']}" for case in cases if tests.has_failed(case)
    ]
    skipped = sum(tests.is_skipped(case) for case in cases)
    passed = len(cases) - len(failed) - skipped
    yield Found("protocol tests over a cluster", passed, count, "", f"{skipped} were skipped")
    yield Found("failed protocol tests over a cluster", len(failed), 0, "", "; ".join(failed[:5]))


def _world(name: str, word: str, scenario: world_runs.Scenario) -> Run:
    def check(count: int) -> Iterator[Found]:
        ran = world_runs.run(range(count), scenario)
        seeds = _seeds([range(count)])
        failures = [f"seed {each.seed}: {each.failure.splitlines()[0]}" for each in ran.failures]
        yield Found(name, len(ran.scenarios), count, seeds)
        yield Found(f"runs{word} that counted every record once", ran.count(End.WELL), count, seeds)
        refused = ran.count(End.REFUSED)
        yield Found(f"runs{word} that refused with a message", refused, max(1, count // 10), seeds)
        bad = f"scenarios{word} that lost or doubled records, hung, or failed without a message"
        yield Found(bad, len(failures), 0, seeds, "; ".join(failures[:3]))

    return check


def _sinks(over: str = "") -> Run:
    """Run declared pipelines with several sinks, on an embedded broker or another host."""
    word = " with several sinks" + (" over a cluster" if over else "")
    return _world(f"scenarios{word}", word, partial(world_runs.declared, host=HOSTS.get(over)))


def scenarios(count: int) -> Iterator[Found]:
    """Run all named scenarios on Spark."""
    ran = named.run()
    for kind in named.KINDS:
        yield Found(f"named scenarios: {kind}", ran.kinds[kind], count)
    yield Found("failures in named scenarios", len(ran.failures), 0, "", "; ".join(ran.failures[:3]))


CHECKS: Final = {
    "histories": Check(_histories("simulated histories", one), (500, 100_000, 1_000_000)),
    "clusters": Check(
        _histories("simulated histories of several brokers", one_of_several), (150, 20_000, 200_000)
    ),
    "queues": Check(_histories("simulated histories of share groups", one_queue), (100, 20_000, 200_000)),
    "small": Check(small_cluster, (1, 2, 2)),
    "defects": Check(defects, (12, 1_000, 1_000)),
    "cluster-defects": Check(cluster_defects, (0, 1_000, 1_000)),
    "checker": Check(checker, (150, 10_000, 100_000)),
    "rules": Check(rules, (10_000, 100_000, 2_000_000)),
    "properties": Check(properties, (0, 10, 100)),
    "power": Check(power, (1_500, 50_000, 500_000)),
    "rot": Check(rot, (1_000, 20_000, 200_000)),
    "fuzz": Check(fuzz, (50_000, 500_000, 10_000_000)),
    "legal": Check(legal_requests, (100, 2_000, 20_000)),
    "kills": Check(_chaos("kill -9", chaos.kills), (10, 500, 5_000), waits=True),
    "pipeline": Check(pipeline, (0, 100, 500), waits=True),
    "cluster-pipeline": Check(cluster_pipeline, (0, 20, 200), waits=True),
    "java": Check(java_loop, (0, 500, 2_000), waits=True),
    "protocol": Check(protocol, (0, 1_250, 1_250), waits=True),
    "world": Check(
        _world("scenarios with a changing environment", "", world_runs.one), (3, 100, 1_000), waits=True
    ),
    "sinks": Check(_sinks(), (2, 100, 1_000), waits=True),
    "cluster-sinks": Check(_sinks("cluster"), (0, 20, 200), waits=True),
    "scenarios": Check(scenarios, (0, 1, 1), waits=True),
    "pauses": Check(_chaos("pauses", chaos.pauses), (5, 25, 500), waits=True),
    "ends": Check(_chaos("EndTxn faults", chaos.end_faults), (200, 10_000, 100_000), waits=True),
    "disk": Check(_chaos("disk faults", chaos.disk_faults), (6, 100, 500), waits=True),
    "brokers": Check(_chaos("kill -9 of brokers", chaos_cluster.kills), (0, 200, 2_000), waits=True),
    "postgres": Check(_chaos("PostgreSQL failures", chaos_cluster.postgres), (0, 20, 200), waits=True),
    "failovers": Check(_chaos("PostgreSQL failovers", chaos_cluster.failovers), (0, 20, 200), waits=True),
    "asleep": Check(_chaos("broker pauses", chaos_cluster.pauses), (0, 20, 200), waits=True),
    "apart": Check(_chaos("network partitions", chaos_cluster.partitions), (0, 20, 200), waits=True),
    "s3": Check(_chaos("S3 faults", chaos_cluster.s3_faults), (0, 20, 200), waits=True),
    "rolling": Check(_chaos("rolling restarts", chaos_cluster.restarts), (0, 10, 100), waits=True),
}
