"""Keep memory that was used once, instead of asking the kernel for it again and again.

A broker moves buffers of megabytes, and so does a reader of Spark. glibc hands such buffers out fresh from
the kernel and gives them back at once, and every page of a fresh buffer is a page fault: on a virtual machine
that costs more than copying the bytes does. Told to keep them, it serves the next buffer from memory that is
already there. Measured with one consumer reading 200 MB: half the processor time, 1.4 times the rate.

glibc gives kept memory back only from the end of its heap, and one buffer that is still in use there holds
all of it: fifty clients that fetch much at once left 800 MB behind. So a broker looks now and then, when
little is going on, and has everything given back if more than twice what it wants to keep is free
(``give_back``).

Only for a process that is a broker and nothing else (``semel serve``), or a worker of Spark, because it holds
for all of the process. Where the C library is another one, nothing happens.
"""

import ctypes
from functools import cache
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

_SIZE_FIELDS: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)

KEPT_BYTES: Final = 128 * 1024 * 1024
"""Free memory that stays with the process, if it does not want less."""
LARGEST_BYTES: Final = 32 * 1024 * 1024
"""The largest buffer that is served from it; more is not allowed."""


@cache
def keep_memory(kept_bytes: int = KEPT_BYTES) -> bool:
    """Tell the C library, once. Says whether it listened."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena, so that the threads that read chunks take from the same kept memory.
    wishes = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, LARGEST_BYTES), (_TRIM_THRESHOLD, kept_bytes))
    # A list, not a generator: every wish is to be told, also after one that was refused.
    return all([mallopt(parameter, value) for parameter, value in wishes])  # noqa: C419


class _Sizes(ctypes.Structure):
    """What `mallinfo2` says, in bytes; `fordblks` is what is free."""

    _fields_ = [(name, ctypes.c_size_t) for name in _SIZE_FIELDS]


def give_back(kept_bytes: int = KEPT_BYTES) -> int:
    """Give free memory back to the kernel if much more than that is free; how much was free.

    Takes some milliseconds for each hundred megabytes, in which nobody gets a large buffer: for quiet
    moments, and on a thread. Nothing happens in a process that was not told to keep memory.
    """
    if not keep_memory.cache_info().currsize:
        return 0
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Sizes
        free: int = library.mallinfo2().fordblks
        if free > 2 * kept_bytes:
            library.malloc_trim(ctypes.c_size_t(kept_bytes))
    except (OSError, AttributeError):
        return 0
    return free
