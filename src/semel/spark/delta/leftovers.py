"""Deletes files that no commit names, and no others: those of attempts that lost or runs that died.

Commits of a pipeline are numbered, and every file is written for one number. Once the table has a commit of a
number, only its winners count, and other files written for the number can never be committed. Files for later
numbers are kept, because they may still be committed.

To find files without listing a table, every attempt announces the files that it is about to write, in a small
file below `_semel` that readers of Delta ignore. Announcements are deleted when their number is committed, so
there are few.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from semel.spark.delta.storage import Storage

DIRECTORY = "_semel"
#: How many announcements are processed at once. The rest is processed after the next batch.
AT_ONCE_MAX = 1000

_NAME = re.compile(r"(\d+)-([0-9a-f]+-\d+\.\d+)-\d+\.json")


class Attempt(NamedTuple):
    """One attempt of one task to write for a number."""

    app: str  # the name under which the table numbers commits
    number: int
    run: str
    task: int
    attempt_id: int

    @property
    def key(self) -> str:
        """The text that distinguishes this attempt from all others of its number."""
        return f"{self.run}-{self.task}.{self.attempt_id}"


def announce(storage: Storage, attempt: Attempt, index: int, paths: Iterable[str]) -> None:
    """Announce files before they are written."""
    name = f"{attempt.number}-{attempt.key}-{index}.json"
    storage.write(f"{_directory(attempt.app)}/{name}", json.dumps(list(paths)).encode())


def clear(storage: Storage, app: str, reached: int, winners: Mapping[int, Collection[str]]) -> None:
    """Delete the files of losers, for every number up to the one that the table has reached.

    If the winners of a number are no longer known, only the announcement is deleted; the files are left to
    vacuum.
    """
    directory = _directory(app)
    found = [each for each in map(_NAME.fullmatch, storage.names(directory)) if each]
    taken = [each for each in found if int(each[1]) <= reached]
    for each in taken[:AT_ONCE_MAX]:
        announcement, number, key = f"{directory}/{each[0]}", int(each[1]), each[2]
        if number in winners and key not in winners[number]:
            for path in _announced(storage, announcement):
                # A file has its attempt in its name, so no attempt can announce another's files.
                if is_name_of(path, app, number, key):
                    storage.delete(path)
        storage.delete(announcement)


def _announced(storage: Storage, path: str) -> list[str]:
    try:
        return [str(each) for each in json.loads(storage.read(path) or b"[]")]
    except ValueError:
        return []  # The attempt died while it wrote the announcement, before it wrote any announced file.


def file_name(app: str, number: int, key: str, index: int) -> str:
    """Return the name of a file of an attempt."""
    return f"{app.partition('/')[0]}-{number}-{key}-{index}.parquet"


def is_name_of(path: str, app: str, number: int, key: str) -> bool:
    """Whether a file belongs to an attempt, anywhere in the table."""
    *directories, name = path.split("/")
    index = name.removesuffix(".parquet").rpartition("-")[2]
    is_its_own = index.isdigit() and name == file_name(app, number, key, int(index))
    return is_its_own and ".." not in directories and not path.startswith("/")


def _directory(app: str) -> str:
    pipeline, _, kind = app.partition("/")
    return f"{DIRECTORY}/{pipeline}/{kind or 'stream'}"
