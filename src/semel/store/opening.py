"""Open the embedded store: take the lock, examine the directory, recover, start a new write-ahead log.

**Recovery** applies all commits of the WAL that the ledger may lack. After a crash of the process the
operating system still has every write, so ledger and chunks are merely behind the WAL. After a crash of the
operating system each of the three has what it flushed, and perhaps more, so the WAL is authoritative:

- Batches in the WAL are written to their locations again, because the chunks may have lost them even if the
  ledger knows them.
- SQLite's log is written once more before it is read (``write_log_again``). If its last flush failed, it may
  be readable from memory without being on disk, and it claims that commits are flushed.
- Commits that the ledger lacks are applied in order, up to the first whose large batches are not in their
  chunk. That commit was never answered, unless the WAL says that it was flushed: then its batches are
  damaged. No number in the WAL is used again.
"""

import errno
import logging
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from semel.config import Settings
from semel.core.types import Buffer, Fact
from semel.printable import explained
from semel.store.cluster.contract import SharedStore
from semel.store.contract import BatchLocation, StoreBroken, StoreDamaged, StoreMisconfigured
from semel.store.embedded.directory_lock import DirectoryLock, Witness
from semel.store.embedded.examination import CHUNKS, LEDGER, LOST, WAL_BYTES, Examined, examine
from semel.store.embedded.files import Files, end_of_data, naming, tighten
from semel.store.embedded.files import boot_id as _boot_id
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.ledger_opening import log_of
from semel.store.embedded.local_chunks import LocalChunks
from semel.store.embedded.memory_chunks import MemoryChunks
from semel.store.embedded.store import EmbeddedStore
from semel.store.embedded.wal import WriteAheadLog
from semel.store.embedded.wal_reading import Frame
from semel.store.worker import StoreHealth, Worker
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


log = logging.getLogger("semel.store")

SCHEMA: Final = "semel"
"""The schema in a PostgreSQL database, by default."""


class Remote(NamedTuple):
    """Where the store of a cluster is."""

    ledger: str
    """The address of a PostgreSQL database."""
    chunks: str
    """The URL of an object store, or of a directory."""
    schema: str = SCHEMA
    """The schema in the database."""

    def __str__(self) -> str:
        return self.chunks

    def __repr__(self) -> str:
        # The address of the ledger may have a password.
        return f"Remote(chunks={self.chunks!r}, schema={self.schema!r})"


def check_packages() -> None:
    """Check that the packages for a cluster are installed. StoreMisconfigured."""
    missing = [name for name in ("asyncpg", "obstore") if find_spec(name) is None]
    if missing:
        raise StoreMisconfigured(
            f"a cluster needs packages that are not installed ({', '.join(missing)}):"
            " pip install 'semel[cluster]'"
        )


async def open_remote(place: Remote, settings: Settings) -> SharedStore:
    """Open a ledger in PostgreSQL and chunks in an object store. StoreBroken, StoreDamaged, StoreLocked.

    While PostgreSQL is unreachable, waits for it, as a running broker does. An unreachable object store is
    only logged: small commits do not need it.
    """
    check_packages()
    from semel.store.cluster.bytes.objects import Objects, check_access
    from semel.store.cluster.postgres.reaching import wait_for_server
    from semel.store.cluster.store import ClusterStore

    await check_access(place.chunks)
    await wait_for_server(place.ledger)
    objects = Objects.open(place.chunks)
    try:
        store = await ClusterStore.open(
            place.ledger,
            objects,
            settings,
            schema=place.schema,
            broker_id=settings.node_id,
            lease_seconds=settings.semel_lease_ms / 1000,
        )
    except BaseException:
        objects.close()
        raise
    if settings.cluster_id not in ("", store.cluster_id):
        await store.close()
        raise StoreMisconfigured(
            f"the ledger is that of cluster {store.cluster_id}, and cluster.id is {settings.cluster_id}: is"
            " it the right database? Without cluster.id, the id of the ledger is used"
        )
    return store


async def open_store(
    directory: Path | None, settings: Settings, *, files: Files | None = None, accepts: bool = False
) -> EmbeddedStore:
    """Open the store in a directory, which is created if missing, or a new one in memory (None).

    StoreLocked if another process has the directory. StoreDamaged if its parts do not belong together, or
    one is damaged; ``accepts`` continues despite that (``repair``). ``files`` accesses the disk.
    """
    files = files or Files()
    health = StoreHealth()
    worker = Worker("writer")
    if directory is None:
        ledger = await SqliteLedger.open(None, worker=worker, health=health, cluster_id=settings.cluster_id)
        return EmbeddedStore(ledger, MemoryChunks(settings.semel_chunk_bytes_max), worker, health)
    try:
        files.make_directory(directory)
        lock = DirectoryLock(directory)
        if left := tighten(directory):
            log.warning("other users can read %s, and its mode cannot be changed", left[0])
    except BaseException:
        worker.stop()
        raise
    try:
        with naming(directory):
            return await _open_in(directory, settings, files, worker, health, lock, accepts)
    except BaseException:
        lock.release()
        raise


async def _open_in(
    directory: Path,
    settings: Settings,
    files: Files,
    worker: Worker,
    health: StoreHealth,
    lock: DirectoryLock,
    accepts: bool,
) -> EmbeddedStore:
    try:
        examined = _examined(directory, files, lock, accepts=accepts)
    except BaseException:
        worker.stop()
        raise
    ledger = await SqliteLedger.open(
        directory / LEDGER,
        worker=worker,
        health=health,
        cluster_id=settings.cluster_id,
        boot_id=_boot_id(),
        unflushed_is_lost=(directory / LOST).exists(),
    )
    store_id = ledger.identity.store_id
    wal = WriteAheadLog(directory, files, store_id)
    try:
        files.flush_directory(directory)
        chunks = LocalChunks(
            directory / CHUNKS,
            settings.semel_chunk_bytes_max,
            settings.semel_disk_reserve_bytes,
            files=files,
            writer=worker,
            health=health,
            store_id=store_id,
            unproven=examined.unproven(),
        )
    except BaseException as error:
        # The WAL was not applied, so this must not count as a clean stop.
        health.fail(f"the chunks cannot be opened: {error}")
        await ledger.close()
        raise
    try:
        await worker.run(lambda: health.guard(recover, ledger, chunks, examined))
        wal.start()
        files.flush_directory(directory)
        notes = {**examined.notes(), WAL_BYTES: str(wal.file_bytes)}
        await worker.run(lambda: health.guard(ledger.note_now, notes))
        lock.testify(Witness(store_id, ledger.commit_number), files)
        (directory / LOST).unlink(missing_ok=True)
    except BaseException as error:
        # The WAL still has commits that were not applied, so this must not count as a clean stop.
        health.fail(f"the WAL cannot be taken over: {error}")
        wal.close()
        await ledger.close()
        await chunks.close()
        raise
    return EmbeddedStore(ledger, chunks, worker, health, lock, wal, directory, files)


def _examined(directory: Path, files: Files, lock: DirectoryLock, *, accepts: bool) -> Examined:
    """Examine the directory, and refuse it if there are problems. StoreDamaged, StoreBroken."""
    try:
        examined = examine(directory, lock.witness, boot_id=_boot_id())
    except OSError as error:
        raise StoreBroken(f"{directory} cannot be read: {explained(error)}") from error
    if accepts:
        examined = examined.accepted()
    examined.refuse(directory)
    try:
        write_log_again(log_of(directory / LEDGER), files)
    except OSError as error:
        raise StoreBroken(f"the log of the ledger cannot be written: {error}") from error
    return examined
