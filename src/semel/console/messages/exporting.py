"""Exports a scan as NDJSON or Parquet, streamed, so that no file is ever completely in memory.

A line of NDJSON is what `semel consume --json` prints and `semel produce --format json` reads. A file of
Parquet has the columns of Spark's Kafka source, and the mark of each record.

If a limit stops the scan, or something is missing, the file says so: NDJSON by a last line
`{"stopped": ...}`, which `semel produce` refuses, and Parquet by `semel.stopped` in its metadata. Both
contain the query that continues the scan, and the batches that could not be opened. Transaction markers are
not data: only Parquet has them, on request, with `control` as their mark.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from semel.client import ConsumedRecord
from semel.console.messages.filters import Filter
from semel.console.messages.limits import HEADERS_COPIED_MAX
from semel.console.messages.reading import MarkedRecord
from semel.record_lines import record_as_json

GROUP_ROWS: Final = 10_000
GROUP_BYTES: Final = 8 << 20
"""The most bytes of a row group of a Parquet file, which is in memory until it is written."""
LINES_BYTES: Final = 256 << 10


MISSING_NAMED: Final = 20
"""How many missing batches a file names; it counts all of them."""


class NoParquet(Exception):
    """pyarrow is not installed."""


class OrUnreadable(Filter):
    """A filter that also matches batches that cannot be opened, which may contain what the search wants."""

    def __init__(self, wanted: Filter) -> None:
        super().__init__()
        self._wanted = wanted

    def matches(self, marked: MarkedRecord) -> bool:
        """Whether the file must contain the record, or must report that it is missing."""
        return marked.is_unreadable or self._wanted.matches(marked)


@dataclass(slots=True)
class Missing:
    """What an export leaves out: batches that cannot be opened, and headers beyond the limit."""

    batches: int = 0
    named: list[dict[str, Any]] = field(default_factory=list)
    cut_records: int = 0

    def watch(self, records: Iterable[MarkedRecord]) -> Iterator[MarkedRecord]:
        """Yield what can be written, and count the rest."""
        for marked in records:
            if marked.is_unreadable:
                self.batches += 1
                if len(self.named) < MISSING_NAMED:
                    place = {
                        "partition": marked.partition,
                        "first": marked.offset,
                        "last": marked.last_offset,
                    }
                    self.named.append({**place, "says": marked.note})
                continue
            self.cut_records += marked.record.header_count > len(marked.record.headers)
            yield marked

    def says(self) -> str:
        """Return what is missing, in sentences; empty if nothing is."""
        found = []
        if self.batches:
            found.append(f"{self.batches:,} batches could not be opened and are missing.")
        if self.cut_records:
            found.append(
                f"{self.cut_records:,} records have more than {HEADERS_COPIED_MAX:,} headers, "
                "of which the others are missing."
            )
        return " ".join(found)


def ndjson(
    records: Iterable[MarkedRecord], stopped: Callable[[], dict[str, Any] | None]
) -> Generator[bytes, None, None]:
    """Yield lines of NDJSON in pieces of about `LINES_BYTES`."""
    lines: list[bytes] = []
    size = 0
    for marked in records:
        line = msgspec.json.encode(record_as_json(_consumed(marked))) + b"\n"
        lines.append(line)
        size += len(line)
        if size >= LINES_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if (why := stopped()) is not None:
        lines.append(json.dumps({"stopped": why}).encode() + b"\n")
    yield b"".join(lines)


def parquet(
    records: Iterable[MarkedRecord], stopped: Callable[[], dict[str, Any] | None]
) -> Generator[bytes, None, None]:
    """Yield the bytes of a Parquet file. NoParquet if pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise NoParquet("Parquet needs pyarrow: pip install 'semel[spark]', or export NDJSON.") from None
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ("mark", pa.string()),
        ]
    )
    out = _Written()

    def pieces() -> Iterator[bytes]:
        data = out.take()
        for at in range(0, len(data), LINES_BYTES):
            yield data[at : at + LINES_BYTES]

    with pq.ParquetWriter(pa.PythonFile(out, mode="w"), schema, compression="zstd") as writer:
        for group in _groups(records):
            writer.write_table(pa.table(_columns(group), schema))
            yield from pieces()
        if (why := stopped()) is not None:
            writer.add_key_value_metadata({"semel.stopped": json.dumps(why)})
    yield from pieces()


def _groups(records: Iterable[MarkedRecord]) -> Iterator[list[MarkedRecord]]:
    group: list[MarkedRecord] = []
    size = 0
    for marked in records:
        group.append(marked)
        size += marked.record.size_bytes
        if len(group) >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _columns(group: list[MarkedRecord]) -> dict[str, list[Any]]:
    return {
        "key": [marked.record.key for marked in group],
        "value": [marked.record.value for marked in group],
        "topic": [marked.topic for marked in group],
        "partition": [marked.partition for marked in group],
        "offset": [marked.offset for marked in group],
        "timestamp": [marked.record.timestamp for marked in group],
        "headers": [
            [{"key": name, "value": content} for name, content in marked.record.headers] for marked in group
        ],
        "mark": [marked.mark.value for marked in group],
    }


def _consumed(marked: MarkedRecord) -> ConsumedRecord:
    record = marked.record
    return ConsumedRecord(
        marked.topic,
        marked.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
    )


class _Written:
    """A file-like object from which the written bytes are taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        """Keep a part until it is taken."""
        self._parts.append(bytes(data))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        """Return how much was written in total."""
        return self._size

    def flush(self) -> None:
        """Do nothing: there is nothing to flush to."""

    def close(self) -> None:
        """Do nothing: what was written is taken later."""

    def take(self) -> bytes:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
