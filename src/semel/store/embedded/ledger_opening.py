"""Open the embedded ledger: connections, upgrades of older schemas, and what a ledger records of itself.

``look_at`` reads what a ledger records of itself before it is used, and changes nothing. It also compares the
database with SQLite's log (``ledger.db-wal``). SQLite does not: it applies the log to any database beside it.
``cluster.sqlite_checkpoints`` is incremented in the log before a checkpoint moves the log into the database,
and again by the first transaction after it. So a new log says which checkpoint it follows, and the database
says which one it has seen.

**Page checksums.** SQLite itself has none. SQLite's ``cksumvfs`` appends a checksum to every page that is
written and verifies it on every read from disk. A page that does not match is an I/O error, so a flipped bit
is never taken for an offset. The extension comes with apsw. If an installation lacks it, ledgers are created
without page checksums, and a ledger that has them is read unverified.
"""

import contextlib
import os
import secrets
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import apsw

from semel.store.contract import StoreBroken
from semel.store.embedded.files import FILE_MODE
from semel.store.embedded.queries import SCHEMA, Statements

NAME: Final = "cksmvfs"
RESERVED_BYTES: Final = 8
"""At the end of each page. A database that reserves this much has checksums."""


def available() -> str:
    """Register the VFS that verifies pages. Return its name; empty if there is none."""
    if NAME in apsw.vfs_names():
        return NAME
    try:
        from apsw import sqlite_extra

        loader = apsw.Connection(":memory:")
    except ImportError:
        return ""
    default = apsw.vfs_names()[0]
    try:
        sqlite_extra.load(loader, "cksumvfs")
    except (LookupError, sqlite_extra.NotAvailable, apsw.Error, AttributeError):
        return ""
    finally:
        loader.close()
    # The extension makes itself the default for the whole process, but only the ledger should use it.
    apsw.set_default_vfs(default)
    return NAME if NAME in apsw.vfs_names() else ""


def plain() -> str:
    """Return the name of the VFS that does not verify pages."""
    return next(name for name in apsw.vfs_names() if name != NAME)


def is_damage(error: apsw.Error) -> bool:
    """Whether SQLite reports that stored data has changed."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return True
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA


SCHEMA_VERSION: Final = "1"
_STEPS: Final[Mapping[str, str]] = {}
"""SQL that upgrades each version to the next. ``schema.sql`` has the newest version.

Until 0.1.0, ``schema.sql`` is changed and the version stays 1: older directories are not upgraded. From then
on every change needs a step."""
MEMORY: Final = ":memory:"
STATEMENTS_KEPT: Final = 256


class Identity(NamedTuple):
    """What a ledger records of itself at a start."""

    cluster_id: str
    term: int
    """Grows when writes that were handed to the operating system but not flushed may be lost."""
    stopped_cleanly: bool
    """Whether the last process that wrote here closed the store."""
    checkpointed: int
    """Ledger and chunks are flushed up to this commit."""
    store_id: bytes
    """Also carried by WAL and chunks."""


class LedgerLook(NamedTuple):
    """What a ledger on disk records."""

    meta: dict[str, str]
    commit_number: int
    chunks: dict[int, int]
    """The referenced chunks, and up to where each must be flushed."""
    problems: list[str]
    """Signs that database and log do not belong together."""

    @property
    def stopped_cleanly(self) -> bool:
        """Whether the last process that wrote here closed the store."""
        return self.meta["clean_stop"] == "1"

    @property
    def store_id(self) -> bytes:
        """Also carried by WAL and chunks."""
        return bytes.fromhex(self.meta["store_id"])

    @property
    def checkpointed(self) -> int:
        """Ledger and chunks are flushed up to this commit."""
        return int(self.meta.get("checkpointed", "0"))

    def has_survived(self, boot_id: str, *, unflushed_is_lost: bool) -> bool:
        """Whether everything written still exists, flushed or not."""
        return self.stopped_cleanly or (
            bool(boot_id) and self.meta["boot_id"] == boot_id and not unflushed_is_lost
        )


def connect(path: Path | None, *, vfs: str = "") -> apsw.Connection:
    """Open the writing connection: to a file, which is created if missing, or to memory (None)."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    name, checked = MEMORY, ""
    if path is not None:
        name = str(path)
        checked = "" if vfs else available()
        # SQLite would let all users read a file that it creates, and gives its log the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    is_new = path is not None and path.stat().st_size == 0
    connection = apsw.Connection(
        name, flags=flags, vfs=vfs or checked or None, statementcachesize=STATEMENTS_KEPT
    )
    try:
        if is_new and checked:
            connection.reserve_bytes("main", RESERVED_BYTES)
        _set_up(connection)
    except BaseException:
        connection.close(True)
        raise
    return connection


def open_at_rest(path: Path, *, vfs: str = "") -> apsw.Connection:
    """Open a ledger that no process writes. If there is no log, no files are created beside it."""
    vfs = vfs or available()
    if _is_there(log_of(path)):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs or None)
        connection.wal_autocheckpoint(0)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(5_000)
        return connection
    return _open_alone(path, vfs)


def _open_alone(path: Path, vfs: str) -> apsw.Connection:
    """Open the database without its log."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags, vfs=vfs or None)


def open_reader(path: Path, *, vfs: str = "") -> apsw.Connection:
    """Open a connection that cannot write."""
    connection = apsw.Connection(
        str(path),
        flags=apsw.SQLITE_OPEN_READONLY,
        vfs=vfs or available() or None,
        statementcachesize=STATEMENTS_KEPT,
    )
    _set_up(connection)
    return connection


def look_at(path: Path, *, vfs: str = "") -> LedgerLook | None:
    """Read what a ledger records; None if there is none, or one without tables. apsw.Error, StoreBroken."""
    if not path.exists() or (path.stat().st_size == 0 and not _is_there(log_of(path))):
        return None
    if path.is_dir():
        raise StoreBroken(f"{path} is a directory")
    vfs = vfs or available()
    connection = open_at_rest(path, vfs=vfs)
    try:
        sql = Statements(connection)
        if not sql.value("has_schema"):
            return None
        meta = dict(sql.rows("read_meta"))
        if meta["schema_version"] not in (*_STEPS, SCHEMA_VERSION):
            raise _unknown(meta["schema_version"])
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
    """Return the path of SQLite's write-ahead log of a ledger."""
    return path.with_name(f"{path.name}-wal")


def _is_there(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _without_log(path: Path, vfs: str) -> tuple[int, int] | None:
    """Return checkpoints and commit number of the database without its log; None if that is impossible.

    A crash in the middle of a checkpoint leaves a database that can only be read with its log.
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
    """Compare what the database says alone (``moved``) and with its log (``seen``). Return the problems."""
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
    """Create missing tables, and record durably that this process has started.

    The write is deliberate: if the last process ended in the middle of a write, this one proves that the disk
    works before any client is answered.
    """
    sql.run("begin")
    if not sql.value("has_schema"):
        _make_tables(sql, cluster_id, boot_id)
    meta = dict(sql.rows("read_meta"))
    if meta["schema_version"] in _STEPS:
        _bring_up(sql, meta)
    if meta["schema_version"] != SCHEMA_VERSION:
        raise _unknown(meta["schema_version"])
    if cluster_id and meta["cluster_id"] != cluster_id:
        raise ValueError(f"the data belongs to cluster {meta['cluster_id']}, not to {cluster_id}")
    stopped_cleanly = meta["clean_stop"] == "1"
    # Unflushed writes survive the end of a process, but not of the operating system.
    has_survived = bool(boot_id) and meta["boot_id"] == boot_id and not unflushed_is_lost
    term = int(meta["term"]) + (0 if stopped_cleanly or has_survived else 1)
    sql.run("write_meta", ("term", str(term)))
    sql.run("write_meta", ("boot_id", boot_id))
    sql.run("write_meta", ("clean_stop", "0"))
    write_something(sql)
    checkpoints = sql.rows("read_sqlite_checkpoints")[0][0]
    if is_log_empty and checkpoints % 2:
        # The log is empty, so the last checkpoint moved all of it.
        sql.run("write_sqlite_checkpoints", (checkpoints + 1,))
    sql.run("end")
    store_id = bytes.fromhex(meta["store_id"])
    return Identity(meta["cluster_id"], term, stopped_cleanly, int(meta.get("checkpointed", "0")), store_id)


def write_something(sql: Statements) -> None:
    """Write a random value, because SQLite does not write a value that is already there."""
    sql.run("write_meta", ("start", secrets.token_hex(8)))


def take_space(path: Path, length: int) -> None:
    """Allocate the space of SQLite's log. SQLite ignores content without a valid checksum."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.posix_fallocate(descriptor, 0, length)
    except OSError:
        # No room, or not supported by the file system: the log then grows as it is written.
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
    """Upgrade a ledger with an older schema. StoreBroken."""
    version = meta["schema_version"]
    if meta["clean_stop"] != "1":
        # The WAL may hold commits that only the older version can read, and it cannot read new tables.
        raise StoreBroken(
            f"the ledger has schema {version} and was not stopped cleanly:"
            " start and stop the version of Semel that wrote it once"
        )
    for step in range(int(version), int(SCHEMA_VERSION)):
        sql.connection.execute(_STEPS[str(step)])
    sql.run("write_meta", ("schema_version", SCHEMA_VERSION))
    meta["schema_version"] = SCHEMA_VERSION


def _unknown(version: str) -> StoreBroken:
    return StoreBroken(
        f"the ledger has schema {version}, and this Semel knows {SCHEMA_VERSION}: use the Semel that wrote"
        " it, which is newer than this one or older than the first release"
    )


def _set_up(connection: apsw.Connection) -> None:
    """Configure a connection; assert the settings on which durability depends."""
    connection.set_busy_timeout(5_000)
    statements = Statements(connection)
    statements.rows("settings")
    synchronous = statements.value("read_synchronous")
    if synchronous != 2:
        raise StoreBroken(f"commits would not be flushed: synchronous is {synchronous}, not FULL")


def _new_cluster_id() -> str:
    """Return sixteen random bytes as Kafka writes them: 22 characters that are safe in a URL."""
    random = uuid.UUID(bytes=secrets.token_bytes(16), version=4)
    return urlsafe_b64encode(random.bytes).rstrip(b"=").decode("ascii")
