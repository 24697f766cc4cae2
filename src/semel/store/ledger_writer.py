"""The one connection that writes the embedded ledger: commits, sweeping, checkpoints.

Everything here runs on one thread, in order. A commit is one SQL transaction and returns when it is flushed.

SQLite appends commits to a write-ahead log and moves them into the database at a *checkpoint*, which flushes
twice and may take a while. So that no commit waits inside one, checkpoints are made here, between commits: in
quiet moments when the log has some size, and under steady load when it has reached its limit. Only this
connection writes and only this connection checkpoints. The log's space is taken at the start, so that small
commits (those that delete) still have room on a disk that is full.

After SQLITE_FULL the transaction is undone for certain: the record that ends it is written last and could not
be. That is ``StoreFull``. Any other error leaves the outcome unknown, and the caller breaks the store.
"""

import contextlib
import json
import os
import secrets
import uuid
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from semel.core.types import Fact
from semel.store.fold import Counters, Fold
from semel.store.interface import Place, StoreBroken, StoreFull
from semel.store.queries import FROM_1, FROM_2, SCHEMA, Statements

SCHEMA_VERSION: Final = "3"
_OLDER: Final = {"1": (FROM_1, FROM_2), "2": (FROM_2,)}
"""What brings the tables of older versions up to this one."""
MEMORY: Final = ":memory:"
STATEMENTS_KEPT: Final = 256
GONE: Final = 2**63 - 1
"""A leftover below this offset is a partition that does not exist any more."""

_FRAME_BYTES: Final = 4096 + 24
LOG_FRAMES_MAX: Final = 4000
"""The pages for which the write-ahead log has its space from the start: about 16 MiB.

Fewer than the first part of SQLite's index of the log holds (4062), so that the index has its room too: where
it finds none, the outcome of a commit is unknown.
"""
LOG_FRAMES_BUSY: Final = 2500
"""At this many the log is moved into the database, also under load. If it cannot be, the ledger is tight."""
LOG_FRAMES_QUIET: Final = 256
"""In a quiet moment this many are enough."""
LOOK_EVERY: Final = 512
"""Facts between two looks at the size of the log. A commit counts for eight, whatever is in it."""


class Identity(NamedTuple):
    """What a ledger says of itself at a start."""

    cluster_id: str
    term: int
    """Grows when writes that were handed to the operating system but not flushed may be lost."""
    stopped_cleanly: bool
    """Whether the last process that wrote here closed the store."""
    synchronised: int
    """Of the commits up to this one everything is on the disk: ledger and chunks."""


class LedgerWriter:
    """Writes. Made, used and closed on the writer's thread."""

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
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        name = MEMORY if path is None else str(path)
        self.connection = apsw.Connection(
            name, flags=flags, vfs=vfs or None, statementcachesize=STATEMENTS_KEPT
        )
        self._sql = Statements(self.connection)
        self.is_tight = False
        """Whether the log holds much that the database has no room for, so that it may soon be full."""
        self._looks_away = 0
        self._flushes = True
        try:
            _set_up(self.connection)
            if path is not None:
                mode = self._sql.value("use_wal")
                if mode != "wal":
                    raise StoreBroken(f"the ledger needs a write-ahead log, and the disk offers {mode}")
            self.connection.wal_autocheckpoint(0)
            # A store that broke must not write once more while it is closed.
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.identity = self._start(cluster_id, boot_id, unflushed_is_lost=unflushed_is_lost)
            if path is not None:
                _take_space(Path(f"{path}-wal"), LOG_FRAMES_MAX * _FRAME_BYTES)
            self._fold = Fold(self._sql, self._read_counters())
        except BaseException:
            self.connection.close(True)
            raise

    @property
    def commit_number(self) -> int:
        """The number of the last commit."""
        return self._fold.counters.commit_number

    def commit(
        self,
        facts: Sequence[Fact],
        places: Sequence[Place],
        *,
        number: int | None = None,
        is_flushed: bool = True,
    ) -> int:
        """Write the facts together, and durably if wanted; the number of the commit. StoreFull.

        ``number`` is that of the last of several commits that are written as one.
        """
        self._flush_or_not(is_flushed)
        self._looks_away += 8 + len(facts)
        fold = self._fold
        try:
            self._sql.run("begin")
            fold.write(facts, places)
            if places:
                for chunk_id, length in _bytes_by_chunk(places).items():
                    self._sql.run("add_to_chunks", (chunk_id, length))
            counters = fold.counters
            counters.commit_number = counters.commit_number + 1 if number is None else number
            self._sql.run(
                "write_counters",
                (counters.commit_number, counters.next_producer_id, counters.next_partition_id),
            )
            self._sql.run("end")
        except apsw.FullError as error:
            self._undo()
            raise StoreFull(f"there is no room for the ledger: {error}") from error
        return fold.counters.commit_number

    def synchronise(self) -> None:
        """Everything that was committed is on the disk when this returns, and the ledger knows it. StoreFull.

        Chunks must be flushed before: what the ledger calls synchronised is not read from the journal again.
        """
        self._flush_or_not(True)
        try:
            self._sql.run("begin")
            self._write_meta("synchronised", str(self.commit_number))
            self._sql.run("end")
        except apsw.FullError as error:
            self._undo()
            raise StoreFull(f"there is no room for the ledger: {error}") from error

    def leftovers(self, limit: int) -> list[Place]:
        """The places of up to so many rows that the next sweep deletes."""
        places: list[Place] = []
        for partition_id, below in self._sql.rows("leftovers", (limit,)):
            if len(places) >= limit:
                break
            bindings = {"partition_id": partition_id, "below": below, "batches_max": limit - len(places)}
            batches = json.loads(self._sql.value("leftover_batches", bindings))
            places += [Place(chunk_id, position, length) for _, chunk_id, position, length in batches]
        return places + self._dropped(limit - len(places))

    def sweep(self, limit: int) -> tuple[list[Place], bool]:
        """Delete up to so many rows that nobody can reach; the places they freed, and if there is more."""
        places: list[Place] = []
        try:
            if not self._has_leftovers():
                return [], False
            self._sql.run("begin")
            while limit > 0:
                leftovers = self._sql.rows("next_leftover")
                if not leftovers:
                    break
                partition_id, below_offset = leftovers[0]
                freed = self._sweep_partition(partition_id, below_offset, limit)
                places += freed
                # A partition without batches counts too: a topic may have many of them.
                limit -= max(len(freed), 1)
            if dropped := self._dropped(limit):
                self._sql.run("sweep_dropped", dropped[-1][:2])
                places += dropped
            for chunk_id, length in _bytes_by_chunk(places).items():
                self._sql.run("take_from_chunk", (length, chunk_id))
                self._sql.run("drop_empty_chunk", (chunk_id,))
            self._sql.run("end")
        except apsw.FullError as error:
            self._undo()
            raise StoreFull(f"there is no room for the ledger: {error}") from error
        return places, self._has_leftovers()

    def chunk_references(self) -> dict[int, int]:
        """How many bytes of each chunk rows point at."""
        return dict(self._sql.rows("chunk_references"))

    def rest(self, *, quiet: bool) -> None:
        """Between two commits: move the write-ahead log into the database if it has grown enough."""
        if self._path is None or (not quiet and self._looks_away < LOOK_EVERY):
            return
        self._looks_away = 0
        frames, moved = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if frames - moved >= (LOG_FRAMES_QUIET if quiet else LOG_FRAMES_BUSY):
            # If there is no room, the log keeps everything until there is; nothing is lost by waiting.
            with contextlib.suppress(apsw.FullError):
                frames, moved = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self.is_tight = frames - moved >= LOG_FRAMES_BUSY

    def move_log(self) -> None:
        """Move all of the log into the database, and begin it anew, if there is room.

        A flush of the log that failed leaves pages that can be read and may never reach the disk. What is
        behind them would be lost with them.
        """
        if self._path is None:
            return
        self._flush_or_not(True)
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self._sql.run("begin")
            self._write_something()
            self._sql.run("end")
        except apsw.FullError:
            # The log keeps everything until there is room.
            self._undo()

    def close(self, *, cleanly: bool) -> None:
        """Close the connection. ``cleanly`` says that everything that was issued is flushed."""
        if cleanly and self._path is not None:
            try:
                self._flush_or_not(True)
                self._sql.run("begin")
                self._write_meta("clean_stop", "1")
                self._sql.run("end")
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except (apsw.FullError, apsw.BusyError):
                # A stop that is not marked as clean is as safe as a crash.
                pass
        self.connection.close(True)

    # -- inside -------------------------------------------------------------------------------------------

    def _flush_or_not(self, is_flushed: bool) -> None:
        if is_flushed is not self._flushes:
            self._sql.run("flush_commits" if is_flushed else "leave_commits")
            self._flushes = is_flushed

    def _undo(self) -> None:
        if self.connection.in_transaction:
            self._sql.run("undo")
        self._fold.forget(self._read_counters())

    def _read_counters(self) -> Counters:
        return Counters(*self._sql.rows("read_counters")[0])

    def _write_meta(self, name: str, value: str) -> None:
        self._sql.run("write_meta", (name, value))

    def _write_something(self) -> None:
        """What was never there before: SQLite does not write what is there already."""
        self._write_meta("start", secrets.token_hex(8))

    def _has_leftovers(self) -> bool:
        return bool(self._sql.rows("next_leftover")) or bool(self._sql.value("has_dropped"))

    def _dropped(self, limit: int) -> list[Place]:
        # A negative limit would be none at all.
        return [Place(*place) for place in json.loads(self._sql.value("dropped_batches", (max(limit, 0),)))]

    def _sweep_partition(self, partition_id: int, below: int, limit: int) -> list[Place]:
        bindings = {"partition_id": partition_id, "below": below, "batches_max": limit}
        batches = json.loads(self._sql.value("leftover_batches", bindings))
        if batches:
            self._sql.run("sweep_batches", (partition_id, batches[-1][0]))
        if len(batches) < limit:
            self._sql.run("sweep_aborted", (partition_id, below))
            if below == GONE:
                self._sql.run("sweep_producers", (partition_id,))
            self._sql.run("forget_leftover", (partition_id,))
        return [Place(chunk_id, position, length) for _, chunk_id, position, length in batches]

    def _start(self, cluster_id: str, boot_id: str, *, unflushed_is_lost: bool) -> Identity:
        """Make the tables that are not there, and write durably that this process has begun.

        The write is on purpose: if the last process ended in the middle of one, this shows that the disk
        works before anything is answered.
        """
        self._sql.run("begin")
        if not self._sql.value("has_schema"):
            self.connection.execute(SCHEMA)
            self._sql.run("first_counters")
            self._write_meta("schema_version", SCHEMA_VERSION)
            self._write_meta("cluster_id", cluster_id or _new_cluster_id())
            self._write_meta("term", "1")
            self._write_meta("boot_id", boot_id)
            self._write_meta("clean_stop", "1")
        meta = dict(self._sql.rows("read_meta"))
        if older := _OLDER.get(meta["schema_version"]):
            if meta["clean_stop"] != "1":
                # The journal may hold commits that only that version can read, and it cannot read new tables.
                raise StoreBroken(
                    f"the ledger has schema {meta['schema_version']} and was not stopped cleanly:"
                    " start and stop the version of Semel that wrote it once"
                )
            for step in older:
                self.connection.execute(step)
            self.connection.execute(SCHEMA)
            self._write_meta("schema_version", SCHEMA_VERSION)
            meta["schema_version"] = SCHEMA_VERSION
        if meta["schema_version"] != SCHEMA_VERSION:
            raise StoreBroken(
                f"the ledger has schema {meta['schema_version']}, and this Semel knows {SCHEMA_VERSION}"
            )
        if cluster_id and meta["cluster_id"] != cluster_id:
            raise ValueError(f"the data belongs to cluster {meta['cluster_id']}, not to {cluster_id}")
        stopped_cleanly = meta["clean_stop"] == "1"
        # What was written and not flushed survives the end of a process, not that of the operating system.
        has_survived = bool(boot_id) and meta["boot_id"] == boot_id and not unflushed_is_lost
        term = int(meta["term"]) + (0 if stopped_cleanly or has_survived else 1)
        self._write_meta("term", str(term))
        self._write_meta("boot_id", boot_id)
        self._write_meta("clean_stop", "0")
        self._write_something()
        self._sql.run("end")
        return Identity(meta["cluster_id"], term, stopped_cleanly, int(meta.get("synchronised", "0")))


def _set_up(connection: apsw.Connection) -> None:
    """What every connection needs, asserted where durability depends on it."""
    connection.set_busy_timeout(5_000)
    statements = Statements(connection)
    statements.rows("settings")
    synchronous = statements.value("read_synchronous")
    if synchronous != 2:
        raise StoreBroken(f"commits would not be flushed: synchronous is {synchronous}, not FULL")


def open_reader(path: Path, *, vfs: str = "") -> apsw.Connection:
    """A connection that cannot write."""
    connection = apsw.Connection(
        str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs or None, statementcachesize=STATEMENTS_KEPT
    )
    _set_up(connection)
    return connection


def _take_space(path: Path, length: int) -> None:
    """Give the write-ahead log its space now. SQLite ignores what has no valid checksum."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, length)
    except OSError:
        # No room, or a file system that cannot: the log then grows as it is written.
        return
    finally:
        os.close(descriptor)


def _bytes_by_chunk(places: Sequence[Place]) -> Counter[int]:
    total: Counter[int] = Counter()
    for chunk_id, _, length in places:
        total[chunk_id] += length
    return total


def _new_cluster_id() -> str:
    """Sixteen random bytes as Kafka writes them: 22 characters that are safe in a URL."""
    random = uuid.UUID(bytes=secrets.token_bytes(16), version=4)
    return urlsafe_b64encode(random.bytes).rstrip(b"=").decode("ascii")
