"""Determines the outcome of a record's transaction: committed, aborted, open, or no transaction at all.

Below the last stable offset, a read_committed fetch returns every batch and lists the aborted transactions,
so each batch is decided (`client.fetching.shown`). Above it, brokers list nothing. There the outcome of a
transaction is its marker, which follows in the log. A producer without a marker has an open transaction if
the leader says so (DescribeProducers), or if the log ends without a marker.

`Outcomes` reads ahead for these markers, by batch headers alone, up to a bounded number of bytes. If it finds
no marker within this bound, the record is `undecided`, and the page says so.
"""

from bisect import bisect_right
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from semel.client import Admin, Client, ClientError, FetchLimits, Isolation, KafkaError
from semel.client.consume.fetch import fetch_batches
from semel.console.messages.limits import LOOKAHEAD_BYTES_MAX
from semel.wire.batch import BatchHeader, iter_batches
from semel.wire.errors import ProtocolError
from semel.wire.records import read_marker
from semel.wire.schema import Buffer

MARKERS_KEPT_MAX: Final = 200_000
_LOOKAHEAD: Final = FetchLimits(max_wait_ms=50, max_bytes=4 << 20, partition_max_bytes=4 << 20)


class Mark(StrEnum):
    """The state of a record's transaction."""

    PLAIN = "plain"
    COMMITTED = "committed"
    OPEN = "open"
    ABORTED = "aborted"
    UNDECIDED = "undecided"
    CONTROL = "control"


class Outcomes:
    """Determines the marks of batches of one topic that lie above the last stable offset."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        #: By partition and producer: offsets of markers, ascending, and whether each is a commit.
        self._markers: dict[int, dict[int, tuple[list[int], list[bool]]]] = {}
        #: By partition: the range in which every marker is known.
        self._known: dict[int, tuple[int, int]] = {}
        self._open: dict[int, dict[int, int]] = {}
        self._kept = 0
        self.read_bytes = 0

    def learn(self, partition: int, data: Buffer, begin: int, end: int) -> None:
        """Record the markers of a fetched range."""
        known = self._known.get(partition)
        if known is None or end < known[0] or begin > known[1] or self._kept > MARKERS_KEPT_MAX:
            self._markers[partition] = {}
            self._kept = sum(len(at[0]) for each in self._markers.values() for at in each.values())
            known = (begin, begin)
        for at, header in iter_batches(data):
            if header.is_control and not known[0] <= header.base_offset < known[1]:
                self._note(partition, header, data, at)
        self._known[partition] = (min(begin, known[0]), max(end, known[1]))

    def _note(self, partition: int, header: BatchHeader, data: Buffer, at: int) -> None:
        marker = read_marker(data, at)
        if marker is None:
            return
        offsets, commits = self._markers[partition].setdefault(header.producer_id, ([], []))
        index = bisect_right(offsets, header.base_offset)
        offsets.insert(index, header.base_offset)
        commits.insert(index, marker.commit)
        self._kept += 1

    def mark(self, partition: int, header: BatchHeader) -> Mark:
        """Return the mark of a data batch, as far as it is known. Call `resolve` for its piece first."""
        if not header.is_transactional:
            return Mark.PLAIN
        offsets, commits = self._markers.get(partition, {}).get(header.producer_id, ([], []))
        index = bisect_right(offsets, header.last_offset)
        if index < len(offsets):
            return Mark.COMMITTED if commits[index] else Mark.ABORTED
        begun_at = self._open.get(partition, {}).get(header.producer_id)
        if begun_at is not None and begun_at <= header.base_offset:
            return Mark.OPEN
        return Mark.UNDECIDED

    def resolve(self, partition: int, headers: Iterable[BatchHeader], end: int) -> None:
        """Determine these marks: ask the leader for open transactions, then read ahead to `end`."""
        undecided = [each for each in headers if self.mark(partition, each) is Mark.UNDECIDED]
        if undecided and partition not in self._open:
            self._open[partition] = self._open_in(partition)
            undecided = [each for each in undecided if self.mark(partition, each) is Mark.UNDECIDED]
        budget = LOOKAHEAD_BYTES_MAX
        while undecided and budget > 0:
            at = self._known[partition][1]
            if at >= end:
                # The log ends without their markers, so their transactions are open.
                for each in undecided:
                    self._open[partition].setdefault(each.producer_id, each.base_offset)
                return
            found = fetch_batches(
                self._client, {(self._topic, partition): at}, Isolation.READ_UNCOMMITTED, _LOOKAHEAD
            )
            data = found[0][1].records or b"" if found and not found[0][1].error_code else b""
            try:
                last = max((header.last_offset for _, header in iter_batches(data)), default=-1)
                if last < at:
                    return
                self.learn(partition, data, at, last + 1)
            except ProtocolError:
                return  # A damaged batch is reported where it is shown.
            self.read_bytes += len(data)
            budget -= len(data)
            undecided = [each for each in undecided if self.mark(partition, each) is Mark.UNDECIDED]

    def _open_in(self, partition: int) -> dict[int, int]:
        try:
            producers = Admin(self._client).transactions.producers(self._topic, [partition])
        except (KafkaError, ClientError):
            return {}  # An old broker, or not authorized: reading ahead decides.
        return {
            each.producer_id: each.transaction_start_offset
            for each in producers.get(partition, [])
            if each.transaction_start_offset >= 0
        }
