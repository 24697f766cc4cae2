"""Compares the output topics of a pipeline by id, to find topics that were deleted and created again.

The output in the old topic is gone, while the pipeline's position says that it was written. Whether that was
intended is unknown, so the pipeline stops.
"""

from collections.abc import Iterable

from semel.client import Client
from semel.spark.errors import PipelineMismatch
from semel.spark.partition_offsets import TopicIds, recreated, topic_ids
from semel.spark.sink.decision import BEGINNING, Decision


def check_outputs(client: Client, pipeline_id: str, last: Decision, topic: str | None) -> None:
    """Compare the outputs of the last decision with the current topics. PipelineMismatch if they differ."""
    if last.number != BEGINNING and last.topic != topic:
        raise PipelineMismatch(
            f"pipeline {pipeline_id!r} has written to {_said(last.topic)} so far, and this query writes to "
            f"{_said(topic)}, which lacks the output of earlier batches. Give this query a "
            "pipeline.id of its own"
        )
    _check(client, pipeline_id, last.outputs, {})


def check_written(client: Client, pipeline_id: str, known: TopicIds, written: TopicIds) -> None:
    """Check the outputs again before a decision, with the topics that the tasks have written to."""
    _check(client, pipeline_id, known, written)


def merged(found: Iterable[TopicIds]) -> TopicIds:
    """Merge the outputs of several tasks. The check finds one that differs from the current topic."""
    return {topic: topic_id for each in found for topic, topic_id in each.items()}


def _check(client: Client, pipeline_id: str, known: TopicIds, written: TopicIds) -> None:
    names = sorted({*known, *written})
    now = topic_ids(client.describe(names).topics) if names else {}
    for topic in sorted(recreated(known, {**written, **now}) | recreated(written, now)):
        raise PipelineMismatch(
            f"the output topic {topic} was deleted and created again since pipeline {pipeline_id!r} wrote to "
            "it, so what was written before is not there. Start with a new pipeline.id: with "
            "startingOffsets=earliest to write everything again, or where the old one stopped"
        )


def _said(topic: str | None) -> str:
    return "the topics that its rows name" if topic is None else f"topic {topic}"
