"""Run ``semel`` on a disk with switches: ``python faulty_main.py KIND SWITCHES serve ...``.

If the kind is ``chaos``, the process also kills itself at a named point.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from semel.broker import broker
from semel.cli.main import run
from semel.store.opening import open_store
from support.brokers.chaos_broker import install
from support.brokers.faulty import FaultyFiles

KINDS = {"faulty": FaultyFiles, "chaos": install}

if __name__ == "__main__":
    kind, switches = sys.argv.pop(1), Path(sys.argv.pop(1))
    # Patched in the module that calls it.
    broker.open_store = partial(open_store, files=KINDS[kind](switches))  # type: ignore[attr-defined]
    run()
