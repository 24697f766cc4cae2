"""File descriptors: raises the limit, and reserves some that connections cannot use.

A store that cannot open a file does not know the outcome of its commit and has to stop. Clients must not be
able to cause that by opening connections.
"""

import contextlib
import resource
from typing import Final

RESERVED: Final = 128
"""Descriptors for the files of the store, which keeps 64 open to read, and for other uses of the process."""


def take_all() -> None:
    """Raise the soft limit of this process to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems report a hard limit that they do not grant.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_connections() -> int | None:
    """Return the number of connections that the descriptors allow; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(1, soft - RESERVED)
