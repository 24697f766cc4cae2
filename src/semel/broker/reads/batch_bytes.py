"""Reads the bytes of batches from chunks, with few calls, and stamps them.

While only one partition is written, its batches are adjacent in a chunk; otherwise they are scattered among
the batches of other partitions. So locations are merged twice: adjacent batches of one partition into a
*run*, and runs of a whole fetch with only small gaps between them into one read. Reading a gap costs less
than another call, and a reader of many partitions usually wants the batches in it anyway.

The bytes in a chunk are as the producer sent them. Base offset and leader epoch are not covered by the
checksum and are written into the reader's own buffer. So a chunk never changes, and all readers can share it.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from crc32c import crc32c

from semel.broker.reads.tail import LEADER_EPOCH
from semel.store.contract import BatchLocation, ChunkStore, StoredBatch
from semel.wire.batch import HEADER_BYTES, MAGIC, PREFIX_BYTES, stamp

Piece: TypeAlias = bytearray | memoryview
"""Bytes of one or more batches: a separate buffer, or a view of a shared one."""

GAP_BYTES_MAX: Final = 32 * 1024
"""Copying this much from the page cache takes about as long as another call."""
SPAN_BYTES_MAX: Final = 1024 * 1024
"""Larger reads gain nothing: their buffers are fresh memory each time, which costs more than the calls."""
WASTE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of gaps that one fetch may read; they are freed when the runs are copied out."""

_CHECKED: Final = struct.Struct(">i4xbI")
"""Length, leader epoch, magic and checksum of a batch, which follow its base offset."""
_CHECKED_AT: Final = 8
_COVERED_AT: Final = 21


def runs_of(batches: Sequence[StoredBatch]) -> list[BatchLocation]:
    """The locations of batches, with adjacent ones merged."""
    runs: list[BatchLocation] = []
    chunk_id = position = -1
    length = 0
    for batch in batches:
        location = batch.location
        if location.chunk_id == chunk_id and location.position == position + length:
            length += location.length
            continue
        if length:
            runs.append(BatchLocation(chunk_id, position, length))
        chunk_id, position, length = location
    if length:
        runs.append(BatchLocation(chunk_id, position, length))
    return runs


def spans_of(runs: Iterable[BatchLocation]) -> tuple[list[BatchLocation], dict[BatchLocation, int]]:
    """The reads that cover these runs, and for each run the index of its read."""
    spans: list[BatchLocation] = []
    lies_in: dict[BatchLocation, int] = {}
    chunk_id = start = end = -1
    waste_left = WASTE_BYTES_MAX
    for run in sorted(runs):
        gap = run.position - end
        is_far = run.chunk_id != chunk_id or gap > min(GAP_BYTES_MAX, waste_left)
        if is_far or run.position + run.length - start > SPAN_BYTES_MAX:
            if end > start:
                spans.append(BatchLocation(chunk_id, start, end - start))
            chunk_id, start, end = run.chunk_id, run.position, run.position
        elif gap > 0:
            waste_left -= gap
        # Two ranges of one partition may overlap.
        end = max(end, run.position + run.length)
        lies_in[run] = len(spans)
    if end > start:
        spans.append(BatchLocation(chunk_id, start, end - start))
    return spans, lies_in


async def read_batches(chunks: ChunkStore, wanted: Sequence[Sequence[StoredBatch]]) -> list[list[Piece]]:
    """The bytes of the batches of several partitions. LookupError or OSError if some cannot be read."""
    if not any(wanted):
        return [[] for _ in wanted]
    runs = [runs_of(batches) for batches in wanted]
    spans, lies_in = spans_of(run for each in runs for run in each)
    try:
        if len(wanted) == 1 and len(spans) == len(runs[0]) > 1:
            # One partition whose runs are far apart: read them into one buffer.
            return [[await chunks.read_together(runs[0])]]
        buffers = await chunks.read(spans)
    except LookupError:
        # A gap may have been released, and a store may accept only the exact locations of batches.
        exact = iter(await chunks.read([batch.location for batches in wanted for batch in batches]))
        return [[next(exact) for _ in batches] for batches in wanted]
    return [[_piece(run, spans[lies_in[run]], buffers[lies_in[run]]) for run in each] for each in runs]


def _piece(run: BatchLocation, span: BatchLocation, buffer: bytearray) -> Piece:
    if run == span:
        return buffer
    at = run.position - span.position
    return memoryview(buffer)[at : at + run.length]


def count_whole(batches: Sequence[StoredBatch], pieces: Sequence[Piece], *, checks_crc: bool = True) -> int:
    """How many batches, from the first on, are intact.

    ``checks_crc`` compares checksums: bytes may have changed on disk, and not every client checks. Without
    it, only magic and length are checked.
    """
    index, at = 0, 0
    for count, batch in enumerate(batches):
        if index < len(pieces) and at == len(pieces[index]):
            index, at = index + 1, 0
        length = batch.location.length
        if index == len(pieces) or at + length > len(pieces[index]) or length < HEADER_BYTES:
            return count
        piece = pieces[index]
        stated_length, magic, checksum = _CHECKED.unpack_from(piece, at + _CHECKED_AT)
        if stated_length + PREFIX_BYTES != length or magic != MAGIC:
            return count
        if checks_crc and crc32c(memoryview(piece)[at + _COVERED_AT : at + length]) != checksum:
            return count
        at += length
    return len(batches)


def stamp_all(batches: Sequence[StoredBatch], pieces: Sequence[Piece]) -> None:
    """Stamp batches in their pieces. All of them must be present."""
    index, at = 0, 0
    for batch in batches:
        if at == len(pieces[index]):
            index, at = index + 1, 0
        stamp(pieces[index], at, batch.base_offset, LEADER_EPOCH)
        at += batch.location.length


def together(pieces: Sequence[Piece]) -> bytes | bytearray:
    """One buffer with all pieces that pins no other memory. A single separate buffer is not copied."""
    if len(pieces) == 1 and isinstance(pieces[0], bytearray):
        return pieces[0]
    return b"".join(pieces)
