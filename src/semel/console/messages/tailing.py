"""Follows the end of a topic: yields new records as rows while the page is open.

Records of open transactions are yielded when they are written. When the marker of their transaction arrives,
an outcome follows, so that the browser can mark them committed or aborted. If more records arrive than a
browser can show, the older ones of a round are counted and left out.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from semel.client import FetchLimits
from semel.console.messages.filters import Filter
from semel.console.messages.limits import TAIL_ROWS_MAX
from semel.console.messages.marks import Mark
from semel.console.messages.reading import MarkedRecord, Piece, Reader
from semel.console.messages.scanning import Stop
from semel.wire.records import read_marker

WAIT: Final = FetchLimits(max_wait_ms=1000, max_bytes=4 << 20, partition_max_bytes=1 << 20)
ROUND_SECONDS: Final = 0.4
RECORDS_MAX: Final = 5000
"""Records that one round searches. With more, the tail has fallen behind, and skips them."""


@dataclass(slots=True)
class Round:
    """What arrived in one fetch."""

    rows: list[Any] = field(default_factory=list)
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    seen: int = 0
    #: The next offset of each partition that advanced.
    next: dict[int, int] = field(default_factory=dict)


def tail(
    reader: Reader,
    positions: Mapping[int, int],
    wanted: Filter,
    make: Callable[[MarkedRecord], Any],
    stop: Stop,
) -> Generator[Round, None, None]:
    """Yield a round whenever something arrives, until `stop` is set."""
    at = dict(positions)
    while not stop.is_set():
        pieces = reader.fetch(at, WAIT, look_ahead=False)
        made = Round()
        kept: deque[tuple[int, Any]] = deque(maxlen=TAIL_ROWS_MAX)
        for piece in pieces:
            _look(reader, piece, at[piece.partition], wanted, make, kept, made, stop)
            if piece.next_offset > at[piece.partition]:
                made.next[piece.partition] = at[piece.partition] = piece.next_offset
        made.rows = [row for _, row in sorted(kept, key=lambda pair: pair[0])]
        if made.next:
            yield made
            # Pause: a person does not notice the delay, and the broker is queried less often.
            stop.wait(ROUND_SECONDS)
        elif len(pieces) < len(at):
            stop.wait(0.5)  # A partition has no leader, and an error is returned without waiting.


def _look(
    reader: Reader,
    piece: Piece,
    begin: int,
    wanted: Filter,
    make: Callable[[MarkedRecord], Any],
    kept: deque[tuple[int, Any]],
    made: Round,
    stop: Stop,
) -> None:
    for position, header, mark in piece.batches:
        if mark is Mark.CONTROL and not reader.committed:
            marker = read_marker(piece.data, position)
            if marker is not None:
                made.outcomes.append(
                    {
                        "partition": piece.partition,
                        "producer_id": header.producer_id,
                        "before": header.base_offset,
                        "mark": (Mark.COMMITTED if marker.commit else Mark.ABORTED).value,
                    }
                )
    for marked in reader.records(piece, begin, piece.next_offset):
        if stop.is_set():
            return
        if made.seen >= RECORDS_MAX:
            made.skipped += max(0, piece.next_offset - marked.offset)
            return
        made.seen += 1
        if wanted.matches(marked):
            if len(kept) == kept.maxlen:
                made.skipped += 1
            # Keep the row and not the record: rows are small, and records may be large.
            kept.append((marked.record.timestamp, make(marked)))
