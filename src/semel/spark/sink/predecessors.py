"""Recognises a pipeline that goes on under another id, before it writes the same records again.

A position belongs to a pipeline.id. If the id changes, as when a sink is renamed, the new one starts at the
beginning, and everything is written to the output a second time. What is already in an output is known from
the pipelines that wrote it: the note of each says which topics it has written to, and how far it has read. So
before a pipeline decides anything, the groups of the cluster are searched for one that has read what this one
is about to read, and has written to the same output.

Such a pipeline may be this one under its former id, or another one that does the same on purpose. Kafka does
not know whether either will ever run again. So the options say which it is (`Relations`), and without them
the query is refused. A pipeline that has read other topics, or has not read past the start of this one, is no
predecessor.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from semel.client import (
    EARLIEST,
    LATEST,
    Admin,
    Client,
    Consumer,
    ErrorCode,
    Isolation,
    KafkaError,
    Partition,
    TopicInfo,
)
from semel.client.consume.offsets import list_offsets
from semel.spark.checkpoint import Step, describe
from semel.spark.errors import PipelineError, PipelineMismatch
from semel.spark.partition_offsets import PartitionOffsets, Spans, TopicIds, id_text
from semel.spark.relations import Relations
from semel.spark.sink.decision import last_known
from semel.spark.sink.versions import is_write

T = TypeVar("T")

#: The protocol type of a group with committed offsets and no members, as all pipelines have.
NO_PROTOCOL = ""
_GONE = frozenset({ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.GROUP_ID_NOT_FOUND})


class Writer(NamedTuple):
    """Another pipeline: how far it has read, and what it has written to."""

    pipeline_id: str
    positions: PartitionOffsets
    inputs: TopicIds
    outputs: TopicIds

    def has_written(self, outputs: Mapping[str, str]) -> bool:
        """Whether it has written to one of these topics. A topic that was created again is another one."""
        return any(self.outputs.get(topic) == topic_id for topic, topic_id in outputs.items())

    def overlap(self, step: Step) -> Partition | None:
        """Return a partition in which this batch would read again what the pipeline has read, if any."""
        again = (key for key, span in step.spans.items() if span.start < self.positions.get(key, 0))
        return min((key for key in again if self._has_read(key[0], step.ids)), default=None)

    def _has_read(self, topic: str, ids: TopicIds) -> bool:
        known = self.inputs.get(topic, "")
        return known == "" or ids.get(topic, known) == known


class Predecessor(NamedTuple):
    """A pipeline that has read what another one is about to read."""

    writer: Writer
    where: Partition
    start: int  # where the other one starts

    def refusal(self, pipeline_id: str, output: str) -> str:
        """Return the message that names both ways out."""
        name = self.writer.pipeline_id
        return (
            f"pipeline {name!r} has read {describe(self.where)} up to offset "
            f"{self.writer.positions[self.where]} and has written to {output}. Pipeline {pipeline_id!r} is "
            f"new, and would write what is there from offset {self.start} on a second time. If it is the "
            f"same pipeline under another name, let it keep its id: pipeline.id={name}, or in a declaration "
            f"renamed_from={name!r}. If it is to begin on purpose: pipeline.new=true, or "
            f"'semel pipeline run --new'; if both are to run, pipeline.beside={name}"
        )


def overlapping(writers: Iterable[Writer], relations: Relations, step: Step) -> list[Predecessor]:
    """Return the predecessors among these pipelines."""
    found = ((each, each.overlap(step)) for each in writers if each.pipeline_id not in relations.beside)
    return [Predecessor(each, key, step.spans[key].start) for each, key in found if key is not None]


# ---- topics


def find_predecessors(
    client: Client, pipeline_id: str, relations: Relations, step: Step, topic: str | None, *, has_begun: bool
) -> tuple[Predecessor, ...]:
    """Find the predecessors of a pipeline that has not written anything yet.

    If rows name their topics, return them: the topics are known only when the tasks have written. For a given
    topic, raise PipelineMismatch if a predecessor has written to it. If the pipeline has begun, it may itself
    have left records of aborted transactions there, so their origin is not checked.
    """
    if relations.is_new:
        return ()
    writers = _writers(client, pipeline_id)
    found = tuple(overlapping(writers, relations, step))
    if topic is None:
        return found
    topics = client.describe([topic]).topics
    outputs = {each.name: id_text(each.topic_id) for each in topics}
    check_predecessors(found, pipeline_id, outputs)
    if not has_begun:
        check_origin(client, pipeline_id, outputs, step.spans)
    return ()


def check_predecessors(found: Iterable[Predecessor], pipeline_id: str, outputs: Mapping[str, str]) -> None:
    """PipelineMismatch if one of these pipelines has written to one of these topics."""
    for each in found:
        if each.writer.has_written(outputs):
            names = ", ".join(sorted(outputs.keys() & each.writer.outputs.keys()))
            raise PipelineMismatch(each.refusal(pipeline_id, f"topic {names}"))


def _writers(client: Client, pipeline_id: str) -> list[Writer]:
    """Return the other pipelines that have written to topics."""
    found = []
    for name, known in of_other_groups(client, pipeline_id, last_known):
        last = known.decision
        if last is None:
            continue
        if is_write(last):
            # Its decision is stored beside its output, and what it has read is unknown.
            found.append(Writer(name, {}, {}, dict.fromkeys((topic for topic, _ in known.offsets), "")))
            continue
        outputs = dict(last.outputs)
        if last.topic is not None:
            # The id is unknown: the broker has none, or no batch with rows was decided yet.
            outputs.setdefault(last.topic, "")
        inputs = {topic: topic_id for topic, (topic_id, _) in last.inputs.items()}
        found.append(Writer(name, known.offsets, inputs, outputs))
    return found


def of_other_groups(
    client: Client, pipeline_id: str, read: Callable[[Client, str], T]
) -> Iterator[tuple[str, T]]:
    """Read the groups that may be those of other pipelines, as far as this client may describe them."""
    for each in Admin(client).groups.all():
        if each.group_id == pipeline_id or each.protocol_type != NO_PROTOCOL:
            continue
        try:
            yield each.group_id, read(client, each.group_id)
        except PipelineError:
            continue  # Its notes are incomplete, or of another kind.
        except KafkaError as error:
            if error.code not in _GONE:
                raise


def reads_all(client: Client, spans: Spans) -> bool:
    """Whether a pipeline starts at the log start of all its input."""
    first = list_offsets(client, dict.fromkeys(spans, EARLIEST))
    return all(span.start <= first[key].offset for key, span in spans.items())


def check_origin(client: Client, pipeline_id: str, outputs: TopicIds, spans: Spans) -> None:
    """PipelineMismatch if all input is read, and an output has records that no known pipeline has written."""
    if not outputs or not reads_all(client, spans):
        return
    filled = [each for each in client.describe(sorted(outputs)).topics if _has_records(client, each)]
    # In this order: a pipeline records its decision before, or together with, making its records visible.
    writers = _writers(client, pipeline_id) if filled else []
    for topic in (each.name for each in filled):
        if not any(each.outputs.get(topic) in ("", outputs[topic]) for each in writers):
            raise PipelineMismatch(
                f"pipeline {pipeline_id!r} is new and reads all of its input, and topic {topic} has "
                "records which no pipeline has written that this user may describe. If an earlier one has, "
                "whose group was deleted or has expired, they would be there twice: set startingOffsets "
                "where the output ends. If they are of others: pipeline.new=true, or 'semel pipeline run "
                "--new'"
            )


def _has_records(client: Client, topic: TopicInfo) -> bool:
    """Whether a topic has a committed record. Without permission to read it, any offsets count as records."""
    keys = [(topic.name, each.partition) for each in topic.partitions]
    start = list_offsets(client, dict.fromkeys(keys, EARLIEST))
    end = list_offsets(client, dict.fromkeys(keys, LATEST), isolation=Isolation.READ_COMMITTED)
    filled = [key for key in keys if start[key].offset < end[key].offset]
    try:
        with Consumer(client) as consumer:
            consumer.assign(filled)
            return bool(filled) and any(True for _ in consumer.read_to_end(client.patience_s))
    except KafkaError as error:
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return True  # permission to write does not imply permission to read
        raise
