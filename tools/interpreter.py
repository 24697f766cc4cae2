"""Says which Python to make the environment of: the fastest build of the version that ``python3`` is.

A Python that was built without optimisation, as version managers build it unless they are told otherwise,
takes 1.4 times as long for calls and attributes as the one that a distribution ships, and some 15 % more
for all that a broker does. Often both are on a machine. So all of the same version are tried for a moment.

Runs under whatever ``python3`` is, with nothing but the standard library. The answer is on standard output,
and why, if it is another one, on standard error.
"""

import os
import subprocess
import sys
from pathlib import Path

CLEARLY = 1.1
"""How many times as fast another one must be. Below that, people get what they called."""

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
"""An environment can be made of it, modules can be compiled for it, and how long calls, attributes and
dictionaries take. The best of several, because others use the machine too."""


def seconds(python: str) -> float:
    """How long the trial takes; endless for one that cannot be used."""
    try:
        done = subprocess.run([python, "-c", TRIAL], capture_output=True, text=True, check=True)
        return float(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return float("inf")


def main() -> None:
    """Try all, and tell."""
    ours = sys.executable
    found = {ours}
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        path = Path(directory, f"python3.{sys.version_info.minor}").resolve()
        # Wrappers of version managers lead to the one that was called, or to none.
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
