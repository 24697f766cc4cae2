"""Reading a range of offsets of one partition into Arrow batches; this runs in Spark's executors.

A range ends at an offset that was stable when the batch was planned, so all of it can be read at once. What
is not in the log between two offsets (a marker, an aborted transaction, what compaction took) is passed by:
only a range that begins before the log does, or ends behind it, is a loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from semel.client import EARLIEST, Client, ClientError, ErrorCode, KafkaError
from semel.client.errors import check, is_retriable
from semel.client.fetching import fetch_batches, shown
from semel.client.offsets import list_offsets
from semel.client.retry import Attempts
from semel.spark.errors import DataLoss
from semel.spark.options import SourceOptions
from semel.wire.messages import PartitionData
from semel.wire.records import iter_records

ROWS_MAX = 10_000  # of an Arrow batch; more is not faster
CREATE_TIME, LOG_APPEND_TIME = 0, 1

ARROW_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, the end not included."""

    topic: str
    partition: int
    start: int
    end: int


def read_range(
    client: Client, wanted: Range, options: SourceOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records of a range that a reader may see."""
    rows = _Rows(wanted, columns)
    position = wanted.start
    attempts = Attempts(client.timeout_s)
    while position < wanted.end:
        data = _fetch(client, wanted, position, options)
        if data is None:
            position = _behind_loss(client, wanted, position, options)
            continue
        next_offset = position
        for at, header, is_shown in shown(data.records or b"", data.aborted_transactions, options.isolation):
            if is_shown and header.last_offset >= position:
                kind = LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME
                for record in iter_records(data.records or b"", at):
                    if position <= record.offset < wanted.end:
                        rows.add(record, kind)
                        if len(rows) >= ROWS_MAX:
                            yield rows.take()
            next_offset = max(next_offset, header.last_offset + 1)
        if len(rows):
            yield rows.take()
        if next_offset > position:
            position = next_offset
            attempts = Attempts(client.timeout_s)
        else:
            try:
                attempts.failed(_Waiting(data.high_watermark))
            except _Waiting:
                _lost(
                    options,
                    wanted,
                    f"the log ends at {data.high_watermark} by now, and {wanted.end} was there before",
                )
                return


class _Waiting(ClientError):
    """A new leader may take a moment until it serves what the one before it had served."""


def _fetch(client: Client, wanted: Range, position: int, options: SourceOptions) -> PartitionData | None:
    """Batches from an offset on; None if the log does not have it."""
    key = (wanted.topic, wanted.partition)
    for attempt in Attempts(client.timeout_s, also=_may_pass):
        try:
            ((_, data),) = fetch_batches(client, {key: position}, options.isolation, options.limits)
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            check(data.error_code, f"{wanted.topic}/{wanted.partition} cannot be read at offset {position}")
            return data
        except (KafkaError, ClientError) as error:
            client.forget_topic(wanted.topic)
            attempt.failed(error)
    raise AssertionError("attempts end by an error")


def _may_pass(error: Exception) -> bool:
    if isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    return isinstance(error, _Waiting) or is_retriable(error)


def _behind_loss(client: Client, wanted: Range, position: int, options: SourceOptions) -> int:
    key = (wanted.topic, wanted.partition)
    earliest = list_offsets(client, {key: EARLIEST})[key].offset
    if earliest > position:
        _lost(options, wanted, f"the log begins at {earliest} by now, and {position} was still to be read")
        return earliest
    _lost(
        options,
        wanted,
        f"the log ends before {position}, which was there before; the topic may be another one",
    )
    return wanted.end


def _lost(options: SourceOptions, wanted: Range, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(
            f"records of {wanted.topic}/{wanted.partition} are lost: {what}. "
            "Set failOnDataLoss=false to go on without them"
        )


class _Rows:
    """Records on their way into columns."""

    def __init__(self, wanted: Range, columns: Sequence[str]) -> None:
        self._wanted = wanted
        self._columns = columns
        self._records: list[tuple[Any, int]] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Any, kind: int) -> None:
        """Take in a record; `kind` says whose time it has."""
        self._records.append((record, kind))

    def take(self) -> pa.RecordBatch:
        """What was taken in, as an Arrow batch."""
        arrays = [pa.array(self._values(name), ARROW_TYPES[name]) for name in self._columns]
        self._records.clear()
        return pa.record_batch(arrays, names=list(self._columns))

    def _values(self, name: str) -> list[Any]:
        match name:
            case "topic":
                return [self._wanted.topic] * len(self._records)
            case "partition":
                return [self._wanted.partition] * len(self._records)
            case "timestamp":
                return [record.timestamp * 1000 for record, _ in self._records]
            case "timestampType":
                return [kind for _, kind in self._records]
            case "headers":
                return [_headers(record) for record, _ in self._records]
            case _:
                return [getattr(record, name) for record, _ in self._records]


def _headers(record: Any) -> list[dict[str, Any]] | None:
    """As Spark's Kafka source does: null if there are none."""
    return [{"key": header.key, "value": header.value} for header in record.headers] or None
