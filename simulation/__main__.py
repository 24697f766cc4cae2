"""``python -m simulation``: run many histories, show one, or check that the known defects are found."""

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from simulation.cluster_mutants import CLUSTER_MUTANTS
from simulation.mutants import MUTANTS, Mutant, applied
from simulation.plan import Plan, make, make_queue
from simulation.queue_mutants import QUEUE_MUTANTS
from simulation.run import HistoryResult, run
from simulation.scenes import SCENES
from simulation.shrinking import shrink
from simulation.stage import MomentMissedError

SEEDS_MAX = 500
"""A defect that survives this many histories counts as not found."""


Summary = tuple[int, list[str], int, dict[str, int]]
"""A seed, its problems, the number of operations and the faults."""


def one(seed: int, brokers: int = 1) -> Summary:
    """Run the history of a seed."""
    return _summary(make(seed, brokers))


def _summary(plan: Plan) -> Summary:
    logging.disable(logging.CRITICAL)
    outcome = run(plan)
    return plan.seed, outcome.problems, len(outcome.operations), outcome.faults


def several(seed: int) -> int:
    """Return how many brokers the history of a seed has: two to five."""
    return 2 + seed % 4


def one_of_several(seed: int) -> Summary:
    """Run the history of a seed with several brokers."""
    return one(seed, several(seed))


def mixed(seed: int) -> int:
    """Return how many brokers the history of a seed has: one to five."""
    return 1 + seed % 5


def one_queue(seed: int, brokers: int | None = None) -> Summary:
    """Run the history of a seed in which workers of a share group divide jobs."""
    return _summary(make_queue(seed, brokers or mixed(seed)))


def _mixed(seed: int) -> Summary:
    return one(seed, mixed(seed))


def killed_by(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """Return the first seed that finds the defect, and the problem it reports; None if none does."""
    return _killed_by(mutant, map(make, mutant.seeds(seeds_max)))


def killed_by_several(mutant: Mutant, seeds_max: int = 2 * SEEDS_MAX) -> tuple[int, str] | None:
    """Like `killed_by`, with several brokers: by a scene (seed -1), which is fast, or else by histories."""
    plans = (make(seed, several(seed)) for seed in mutant.seeds(seeds_max))
    return _killed_by_scene(mutant) or _killed_by(mutant, plans)


def killed_by_queue(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """Like `killed_by`, with workers of a share group, on one or several brokers."""
    return _killed_by(mutant, (make_queue(seed, mixed(seed)) for seed in mutant.seeds(seeds_max)))


def _killed_by_scene(mutant: Mutant, scenes: Sequence[Callable[[], None]] = SCENES) -> tuple[int, str] | None:
    logging.disable(logging.CRITICAL)
    with applied(mutant):
        for scene in scenes:
            try:
                scene()
            except MomentMissedError:
                continue
            except Exception as error:  # noqa: BLE001 - any exception means that the defect was found
                return -1, f"{scene.__name__}: {error!r}"
    return None


def _killed_by(mutant: Mutant, plans: Iterable[Plan]) -> tuple[int, str] | None:
    logging.disable(logging.CRITICAL)
    with applied(mutant):
        for plan in plans:
            problems = _problems(plan)
            if problems:
                return plan.seed, problems[0]
    return None


def _problems(plan: Plan) -> list[str]:
    try:
        return run(plan).problems
    except Exception as error:  # noqa: BLE001 - any exception means that the defect was found
        return [f"the history broke: {error!r}"]


def many(first: int, count: int, processes: int, brokers: int | None, *, is_queue: bool = False) -> int:
    """Run many histories. Return how many failed."""
    run_one: Callable[[int], Summary] = _mixed if brokers is None else partial(one, brokers=brokers)
    if is_queue:
        run_one = partial(one_queue, brokers=brokers)
    started, wrong, operations = time.monotonic(), 0, 0
    faults: Counter[str] = Counter()
    with ProcessPoolExecutor(processes) as pool:
        for seed, problems, size, counts in pool.map(run_one, range(first, first + count), chunksize=10):
            operations += size
            faults.update(counts)
            if problems:
                wrong += 1
                with_brokers = brokers or mixed(seed)
                print(f"seed {seed} with --brokers {with_brokers}: {problems[0]}", flush=True)
    seconds = time.monotonic() - started
    print(
        f"{count} histories, {operations} operations, {faults.total()} faults, {wrong} wrong, {seconds:.0f} s"
    )
    for kind, times in sorted(faults.items()):
        print(f"  {kind}: {times}")
    return wrong


def show(seed: int, brokers: int | None, *, is_queue: bool = False) -> int:
    """Show one history, shrunk if it fails."""
    outcome = run((make_queue if is_queue else make)(seed, brokers or mixed(seed)))
    if not outcome.problems:
        print(
            f"seed {seed}: nothing is wrong in {len(outcome.operations)} operations and {outcome.lives} lives"
        )
        return 0
    _tell(outcome)
    smallest = shrink(outcome.plan, lambda plan: bool(_problems(plan)))
    print("\nSmaller:")
    _tell(run(smallest))
    return 1


def _tell(outcome: HistoryResult) -> None:
    print(outcome.plan)
    for problem in outcome.problems[:5]:
        print(f"  {problem}")


def gate(processes: int) -> int:
    """Check that every defect is found. Return how many were not."""
    survivors = 0
    with ProcessPoolExecutor(processes) as pool:
        for mutants, finder in (
            (MUTANTS, killed_by),
            (QUEUE_MUTANTS, killed_by_queue),
            (CLUSTER_MUTANTS, killed_by_several),
        ):
            for mutant, found in zip(mutants, pool.map(finder, mutants), strict=True):
                if found is None:
                    survivors += 1
                    print(f"SURVIVED  {mutant.name}", flush=True)
                else:
                    print(f"seed {found[0]:3}  {mutant.name}: {found[1][:120]}", flush=True)
    return survivors


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument(
        "--brokers", type=int, choices=range(1, 6), help="how many brokers; without it a mix, by seed"
    )
    parser.add_argument("--queue", action="store_true", help="with workers of a share group")
    parser.add_argument("--seed", type=int, help="show one history, made smaller if it fails")
    parser.add_argument("--first", type=int, default=0, help="the first of many seeds")
    parser.add_argument("--count", type=int, default=2_000, help="how many histories")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutants", action="store_true", help="see that every known defect is found")
    options = parser.parse_args()
    if options.mutants:
        return 1 if gate(options.processes) else 0
    if options.seed is not None:
        return show(options.seed, options.brokers, is_queue=options.queue)
    wrong = many(options.first, options.count, options.processes, options.brokers, is_queue=options.queue)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
