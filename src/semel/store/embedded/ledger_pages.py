"""Verify the page checksums of a ledger, and interpret wrong ones.

A wrong checksum means a damaged page, or one written by another program: SQLite without ``cksumvfs`` leaves
the old checksum. SQLite's backup and ``VACUUM INTO`` do so in their copies, always including page 1.
``sqlite3 ledger.db`` does so when it moves the log of a killed broker into the database, with all pages of a
commit, which always include the page of the counters. If a database shows such a pattern and SQLite finds
nothing else wrong, another program most probably wrote it, and an operator may have its checksums renewed.
Other wrong pages count as damaged, because SQLite cannot detect a changed number in a row.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw

from semel.store.contract import StoreBroken, StoreFull
from semel.store.embedded import ledger_opening
from semel.store.embedded.files import FILE_MODE, Files
from semel.store.embedded.ledger_opening import log_of, open_at_rest
from semel.store.embedded.queries import Statements

_PAGE_SIZE_AT: Final = 16
_RESERVED_AT: Final = 20
_SHOWN: Final = 10


def wrong_pages(path: Path) -> list[int]:
    """Return the numbers of the pages with a wrong checksum, from 1; none if there are no checksums."""
    found: list[int] = []
    with path.open("rb") as file:
        first = file.read(100)
        if len(first) < 100 or first[_RESERVED_AT] != ledger_opening.RESERVED_BYTES:
            return []
        (size,) = struct.unpack_from(">H", first, _PAGE_SIZE_AT)
        size = 65_536 if size == 1 else size
        if size < 512 or size & (size - 1):
            return []
        words = struct.Struct(f"<{size // 4}I")
        file.seek(0)
        number = 0
        while len(page := file.read(size)) == size:
            number += 1
            if not _is_right(words.unpack(page)):
                found.append(number)
    return found


def _is_right(words: Sequence[int]) -> bool:
    """Verify SQLite's checksum of a page, which is its last two words."""
    first = second = 0
    for at in range(0, len(words) - 2, 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return (first, second) == (words[-2], words[-1])


def named(pages: Sequence[int]) -> str:
    """Format page numbers for a message."""
    shown = ", ".join(map(str, pages[:_SHOWN]))
    more = f" and {len(pages) - _SHOWN} more" if len(pages) > _SHOWN else ""
    return f"page {shown}" if len(pages) == 1 else f"pages {shown}{more}"


def was_written_elsewhere(path: Path, pages: Sequence[int]) -> bool:
    """Whether another program most probably wrote a database with these wrong pages."""
    log = log_of(path)
    if log.exists() and log.stat().st_size:
        return False
    try:
        connection = open_at_rest(path, vfs=ledger_opening.plain())
        try:
            counters = Statements(connection).value("page_of_counters")
        finally:
            connection.close(True)
        is_likely = 1 in pages or (counters in pages and len(pages) > 1)
        return is_likely and not read_all(path, vfs=ledger_opening.plain())
    except (apsw.Error, LookupError):
        return False


def read_all(path: Path, *, vfs: str = "") -> list[str]:
    """Read every page. Return what SQLite finds wrong. apsw.Error if a page is unreadable."""
    connection = open_at_rest(path, vfs=vfs)
    try:
        return [text for (text,) in Statements(connection).rows("check_pages") if text != "ok"]
    finally:
        connection.close(True)


def page_problems(path: Path) -> list[str]:
    """Return what is wrong with the pages of a ledger. apsw.Error if the cause is not damage."""
    try:
        found = [" ".join(text.split()) for text in read_all(path)]
    except apsw.Error as error:
        if not ledger_opening.is_damage(error):
            raise
        found = [str(error)]
    pages = wrong_pages(path) if found else []
    if pages:
        return [f"{named(pages)} of {path.name}: the checksum is wrong"]
    return [f"{path.name} is damaged: {text}" for text in found]


def copy_pages(source: apsw.Connection, path: Path, pages_at_once: int = 4096) -> None:
    """Copy the current commit of a database to a new file with checksums. apsw.Error."""
    for each in (path, log_of(path), path.with_name(f"{path.name}-shm")):
        each.unlink(missing_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    target = apsw.Connection(str(path), vfs=ledger_opening.available() or None)
    sql = Statements(source)
    try:
        # The first read begins the transaction, so every page is of the same commit.
        sql.run("begin_reading")
        sql.rows("read_counters")
        with target.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step(pages_at_once)
    finally:
        if source.in_transaction:
            sql.run("end")
        target.close(True)


def write_renewed(path: Path, target: Path, files: Files) -> None:
    """Write a database to a new file with correct checksums. StoreFull, StoreBroken."""
    try:
        source = open_at_rest(path, vfs=ledger_opening.plain())
        try:
            copy_pages(source, target)
        finally:
            source.close(True)
        if problems := read_all(target):
            raise StoreBroken(f"{path} cannot be renewed: {'; '.join(problems)}")
    except apsw.FullError as error:
        raise StoreFull(f"there is no room for {target}: {error}") from error
    except apsw.Error as error:
        raise StoreBroken(f"{path} cannot be renewed: {error}") from error
    for each in (log_of(target), target.with_name(f"{target.name}-shm")):
        files.remove(each)
