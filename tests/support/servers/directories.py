"""Where the servers of tests keep their data: in memory, if there is room.

No test cuts the power of these servers, so a disk would prove no more, and thousands of small files would be
made and flushed. Benchmarks and demonstrations use a disk.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

VARIABLE: Final = "SEMEL_TEST_SERVERS"
"""The folder, if it is not the system's temporary one. The tests choose it, and who runs them may."""
MEMORY: Final = Path("/dev/shm")
FREE_BYTES_MIN: Final = 4 << 30


def use_memory() -> None:
    """Have all servers that are started from now on keep their data in memory."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN:
        os.environ.setdefault(VARIABLE, str(MEMORY))


def server_directory(prefix: str) -> Path:
    """A new directory that other users may enter: PostgreSQL runs as one."""
    directory = Path(tempfile.mkdtemp(prefix=f"semel-{prefix}-", dir=os.environ.get(VARIABLE)))
    directory.chmod(0o755)
    return directory
