"""Salvage: build a new ledger from the chunks when the old one is lost.

Only the ledger knows the topic and offset of a batch: neither is in its bytes. So only records can be
recovered. The new ledger has one topic, ``salvaged``, with a partition per chunk, which holds the batches in
the order of their positions. Batches that are only in the WAL, because they were not applied yet, are written
to one more chunk. Names of topics, offsets, groups, transactions and configs are lost, and records of aborted
transactions are included.

Ledger and chunk are completed under other names and then replace the old files in one step (``swap``). An
interrupted salvage leaves the directory as it was, or in a state that only ``swap.finish`` may change.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from semel.core.facts import BatchAppended, Put, TopicCreated
from semel.core.types import Buffer, Fact, Partition, PartitionKey, Topic
from semel.store.contract import BatchLocation, StoreBroken, StoreFull
from semel.store.embedded import swap
from semel.store.embedded.chunk_header import (
    HEADER_BYTES,
    ChunkHeader,
    ChunkOnDisk,
    look_at_chunk,
    pack_slot,
    path_of,
)
from semel.store.embedded.directory_lock import DirectoryLock, Witness
from semel.store.embedded.examination import CHUNKS, LEDGER, UNPROVEN, Examined, examine
from semel.store.embedded.files import Files, naming, write_all
from semel.store.embedded.ledger_opening import log_of, look_at
from semel.store.embedded.ledger_writer import LedgerWriter
from semel.store.embedded.wal import paths_in
from semel.store.embedded.wal_reading import Frame, first_frame, short_id, whole_frames
from semel.wire.batch import MAGIC, BatchHeader, has_valid_crc, read_header

TOPIC: Final = "salvaged"
_MAGIC_AT: Final = 16
_HEADER_BYTES: Final = 61
_MAGIC_BYTE: Final = re.compile(re.escape(bytes([MAGIC])))
_NOTE: Final = "salvaged"


class Outlook(NamedTuple):
    """What a salvage would find and lose."""

    store_id: bytes
    kept: list[ChunkOnDisk]
    foreign: list[ChunkOnDisk]
    """Chunks of another store."""
    only_in_wal: list[Buffer]
    """Batches that are in no chunk."""
    lost: list[str]
    """Acknowledged commits that cannot be recovered, in words."""
    last_number: int
    """The largest commit number found anywhere."""


class Salvaged(NamedTuple):
    """The result of a salvage."""

    chunks: int
    batches: int
    records: int


def outlook(directory: Path, examined: Examined, witness: Witness | None) -> Outlook:
    """Inspect a directory without changing it. OSError."""
    chunks = examined.chunks
    owners = Counter(chunk.header.store_id for chunk in chunks if chunk.header is not None)
    numbers = [chunk.header.number for chunk in chunks if chunk.header is not None]
    if witness is not None:
        numbers.append(witness.number)
        owners[witness.store_id] += 0
    store_id = owners.most_common(1)[0][0] if owners else os.urandom(16)
    owner = short_id(store_id)
    if not owners:
        found = filter(None, map(first_frame, paths_in(directory)))
        owner = next((frame.owner for frame in found), owner)
    kept = [chunk for chunk in chunks if chunk.header is None or chunk.header.store_id == store_id]
    foreign = [chunk for chunk in chunks if chunk not in kept]
    synced = max(numbers, default=0)
    frames, lost = _frames(directory, owner, synced)
    only_in_wal: list[Buffer] = []
    for frame in frames:
        missing, gone = _missing(frame, {chunk.chunk_id: chunk for chunk in kept}, synced)
        only_in_wal += missing
        if gone:
            lost.append(f"{gone} large batches of commit {frame.number}, which their chunk does not have")
    last_number = max(synced, *(frame.number for frame in frames), examined.last_seen)
    return Outlook(store_id, kept, foreign, only_in_wal, lost, last_number)


def salvage(directory: Path, files: Files | None = None) -> Salvaged:
    """Build a new ledger from the chunks and set the old one and the WAL aside, or finish doing so.

    StoreLocked, StoreFull, StoreBroken, OSError: nothing has changed, or the next call finishes it.
    """
    files = files or Files()
    lock = DirectoryLock(directory)
    try:
        if not swap.is_pending(directory):
            remove_leftovers(directory, files)
            found = outlook(directory, examine(directory, lock.witness), lock.witness)
            try:
                with naming(directory):
                    _prepare(directory, found, files)
            except BaseException:
                if not swap.is_pending(directory):
                    remove_leftovers(directory, files)
                raise
        return _finish(directory, lock, files)
    finally:
        lock.release()


def finish_interrupted(directory: Path) -> bool:
    """Finish a repair that was interrupted while replacing files. False if there was none. StoreLocked."""
    if not swap.is_pending(directory):
        return False
    lock = DirectoryLock(directory)
    try:
        _finish(directory, lock, Files())
    finally:
        lock.release()
    return True


def remove_leftovers(directory: Path, files: Files) -> None:
    """Remove unused files of an interrupted repair."""
    for path in swap.leftovers(directory):
        files.remove(path)


def _finish(directory: Path, lock: DirectoryLock, files: Files) -> Salvaged:
    salvaged = swap.notes(directory).get(_NOTE)
    if salvaged is not None:
        # The witness belongs to the old ledger.
        lock.forget()
    swap.finish(directory, files)
    return Salvaged(*(salvaged or (0, 0, 0)))


# -- what only the WAL has ----------------------------------------------------------------------------------


def _frames(directory: Path, owner: bytes, synced: int) -> tuple[list[Frame], list[str]]:
    """Return the intact frames of the WAL, and what is lost because others are damaged."""
    frames: dict[int, Frame] = {}
    seen: set[int] = set()
    lost: list[str] = []
    for number, frame in whole_frames(paths_in(directory), owner):
        seen.add(number)
        if isinstance(frame, Frame):
            frames[number] = frame
        elif isinstance(frame, StoreBroken):
            lost.append(f"commit {number}: {frame}")
    missing = sorted(set(range(synced + 1, max(seen, default=0))) - seen)
    missing += sorted(number for number in seen if number > synced and number not in frames)
    if missing:
        lost.append(
            f"{len(missing)} commits that are damaged in the WAL, or not in it,"
            f" between {missing[0]} and {missing[-1]}"
        )
    return [frames[number] for number in sorted(frames)], lost


def _missing(frame: Frame, chunks: dict[int, ChunkOnDisk], synced: int) -> tuple[list[Buffer], int]:
    """Return the batches of a frame that its chunk lacks, and how many are in neither.

    A batch that was flushed to its chunk and is not there any more was deleted.
    """
    missing: list[Buffer] = []
    gone = 0
    for index, location in enumerate(frame.locations):
        chunk = chunks.get(location.chunk_id)
        flushed = synced if chunk is None else 0 if chunk.header is None else chunk.header.number
        if frame.number <= flushed:
            continue
        data = b"" if chunk is None else _read(chunk.path, location)
        if frame.batches is None:
            gone += not (len(data) == location.length and _batch_at(memoryview(data), 0))
        elif data != frame.batches[index]:
            missing.append(frame.batches[index])
    return missing, gone


def _read(path: Path, location: BatchLocation) -> bytes:
    with path.open("rb") as file:
        file.seek(location.position)
        return file.read(location.length)


# -- the new files ------------------------------------------------------------------------------------------


def _prepare(directory: Path, found: Outlook, files: Files) -> None:
    """Create the new files under other names, and commit to replacing the old ones."""
    kept, new = list(found.kept), [directory / LEDGER]
    if found.only_in_wal:
        chunk_id = max((chunk.chunk_id for chunk in (*found.kept, *found.foreign)), default=0) + 1
        files.make_directory(directory / CHUNKS)
        path = path_of(directory / CHUNKS, chunk_id)
        kept.append(_write_chunk(path, chunk_id, found, files))
        new.append(path)
    salvaged = _write_ledger(swap.staged(directory / LEDGER), found.store_id, kept, found.last_number, files)
    ledger = directory / LEDGER
    aside = [ledger, log_of(ledger), ledger.with_name(f"{LEDGER}-shm"), *paths_in(directory)]
    aside = [path for path in aside if path.exists()] + [chunk.path for chunk in found.foreign]
    swap.begin(directory, aside, new, {_NOTE: salvaged}, files)


def _write_chunk(path: Path, chunk_id: int, found: Outlook, files: Files) -> ChunkOnDisk:
    """Write a chunk with the batches that only the WAL has."""
    end = HEADER_BYTES + sum(map(len, found.only_in_wal))
    header = pack_slot(ChunkHeader(found.store_id, chunk_id, found.last_number, end))
    descriptor = files.create(swap.staged(path))
    try:
        files.allocate(descriptor, 0, end)
        write_all(files, descriptor, [header.ljust(HEADER_BYTES, b"\0"), *found.only_in_wal], 0)
        files.flush(descriptor)
    except OSError as error:
        raise StoreFull(f"{swap.staged(path)} cannot be written: {error}") from error
    finally:
        os.close(descriptor)
    return look_at_chunk(swap.staged(path), chunk_id)


def _write_ledger(
    path: Path, store_id: bytes, chunks: list[ChunkOnDisk], last_number: int, files: Files
) -> Salvaged:
    """Write a complete ledger to one file, and flush it. StoreFull, StoreBroken."""
    try:
        writer = LedgerWriter(path)
        try:
            salvaged = _fill(writer, store_id, chunks, last_number)
        except BaseException:
            writer.close(cleanly=False)
            raise
        writer.close(cleanly=True)
        look = look_at(path)
    except apsw.FullError as error:
        raise StoreFull(f"there is no room for {path}: {error}") from error
    except apsw.Error as error:
        raise StoreBroken(f"{path} cannot be written: {error}") from error
    log = log_of(path)
    if look is None or not look.stopped_cleanly or (log.exists() and log.stat().st_size):
        raise StoreFull(f"there is no room for {path}")
    files.remove(log)
    files.remove(path.with_name(f"{path.name}-shm"))
    return salvaged


def _fill(writer: LedgerWriter, store_id: bytes, chunks: list[ChunkOnDisk], last_number: int) -> Salvaged:
    number = last_number + 1
    batches = records = 0
    without: list[int] = []
    topic = Topic(TOPIC, os.urandom(16), max(len(chunks), 1), {"retention.ms": "-1"})
    writer.commit([TopicCreated(topic)], [], number=number)
    for index, chunk in enumerate(chunks):
        facts: list[Fact] = []
        locations: list[BatchLocation] = []
        offset = peak = size = 0
        key = PartitionKey(topic.topic_id, index)
        for location, header in batches_in(chunk):
            last = offset + header.last_offset_delta
            peak = max(peak, header.max_timestamp)
            facts.append(
                BatchAppended(
                    key, offset, last, header.max_timestamp, peak, location.length, -1, False, False
                )
            )
            locations.append(location)
            offset = last + 1
            size += location.length
            records += header.record_count
        number += 1
        if facts:
            facts.append(Put(key, Partition(0, offset, peak, size)))
        writer.commit(facts, locations, number=number, is_checkpoint=True)
        batches += len(locations)
        if not locations:
            without.append(chunk.chunk_id)
    writer.forget_chunks((), [chunk.chunk_id for chunk in chunks])
    # A chunk without an intact batch is kept, because it may hold damaged ones.
    writer.note({"store_id": store_id.hex(), UNPROVEN: str(without)})
    return Salvaged(len(chunks), batches, records)


def batches_in(chunk: ChunkOnDisk) -> Iterator[tuple[BatchLocation, BatchHeader]]:
    """Yield the intact data batches of a chunk, at any position. Markers are skipped."""
    data = memoryview(chunk.path.read_bytes())
    at = HEADER_BYTES if chunk.header is not None else 0
    while at + _HEADER_BYTES <= len(data):
        header = _batch_at(data, at)
        if header is None:
            at = _next_candidate(data, at + 1)
            continue
        if not header.is_control and header.last_offset_delta >= 0:
            yield BatchLocation(chunk.chunk_id, at, header.length), header
        at += header.length


def _batch_at(data: memoryview, at: int) -> BatchHeader | None:
    if len(data) < at + _HEADER_BYTES or data[at + _MAGIC_AT] != MAGIC:
        return None
    header = read_header(data, at)
    if not _HEADER_BYTES <= header.length <= len(data) - at:
        return None
    return header if has_valid_crc(data, at, header) else None


def _next_candidate(data: memoryview, at: int) -> int:
    """Return where the next batch may begin. Released space is zeros, and no batch is all zeros."""
    found = _MAGIC_BYTE.search(data, at + _MAGIC_AT)
    return len(data) if found is None else found.start() - _MAGIC_AT
