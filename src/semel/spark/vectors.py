"""Offset vectors: how far a query has read, for every partition.

In Spark's logs, in options and in progress reports a vector is JSON as Spark's Kafka source writes it:
`{"orders": {"0": 23, "1": 42}}`. The first batch of a query also says where it began, under a name that no
topic can have. Spark does not write that down by itself, and a first batch that is done again must read the
same records, also if `latest` has moved on meanwhile.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from semel.client import EARLIEST, Partition
from semel.spark.errors import OptionError

Vector: TypeAlias = dict[Partition, int]

BEGAN = "began:"


def to_json(vector: Mapping[Partition, int], began: Mapping[Partition, int] | None = None) -> dict[str, Any]:
    """The vector as Spark keeps it. Equal vectors are written equally, which is how Spark compares them."""
    found: dict[str, Any] = {}
    for (topic, partition), offset in sorted(vector.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    if began is not None:
        found[BEGAN] = to_json(began)
    return found


def of_json(found: Mapping[str, Any]) -> Vector:
    """The vector that `to_json` wrote. ValueError if it is something else."""
    vector: Vector = {}
    for topic, partitions in found.items():
        if topic == BEGAN:
            continue
        if not isinstance(partitions, dict):
            raise ValueError(f"{found!r} is no offset vector")
        for partition, offset in partitions.items():
            if type(offset) is not int:
                raise ValueError(f"{offset!r} is no offset")
            vector[topic, int(partition)] = offset
    return vector


def began_of(found: Mapping[str, Any]) -> Vector | None:
    """Where the query began, if this is the end of its first batch."""
    return of_json(found[BEGAN]) if BEGAN in found else None


def parse_vector(option: str, text: str, least: int = EARLIEST) -> Vector:
    """Read the JSON of an option: offsets, with -2 and -1 for earliest and latest, or timestamps."""
    try:
        vector = of_json(json.loads(text))
    except (ValueError, AttributeError, RecursionError):
        vector = {}
    if not vector or any(number < least for number in vector.values()):
        raise OptionError(f'{option} is JSON such as {{"orders":{{"0":23,"1":{least}}}}}, not {text!r}')
    return vector


def admit(start: Mapping[Partition, int], end: Mapping[Partition, int], most: int) -> Vector:
    """The end of a batch of about `most` offsets: every partition gets its share of what is waiting."""
    waiting = {key: max(0, offset - start.get(key, 0)) for key, offset in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    # At least one offset each, or a slow partition beside fast ones would never be read.
    return {key: start.get(key, 0) + min(waiting[key], max(1, waiting[key] * most // total)) for key in end}
