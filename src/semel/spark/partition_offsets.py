"""Offset vectors: how far a query has read, for every partition.

In Spark's logs, in options and in progress reports a vector is JSON as Spark's Kafka source writes it:
`{"orders": {"0": 23, "1": 42}}`. Four more entries have names that no topic can have:

- `began:` is in the end of a query's first batch and says where the query began. Spark does not log that, and
  a first batch that is repeated must read the same records, even if `latest` has moved on.
- `ids:` has the id of every topic. Offsets mean nothing in a topic that was deleted and created again.
- `pipeline:` is the option `pipeline.id`. It shows that a checkpoint was copied to another pipeline, even
  while there is no input and the sink has nothing to do.
- `mark:` is what was at the last offset of one partition, by which the log is recognised (`log_marks`).
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from semel.client import EARLIEST, Partition, TopicInfo
from semel.spark.errors import OptionError


class Span(NamedTuple):
    """The offsets of one partition that a batch reads, the end not included."""

    start: int
    end: int


PartitionOffsets: TypeAlias = dict[Partition, int]
Spans: TypeAlias = dict[Partition, Span]
#: Topic ids by name, as Kafka prints them. Topics of brokers that have no ids are left out.
TopicIds: TypeAlias = dict[str, str]

BEGAN = "began:"
IDS = "ids:"
PIPELINE = "pipeline:"
MARK = "mark:"


def to_json(
    vector: Mapping[Partition, int],
    *,
    began: Mapping[Partition, int] | None = None,
    ids: Mapping[str, str] | None = None,
    pipeline_id: str | None = None,
    mark: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """The vector as Spark keeps it. Equal vectors are written equally, which is how Spark compares them."""
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
    return found


def of_json(found: Mapping[str, Any]) -> PartitionOffsets:
    """The vector that `to_json` wrote. ValueError if it is something else."""
    vector: PartitionOffsets = {}
    for topic, partitions in found.items():
        if topic in (BEGAN, IDS, PIPELINE, MARK):
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f"{found!r} is no offset vector")
        for partition, offset in partitions.items():
            if type(offset) is not int:
                raise ValueError(f"{offset!r} is no offset")
            vector[topic, int(partition)] = offset
    return vector


def began_of(found: Mapping[str, Any]) -> PartitionOffsets | None:
    """Where the query began, if this is the end of its first batch."""
    return of_json(found[BEGAN]) if BEGAN in found else None


def ids_of(found: Mapping[str, Any]) -> TopicIds:
    """The topic ids beside a vector. ValueError if they are something else."""
    ids = found.get(IDS, {})
    if not isinstance(ids, dict) or not all(type(each) is str for each in ids.values()):
        raise ValueError(f"{ids!r} are no topic ids")
    return dict(ids)


def topic_ids(topics: Iterable[TopicInfo]) -> TopicIds:
    """The ids of topics as the cluster describes them."""
    return {each.name: text for each in topics if (text := id_text(each.topic_id))}


def id_text(topic_id: bytes) -> str:
    """A topic id as Kafka prints it; the empty text for that of a broker without topic ids."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode() if any(topic_id) else ""


def recreated(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """The topics that have another id than before. A topic whose id is not known is taken for the same."""
    return {topic for topic, known in before.items() if after.get(topic, known) != known}


def recreated_text(topics: set[str], before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What to say of topics that are not the ones that were read before."""
    names = ", ".join(f"{each} (its id was {before[each]} and is {after[each]})" for each in sorted(topics))
    return (
        f"an input topic was deleted and created again: {names}. Records of the old topic that had not been "
        "read are lost. Set failOnDataLoss=false to read the new topic from its beginning"
    )


def without_topics(vector: Mapping[Partition, int], topics: set[str]) -> PartitionOffsets:
    """The vector without the partitions of these topics."""
    return {key: offset for key, offset in vector.items() if key[0] not in topics}


def parse_vector(option: str, text: str, least: int = EARLIEST) -> PartitionOffsets:
    """Read the JSON of an option: offsets, with -2 and -1 for earliest and latest, or timestamps."""
    try:
        vector = of_json(json.loads(text))
    except (ValueError, AttributeError, RecursionError):
        vector = {}
    if not vector or any(number < least for number in vector.values()):
        raise OptionError(f'{option} is JSON such as {{"orders":{{"0":23,"1":{least}}}}}, not {text!r}')
    return vector


def admit(start: Mapping[Partition, int], end: Mapping[Partition, int], most: int) -> PartitionOffsets:
    """The end of a batch of about `most` offsets: every partition gets its share of what is waiting."""
    waiting = {key: max(0, offset - start.get(key, 0)) for key, offset in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    # At least one offset each, or a slow partition beside fast ones would never be read.
    return {key: start.get(key, 0) + min(waiting[key], max(1, waiting[key] * most // total)) for key in end}
