"""Checksums on the pages of the ledger: SQLite has none by itself.

SQLite's own ``cksumvfs`` puts a checksum at the end of every page that is written and compares it on every
read from the disk. A page that does not match is an I/O error, so a flipped bit is never taken for an offset.
It comes with apsw. Where an installation lacks it, ledgers are made without page checksums and opened as
they are; one that has them can be read anyway, unverified.
"""

from typing import Final

import apsw

NAME: Final = "cksmvfs"
RESERVED_BYTES: Final = 8
"""At the end of each page. A database that reserves as much is one with checksums."""


def available() -> str:
    """The name of the VFS that verifies pages, registered if it was not; empty where there is none."""
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
    # It makes itself the default for everyone in the process; only the ledger asks for it.
    apsw.set_default_vfs(default)
    return NAME if NAME in apsw.vfs_names() else ""


def plain() -> str:
    """The name of the VFS that reads pages as they are."""
    return next(name for name in apsw.vfs_names() if name != NAME)


def is_damage(error: apsw.Error) -> bool:
    """Whether SQLite says that what it read is not what was written."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return True
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
