"""Check all stored data of a stopped broker: whether the parts belong together, and whether each is intact.

Reads every page of the ledger and every batch that a row references, and verifies their checksums. Changes
nothing. Batches that are still in the WAL are not expected in the chunks: a start writes them there again.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from semel.core.types import Buffer
from semel.store.contract import BatchLocation
from semel.store.embedded.chunk_header import path_of
from semel.store.embedded.directory_lock import DirectoryLock
from semel.store.embedded.examination import CHECKSUMS, CHUNKS, LEDGER, PAGES, Examined, examine_all
from semel.store.embedded.files import naming
from semel.store.embedded.ledger_opening import open_at_rest, plain
from semel.store.embedded.queries import Statements
from semel.wire.batch import MAGIC, has_valid_crc, read_header
from semel.wire.errors import ProtocolError

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes in total."""

PROGRESS_BYTES: Final = 8 * 1024 * 1024


class DamagedBatch(NamedTuple):
    """A batch that cannot be served."""

    topic: str
    partition: int
    base_offset: int
    """-1 for a batch of an open transaction that has no offset yet."""
    last_offset: int
    location: BatchLocation
    reason: str

    def __str__(self) -> str:
        where = f"chunk {self.location.chunk_id}, byte {self.location.position}"
        if self.base_offset < 0:
            return f"{self.topic}-{self.partition}, staged: {self.reason} ({where})"
        offsets = f"offsets {self.base_offset} to {self.last_offset}"
        return f"{self.topic}-{self.partition}, {offsets}: {self.reason} ({where})"


class Checked(NamedTuple):
    """The findings of a check."""

    problems: list[str]
    """Parts that do not belong together, and damage in the ledger."""
    batches: int
    batch_bytes: int
    damaged: list[DamagedBatch]

    @property
    def is_sound(self) -> bool:
        """Whether no problem was found."""
        return not self.problems and not self.damaged


def check_storage(directory: Path, progress: Progress = lambda done, total: None) -> Checked:
    """Check everything in a data directory. StoreLocked, StoreBroken, OSError."""
    lock = DirectoryLock(directory, only_looks=True)
    try:
        with naming(directory):
            examined = examine_all(directory, lock.witness)
        problems = [problem.text for problem in examined.problems]
        if examined.ledger is None:
            return Checked(problems, 0, 0, [])
        return _check(directory, examined, problems, progress)
    finally:
        lock.release()


def _check(directory: Path, examined: Examined, problems: list[str], progress: Progress) -> Checked:
    in_wal = {location for frame in examined.frames if frame.batches for location in frame.locations}
    # If a page is damaged, read the other pages without verifying checksums.
    is_wrong = any(problem.kind in (CHECKSUMS, PAGES) for problem in examined.problems)
    connection = open_at_rest(directory / LEDGER, vfs=plain() if is_wrong else "")
    damaged: list[DamagedBatch] = []
    batches = done = reported = 0
    reader = BatchReader(directory / CHUNKS)
    try:
        sql = Statements(connection)
        total = sum(live_bytes for _, live_bytes in sql.rows("chunk_references"))
        for topic, partition, base_offset, last_offset, *where in sql.each("batches_at_rest"):
            location = BatchLocation(*where)
            reason = None if location in in_wal else reader.wrong_with(location)
            batches += 1
            done += location.length
            if reason is not None:
                damaged.append(DamagedBatch(topic, partition, base_offset, last_offset, location, reason))
            if done - reported >= PROGRESS_BYTES:
                reported = done
                progress(done, total)
    except apsw.Error as error:
        problems.append(f"{LEDGER}: {error}")
    finally:
        reader.close()
        connection.close(True)
    return Checked(problems, batches, done, damaged)


def wrong_with(data: Buffer, length: int) -> str | None:
    """Return what is wrong with the bytes of a batch that should have this length, or None."""
    if len(data) < length:
        return "its bytes are gone"
    try:
        header = read_header(data)
    except ProtocolError as error:
        return str(error)
    if header.length != length or header.magic != MAGIC:
        return "there is something else in its place"
    return None if has_valid_crc(data, 0, header) else "its checksum is wrong"


class BatchReader:
    """Reads batches. They arrive in chunk order, so only one file is open at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._chunk_id = self._descriptor = -1

    def wrong_with(self, location: BatchLocation) -> str | None:
        """Return what is wrong with the batch at a location, or None."""
        try:
            data = self.read(location)
        except OSError as error:
            return str(error)
        return wrong_with(data, location.length)

    def read(self, location: BatchLocation) -> bytes:
        """Return the bytes at a location, fewer if the file ends before. OSError."""
        self._open(location.chunk_id)
        return os.pread(self._descriptor, location.length, location.position)

    def close(self) -> None:
        """Close the open file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._chunk_id = self._descriptor = -1

    def _open(self, chunk_id: int) -> None:
        if chunk_id != self._chunk_id:
            self.close()
            self._descriptor = os.open(path_of(self._directory, chunk_id), os.O_RDONLY | os.O_CLOEXEC)
            self._chunk_id = chunk_id
