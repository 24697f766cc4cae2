"""Page checksums of the ledger. SQLite itself has none.

SQLite's ``cksumvfs`` appends a checksum to every page that is written and verifies it on every read from
disk. A page that does not match is an I/O error, so a flipped bit is never taken for an offset. The extension
comes with apsw. If an installation lacks it, ledgers are created without page checksums, and a ledger that
has them is read unverified.
"""

from typing import Final

import apsw

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
