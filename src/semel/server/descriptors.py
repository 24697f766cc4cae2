"""File descriptors: as many as the system gives, and never the last ones for connections.

A store that cannot open a file does not know what became of its commit, so it has to end. Whoever opens
connections must not be able to bring that about.
"""

import contextlib
import resource
from typing import Final

RESERVED: Final = 128
"""For the files of the store, of which it keeps 64 open to read, and for whatever else the process has."""


def take_all() -> None:
    """Raise the soft limit of this process to the hard one, which is what that is for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems name a limit that they do not grant.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_connections() -> int | None:
    """How many connections there may be; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(1, soft - RESERVED)
