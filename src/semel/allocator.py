"""Makes glibc keep freed memory instead of returning it to the kernel.

The broker and Spark readers use buffers of megabytes. By default glibc takes such buffers fresh from the
kernel and returns them when they are freed, and every page of a fresh buffer is a page fault: on a virtual
machine that costs more than copying the bytes. If glibc keeps them, the next buffer is served from memory
that is already mapped. Measured with one consumer reading 200 MB: half the CPU time, 1.4 times the rate.

glibc returns kept memory only from the end of its heap, and one buffer that is still in use there pins all of
it: after large fetches of fifty clients, 800 MB stayed allocated. So the broker checks now and then, when it
is mostly idle, and returns everything if more than twice the kept size is free (``give_back``).

Use it only in a process that is nothing but a broker (``semel serve``) or a Spark worker, because it affects
the whole process. With another C library it has no effect.
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
"""Free memory that stays with the process by default."""
LARGEST_BYTES: Final = 32 * 1024 * 1024
"""The largest buffer that is served from it; glibc allows no more."""


@cache
def keep_memory(kept_bytes: int = KEPT_BYTES) -> bool:
    """Configure the C library, once. Returns whether it accepted."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena, so that the threads that read chunks share the kept memory.
    wishes = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, LARGEST_BYTES), (_TRIM_THRESHOLD, kept_bytes))
    # A list, not a generator: every parameter is set, even after one was refused.
    return all([mallopt(parameter, value) for parameter, value in wishes])  # noqa: C419


class _Sizes(ctypes.Structure):
    """The result of `mallinfo2`, in bytes; `fordblks` is what is free."""

    _fields_ = [(name, ctypes.c_size_t) for name in _SIZE_FIELDS]


def give_back(kept_bytes: int = KEPT_BYTES) -> int:
    """Return memory to the kernel if more than twice `kept_bytes` is free; return how much was free.

    Takes some milliseconds per hundred megabytes, during which no large buffer can be allocated. Call it in
    idle moments, on a thread. Has no effect unless `keep_memory` was called.
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
