"""Back up a data directory, of a stopped or a running broker. A broker can be started on the copy.

If the broker is *stopped*, every file is copied as it is, under the lock. This includes the WAL, so the copy
recovers as the original would.

If the broker is *running*, the copy is one commit of the ledger:

1. Wait until the ledger has every commit that the WAL had when the backup began. Everything acknowledged
   before is then in the ledger.
2. Copy the chunks. Batches never change once written; only the space of deleted ones is released.
3. Copy the ledger with SQLite's backup, which is one commit of it, with page checksums on both sides.
4. Verify the checksum of every batch that the copied ledger references, and copy the batches again that were
   written meanwhile. If retention deleted one of them meanwhile, go back to 3.
5. Write headers to the chunks, and record a clean stop and a new term in the ledger, so no WAL is expected.

The backup is built in ``TARGET.partial``, where ``ledger.db`` gets its name last. The directory is renamed
when it is complete.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from semel.store.contract import BatchLocation, StoreBroken, StoreDamaged, StoreFull, StoreLocked
from semel.store.embedded import ledger_opening
from semel.store.embedded.chunk_header import HEADER_BYTES, ChunkHeader, pack_slot, path_of
from semel.store.embedded.directory_lock import LOCK, DirectoryLock
from semel.store.embedded.examination import CHUNKS, LEDGER, LOST, WAL_BYTES, examine
from semel.store.embedded.files import FILE_MODE, Files, data_ranges, naming
from semel.store.embedded.ledger_opening import log_of, look_at, open_reader
from semel.store.embedded.ledger_pages import copy_pages
from semel.store.embedded.ledger_writer import LedgerWriter
from semel.store.embedded.queries import Statements
from semel.store.embedded.swap import staged
from semel.store.embedded.tools.check_storage import BatchReader, DamagedBatch, check_storage
from semel.store.embedded.wal import paths_in
from semel.store.embedded.wal_reading import read_wal

Progress = Callable[[str, int, int], None]
"""Called with what is being copied, the bytes copied and the bytes in total."""

PARTIAL: Final = ".partial"
PIECE_BYTES: Final = 1024 * 1024
PAGES_AT_ONCE: Final = 4096
FOLLOW_SECONDS: Final = 30.0
"""How long the ledger may take to catch up with the WAL. With free space it takes a tenth of a second."""
LOOKS_MAX: Final = 10
"""How often the ledger is copied at most. Each copy may reference batches that retention then deletes."""


class BackedUp(NamedTuple):
    """The contents of a backup."""

    commit_number: int
    batches: int
    batch_bytes: int
    damaged: list[DamagedBatch]
    """Batches that are unreadable in the original too."""
    was_running: bool


def back_up(directory: Path, target: Path, progress: Progress = lambda what, done, total: None) -> BackedUp:
    """Copy a data directory. StoreBroken, StoreDamaged, StoreFull, OSError: the target is not created."""
    partial = target.with_name(f"{target.name}{PARTIAL}")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise StoreBroken(f"{target} exists and is not an empty directory")
    if not (directory / LEDGER).exists():
        raise StoreBroken(f"there is no {LEDGER} in {directory}")
    if directory.resolve() in (target.resolve(), *target.resolve().parents):
        raise StoreBroken(f"{target} is inside {directory}")
    files = Files()
    try:
        partial.mkdir(parents=True, mode=0o700)
        files.make_directory(partial / CHUNKS)
    except FileExistsError:
        raise StoreBroken(
            f"{partial} exists: another backup runs, or one was interrupted; remove it"
        ) from None
    try:
        with naming(partial):
            backed_up = _copy(directory, partial, files, progress)
        files.rename(partial, target)
    except BaseException:
        _remove(partial)
        raise
    files.flush_directory(target.parent)
    return backed_up


def _copy(directory: Path, partial: Path, files: Files, progress: Progress) -> BackedUp:
    try:
        lock = DirectoryLock(directory, only_looks=True)
    except StoreLocked:
        lock = None
    try:
        backed_up = (_running if lock is None else _stopped)(directory, partial, files, progress, lock)
        examined = examine(partial, None)
    except apsw.FullError as error:
        raise StoreFull(f"there is no room in {partial}: {error}") from error
    except apsw.Error as error:
        kind = StoreDamaged if ledger_opening.is_damage(error) else StoreBroken
        raise kind(f"{directory / LEDGER} cannot be copied: {error}") from error
    finally:
        if lock is not None:
            lock.release()
    examined.refuse(partial)
    # Opening the ledger created these.
    log = log_of(partial / LEDGER)
    files.remove(partial / f"{LEDGER}-shm")
    if log.exists() and not log.stat().st_size:
        files.remove(log)
    files.flush_directory(partial)
    return backed_up


def _remove(partial: Path) -> None:
    """Remove the partial copy and nothing else."""
    for path in [*partial.glob("chunks/*"), *(path for path in partial.glob("*") if path.is_file())]:
        path.unlink(missing_ok=True)
    (partial / CHUNKS).rmdir()
    partial.rmdir()


# -- stopped ------------------------------------------------------------------------------------------------


def _stopped(
    directory: Path, partial: Path, files: Files, progress: Progress, lock: DirectoryLock | None
) -> BackedUp:
    examined = examine(directory, None if lock is None else lock.witness)
    examined.refuse(directory)
    ledger = directory / LEDGER
    sources = [chunk.path for chunk in examined.chunks]
    sources += [path for path in (*paths_in(directory), directory / LOST, directory / LOCK) if path.exists()]
    sources += [path for path in (log_of(ledger),) if path.exists()]
    _copy_all(directory, partial, sources, files, progress)
    # Last: without a ledger the copy is not taken for a data directory.
    _copy_file(ledger, staged(partial / LEDGER), files)
    files.rename(staged(partial / LEDGER), partial / LEDGER)
    for path in (partial, partial / CHUNKS):
        files.flush_directory(path)
    checked = check_storage(partial, lambda done, total: progress("compared", done, total))
    if checked.problems:
        raise StoreDamaged(f"{directory} cannot be copied: {'; '.join(checked.problems[:5])}")
    return BackedUp(examined.known, checked.batches, checked.batch_bytes, checked.damaged, was_running=False)


# -- running ------------------------------------------------------------------------------------------------


def _running(
    directory: Path, partial: Path, files: Files, progress: Progress, _lock: DirectoryLock | None
) -> BackedUp:
    source = open_reader(directory / LEDGER)
    try:
        _wait_for_ledger(directory, source)
        _copy_all(directory, partial, sorted((directory / CHUNKS).glob("*.chunk")), files, progress)
        path = staged(partial / LEDGER)
        for _ in range(LOOKS_MAX):
            copy_pages(source, path, PAGES_AT_ONCE)
            filled = _fill(directory, partial, path, progress)
            if not _is_overtaken(source, filled.damaged):
                break
        else:
            raise StoreBroken("records were deleted again and again while they were copied; try again")
    finally:
        source.close(True)
    number = _complete(partial, path, files)
    return filled._replace(commit_number=number)


def _wait_for_ledger(directory: Path, source: apsw.Connection) -> None:
    """Wait until the ledger has everything that is in the WAL now."""
    sql = Statements(source)
    meta = dict(sql.rows("read_meta"))
    after = int(meta.get("checkpointed", "0"))
    wanted = read_wal(paths_in(directory), bytes.fromhex(meta.get("store_id", "")), after).last_seen
    deadline = time.monotonic() + FOLLOW_SECONDS
    while sql.rows("read_counters")[0][0] < wanted:
        if time.monotonic() > deadline:
            raise StoreBroken(
                f"the ledger in {directory} does not follow its WAL, and no broker writes it;"
                " if no broker runs, wait for what holds the directory"
            )
        time.sleep(0.05)


def _fill(directory: Path, partial: Path, ledger: Path, progress: Progress) -> BackedUp:
    """Copy the batches that were written while the chunks were copied, and verify all checksums."""
    connection = open_reader(ledger)
    original, copied = BatchReader(directory / CHUNKS), BatchReader(partial / CHUNKS)
    damaged: list[DamagedBatch] = []
    batches = done = 0
    try:
        sql = Statements(connection)
        total = sum(live_bytes for _, live_bytes in sql.rows("chunk_references"))
        for topic, partition, base_offset, last_offset, *where in sql.each("batches_at_rest"):
            location = BatchLocation(*where)
            batches += 1
            done += location.length
            if copied.wrong_with(location) is not None:
                reason = original.wrong_with(location)
                if reason is None:
                    _copy_batch(original, partial, location)
                else:
                    damaged.append(DamagedBatch(topic, partition, base_offset, last_offset, location, reason))
            progress("compared", done, total)
    finally:
        for reader in (original, copied):
            reader.close()
        connection.close(True)
    return BackedUp(0, batches, done, damaged, was_running=True)


def _copy_batch(original: BatchReader, partial: Path, location: BatchLocation) -> None:
    path = path_of(partial / CHUNKS, location.chunk_id)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.pwrite(descriptor, original.read(location), location.position)
    finally:
        os.close(descriptor)


def _is_overtaken(source: apsw.Connection, damaged: list[DamagedBatch]) -> bool:
    """Whether an unreadable batch was deleted since the ledger was copied."""
    if not damaged:
        return False
    there = {BatchLocation(*row[4:]) for row in Statements(source).each("batches_at_rest")}
    return any(each.location not in there for each in damaged)


def _complete(partial: Path, path: Path, files: Files) -> int:
    """Record in ledger and chunks that they belong together as they are. Return their last commit."""
    writer = LedgerWriter(path, unflushed_is_lost=True)
    try:
        writer.note({WAL_BYTES: "0"})
        writer.checkpoint()
        number = writer.commit_number
    except BaseException:
        writer.close(cleanly=False)
        raise
    writer.close(cleanly=True)
    look = look_at(path)
    log = log_of(path)
    if look is None or not look.stopped_cleanly or (log.exists() and log.stat().st_size):
        raise StoreFull(f"there is no room in {partial}")
    for each in sorted((partial / CHUNKS).iterdir()):
        if int(each.stem) not in look.chunks:
            files.remove(each)
    for chunk_id, end in look.chunks.items():
        header = ChunkHeader(look.store_id, chunk_id, number, max(end, HEADER_BYTES))
        _write_header(path_of(partial / CHUNKS, chunk_id), header)
    for each in (log, path.with_name(f"{path.name}-shm")):
        files.remove(each)
    files.flush_directory(partial / CHUNKS)
    files.rename(path, partial / LEDGER)
    files.flush_directory(partial)
    return number


def _write_header(path: Path, header: ChunkHeader) -> None:
    """Write a chunk's header and flush the chunk."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        if os.fstat(descriptor).st_size < header.end:
            os.ftruncate(descriptor, header.end)
        os.pwrite(descriptor, pack_slot(header).ljust(HEADER_BYTES, b"\0"), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- files --------------------------------------------------------------------------------------------------


def _copy_all(directory: Path, partial: Path, sources: list[Path], files: Files, progress: Progress) -> None:
    total = sum(_size(path) for path in sources)
    done = 0
    for path in sources:
        try:
            for length in _copied(path, partial / path.relative_to(directory), files):
                done += length
                progress("copied", done, max(total, done))
        except FileNotFoundError:
            # The chunk was deleted since; no row references it any more.
            (partial / path.relative_to(directory)).unlink(missing_ok=True)


def _copy_file(source: Path, target: Path, files: Files) -> None:
    for _ in _copied(source, target, files):
        pass


def _copied(source: Path, target: Path, files: Files) -> Iterator[int]:
    """Copy a file, keeping holes as holes. Yield the length of each piece."""
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = files.create(target)
        try:
            os.ftruncate(writing, os.fstat(reading).st_size)
            for start, end in data_ranges(reading):
                at = start
                while at < end and (data := os.pread(reading, min(PIECE_BYTES, end - at), at)):
                    os.pwrite(writing, data, at)
                    at += len(data)
                    yield len(data)
            files.flush(writing)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _size(path: Path) -> int:
    try:
        return min(path.stat().st_blocks * 512, path.stat().st_size)
    except FileNotFoundError:
        return 0
