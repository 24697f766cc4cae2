"""``python wrong_clock_main.py SECONDS serve ...``: the ``semel`` command with a clock that is wrong."""

import sys
import time

SECONDS = float(sys.argv.pop(1))
_time, _time_ns = time.time, time.time_ns
# Before anything is imported that keeps a reference.
time.time = lambda: _time() + SECONDS
time.time_ns = lambda: _time_ns() + int(SECONDS * 1e9)

from semel.cli.main import run  # noqa: E402

if __name__ == "__main__":
    run()
