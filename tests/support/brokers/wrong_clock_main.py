"""Run ``semel`` with a clock that is wrong: ``python wrong_clock_main.py SECONDS serve ...``."""

import sys
import time

SECONDS = float(sys.argv.pop(1))
_time, _time_ns = time.time, time.time_ns
# Patched before any import that keeps a reference to these functions.
time.time = lambda: _time() + SECONDS
time.time_ns = lambda: _time_ns() + int(SECONDS * 1e9)

from semel.cli.main import run  # noqa: E402

if __name__ == "__main__":
    run()
