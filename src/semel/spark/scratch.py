"""The directory that all Python processes of one Spark driver, or of one executor, share.

Spark creates it for the local files of one driver, with a new name at every start, passes it to every Python
process, and deletes it with the driver. Another driver has another one, even if its checkpoint is a copy.
"""

import os
from pathlib import Path

#: The variable with which Spark passes the directory, and the prefix of its name. Users set the variable too:
#: to a parent directory for all drivers, which is not meant here.
SCRATCH, SCRATCH_PREFIX = "SPARK_LOCAL_DIRS", "blockmgr-"


def scratch_directory() -> Path | None:
    """Return the directory; None if the processes of this driver share none."""
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
