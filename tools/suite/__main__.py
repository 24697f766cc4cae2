"""Runs the tests; a flaky test is reported, and does not fail the run: ``python -m tools.suite``.

A failed test is run once more, alone and in one process. If it passes then, it is flaky: a bug, to be fixed
next. If it fails twice, or if more than three tests fail, the run has failed. ``--verify`` runs the shortest
verification beside the tests, by the same rule.
"""

import sys
from collections.abc import Iterator

from tools.suite.running import Verdict, fresh_seed, run
from tools.suite.verifying import verification


def main() -> int:
    """Run the tests. The arguments are those of pytest, and ``--verify``."""
    arguments = [each for each in sys.argv[1:] if each != "--verify"]
    seed = fresh_seed()
    if "--verify" not in sys.argv:
        verdict = run(arguments, seed)
    else:
        with verification() as running:
            verdict = run(arguments, seed)
            verdict = verdict.beside(running.finish(seed))
    print("\n".join(("", *report(verdict))), flush=True)  # noqa: T201
    return verdict.code


def report(verdict: Verdict) -> Iterator[str]:
    """Yield the last lines of a run."""
    for name in verdict.flaky:
        yield f"FLAKY {name} {verdict.seed}"
    if verdict.flaky:
        yield "A flaky test is a bug to be fixed next: see CONTRIBUTING.md."
    for name in verdict.failed:
        yield f"FAILED {name} {verdict.seed}"
    if verdict.skipped:
        reasons = "; ".join(f"{count} because {reason}" for reason, count in verdict.skipped.items())
        yield f"{sum(verdict.skipped.values())} skipped: {reasons}"


if __name__ == "__main__":
    sys.exit(main())
