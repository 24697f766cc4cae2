"""Where test servers keep their data: in memory, if there is room.

No test cuts the power of these servers, so a disk would prove nothing more, but thousands of small files
would have to be created and flushed. Benchmarks and demonstrations use a disk.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

VARIABLE: Final = "SEMEL_TEST_SERVERS"
"""The folder, instead of the system's temporary one. The tests set it, unless the user has."""
MEMORY: Final = Path("/dev/shm")
FREE_BYTES_MIN: Final = 4 << 30


def use_memory() -> None:
    """Keep the data of all servers started from now on in memory."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN:
        os.environ.setdefault(VARIABLE, str(MEMORY))


def server_directory(prefix: str) -> Path:
    """Create a directory that other users may enter: PostgreSQL may run as another user."""
    directory = Path(tempfile.mkdtemp(prefix=f"semel-{prefix}-", dir=os.environ.get(VARIABLE)))
    directory.chmod(0o755)
    return directory
