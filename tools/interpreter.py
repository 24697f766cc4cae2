"""Chooses the Python for the environment: the fastest build of the version of ``python3``.

A Python built without optimisation, as version managers build it by default, takes 1.4 times as long for
calls and attributes as the one that a distribution ships, and some 15 % more for everything a broker does.
Often a machine has both. So all builds of the same version are timed briefly.

Runs under any ``python3``, with only the standard library. It prints the choice to standard output, and the
reason to standard error if another Python than the calling one is chosen.
"""

import os
import subprocess
import sys
from pathlib import Path

CLEARLY = 1.1
"""How many times as fast another build must be. Below that, the calling Python is chosen."""

TRIAL = """
import ensurepip, sysconfig, time, venv
from pathlib import Path
assert Path(sysconfig.get_path("include"), "Python.h").exists()
class Thing:
    def __init__(self, number):
        self.number = number
    def more(self, by):
        return self.number + by
def work():
    seen = {}
    for number in range(20_000):
        seen[number % 100] = (Thing(number).more(1), number)
    return len(seen)
best = 1e9
for _ in range(9):
    begun = time.perf_counter()
    work()
    best = min(best, time.perf_counter() - begun)
print(best)
"""
"""Checks that environments and compiled modules can be made with it, and times the basic operations.

These are calls, attributes and dictionaries. The best of several rounds counts, because other processes use
the machine too.
"""


def seconds(python: str) -> float:
    """Return the time of the trial; infinity if the Python cannot be used."""
    try:
        done = subprocess.run([python, "-c", TRIAL], capture_output=True, text=True, check=True)
        return float(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return float("inf")


def main() -> None:
    """Time all builds, and print the choice."""
    ours = sys.executable
    found = {ours}
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        path = Path(directory, f"python3.{sys.version_info.minor}").resolve()
        # Wrappers of version managers lead to the calling Python, or to none.
        if path.is_file() and path.read_bytes()[:2] != b"#!":
            found.add(str(path))
    times = {python: min(seconds(python), seconds(python)) for python in sorted(found)}
    best = min(times, key=times.__getitem__)
    if times[best] == float("inf") or times[ours] < CLEARLY * times[best]:
        best = ours
    if best != ours:
        sys.stderr.write(f"{best} is faster than {ours}, and is taken. PYTHON=... chooses another one.\n")
    sys.stdout.write(f"{best}\n")


if __name__ == "__main__":
    main()
