"""A producer in its own process that stops inside a transaction: ``python main.py JSON``.

It writes three transactions and stops itself (SIGSTOP) in the second, when everything is written except the
commit. The parent process continues it. It prints which transactions were acknowledged.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from semel.check import Recorder
from support.workloads.clients import Sent
from support.workloads.running import Place, Producing

TRANSACTIONS = 3
STOPPED = 1


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def main(told: dict[str, object]) -> None:
    with Recorder(str(told["history"])) as recorder:
        place = Place(
            str(told["bootstrap"]),
            recorder,
            timeout_ms=int(str(told["timeout_ms"])),
            tells_offsets=bool(told["tells_offsets"]),
        )
        name = str(told["transactional_id"])
        producing = Producing(place, str(told["kind"]), name)
        acknowledged = []
        for number in range(TRANSACTIONS if told["goes_on"] else STOPPED + 1):
            records = [Sent(str(told["topic"]), index, f"{name}/{number}") for index in range(2)]
            stops = stop if number == STOPPED else lambda: None
            acknowledged.append(producing.transaction(records, is_commit=True, meanwhile=stops))
        producing.close()
    sys.stdout.write(json.dumps(acknowledged) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
