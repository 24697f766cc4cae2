"""Recognises repeated batch writes by a version: Delta's `txnAppId` and `txnVersion`.

A function of `foreachBatch` runs again if it raised after it wrote. It identifies a write by an application
and a version, the batch id. A write whose version is not above the last one of its application is skipped, if
it is the same batch (`foreach_batch`).

The decision of such a write names it in place of a query and a batch (`WriteName`): the application, the
option `topic`, the run of the streaming query in which it was made, and what the batch has read. The topic
and the run reveal a mistake: two writes of one function that share an application would count as one, and the
rows of the second would be lost. So another topic is refused, and so is a second write in the same run of the
query, because Spark never repeats a batch within a run. Only the driver remembers which run has skipped a
version (`remember`). A run writes a version once. A second write with the same names is a mistake, and its
rows would be lost. If this run made the first one, the decision or the note of the table says so. If this run
skipped it, because an earlier run had made it, only this memory shows it. Like runs, it is kept in files that
all Python processes of a driver see; what cannot be stored is forgotten.
"""

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from semel.spark.errors import PipelineMismatch
from semel.spark.scratch import forget_oldest, scratch_directory
from semel.spark.sink.decision import BatchDecision

#: The query and the batch in the decision of a batch write without a version.
NO_QUERY, NO_BATCH = "", -1

#: The start of the query id in a decision that names a write. Ids of streaming queries are UUIDs.
MARK = "write "
#: Spark names the jobs of a streaming query after its run.
RUN_PROPERTY = "spark.jobGroup.id"
BATCH_PROPERTY = "streaming.sql.batchId"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class BatchRead(NamedTuple):
    """What a batch of a stream has read: fingerprints of its query and of its entry in the checkpoint."""

    query: int
    entry: int


def fingerprint(text: str) -> int:
    """Return a text as a number of 63 bits, which is what a table's transaction identifier can hold."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class Version:
    """The version of one write, from the options. Two are equal if application and number are."""

    app: str
    number: int
    checkpoint: str | None = field(default=None, compare=False)  # of the query whose foreachBatch writes
    compares_input: bool = field(default=True, compare=False)
    read: BatchRead | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"version {self.number} of txnAppId {self.app!r}"


@dataclass(frozen=True, slots=True)
class WriteName:
    """The name of a versioned write in its decision, besides the version."""

    app: str
    topic: str | None
    stream_run: str | None = None
    read: BatchRead | None = None

    def to_query_id(self) -> str:
        """Format the name as the query id of a decision."""
        parts = [self.app, self.topic, self.stream_run, *(self.read or ())]
        return MARK + json.dumps(parts, separators=(",", ":"))

    @classmethod
    def of_query_id(cls, query_id: str) -> Self | None:
        """Parse the name in a decision; None if it belongs to a stream or to a write without versions."""
        if not query_id.startswith(MARK):
            return None
        app, topic, stream_run, *read = json.loads(query_id.removeprefix(MARK))
        return cls(app, topic, stream_run, BatchRead(*read) if read else None)


def is_write(decision: BatchDecision) -> bool:
    """Whether a decision was made by a batch write, and not by a streaming query."""
    return decision.query_id == NO_QUERY or WriteName.of_query_id(decision.query_id) is not None


def check_write(
    last: BatchDecision | None, pipeline_id: str, version: Version | None, topic: str | None
) -> bool:
    """Whether a batch write was decided before. PipelineMismatch if its name belongs to something else."""
    if last is None:
        return False
    name = WriteName.of_query_id(last.query_id)
    if not is_write(last):
        owner = "a streaming query"
    elif name is None and version is None:
        return False
    elif name is None:
        owner = "batch writes without txnVersion"
    elif version is None:
        owner = f"the writes of txnAppId {name.app!r}, which have a txnVersion"
    elif name.app != version.app:
        owner = f"the writes of txnAppId {name.app!r}"
    elif name.topic != topic:
        owner = f"writes to {_describe(name.topic)}, and not to {_describe(topic)}"
    else:
        from semel.spark.sink.foreach_batch import is_repeated  # Late: `status` must not need pyarrow.

        return is_repeated(version, last.batch_id, name.read)
    name_given = "pipeline.id" if version is None else "txnAppId, or pipeline.id if both are given,"
    raise PipelineMismatch(
        f"pipeline.id {pipeline_id!r} belongs to {owner}. Give this write a {name_given} of its own"
    )


def _describe(topic: str | None) -> str:
    return "the topics of a column" if topic is None else f"topic {topic!r}"


def current_stream_run() -> str | None:
    """Return the run of the streaming query that this task works for; None if there is none.

    A job group that a program has set is not a run: it may stay the same when a query restarts.
    """
    from pyspark import TaskContext  # Late: `status` must work where Spark is not installed.

    context = TaskContext.get()
    found = context.getLocalProperty(RUN_PROPERTY) if context is not None else None
    return found if found is not None and _UUID.fullmatch(found) else None


def refuse_second_write(version: Version, written_in: str | None) -> None:
    """Refuse rows whose version this run has written before: they would be skipped without being written."""
    if written_in is not None and written_in == current_stream_run():
        raise PipelineMismatch(second_write_text(version))


def second_write_text(version: Version) -> str:
    """Why a write is refused that would be skipped although its rows were never written."""
    return (
        f"{version} was written before in this run of the query, or skipped, so this is a second write with "
        "the same names, and its rows would be lost. Give every write of a foreachBatch function a txnAppId "
        "of its own, and a pipeline.id of its own if it has one"
    )


#: The limit: the oldest are forgotten first.
WRITES_MAX = 1000
DIRECTORY = "semel-writes"

_own: dict[str, None] = {}


def is_remembered(place: str, version: Version, stream_run: str) -> bool:
    """Whether this run has made or skipped the version. `place` distinguishes sinks."""
    name = _name(place, version, stream_run)
    directory = _directory()
    return name in _own if directory is None else (directory / name).exists()


def remember(place: str, version: Version, stream_run: str) -> None:
    """Record that this run has made or skipped the version."""
    name = _name(place, version, stream_run)
    directory = _directory()
    if directory is None:
        if len(_own) >= WRITES_MAX:
            _own.pop(next(iter(_own)))
        _own[name] = None
        return
    with suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / name).touch()
        forget_oldest(directory, WRITES_MAX)


def skip(place: str, version: Version | None, stream_run: str | None, *, has_rows: bool) -> None:
    """Record a skipped write. PipelineMismatch if it has rows, and is the second one of this run."""
    if version is None or stream_run is None:
        return
    if has_rows and is_remembered(place, version, stream_run):
        raise PipelineMismatch(second_write_text(version))
    remember(place, version, stream_run)


def _directory() -> Path | None:
    scratch = scratch_directory()
    return None if scratch is None else scratch / DIRECTORY


def _name(place: str, version: Version, stream_run: str) -> str:
    return hashlib.sha256(json.dumps([place, version.app, version.number, stream_run]).encode()).hexdigest()
