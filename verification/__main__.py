"""``python -m verification``: run the checks of a size, and keep what they came to."""

import argparse
import sys
import time

from verification import results
from verification.results import Result
from verification.tiers import CHECKS, SIZES


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m verification", description=__doc__)
    parser.add_argument("size", choices=SIZES, nargs="?", default="verify")
    parser.add_argument("--only", nargs="*", choices=list(CHECKS), help="some checks; others keep their rows")
    parser.add_argument("--share", type=float, default=1.0, help="a part of the size, for a look")
    parser.add_argument("--no-write", action="store_true", help="show, and keep nothing")
    options = parser.parse_args()
    commit = results.commit_now()
    rows: list[Result] = []
    for name in options.only or CHECKS:
        check, counts = CHECKS[name]
        count = max(1, int(counts[SIZES.index(options.size)] * options.share))
        print(f"{name}: {count:,} …", flush=True)
        started = time.monotonic()
        for found in check(count):
            seconds = round(time.monotonic() - started, 1)
            rows.append(
                Result(found.name, found.value, found.target, found.met, found.seeds, seconds, commit)
            )
            print(
                f"  {found.name}: {found.value:,} of {found.target:,}{'' if found.met else '  NOT MET'}"
                f"  ({seconds:,.0f} s) {found.detail}",
                flush=True,
            )
        if not options.no_write:
            # After every check: a run that is cut off has shown what it has shown.
            results.merge(rows)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
