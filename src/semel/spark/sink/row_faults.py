"""Finds the rows that a topic cannot take as records, before any of them is sent.

Whole columns are compared; only a row that may be at fault becomes a Python object. What is checked here is
what a broker would refuse: a record that is too large, a record without a key where the topic is compacted, a
partition that does not exist. A broker refuses the batch that such a record is in, and with it the
transaction, so it would be too late to set the row aside.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.client import Codec, ConfigValue
from semel.spark.columns import binary_of
from semel.wire.batch import HEADER_BYTES
from semel.wire.columns import Packed, Packer, pack_headers, seal_packed

#: Requests of this size are refused by every broker with a default `socket.request.max.bytes`.
REQUEST_BYTES: Final = (100 << 20) - (64 << 10)
#: The most that a record takes besides its key, value and headers; and a header besides its key and value.
_RECORD_BYTES, _HEADER_BYTES = 32, 10
#: How much larger than its input the output of a codec may be, besides a 64th of it.
_CODEC_BYTES = 256


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a topic takes, as far as its configs may be read."""

    name: str
    partitions: int
    batch_bytes_max: int | None  # None if unknown: then the broker decides
    needs_keys: bool

    @classmethod
    def of(cls, name: str, partitions: int, configs: Iterable[ConfigValue]) -> "TopicLimits":
        """Return the limits that these configs set."""
        values = {each.name: each.value or "" for each in configs}
        limit = values.get("max.message.bytes")
        most = None if not limit else min(int(limit), REQUEST_BYTES)
        return cls(name, partitions, most, "compact" in values.get("cleanup.policy", ""))


def find_faults(rows: pa.RecordBatch, limits: TopicLimits, codec: Codec) -> dict[int, str]:
    """Return the rows that cannot be records of this topic, by their place, with the reason."""
    columns = {name: rows.column(name) for name in rows.schema.names}
    found: dict[int, str] = {}
    if limits.needs_keys:
        reason = f"the record has no key, and topic {limits.name} is compacted"
        nulls = range(rows.num_rows) if "key" not in columns else _places(pc.is_null(columns["key"]))
        found |= dict.fromkeys(nulls, reason)
    if "partition" in columns:
        found |= _partitions(columns["partition"], limits)
    if "headers" in columns:
        found |= _without_header_keys(columns["headers"])
    if limits.batch_bytes_max is not None:
        found |= _too_large(columns, limits.batch_bytes_max, codec, skip=found)
    return found


def _places(mask: pa.Array) -> list[int]:
    """Return where a mask is true."""
    return list(pc.indices_nonzero(mask).to_pylist()) if pc.any(mask).as_py() else []


def _partitions(column: pa.Array, limits: TopicLimits) -> dict[int, str]:
    outside = pc.or_(pc.less(column, 0), pc.greater_equal(column, limits.partitions))
    return {
        at: f"topic {limits.name} has no partition {column[at].as_py()}, only 0 to {limits.partitions - 1}"
        for at in _places(outside.fill_null(False))
    }


def _without_header_keys(column: pa.Array) -> dict[int, str]:
    every = column.values
    if not every.null_count and not every.field(0).null_count:
        return {}
    reason = "a header has no key; every header has one, and only its value may be null"
    return {
        at: reason
        for at, headers in enumerate(column.to_pylist())
        if any(each is None or each["key"] is None for each in headers or ())
    }


def _too_large(
    columns: Mapping[str, pa.Array], limit: int, codec: Codec, skip: Mapping[int, str]
) -> dict[int, str]:
    sizes: pa.Array | int = HEADER_BYTES + _RECORD_BYTES
    for name in ("key", "value"):
        if name in columns:
            sizes = pc.add(pc.fill_null(pc.binary_length(columns[name]), 0).cast(pa.int64()), sizes)
    if "headers" in columns:
        sizes = pc.add(sizes, _header_bytes(columns["headers"]))
    room = limit if codec is Codec.NONE else incompressible(limit)
    found = {}
    for at in _places(pc.greater(sizes, room)):
        if at not in skip and (size := batch_bytes(columns, at, codec)) > limit:
            found[at] = f"the record takes {size} bytes, and the topic takes {limit} (max.message.bytes)"
    return found


def incompressible(limit: int) -> int:
    """Return how large a batch may be so that no codec makes it larger than the limit."""
    return limit - limit // 64 - _CODEC_BYTES


def _header_bytes(column: pa.Array) -> pa.Array:
    """Return at least the size of the headers of each row."""
    keys, values = column.values.field(0), column.values.field(1)
    lengths = [pc.fill_null(pc.binary_length(each), 0).cast(pa.int64()) for each in (keys, values)]
    ends = pc.cumulative_sum(pc.add(pc.add(*lengths), _HEADER_BYTES))
    sums = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    offsets = column.offsets
    return pc.subtract(sums.take(offsets[1:]), sums.take(offsets[:-1]))


def batch_bytes(columns: Mapping[str, pa.Array], at: int, codec: Codec) -> int:
    """Return the size of the batch that has only this row."""
    one = {name: column.slice(at, 1) for name, column in columns.items()}
    packer = Packer(1, 1)
    headers = one["headers"].to_pylist()[0] if "headers" in one else None
    packer.add(
        0,
        1,
        bytes(4),
        binary_of(one["key"]) if "key" in one else None,
        binary_of(one["value"]),
        None if not headers else [pack_headers((each["key"], each["value"]) for each in headers)],
        0,
    )
    packed: Packed | None = packer.take(0)
    assert packed is not None, "a packer takes any record"
    return len(seal_packed(packed, codec=codec))


def shorten(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, Any]], limit: int | None
) -> tuple[bytes | None, bytes | None]:
    """Return key and value, cut so that the record fits into a batch of `limit` bytes with these headers."""
    if limit is None:
        return key, value
    fixed = (
        HEADER_BYTES + _RECORD_BYTES + sum(len(name) + len(each) + _HEADER_BYTES for name, each in headers)
    )
    room = max(0, incompressible(limit) - fixed)
    key = key if key is None else key[:room]
    return key, value if value is None else value[: room - len(key or b"")]
