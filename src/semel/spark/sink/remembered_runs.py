"""Remembers the last run that a driver has started for each of its queries.

Spark plans the batches of a query in Python processes beside the driver: usually in the same one, but any
other may be next. So the runs are kept in files that all of them see, in the directory of `scratch`.

If Spark names no such directory, every process has its own memory. What cannot be stored or read is
forgotten, which is safe: a driver that remembers nothing takes over unconditionally.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from semel.client import ProducerIdAndEpoch
from semel.spark.scratch import forget_oldest, scratch_directory

#: The limit: the oldest are forgotten first.
RUNS_MAX = 1000
DIRECTORY = "semel-runs"

_own: dict[tuple[str, str], ProducerIdAndEpoch] = {}


def recall(pipeline_id: str, query_id: str) -> ProducerIdAndEpoch | None:
    """Return the last run of the query, by any process of this driver."""
    file = _file(pipeline_id, query_id)
    if file is None:
        return _own.get((pipeline_id, query_id))
    try:
        producer_id, epoch = map(int, file.read_text("ascii").split())
    except (OSError, ValueError):
        return None
    return ProducerIdAndEpoch(producer_id, epoch)


def remember(pipeline_id: str, query_id: str, run: ProducerIdAndEpoch) -> None:
    """Store a run that has started, in place of the previous one."""
    file = _file(pipeline_id, query_id)
    if file is None:
        _own.pop((pipeline_id, query_id), None)
        if len(_own) >= RUNS_MAX:
            _own.pop(next(iter(_own)))
        _own[pipeline_id, query_id] = run
        return
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(f"{run.producer_id} {run.epoch}", "ascii")
        draft.replace(file)
        forget_oldest(file.parent, RUNS_MAX)
    except OSError:
        # Otherwise the previous run would be mistaken for the last.
        forget(pipeline_id, query_id)


def forget(pipeline_id: str, query_id: str) -> None:
    """Forget the run of the query."""
    file = _file(pipeline_id, query_id)
    if file is None:
        _own.pop((pipeline_id, query_id), None)
        return
    with suppress(OSError):
        file.unlink()


def _file(pipeline_id: str, query_id: str) -> Path | None:
    """Return the file of a query's run; None if the processes of this driver share no directory."""
    scratch = scratch_directory()
    if scratch is None:
        return None
    # Pipeline names may be long, and may contain characters that a file name may not.
    name = hashlib.sha256(json.dumps([pipeline_id, query_id]).encode()).hexdigest()
    return scratch / DIRECTORY / name
