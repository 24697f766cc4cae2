"""Checks that a batch continues where the pipeline stopped: compares Spark's checkpoint with a decision.

Spark's checkpoint may be old, copied, or that of another query. Between two runs topics grow, are deleted and
created again, and offsets are reset. So nothing in it is trusted.

- A batch that the last decision names, of the same query and with the same number, is done if it reads
  exactly what was decided: the same partitions of the same topics, from the same start to the same end.
- Any other batch is written only if it starts, in every partition, where the pipeline has ended.
- Everything else is refused. A batch of an older checkpoint may overlap what was counted, and a batch of a
  stateful query depends on those before it, so there is no safe way to write a part of it.
"""

from collections.abc import Iterable, Mapping

from semel.client import Partition
from semel.spark.checkpoint import Step, describe
from semel.spark.errors import PipelineMismatch
from semel.spark.sink.decision import BEGINNING, BatchDecision, Committed, Input, remembered
from semel.spark.sink.versions import is_write

_NEW_CHECKPOINT = (
    "start with a new checkpointLocation, and with pipeline.id and startingOffsets=committed on the source"
)


def is_done(committed: Committed, pipeline_id: str, query_id: str, batch_id: int, step: Step) -> bool:
    """Whether the batch was decided before. PipelineMismatch if it was not and cannot be written either."""
    last = committed.decision
    check_is_of_topics(committed, pipeline_id)
    if last is None:
        # Deleting the topics has deleted the decisions too, which are stored with their offsets.
        if batch_id > 0 and not step.is_of_new_topics:
            raise PipelineMismatch(
                f"the checkpoint is at batch {batch_id}, but pipeline {pipeline_id!r} has decided none. "
                "Either the checkpoint is that of another pipeline, or the broker has forgotten the group of "
                "this one, or its input topics were deleted. Start with a new pipeline.id and a new "
                "checkpointLocation, and with startingOffsets where the output ends"
            )
        return False
    if is_write(last):
        raise PipelineMismatch(
            f"pipeline.id {pipeline_id!r} belongs to a batch write. Give this query one of its own"
        )
    if last.query_id == query_id and batch_id <= last.batch_id:
        _check_same(last, pipeline_id, batch_id, step)
        return True
    for key in sorted(step.end):
        _check_start(committed, last, pipeline_id, query_id, batch_id, step, key)
    return False


def check_source(pipeline_id: str, step: Step) -> None:
    """PipelineMismatch if the batch was planned by a source with another pipeline.id than the sink has."""
    for other in sorted(step.pipeline_ids - {pipeline_id}):
        raise PipelineMismatch(
            f"the source of this batch has pipeline.id {other!r}, and its sink has {pipeline_id!r}. The "
            "position is stored under the id of the sink, and without the checkpoint the source would not "
            f"find it. Give the source pipeline.id={pipeline_id}, and the query a new checkpointLocation: it "
            f"starts where {pipeline_id!r} has ended"
        )


def check_is_of_topics(committed: Committed, pipeline_id: str) -> None:
    """PipelineMismatch if the group belongs to a pipeline that writes to a table."""
    if committed.is_of_table:
        raise PipelineMismatch(
            f"pipeline.id {pipeline_id!r} belongs to a pipeline that writes to a table. Give this one a "
            "pipeline.id of its own"
        )


def _check_same(last: BatchDecision, pipeline_id: str, batch_id: int, step: Step) -> None:
    """Check that this is the batch that was decided, and not another one made from an old checkpoint."""
    if batch_id < last.batch_id:
        raise PipelineMismatch(
            f"the checkpoint is at batch {batch_id}, but pipeline {pipeline_id!r} has decided batch "
            f"{last.batch_id} of this query. The checkpoint is an older copy: {_NEW_CHECKPOINT}"
        )
    spans = step.spans
    for key in sorted({*spans, *last.spans}):
        if spans.get(key) != last.spans.get(key):
            raise PipelineMismatch(
                f"batch {batch_id} reads {_said(spans, key)}, but pipeline {pipeline_id!r} has decided it "
                f"with {_said(last.spans, key)}. The checkpoint is an older copy, or another copy of the "
                f"query runs on it: {_NEW_CHECKPOINT}"
            )
    for topic, known in sorted(last.inputs.items()):
        if known.topic_id and step.ids.get(topic, known.topic_id) != known.topic_id:
            raise PipelineMismatch(
                f"batch {batch_id} reads another topic {topic} than the one that it was decided with: the "
                f"topic was deleted and created again. {_NEW_CHECKPOINT.capitalize()}"
            )


def _said(spans: Mapping[Partition, tuple[int, int]], key: Partition) -> str:
    if key not in spans:
        return f"nothing of {describe(key)}"
    start, end = spans[key]
    return f"offsets {start} to {end} of {describe(key)}"


def _check_start(
    committed: Committed,
    last: BatchDecision,
    pipeline_id: str,
    query_id: str,
    batch_id: int,
    step: Step,
    key: Partition,
) -> None:
    """Check that the batch starts where the pipeline is, in one partition."""
    start, is_same_query = step.start.get(key, 0), last.query_id == query_id
    known = last.inputs.get(key[0])
    is_other_topic = (
        known is not None and known.topic_id != "" and step.ids.get(key[0], known.topic_id) != known.topic_id
    )
    if is_other_topic and not is_same_query:
        raise PipelineMismatch(
            f"topic {key[0]} was deleted and created again since pipeline {pipeline_id!r} has read it. What "
            "was not read before is lost. Start with a new pipeline.id to read the new topic"
        )
    if key in committed.foreign and not is_other_topic:
        raise PipelineMismatch(
            f"the offset of {describe(key)} in the group of pipeline {pipeline_id!r} was written by another "
            "program, so it is unknown what the pipeline has read of it. Choose a new pipeline.id, and "
            "startingOffsets where the output ends"
        )
    reached = None if is_other_topic else committed.offsets.get(key)
    if reached is None:
        # Nothing to compare: another query decided last, or the partition is new to this one.
        if not is_same_query or key not in step.start:
            return
        reached = 0
    if last.number == BEGINNING and not is_same_query:
        return  # Nothing is committed yet, so another query may start elsewhere.
    if reached != start:
        raise PipelineMismatch(
            f"batch {batch_id} starts at offset {start} of {describe(key)}, but pipeline "
            f"{pipeline_id!r} has reached {reached}. Either another copy of it is running, and this one "
            f"has to stop; or the checkpoint is not the last one of the pipeline: {_NEW_CHECKPOINT}"
        )


def inputs_after(committed: Committed, step: Step) -> dict[str, Input]:
    """Return the topics that have notes once the batch is decided: those of the batch, and older ones."""
    before: Mapping[str, Input] = {} if committed.decision is None else committed.decision.inputs
    noted, read = _by_topic(committed.offsets), _by_topic(step.end)
    found: dict[str, Input] = {}
    for topic, numbers in sorted(read.items()):
        known = before.get(topic, Input("", 0))
        topic_id = step.ids.get(topic, known.topic_id)
        if known.topic_id in ("", topic_id):
            numbers = numbers | noted.get(topic, set())
        found[topic] = Input(topic_id, len(numbers))
    # A topic whose offsets are gone was deleted.
    rest = {
        topic: each
        for topic, each in before.items()
        if topic not in found and len(noted.get(topic, ())) >= each.partitions
    }
    return {**remembered(rest), **found}


def _by_topic(partitions: Iterable[Partition]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, set()).add(number)
    return found
