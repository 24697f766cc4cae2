"""Write the embedded ledger over the only connection that may: commits, sweeps, checkpoints.

Everything here runs on one thread, in order. A commit is one SQL transaction and returns when it is flushed.

SQLite appends commits to a write-ahead log and moves them into the database at a *checkpoint*, which flushes
twice and may take a while. To keep checkpoints out of commits, they are made here, between commits: in quiet
moments once the log has some size, and under steady load once it has reached its limit. Only this connection
writes and checkpoints. The log's space is allocated at the start, so small commits (those that delete) still
have room when the disk is full.

After SQLITE_FULL the transaction is certainly undone, because its commit record is written last and was not
written. This is ``StoreFull``. Any other error leaves the outcome unknown, and the caller fails the store.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import add, itemgetter
from pathlib import Path
from typing import Final

import apsw

from semel.core.types import Fact
from semel.store.contract import BatchLocation, StoreBroken, StoreFull
from semel.store.embedded.ledger_opening import connect, log_of, start, take_space, write_something
from semel.store.embedded.queries import Statements
from semel.store.embedded.row_writer import Counters, RowWriter

GONE: Final = 2**63 - 1
"""A leftover below this offset means that the partition was deleted."""

_FRAME_BYTES: Final = 4096 + 24
LOG_FRAMES_MAX: Final = 4000
"""The pages that are allocated for SQLite's log at the start: about 16 MiB.

Fewer than fit in the first part of SQLite's index of the log (4062), so the index has its room too. If the
index cannot grow, the outcome of a commit is unknown.
"""
LOG_FRAMES_BUSY: Final = 2500
"""At this size the log is moved into the database even under load. If that fails, the ledger is tight."""
LOG_FRAMES_QUIET: Final = 256
"""The size at which the log is moved in a quiet moment."""
LOOK_EVERY: Final = 512
"""Facts between two checks of the log's size. Each commit counts as eight more."""


class LedgerWriter:
    """Writes the ledger. Created, used and closed on the writer's thread."""

    def __init__(
        self,
        path: Path | None,
        *,
        cluster_id: str = "",
        boot_id: str = "",
        unflushed_is_lost: bool = False,
        vfs: str = "",
    ) -> None:
        self._path = path
        is_log_empty = path is None or not log_of(path).exists() or log_of(path).stat().st_size == 0
        self.connection = connect(path, vfs=vfs)
        self._sql = Statements(self.connection)
        self.is_tight = False
        """Whether the database has no room for much of the log, so the ledger may soon be full."""
        self._looks_away = 0
        self._flushes = True
        self._sqlite_checkpoints = 0
        self._has_counted = True
        try:
            if path is not None:
                mode = self._sql.value("use_wal")
                if mode != "wal":
                    raise StoreBroken(f"the ledger needs a write-ahead log, and the disk offers {mode}")
            self.connection.wal_autocheckpoint(0)
            # A failed store must not write again when it is closed.
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.identity = start(
                self._sql,
                cluster_id,
                boot_id,
                unflushed_is_lost=unflushed_is_lost,
                is_log_empty=is_log_empty,
            )
            self._sqlite_checkpoints = self._sql.rows("read_sqlite_checkpoints")[0][0]
            if path is not None:
                take_space(log_of(path), LOG_FRAMES_MAX * _FRAME_BYTES)
            self._rows = RowWriter(self._sql, self._read_counters())
            if path is not None and self._sqlite_checkpoints == 0:
                # A new database must be readable without its log.
                self.move_log()
        except BaseException:
            self.connection.close(True)
            raise

    @property
    def commit_number(self) -> int:
        """The number of the last commit."""
        return self._rows.counters.commit_number

    def commit(
        self,
        facts: Sequence[Fact],
        locations: Sequence[BatchLocation],
        *,
        number: int | None = None,
        is_flushed: bool = True,
        is_checkpoint: bool = False,
    ) -> int:
        """Write the facts together, durably if requested. Return the commit number. StoreFull.

        ``number``: several commits are written as one, and the last has this number. ``is_checkpoint``: the
        chunks are flushed, so nothing up to this commit is read from the WAL again.
        """
        self._flush_or_not(is_flushed)
        self._looks_away += 8 + len(facts)
        rows = self._rows
        try:
            self._begin()
            rows.write(facts, locations)
            if locations:
                for chunk_id, (length, end) in _extents(locations).items():
                    self._sql.run("add_to_chunks", (chunk_id, length, end))
            counters = rows.counters
            counters.commit_number = counters.commit_number + 1 if number is None else number
            self._sql.run(
                "write_counters",
                (counters.commit_number, counters.next_producer_id, counters.next_partition_id),
            )
            if is_checkpoint:
                self._mark_checkpoint()
            self._end()
        except apsw.FullError as error:
            self._undo()
            raise StoreFull(f"there is no room for the ledger: {error}") from error
        return rows.counters.commit_number

    def checkpoint(self) -> None:
        """Flush everything committed, and record that in the ledger. StoreFull.

        The chunks must be flushed before: checkpointed commits are not read from the WAL again.
        """
        self._flush_or_not(True)
        try:
            self._begin()
            self._mark_checkpoint()
            self._end()
        except apsw.FullError as error:
            self._undo()
            raise StoreFull(f"there is no room for the ledger: {error}") from error

    def leftovers(self, limit: int) -> list[BatchLocation]:
        """Return the locations of up to ``limit`` rows that the next sweep deletes."""
        locations: list[BatchLocation] = []
        for partition_id, below in self._sql.rows("leftovers", (limit,)):
            if len(locations) >= limit:
                break
            bindings = {"partition_id": partition_id, "below": below, "batches_max": limit - len(locations)}
            batches = json.loads(self._sql.value("leftover_batches", bindings))
            locations += [
                BatchLocation(chunk_id, position, length) for _, chunk_id, position, length in batches
            ]
        return locations + self._dropped(limit - len(locations))

    def sweep(self, limit: int) -> tuple[list[BatchLocation], bool]:
        """Delete up to ``limit`` unreachable rows. Return the locations freed, and whether there are more."""
        locations: list[BatchLocation] = []
        try:
            if not self._has_leftovers():
                return [], False
            # Chunks are deleted as a consequence, so this must be durable.
            self._flush_or_not(True)
            self._begin()
            while limit > 0:
                leftovers = self._sql.rows("next_leftover")
                if not leftovers:
                    break
                partition_id, below_offset = leftovers[0]
                freed = self._sweep_partition(partition_id, below_offset, limit)
                locations += freed
                # A partition without batches counts too: a topic may have many of them.
                limit -= max(len(freed), 1)
            if dropped := self._dropped(limit):
                self._sql.run("sweep_dropped", dropped[-1][:2])
                locations += dropped
            for chunk_id, (length, _) in _extents(locations).items():
                self._sql.run("take_from_chunk", (length, chunk_id))
                self._sql.run("drop_empty_chunk", (chunk_id,))
            self._end()
        except apsw.FullError as error:
            self._undo()
            raise StoreFull(f"there is no room for the ledger: {error}") from error
        return locations, self._has_leftovers()

    def chunk_references(self) -> dict[int, int]:
        """Return how many bytes of each chunk are referenced."""
        return dict(self._sql.rows("chunk_references"))

    def rest(self, *, quiet: bool) -> None:
        """Move SQLite's log into the database if it has grown enough. Called between two commits."""
        if self._path is None or (not quiet and self._looks_away < LOOK_EVERY):
            return
        self._looks_away = 0
        frames, moved = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if frames - moved >= (LOG_FRAMES_QUIET if quiet else LOG_FRAMES_BUSY):
            # Nothing is lost: the log keeps everything until the database has room.
            with contextlib.suppress(apsw.FullError):
                frames, moved = self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        self.is_tight = frames - moved >= LOG_FRAMES_BUSY

    def move_log(self) -> None:
        """Move all of the log into the database and start a new log, if there is room.

        A failed flush of the log leaves pages that can be read but may never reach the disk. Everything
        written after them would be lost with them.
        """
        if self._path is None:
            return
        self._flush_or_not(True)
        try:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
            self._begin()
            write_something(self._sql)
            self._end()
        except apsw.FullError:
            # The log keeps everything until there is room.
            self._undo()

    def take_back(self) -> None:
        """Undo a transaction that met an unreadable page before it was committed."""
        self._undo()

    def close(self, *, cleanly: bool) -> None:
        """Close the connection. ``cleanly`` means that every write is flushed."""
        if cleanly and self._path is not None:
            try:
                self._flush_or_not(True)
                self._begin()
                self._write_meta("clean_stop", "1")
                self._end()
                self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except (apsw.FullError, apsw.BusyError):
                # A stop without this mark is as safe as a crash.
                pass
        self.connection.close(True)

    # -- inside -------------------------------------------------------------------------------------------

    def note(self, notes: Mapping[str, str]) -> None:
        """Record something about the ledger, durably. StoreFull."""
        self._flush_or_not(True)
        try:
            self._begin()
            for name, value in notes.items():
                self._write_meta(name, value)
            self._end()
        except apsw.FullError as error:
            self._undo()
            raise StoreFull(f"there is no room for the ledger: {error}") from error

    def forget_chunks(self, gone: Sequence[int], unsure: Sequence[int]) -> None:
        """Forget missing chunks, and how far the unsure ones are flushed. StoreFull."""
        self._flush_or_not(True)
        try:
            self._begin()
            for chunk_id in gone:
                self._sql.run("forget_chunk", (chunk_id,))
            for chunk_id in unsure:
                self._sql.run("forget_end", (chunk_id,))
            self._end()
        except apsw.FullError as error:
            self._undo()
            raise StoreFull(f"there is no room for the ledger: {error}") from error

    def _begin(self) -> None:
        """Begin a transaction.

        The first one after a checkpoint records that the checkpoint is complete. So a new log always
        identifies the database it belongs to (``ledger_opening.look_at``).
        """
        self._sql.run("begin")
        if not self._has_counted:
            self._sql.run("write_sqlite_checkpoints", (self._sqlite_checkpoints,))

    def _end(self) -> None:
        self._sql.run("end")
        self._has_counted = True

    def _checkpoint(self, mode: int) -> tuple[int, int]:
        """Move the log into the database. Return its pages, and how many were moved."""
        if self._sqlite_checkpoints % 2 == 0:
            self._sqlite_checkpoints += 1
            try:
                self._sql.run("begin")
                self._sql.run("write_sqlite_checkpoints", (self._sqlite_checkpoints,))
                self._end()
            except apsw.FullError:
                self._sqlite_checkpoints -= 1
                self._undo()
                raise
        frames, moved = self.connection.wal_checkpoint(mode=mode)
        if frames == moved:
            self._sqlite_checkpoints += 1
            self._has_counted = False
        return frames, moved

    def _mark_checkpoint(self) -> None:
        self._sql.run("checkpoint_chunks")
        self._write_meta("checkpointed", str(self.commit_number))

    def _flush_or_not(self, is_flushed: bool) -> None:
        if is_flushed is not self._flushes:
            self._sql.run("flush_commits" if is_flushed else "leave_commits")
            self._flushes = is_flushed

    def _undo(self) -> None:
        if self.connection.in_transaction:
            self._sql.run("undo")
        self._rows.forget(self._read_counters())

    def _read_counters(self) -> Counters:
        return Counters(*self._sql.rows("read_counters")[0])

    def _write_meta(self, name: str, value: str) -> None:
        self._sql.run("write_meta", (name, value))

    def _has_leftovers(self) -> bool:
        return bool(self._sql.rows("next_leftover")) or bool(self._sql.value("has_dropped"))

    def _dropped(self, limit: int) -> list[BatchLocation]:
        # SQLite treats a negative limit as no limit.
        return [
            BatchLocation(*location)
            for location in json.loads(self._sql.value("dropped_batches", (max(limit, 0),)))
        ]

    def _sweep_partition(self, partition_id: int, below: int, limit: int) -> list[BatchLocation]:
        bindings = {"partition_id": partition_id, "below": below, "batches_max": limit}
        batches = json.loads(self._sql.value("leftover_batches", bindings))
        if batches:
            self._sql.run("sweep_batches", (partition_id, batches[-1][0]))
        if len(batches) < limit:
            self._sql.run("sweep_aborted", (partition_id, below))
            if below == GONE:
                self._sql.run("sweep_producers", (partition_id,))
            self._sql.run("forget_leftover", (partition_id,))
        return [BatchLocation(chunk_id, position, length) for _, chunk_id, position, length in batches]


def _extents(locations: Sequence[BatchLocation]) -> dict[int, tuple[int, int]]:
    """Map chunks to the bytes of these locations, and to where the last of them ends."""
    extents: dict[int, tuple[int, int]] = {}
    for chunk_id, some in groupby(locations, itemgetter(0)):
        _, positions, lengths = zip(*some, strict=True)
        length, end = extents.get(chunk_id, (0, 0))
        last = max(map(add, positions, lengths))
        # Tests use locations that no disk has.
        extents[chunk_id] = (length + sum(lengths), max(end, min(last, GONE)))
    return extents
