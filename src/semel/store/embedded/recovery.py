"""Recovery: apply all commits of the WAL that the ledger may lack.

After a crash of the process the operating system still has every write, so ledger and chunks are merely
behind the WAL. After a crash of the operating system each of the three has what it flushed, and perhaps more,
so the WAL is authoritative:

- Batches in the WAL are written to their locations again, because the chunks may have lost them even if the
  ledger knows them.
- SQLite's log is written once more before it is read (``write_log_again``). If its last flush failed, it may
  be readable from memory without being on disk, and it claims that commits are flushed.
- Commits that the ledger lacks are applied in order, up to the first whose large batches are not in their
  chunk. That commit was never answered, unless the WAL says that it was flushed: then its batches are
  damaged. No number in the WAL is used again.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.core.types import Buffer, Fact
from semel.store.contract import BatchLocation, StoreDamaged
from semel.store.embedded.examination import Examined
from semel.store.embedded.files import Files, end_of_data
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.local_chunks import LocalChunks
from semel.store.embedded.wal_reading import Frame
from semel.wire.batch import has_valid_crc, read_header
from semel.wire.errors import ProtocolError

PIECE_BYTES: Final = 1024 * 1024


def write_log_again(path: Path, files: Files) -> None:
    """Write SQLite's log to disk again as it reads now, before it is used. OSError.

    After a clean stop there is none.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        at, end = 0, end_of_data(descriptor)
        while at < end:
            data = os.pread(descriptor, min(PIECE_BYTES, end - at), at)
            at += files.write(descriptor, [data], at)
        if end:
            files.flush(descriptor)
    except OSError as error:
        # Some file systems need room even for this. Without it the log stays as it is.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(descriptor)


def recover(ledger: SqliteLedger, chunks: LocalChunks, examined: Examined) -> None:
    """Apply the WAL to ledger and chunks, durably. Runs on the writer's thread. StoreDamaged."""
    if ledger.identity.stopped_cleanly and examined.last_seen <= ledger.commit_number:
        return
    for frame in examined.frames:
        _write_again(chunks, frame)
    facts: list[Fact] = []
    locations: list[BatchLocation] = []
    for frame in examined.frames:
        if frame.batches is None and not _write_large_again(chunks, frame.locations):
            if frame.number <= max(ledger.commit_number, examined.flushed) and not examined.is_accepted:
                raise StoreDamaged(_lost_batches(frame))
            break
        if frame.number > ledger.commit_number:
            facts += frame.facts
            locations += frame.locations
    # The rest of the WAL is history from now on: none of its numbers is used again.
    number = max(examined.last_seen, ledger.commit_number)
    # A frame that survived a kill may not be on disk: the chunks must not know it before the ledger does.
    chunks.flush_now(ledger.commit_number)
    if number > ledger.commit_number:
        ledger.commit_now(facts, locations, number)
    ledger.move_log_now()
    ledger.checkpoint_now()


def _lost_batches(frame: Frame) -> str:
    chunk_ids = ", ".join(str(each) for each in sorted({location.chunk_id for location in frame.locations}))
    return (
        f"commit {frame.number} was acknowledged, and its batches in chunk {chunk_ids} are damaged or missing"
    )


def _write_again(chunks: LocalChunks, frame: Frame) -> None:
    """Write the batches to their locations. If a chunk is missing, nothing in it is needed."""
    if frame.batches is None:
        return
    kept: list[tuple[BatchLocation, Buffer]] = [
        (location, batch)
        for location, batch in zip(frame.locations, frame.batches, strict=True)
        if chunks.has_chunk(location.chunk_id)
    ]
    chunks.write_now([location for location, _ in kept], [batch for _, batch in kept])


def _write_large_again(chunks: LocalChunks, locations: Sequence[BatchLocation]) -> bool:
    """Write large batches to their chunk again, in case a flush failed. False if one is not intact there."""
    try:
        batches = chunks.read_now(locations)
    except (LookupError, OSError):
        return False
    if not all(_is_whole(batch, location) for batch, location in zip(batches, locations, strict=True)):
        return False
    chunks.write_now(locations, batches)
    return True


def _is_whole(batch: bytearray, location: BatchLocation) -> bool:
    try:
        header = read_header(batch)
    except ProtocolError:
        return False
    return header.length == location.length and has_valid_crc(batch, 0, header)
