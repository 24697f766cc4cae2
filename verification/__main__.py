"""``python -m verification``: run the checks of a size. All sizes but `test` write their results.

Checks that wait for other processes run in one queue, and checks that keep the processors busy in another.
The busy checks run at lower priority, because a waiting check cannot make up for lost time.
"""

import argparse
import gc
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from verification import results
from verification.results import Result
from verification.tiers import CHECKS, SIZES, Found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m verification", description=__doc__)
    parser.add_argument("size", choices=SIZES, nargs="?", default="verify")
    parser.add_argument("--only", nargs="*", choices=list(CHECKS), help="some checks; others keep their rows")
    parser.add_argument("--share", type=float, default=1.0, help="a part of the size, for a look")
    parser.add_argument("--no-write", action="store_true", help="show, and keep nothing")
    parser.add_argument("--unmet", type=Path, help="write the names of checks that were not met to this file")
    options = parser.parse_args()
    commit, word = results.commit_now(), results.WORDS[options.size]
    rows: dict[str, list[Result]] = {}
    with ProcessPoolExecutor(1, None, _step_back) as busy, ProcessPoolExecutor(1) as waiting:
        in_flight = {}
        for name in options.only or CHECKS:
            check = CHECKS[name]
            if not (full := check.counts[SIZES.index(options.size)]):
                continue
            count = max(1, int(full * options.share))
            in_flight[(waiting if check.waits else busy).submit(_run, name, count)] = name
        for done in as_completed(in_flight):
            name, (found, seconds) = in_flight[done], done.result()
            rows[name] = [
                Result(f"{word}: {each.name}", each.value, each.target, each.met, each.seeds, seconds, commit)
                for each in found
            ]
            if options.size != "test" and not options.no_write:
                # After every check, so that an interrupted run keeps its results so far.
                results.merge([row for each in CHECKS for row in rows.get(each, ())])
    unmet = [name for name, found in rows.items() if not all(row.met for row in found)]
    if options.unmet:
        options.unmet.write_text(json.dumps(unmet))
    return 1 if unmet else 0


def _step_back() -> None:
    """Prepare a process that keeps a processor busy, and its children.

    It creates many objects, of which few are garbage: collecting less often makes a simulated history a fifth
    faster.
    """
    os.nice(10)
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _run(name: str, count: int) -> tuple[list[Found], float]:
    """Run one check in a process of its own. Return its findings and the seconds it took."""
    print(f"{name}: {count:,} …", flush=True)
    started = time.monotonic()
    found = list(CHECKS[name].run(count))
    seconds = round(time.monotonic() - started, 1)
    for each in found:
        met = "" if each.met else "  NOT MET"
        print(f"{name}: {each.name}: {each.value:,} of {each.target:,}{met}  {each.detail}", flush=True)
    print(f"{name}: {seconds:,.0f} s", flush=True)
    return found, seconds


if __name__ == "__main__":
    sys.exit(main())
