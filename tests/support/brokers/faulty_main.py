"""``python faulty_main.py SWITCHES serve ...``: the ``semel`` command on a disk with switches."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from semel.broker import broker
from semel.cli.main import run
from semel.store.opening import open_store
from support.brokers.faulty import FaultyFiles

if __name__ == "__main__":
    broker.open_store = partial(open_store, files=FaultyFiles(Path(sys.argv.pop(1))))  # type: ignore[attr-defined]  # patched where it is called
    run()
