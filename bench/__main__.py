"""``make bench``: measure Semel beside its peers, print what came out, write docs/benchmarks.md
and the figures of README.md.

    python -m bench --quick              every workload on every subject, in a few minutes
    python -m bench --only transactions  one workload
    python -m bench --only cluster       all workloads about many brokers
    python -m bench --only security      what ACLs and TLS cost
    python -m bench --only console       what a console with 50 browsers costs on a large broker
    python -m bench --page               only the page, from what was measured last

The raw results are in results/benchmarks.json. A run of some workloads replaces those and keeps the rest; a
run that is quick, of some subjects only, or not to be written leaves the files alone. A quick run of the
cluster alone is written, because its workloads have enough rounds in every size.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from bench import bars, page
from bench.environment import environment, load
from bench.results import BARS, Results
from bench.rows import table
from bench.side_by_side.bar import rows
from bench.side_by_side.catalogue import CLUSTER, SECURITY, WORKLOADS
from bench.side_by_side.measuring import QUICK, SIZES, Size, Workload, measure, noted, started
from bench.side_by_side.warming import warm_up
from bench.subjects import KAFKA_VERSION, Subject

ROOT = Path(__file__).parents[1]
FILE = ROOT / "results" / "benchmarks.json"
PARTIAL = FILE.with_suffix(".partial.json")
"""The results of a run so far; deleted when the run has completed."""
CLUSTER_NAME = "cluster"
CLUSTER_ROUNDS, CLUSTER_SECONDS, CLUSTER_RECORDS = 3, 2.0, 100_000
"""The minimum, in every size."""
SECURITY_NAME = "security"
SECURITY_ROUNDS = 11
"""The minimum, unless the size is quick: ACLs may cost less than the difference between two rounds."""


def main() -> None:
    options = _options()
    if options.page:
        page.write(Results.read(FILE), ROOT)
        return
    results = Results(options.size, environment(KAFKA_VERSION))
    began = time.perf_counter()
    is_whole = options.size != "quick" or options.only == [CLUSTER_NAME]
    is_kept = not options.no_write and is_whole and not options.subjects
    so_far = [*([PARTIAL] if is_kept else []), *([options.output] if options.output else [])]

    def save() -> None:
        results.seconds = time.perf_counter() - began
        results.environment["load after"] = load()
        for path in so_far:
            results.write(path)

    _measure(results, SIZES[options.size], options.only, options.subjects, save)
    print(_summary(results))
    if is_kept:
        _keep(results)
        PARTIAL.unlink()
    sys.exit(1 if results.failed else 0)


def _measure(
    results: Results, size: Size, only: list[str], names: list[str], save: Callable[[], None]
) -> None:
    """Measure `side_by_side` first: Spark's own connector must be on the class path when Java starts."""
    chosen = [each for each in WORKLOADS if not only or each.name in only or _section(each) in only]
    for kinds, workloads in groupby(chosen, lambda each: each.subjects):
        with started([each for each in kinds if not names or each.name in names], results) as subjects:
            warm = [each for each in subjects if _is_warm(each, size, results)]
            for make in workloads:
                _say(f"measuring: {make.name} …")
                measure(make(), warm, _sized(size, make), results, _say)
                save()
    if not only or BARS in only:
        results.bars_measured = results.run
        for name, part in bars.parts(bars.QUICK if size.name == "quick" else bars.DEFAULT).items():
            _say(f"measuring: {BARS}: {name} …")
            with noted(f"{BARS}: {name}", results, _say):
                results.bars.extend(part())
            save()


def _section(workload: type[Workload[Any]]) -> str | None:
    return CLUSTER_NAME if workload in CLUSTER else SECURITY_NAME if workload in SECURITY else None


def _sized(size: Size, workload: type[Workload[Any]]) -> Size:
    """Return the size for a workload: clusters vary more between rounds, and their p99 needs more time."""
    if workload in SECURITY and size.name != QUICK.name:
        return replace(size, rounds=max(size.rounds, SECURITY_ROUNDS))
    if workload not in CLUSTER:
        return size
    return replace(
        size,
        rounds=max(size.rounds, CLUSTER_ROUNDS),
        seconds=max(size.seconds, CLUSTER_SECONDS),
        records=max(size.records, CLUSTER_RECORDS),
    )


def _is_warm(subject: Subject, size: Size, results: Results) -> bool:
    """Warm the subject up; return whether it works."""
    rate = 0.0
    with noted(subject.name, results, _say):
        rate = warm_up(subject, size.warm_seconds)
        results.environment[f"warm {subject.name}"] = f"{rate:,.0f} transactions/s"
        _say(f"warm: {subject.name}, {rate:,.0f} transactions per second")
    return rate > 0


def _say(line: str) -> None:
    print(line, flush=True)


def _summary(results: Results) -> str:
    parts = [table(results.bars)] if results.bars else []
    parts.append(table(rows(results)))
    parts += results.left_out()
    return "\n\n".join(parts) + f"\n\n{results.seconds:,.0f} seconds"


def _keep(results: Results) -> None:
    kept = results
    if FILE.exists():
        kept = Results.read(FILE)
        kept.replace(results)
    kept.write(FILE)
    page.write(kept, ROOT)


def _options() -> argparse.Namespace:
    names = [BARS, CLUSTER_NAME, SECURITY_NAME, *(each.name for each in WORKLOADS)]
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--size", choices=list(SIZES), default="default")
    parser.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="the same as --size quick"
    )
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--subjects",
        nargs="+",
        choices=list(dict.fromkeys(each.name for make in WORKLOADS for each in make.subjects)),
        default=[],
        help="only these, without writing",
    )
    parser.add_argument("--no-write", action="store_true", help="leave results/ and docs/ alone")
    parser.add_argument("--output", type=Path, help="write the raw results here, too")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the page again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
