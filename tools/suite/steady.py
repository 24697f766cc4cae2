"""``python -m tools.suite.steady``: run the tests repeatedly on a busy machine, to find flaky ones."""

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.suite.running import Verdict, fresh_seed, run

RESULTS: Final = Path("results/steady.json")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.suite.steady", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="how often the tests are run (default: 5)")
    parser.add_argument("--busy", type=int, default=2, help="busy loops beside them (default: 2)")
    options, arguments = parser.parse_known_args()
    verdicts: list[Verdict] = []
    seed = fresh_seed()
    with busy_loops(options.busy):
        for number in range(options.runs):
            print(f"\nrun {number + 1} of {options.runs}\n", flush=True)  # noqa: T201
            verdicts.append(run(arguments, seed + number))
            # After every run, so that an interrupted series keeps what it has found.
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(summary(verdicts), indent=2) + "\n")
    print("\n".join(("", *table(verdicts))), flush=True)  # noqa: T201
    return 0 if all(each.code == 0 for each in verdicts) else 1


def summary(verdicts: list[Verdict]) -> dict[str, object]:
    """Return the findings of a series: how often each test was flaky or failed, with the seeds."""
    tests = {
        word: {
            name: {"times": times, "seeds": [each.seed for each in verdicts if name in getattr(each, word)]}
            for name, times in Counter(name for each in verdicts for name in getattr(each, word)).items()
        }
        for word in ("flaky", "failed")
    }
    return {"runs": len(verdicts), "codes": [each.code for each in verdicts], **tests}


def table(verdicts: list[Verdict]) -> Iterator[str]:
    """Yield the findings as a readable table."""
    yield f"{len(verdicts)} runs, {sum(each.code == 0 for each in verdicts)} passed"
    yield "| test | flaky | failed twice |"
    yield "| --- | --- | --- |"
    flaky = Counter(name for each in verdicts for name in each.flaky)
    failed = Counter(name for each in verdicts for name in each.failed)
    for name in sorted(flaky | failed):
        yield f"| {name} | {flaky[name]} of {len(verdicts)} | {failed[name]} of {len(verdicts)} |"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep processors busy during the block."""
    loops = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for each in loops:
        each.start()
    try:
        yield
    finally:
        for each in loops:
            each.terminate()
            each.join()


def _spin() -> None:
    while True:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            pass


if __name__ == "__main__":
    sys.exit(main())
