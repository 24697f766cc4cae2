"""Files that no commit names: of attempts that lost, of runs that died. They and nothing else are deleted.

Commits of a pipeline are numbered, and every file is written for one number. A number that the table has is
taken: only its winners count, and whatever else was written for it can never be committed. That is the whole
rule; files for numbers to come are left alone, because somebody may still commit them.

To find files without listing a table, every attempt announces what it is about to write, in a small file
below `_semel` that readers of Delta do not look at. Announcements go when their number is taken, so there are
few.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from semel.spark.delta.storage import Storage

DIRECTORY = "_semel"
#: How many announcements are dealt with at once. The rest is dealt with after the next batch.
AT_ONCE_MAX = 1000

_NAME = re.compile(r"(\d+)-([0-9a-f]+-\d+\.\d+)-\d+\.json")


class Attempt(NamedTuple):
    """One attempt of one task to write for a number."""

    app: str  # under which the table numbers the commits
    number: int
    run: str
    task: int
    attempt_id: int

    @property
    def key(self) -> str:
        """What sets it apart from all others of its number."""
        return f"{self.run}-{self.task}.{self.attempt_id}"


def announce(storage: Storage, attempt: Attempt, index: int, paths: Iterable[str]) -> None:
    """Say what is going to be written, before it is."""
    name = f"{attempt.number}-{attempt.key}-{index}.json"
    storage.write(f"{_directory(attempt.app)}/{name}", json.dumps(list(paths)).encode())


def clear(storage: Storage, app: str, reached: int, winners: Mapping[int, Collection[str]]) -> None:
    """Delete what lost, for every number up to the one that the table has reached.

    Where it is not known any more who won, only the announcement goes, and the files are left to a vacuum.
    """
    directory = _directory(app)
    found = [each for each in map(_NAME.fullmatch, storage.names(directory)) if each]
    taken = [each for each in found if int(each[1]) <= reached]
    for each in taken[:AT_ONCE_MAX]:
        announcement, number, key = f"{directory}/{each[0]}", int(each[1]), each[2]
        if number in winners and key not in winners[number]:
            for path in _announced(storage, announcement):
                # A file has its attempt in its name, so nobody can announce what is another's.
                if is_name_of(path, app, number, key):
                    storage.delete(path)
        storage.delete(announcement)


def _announced(storage: Storage, path: str) -> list[str]:
    try:
        return [str(each) for each in json.loads(storage.read(path) or b"[]")]
    except ValueError:
        return []  # its writer died before it was whole, and so before it wrote anything else


def file_name(app: str, number: int, key: str, index: int) -> str:
    """What a file of an attempt is called."""
    return f"{app.partition('/')[0]}-{number}-{key}-{index}.parquet"


def is_name_of(path: str, app: str, number: int, key: str) -> bool:
    """Whether a file is one of an attempt, somewhere in the table."""
    *directories, name = path.split("/")
    index = name.removesuffix(".parquet").rpartition("-")[2]
    is_its_own = index.isdigit() and name == file_name(app, number, key, int(index))
    return is_its_own and ".." not in directories and not path.startswith("/")


def _directory(app: str) -> str:
    pipeline, _, kind = app.partition("/")
    return f"{DIRECTORY}/{pipeline}/{kind or 'stream'}"
