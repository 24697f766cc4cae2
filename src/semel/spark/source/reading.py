"""Reads a range of offsets of one partition into Arrow batches; runs in Spark's executors.

A range ends at an offset that was stable when the batch was planned, so all of it can be read at once. Gaps
between offsets (a marker, an aborted transaction, compacted records) are skipped. Only a range that starts
before the log, or ends after it, has lost records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from semel.allocator import keep_memory
from semel.client import EARLIEST, Client, ClientError, ErrorCode, KafkaError
from semel.client.consume.fetch import FetchUnderWay, NoRecordsYet, begin_fetch, shown
from semel.client.consume.offsets import list_offsets
from semel.client.errors import check
from semel.client.net.cluster import UNKNOWN_TOPIC_WAIT_S, leader_may_move
from semel.client.net.retry import Attempts, retrying
from semel.spark.columns import to_arrow
from semel.spark.errors import DataLoss
from semel.spark.options import SourceOptions
from semel.spark.partition_offsets import id_text
from semel.wire.columns import ColumnReader
from semel.wire.messages import PartitionData

#: The number of rows or bytes from which an Arrow batch is returned, and its maximum number of rows.
ROWS_WANTED = 50_000
BYTES_WANTED = 8 << 20
ROWS_MAX = 100_000
#: Free memory that a worker keeps: two fetches, and the Arrow batches in progress.
KEPT_BYTES = 64 << 20
#: How long a leader may show less than the leader that the batch was planned with. Then the rest is lost.
LAGGING_LEADER_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, the end excluded."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""  # of the topic that the offsets belong to; empty if the broker has no ids


def read_range(
    client: Client, wanted: OffsetRange, options: SourceOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Return the visible records of a range."""
    keep_memory(KEPT_BYTES)
    rows = RangeRows(wanted, columns)
    fetches = _Fetches(client, wanted, options)
    position = wanted.start
    attempts = _until_a_leader_caught_up()
    while position < wanted.end:
        try:
            data = fetches.at(position)
        except _Recreated:
            _lost(options, wanted, "the topic was deleted and created again")
            break
        if data is None:
            position = _behind_loss(client, wanted, position, options)
            continue
        found = list(shown(data.records or b"", data.aborted_transactions, options.isolation))
        next_offset = max((header.last_offset + 1 for _, header, _ in found), default=position)
        if next_offset > position:
            fetches.begin(next_offset)
            for at, header, is_shown in found:
                if is_shown and header.last_offset >= position:
                    rows.reader.add(data.records or b"", at, header, position, wanted.end)
                    if rows.is_ready:
                        yield from rows.take()
            position = next_offset
            attempts = _until_a_leader_caught_up()
            del data, found  # so that the next fetch may reuse their buffers
        else:
            try:
                attempts.failed(NoRecordsYet(f"{wanted.topic}/{wanted.partition} ends too early"))
            except NoRecordsYet:
                _lost(
                    options,
                    wanted,
                    f"the log ends at {data.high_watermark} by now, and {wanted.end} was there before",
                )
                break
    yield from rows.take()


def _until_a_leader_caught_up() -> Attempts:
    """Return the attempts at a fetch that returns nothing: a new leader may lag behind that of the plan."""
    return Attempts(LAGGING_LEADER_WAIT_S, retriable=lambda error: isinstance(error, NoRecordsYet))


class _Recreated(ClientError):
    """The topic of this name is not the one that the range belongs to."""


class _Fetches:
    """The fetches of a range. One is in flight while the previous one is decoded."""

    def __init__(self, client: Client, wanted: OffsetRange, options: SourceOptions) -> None:
        self._client = client
        self._wanted = wanted
        self._key = (wanted.topic, wanted.partition)
        self._options = options
        self._in_flight: FetchUnderWay | None = None

    def begin(self, position: int) -> None:
        """Start a fetch at an offset, if it is still in the range."""
        if position >= self._wanted.end:
            return
        try:
            self._in_flight = self._asked(position)
        except (KafkaError, ClientError):
            self._in_flight = None  # `at` retries, and for longer

    def at(self, position: int) -> PartitionData | None:
        """Return batches from an offset; None if the log does not have it."""

        def fetch() -> PartitionData | None:
            asked, self._in_flight = self._in_flight, None
            if asked is None or asked.positions[self._key] != position:
                asked = self._asked(position)
            ((_, data),) = asked.wait()
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            name = f"{self._wanted.topic}/{self._wanted.partition}"
            check(data.error_code, f"{name} cannot be read at offset {position}")
            return data

        return retrying(
            fetch, self._client.patience_s, retriable=leader_may_move, on_failure=self._forget_topic
        )

    def _asked(self, position: int) -> FetchUnderWay:
        self._find_topic()
        asked = begin_fetch(
            self._client, {self._key: position}, self._options.isolation, self._options.limits
        )
        # The client may have learned another topic id since `_find_topic`, and sent the request with it.
        self._check_topic()
        return asked

    def _find_topic(self) -> None:
        """Make sure that the client knows the topic of the plan. _Recreated if the cluster has another one.

        This process may remember an older topic of that name. In a cluster, the broker that answers may lag
        behind the broker that the plan was made with.
        """
        retrying(
            self._check_topic,
            UNKNOWN_TOPIC_WAIT_S,
            retriable=_is_other_topic,
            on_failure=self._forget_topic,
        )

    def _forget_topic(self) -> None:
        self._client.forget_topic(self._wanted.topic)

    def _check_topic(self) -> None:
        info = self._client.topic(self._wanted.topic, wait_s=UNKNOWN_TOPIC_WAIT_S)
        known = id_text(info.topic_id)
        if known and self._wanted.topic_id and known != self._wanted.topic_id:
            raise _Recreated(f"topic {self._wanted.topic} was deleted and created again.")


def _is_other_topic(error: Exception) -> bool:
    return isinstance(error, _Recreated)


def _behind_loss(client: Client, wanted: OffsetRange, position: int, options: SourceOptions) -> int:
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


def _lost(options: SourceOptions, wanted: OffsetRange, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(
            f"records of {wanted.topic}/{wanted.partition} are lost: {what}. "
            "Set failOnDataLoss=false to go on without them"
        )


class RangeRows:
    """Records on their way into Arrow batches."""

    def __init__(self, wanted: OffsetRange, columns: Sequence[str]) -> None:
        self._wanted = wanted
        self._columns = columns
        self.reader = ColumnReader(
            keys="key" in columns, values="value" in columns, headers="headers" in columns
        )

    @property
    def is_ready(self) -> bool:
        """Whether there is enough for an Arrow batch."""
        return self.reader.rows >= ROWS_WANTED or self.reader.size_bytes >= BYTES_WANTED

    def take(self) -> Iterator[pa.RecordBatch]:
        """Return the rows so far, in Arrow batches of up to ROWS_MAX: a record batch may hold more."""
        if not self.reader.rows:
            return
        batch = to_arrow(self.reader.take(), self._columns, self._wanted.topic, self._wanted.partition)
        for start in range(0, batch.num_rows, ROWS_MAX):
            yield batch.slice(start, ROWS_MAX)
