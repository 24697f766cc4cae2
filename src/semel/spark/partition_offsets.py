"""Partition offsets: how far a query has read, for every partition.

In Spark's logs, in options and in progress reports a vector is JSON as Spark's Kafka source writes it:
`{"orders": {"0": 23, "1": 42}}`. Six more entries have names that no topic can have:

- `began:` is in the end of a query's first batch and says where the query started. Spark does not log that,
  and a first batch that is repeated must read the same records, even if `latest` has moved on.
- `ids:` has the id of every topic. Offsets mean nothing in a topic that was deleted and created again.
- `pipeline:` is the option `pipeline.id`. It shows that a checkpoint was copied to another pipeline, even
  while there is no input and the sink has nothing to do.
- `mark:` is what was at the last offset of one partition, by which the log is recognised (`log_marks`).
- `reader:` is the reader that has planned the end. Spark logs a source once for each place where a query uses
  it, and these have one reader; two sources that read the same topic have two.
- `small:` says that the records of the batch were few, and were read when it was planned (`prefetch`).
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from semel.client import EARLIEST, Partition, TopicInfo
from semel.spark.errors import OptionError


class Span(NamedTuple):
    """The offsets of one partition in a batch, the end excluded."""

    start: int
    end: int


PartitionOffsets: TypeAlias = dict[Partition, int]
Spans: TypeAlias = dict[Partition, Span]
#: Topic ids by name, as Kafka prints them. Topics of brokers without topic ids are left out.
TopicIds: TypeAlias = dict[str, str]

BEGAN = "began:"
IDS = "ids:"
PIPELINE = "pipeline:"
MARK = "mark:"
READER = "reader:"
SMALL = "small:"


def to_json(
    vector: Mapping[Partition, int],
    *,
    began: Mapping[Partition, int] | None = None,
    ids: Mapping[str, str] | None = None,
    pipeline_id: str | None = None,
    mark: Sequence[Any] | None = None,
    reader: str | None = None,
    is_small: bool = False,
) -> dict[str, Any]:
    """Format offsets for Spark. Equal offsets give equal JSON, which is what Spark compares."""
    found: dict[str, Any] = {}
    for (topic, partition), offset in sorted(vector.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    if began is not None:
        found[BEGAN] = to_json(began)
    if ids:
        found[IDS] = {topic: ids[topic] for topic in sorted(ids) if topic in found}
    if pipeline_id is not None:
        found[PIPELINE] = pipeline_id
    if mark is not None:
        found[MARK] = list(mark)
    if reader is not None:
        found[READER] = reader
    if is_small:
        found[SMALL] = True
    return found


def of_json(found: Mapping[str, Any]) -> PartitionOffsets:
    """Parse what `to_json` wrote. ValueError if it is something else."""
    vector: PartitionOffsets = {}
    for topic, partitions in found.items():
        if topic in (BEGAN, IDS, PIPELINE, MARK, READER, SMALL):
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f"{found!r} are not partition offsets")
        for partition, offset in partitions.items():
            if type(offset) is not int:
                raise ValueError(f"{offset!r} is not an offset")
            vector[topic, int(partition)] = offset
    return vector


def began_of(found: Mapping[str, Any]) -> PartitionOffsets | None:
    """Return where the query started, if this is the end of its first batch."""
    return of_json(found[BEGAN]) if BEGAN in found else None


def ids_of(found: Mapping[str, Any]) -> TopicIds:
    """Return the topic ids beside the offsets. ValueError if they are something else."""
    ids = found.get(IDS, {})
    if not isinstance(ids, dict) or not all(type(each) is str for each in ids.values()):
        raise ValueError(f"{ids!r} are not topic ids")
    return dict(ids)


def topic_ids(topics: Iterable[TopicInfo]) -> TopicIds:
    """Return the ids of topics as the cluster describes them."""
    return {each.name: text for each in topics if (text := id_text(each.topic_id))}


def id_text(topic_id: bytes) -> str:
    """Format a topic id as Kafka does; empty for a broker without topic ids."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode() if any(topic_id) else ""


def recreated(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Return the topics whose id has changed. A topic with an unknown id is taken to be the same."""
    return {topic for topic, known in before.items() if after.get(topic, known) != known}


def recreated_text(topics: set[str], before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the message for topics that were created again."""
    names = ", ".join(f"{each} (its id was {before[each]} and is {after[each]})" for each in sorted(topics))
    return (
        f"an input topic was deleted and created again: {names}. Records of the old topic that had not been "
        "read are lost. Set failOnDataLoss=false to read the new topic from its start"
    )


def without_topics(vector: Mapping[Partition, int], topics: set[str]) -> PartitionOffsets:
    """Return the offsets without the partitions of these topics."""
    return {key: offset for key, offset in vector.items() if key[0] not in topics}


def parse_vector(option: str, text: str, least: int = EARLIEST) -> PartitionOffsets:
    """Parse the JSON of an option: offsets, with -2 and -1 for earliest and latest, or timestamps."""
    try:
        vector = of_json(json.loads(text))
    except (ValueError, AttributeError, RecursionError):
        vector = {}
    if not vector or any(number < least for number in vector.values()):
        raise OptionError(f'{option} must be JSON such as {{"orders":{{"0":23,"1":{least}}}}}, not {text!r}')
    return vector


def admit(start: Mapping[Partition, int], end: Mapping[Partition, int], most: int) -> PartitionOffsets:
    """Return the end of a batch of about `most` offsets: each partition gets its share of what is waiting."""
    waiting = {key: max(0, offset - start.get(key, 0)) for key, offset in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    # At least one offset each, or a slow partition beside fast ones would never be read.
    return {key: start.get(key, 0) + min(waiting[key], max(1, waiting[key] * most // total)) for key in end}
