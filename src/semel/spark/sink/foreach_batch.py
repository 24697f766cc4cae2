"""Compares what versioned writes in `foreachBatch` have read: a version is skipped only for the same batch.

A batch id does not say what a batch has read. If the checkpoint is lost, ids start at 0 again; with an older
copy of it, batches are planned again, with more input than before. Such batches would be taken for
repetitions, and their rows would be lost.
Spark writes what a batch reads, from sources of all kinds, to `offsets/<batch>` in the checkpoint before it
calls the function, and never changes it. So a write is given the checkpoint of its query, and fingerprints of
the query's id and of that file are stored with the version.

The driver reads the checkpoint when it plans the write. The tasks know from Spark which query and batch they
work for, and compare.
"""

from dataclasses import replace

from semel.spark.checkpoint import Checkpoint
from semel.spark.errors import PipelineMismatch
from semel.spark.sink.versions import BATCH_PROPERTY, BatchRead, Version, fingerprint

#: Spark names the query of a task by its id, which is that of the checkpoint.
QUERY_PROPERTY = "sql.streaming.queryId"
#: Spark sets it in the session that it creates for the batches of a query. A task has the settings of its
#: DataFrame's session, even where Spark does not name the query: with Spark Connect, and in threads.
SESSION_PROPERTY = "spark.sql.streaming.internal.stateStore.partitions"
WAY_OUT = (
    "Start with the latest checkpoint of the query if there is one; otherwise with a new "
    "checkpointLocation, a new txnAppId, and startingOffsets where the output ends"
)


def with_read(version: Version | None) -> Version | None:
    """Add what the batch of a version has read, if the checkpoint of its query is given."""
    if version is None or version.checkpoint is None:
        return version
    checkpoint = Checkpoint(version.checkpoint)
    newest = checkpoint.newest_batch()
    if version.number != newest:
        raise PipelineMismatch(
            f"the checkpoint {version.checkpoint} is at batch {newest}, and this is {version}. Give the "
            "batch id that foreachBatch passes as txnVersion, and the checkpointLocation of the same query"
        )
    entry = checkpoint.entry(newest)
    return replace(version, read=BatchRead(fingerprint(checkpoint.query_id()), fingerprint(entry or "")))


def is_repeated(version: Version, reached: int, known: BatchRead | None) -> bool:
    """Whether a version was written before. PipelineMismatch if that cannot be determined.

    `known` is what the last version, `reached`, has read. It is None for writes outside of streams, and for
    writes that did not compare their input. Such writes are compared by number alone, as in Delta.
    """
    mine, is_counted = version.read, version.number <= reached
    if not version.compares_input:
        return is_counted
    if mine is None:
        if known is not None:
            raise PipelineMismatch(
                f"txnAppId {version.app!r} belongs to the foreachBatch function of a streaming query, whose "
                "next versions would be skipped. Give this write a txnAppId of its own; or, if it is in that "
                "function, the option checkpointLocation"
            )
        return is_counted
    if known is None:
        if is_counted:
            raise PipelineMismatch(
                f"{version} was written before, but what it had read is not known: it was written by an "
                "older release of Semel, by another program or with txnCompare=version. If this checkpoint "
                f"is the latest one of the query, run it once with txnCompare=version. {WAY_OUT}"
            )
        return False
    if known.query != mine.query:
        raise PipelineMismatch(
            f"txnAppId {version.app!r} belongs to another query, which has written up to version {reached}. "
            f"A query whose checkpoint was lost is another one, and its batches are numbered anew. {WAY_OUT}"
        )
    if version.number < reached:
        raise PipelineMismatch(
            f"{version} is a batch of an older copy of the checkpoint: this query has written up to version "
            f"{reached}. {WAY_OUT}"
        )
    if is_counted and mine.entry != known.entry:
        raise PipelineMismatch(
            f"{version} was written before with other input than this batch has: the checkpoint is an older "
            f"copy, or another copy of the query runs on it. {WAY_OUT}"
        )
    if not is_counted and _entry(version, reached) not in (known.entry, None):
        raise PipelineMismatch(
            f"{version} does not follow version {reached}, which was written with other input than batch "
            f"{reached} of this checkpoint has: the checkpoint is a copy that has gone another way. {WAY_OUT}"
        )
    return is_counted


def _entry(version: Version, batch_id: int) -> int | None:
    """Return the fingerprint of an earlier batch; None if Spark has deleted what it read."""
    found = Checkpoint(version.checkpoint or "").entry(batch_id)
    return None if found is None else fingerprint(found)


def check_task(version: Version) -> None:
    """Check in a task that its batch is that of the version. A write outside of streams has no batch.

    With Spark Connect, or in a thread that the function starts, Spark does not say which batch a write
    belongs to. Then the checkpoint is still required, but not compared with the query.
    """
    from pyspark import TaskContext  # Late: `status` must work where Spark is not installed.

    context = TaskContext.get()
    if context is None:
        return
    query, batch = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(BATCH_PROPERTY)
    if query is None and context.getLocalProperty(SESSION_PROPERTY) is None:
        return
    if version.read is None and version.compares_input:
        raise PipelineMismatch(
            f"{version} is written in foreachBatch: give the write the option checkpointLocation, that of "
            "the query. With it the sink compares what the batch has read, so that no batch is skipped "
            "because a checkpoint was lost or is an older copy. txnCompare=version goes by the version alone"
        )
    if version.read is None or query is None or batch is None:
        return
    if (version.read.query, version.number) != (fingerprint(query), int(batch)):
        raise PipelineMismatch(
            f"{version} is not batch {batch} of the query that writes it, whose id is {query}. Give the "
            "batch id that foreachBatch passes as txnVersion, and the checkpointLocation of the same query"
        )
