"""Opening the embedded ledger: connections, the tables of older versions, and what a look at it tells.

``look_at`` reads what a ledger says of itself before anything relies on it, and changes nothing. It also
compares the database with SQLite's log (``ledger.db-wal``), which SQLite does not: a log is read over
whatever database lies beside it. ``cluster.sqlite_checkpoints`` is written to the log before a checkpoint
moves the log into the database, and incremented again by the first transaction after it. So a new log says
which checkpoint it follows, and the database says which one it has seen.
"""

import contextlib
import os
import secrets
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import apsw

from semel.store import page_checksums
from semel.store.files import FILE_MODE
from semel.store.interface import StoreBroken
from semel.store.queries import FROM_1, FROM_2, FROM_3, SCHEMA, Statements

SCHEMA_VERSION: Final = "4"
_STEPS: Final = {"1": FROM_1, "2": FROM_2, "3": FROM_3}
"""What brings the tables of an older version up to the next."""
MEMORY: Final = ":memory:"
STATEMENTS_KEPT: Final = 256


class Identity(NamedTuple):
    """What a ledger says of itself at a start."""

    cluster_id: str
    term: int
    """Grows when writes that were handed to the operating system but not flushed may be lost."""
    stopped_cleanly: bool
    """Whether the last process that wrote here closed the store."""
    checkpointed: int
    """Of the commits up to this one everything is on the disk: ledger and chunks."""
    store_id: bytes
    """Carried by wal and chunks, too."""


class LedgerLook(NamedTuple):
    """What a look at a ledger tells."""

    meta: dict[str, str]
    commit_number: int
    chunks: dict[int, int]
    """The chunks that rows point at, and how far each must be on the disk."""
    problems: list[str]
    """Signs that database and log do not belong together."""

    @property
    def stopped_cleanly(self) -> bool:
        """Whether the last process that wrote here closed the store."""
        return self.meta["clean_stop"] == "1"

    @property
    def store_id(self) -> bytes:
        """Empty in a ledger of an older version."""
        return bytes.fromhex(self.meta.get("store_id", ""))

    @property
    def checkpointed(self) -> int:
        """Of the commits up to this one everything is on the disk: ledger and chunks."""
        return int(self.meta.get("checkpointed", "0"))

    def has_survived(self, boot_id: str, *, unflushed_is_lost: bool) -> bool:
        """Whether all that was written is still there, flushed or not."""
        return self.stopped_cleanly or (
            bool(boot_id) and self.meta["boot_id"] == boot_id and not unflushed_is_lost
        )


def connect(path: Path | None, *, vfs: str = "") -> apsw.Connection:
    """The connection that writes: to a file, which is made if it is not there, or to memory (None)."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    name, checked = MEMORY, ""
    if path is not None:
        name = str(path)
        checked = "" if vfs else page_checksums.available()
        # SQLite would make it for everyone to read, and its log with the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    is_new = path is not None and path.stat().st_size == 0
    connection = apsw.Connection(
        name, flags=flags, vfs=vfs or checked or None, statementcachesize=STATEMENTS_KEPT
    )
    try:
        if is_new and checked:
            connection.reserve_bytes("main", page_checksums.RESERVED_BYTES)
        _set_up(connection)
    except BaseException:
        connection.close(True)
        raise
    return connection


def open_at_rest(path: Path, *, vfs: str = "") -> apsw.Connection:
    """A connection to a ledger that no process writes. Without a log it makes no files beside it."""
    vfs = vfs or page_checksums.available()
    if _is_there(log_of(path)):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs or None)
        connection.wal_autocheckpoint(0)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(5_000)
        return connection
    return _open_alone(path, vfs)


def _open_alone(path: Path, vfs: str) -> apsw.Connection:
    """A connection to the database as it is, without its log."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags, vfs=vfs or None)


def open_reader(path: Path, *, vfs: str = "") -> apsw.Connection:
    """A connection that cannot write."""
    connection = apsw.Connection(
        str(path),
        flags=apsw.SQLITE_OPEN_READONLY,
        vfs=vfs or page_checksums.available() or None,
        statementcachesize=STATEMENTS_KEPT,
    )
    _set_up(connection)
    return connection


def look_at(path: Path, *, vfs: str = "") -> LedgerLook | None:
    """What a ledger says of itself; None if there is none, or one without tables. apsw.Error, StoreBroken."""
    if not path.exists() or (path.stat().st_size == 0 and not _is_there(log_of(path))):
        return None
    if path.is_dir():
        raise StoreBroken(f"{path} is a directory")
    vfs = vfs or page_checksums.available()
    connection = open_at_rest(path, vfs=vfs)
    try:
        sql = Statements(connection)
        if not sql.value("has_schema"):
            return None
        meta = dict(sql.rows("read_meta"))
        if meta["schema_version"] in _STEPS:
            number = sql.rows("read_counters")[0][0]
            return LedgerLook(meta, number, dict(sql.rows("known_chunks_before_4")), [])
        if meta["schema_version"] != SCHEMA_VERSION:
            raise StoreBroken(
                f"the ledger has schema {meta['schema_version']}, and this Semel knows {SCHEMA_VERSION}"
            )
        seen = sql.rows("read_sqlite_checkpoints")[0]
        chunks = dict(sql.rows("known_chunks"))
    except (LookupError, TypeError, ValueError) as error:
        raise StoreBroken(f"{path} is no ledger that Semel wrote: {error!r}") from error
    finally:
        connection.close(True)
    moved = _without_log(path, vfs)
    problems = [] if moved is None else _compared(path, seen, moved)
    return LedgerLook(meta, seen[1], chunks, problems)


def log_of(path: Path) -> Path:
    """SQLite's write-ahead log of a ledger."""
    return path.with_name(f"{path.name}-wal")


def _is_there(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _without_log(path: Path, vfs: str) -> tuple[int, int] | None:
    """Checkpoints and commit number as the database alone has them; None if that cannot be told.

    A crash in the middle of a checkpoint leaves a database that can be read with its log only.
    """
    with contextlib.suppress(apsw.Error, LookupError, TypeError, ValueError):
        connection = _open_alone(path, vfs)
        try:
            checkpoints, number = Statements(connection).rows("read_sqlite_checkpoints")[0]
            return int(checkpoints), int(number)
        finally:
            connection.close(True)
    return None


def _compared(path: Path, seen: tuple[int, int], moved: tuple[int, int]) -> list[str]:
    """What is wrong with a database that alone says ``moved`` under a log with which it says ``seen``."""
    needed = seen[0] - 1 if seen[0] % 2 == 0 else seen[0] - 2
    log = log_of(path).name
    if seen[0] < moved[0] or seen[1] < moved[1]:
        return [
            f"{log} ends with commit {seen[1]} of checkpoint {seen[0]}, and {path.name} alone has commit"
            f" {moved[1]} of checkpoint {moved[0]}: the log is an older copy, or damaged"
        ]
    if moved[0] < needed:
        return [
            f"{path.name} has seen checkpoint {moved[0]}, and {log} comes after checkpoint {needed}:"
            " the database is an older copy"
        ]
    return []


def start(
    sql: Statements, cluster_id: str, boot_id: str, *, unflushed_is_lost: bool, is_log_empty: bool
) -> Identity:
    """Make the tables that are not there, and write durably that this process has begun.

    The write is on purpose: if the last process ended in the middle of one, this shows that the disk works
    before anything is answered.
    """
    sql.run("begin")
    if not sql.value("has_schema"):
        _make_tables(sql, cluster_id, boot_id)
    meta = dict(sql.rows("read_meta"))
    if meta["schema_version"] in _STEPS:
        _bring_up(sql, meta)
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
    sql.run("write_meta", ("term", str(term)))
    sql.run("write_meta", ("boot_id", boot_id))
    sql.run("write_meta", ("clean_stop", "0"))
    write_something(sql)
    checkpoints = sql.rows("read_sqlite_checkpoints")[0][0]
    if is_log_empty and checkpoints % 2:
        # All of the log was moved when it was emptied.
        sql.run("write_sqlite_checkpoints", (checkpoints + 1,))
    sql.run("end")
    store_id = bytes.fromhex(meta["store_id"])
    return Identity(meta["cluster_id"], term, stopped_cleanly, int(meta.get("checkpointed", "0")), store_id)


def is_older(sql: Statements) -> bool:
    """Whether this is a ledger of an older version."""
    return bool(sql.value("has_schema")) and dict(sql.rows("read_meta"))["schema_version"] in _STEPS


def give_checksums(sql: Statements) -> None:
    """Write a ledger anew with a checksum on each page, if that can be had and there is room for it.

    For ledgers of older versions, once. It takes as long as writing all of it does.
    """
    if not page_checksums.available():
        return
    with contextlib.suppress(apsw.FullError):
        sql.connection.reserve_bytes("main", page_checksums.RESERVED_BYTES)
        sql.run("write_anew")


def write_something(sql: Statements) -> None:
    """Write what was never there before: SQLite does not write what is there already."""
    sql.run("write_meta", ("start", secrets.token_hex(8)))


def take_space(path: Path, length: int) -> None:
    """Give the write-ahead log its space now. SQLite ignores what has no valid checksum."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.posix_fallocate(descriptor, 0, length)
    except OSError:
        # No room, or a file system that cannot: the log then grows as it is written.
        return
    finally:
        os.close(descriptor)


def _make_tables(sql: Statements, cluster_id: str, boot_id: str) -> None:
    sql.connection.execute(SCHEMA)
    sql.run("first_counters")
    first = {
        "schema_version": SCHEMA_VERSION,
        "cluster_id": cluster_id or _new_cluster_id(),
        "store_id": secrets.token_hex(16),
        "term": "1",
        "boot_id": boot_id,
        "clean_stop": "1",
    }
    for name, value in first.items():
        sql.run("write_meta", (name, value))


def _bring_up(sql: Statements, meta: dict[str, str]) -> None:
    """Give a ledger of an older version what it lacks. StoreBroken."""
    version = meta["schema_version"]
    if meta["clean_stop"] != "1":
        # The WAL may hold commits that only that version can read, and it cannot read new tables.
        raise StoreBroken(
            f"the ledger has schema {version} and was not stopped cleanly:"
            " start and stop the version of Semel that wrote it once"
        )
    for step in range(int(version), int(SCHEMA_VERSION)):
        sql.connection.execute(_STEPS[str(step)])
    sql.connection.execute(SCHEMA)
    for name, value in (("schema_version", SCHEMA_VERSION), ("store_id", secrets.token_hex(16))):
        sql.run("write_meta", (name, value))
        meta[name] = value


def _set_up(connection: apsw.Connection) -> None:
    """What every connection needs, asserted where durability depends on it."""
    connection.set_busy_timeout(5_000)
    statements = Statements(connection)
    statements.rows("settings")
    synchronous = statements.value("read_synchronous")
    if synchronous != 2:
        raise StoreBroken(f"commits would not be flushed: synchronous is {synchronous}, not FULL")


def _new_cluster_id() -> str:
    """Sixteen random bytes as Kafka writes them: 22 characters that are safe in a URL."""
    random = uuid.UUID(bytes=secrets.token_bytes(16), version=4)
    return urlsafe_b64encode(random.bytes).rstrip(b"=").decode("ascii")
