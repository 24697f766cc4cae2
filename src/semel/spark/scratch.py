"""The directory that all Python processes of one Spark driver, or of one executor, have in common.

Spark makes it for what one driver has on disk. Its name is new with every start, every Python process is told
of it, and Spark deletes it with the driver. Another driver has another one, also if its checkpoint is a copy.
"""

import os
from pathlib import Path

#: How Spark tells its Python processes of the directory, and how it begins its name. People set the variable
#: too: to a place for the directories of all drivers, which is not meant here.
SCRATCH, SCRATCH_PREFIX = "SPARK_LOCAL_DIRS", "blockmgr-"


def scratch_directory() -> Path | None:
    """The directory; None if the processes of this driver have no place in common."""
    found = Path(os.environ.get(SCRATCH, "").split(",")[0])
    return found if found.name.startswith(SCRATCH_PREFIX) else None


def forget_oldest(directory: Path, most: int) -> None:
    """Delete the oldest files of a directory that has more than so many."""
    with os.scandir(directory) as found:
        entries = list(found)
    if len(entries) > most:
        entries.sort(key=lambda each: each.stat().st_mtime_ns)
        for each in entries[:-most]:
            Path(each).unlink(missing_ok=True)
