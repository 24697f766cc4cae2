"""Models the truth of a scenario: which records were written where, and what became of them.

A record is a number that no other record of the scenario has. The model knows nothing of pipelines, groups
or checkpoints; `expected` says what an output must hold if the query that writes it has ended without error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

Partition = tuple[str, int]


class Fate(Enum):
    """The state of a record's transaction. A record outside transactions is committed."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass(slots=True)
class Entry:
    """A record in the log of a partition."""

    number: int
    offset: int
    fate: Fate
    key: bytes | None = None
    is_deleted: bool = False
    """Whether DeleteRecords has deleted it."""


@dataclass(slots=True)
class Expected:
    """What an output must hold. Numbers that are in neither set must not be there."""

    once: set[int]
    at_most_once: set[int]


@dataclass
class Truth:
    """The input topics, with the records that were written to them."""

    logs: dict[Partition, list[Entry]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """Committed records of logs that no longer exist; a pipeline may have counted them before."""
    compacted: set[str] = field(default_factory=set)
    """The compacted topics: a record disappears when a later one has its key, even if it was not read yet."""

    def create(self, topic: str, partitions: int, first: int = 0, *, is_compacted: bool = False) -> None:
        """Record that a topic was created, or has got the partitions from `first` on."""
        if is_compacted:
            self.compacted.add(topic)
        for number in range(first, partitions):
            self.logs[topic, number] = []

    def delete(self, topic: str) -> None:
        """Record that a topic was deleted with its records."""
        self.compacted.discard(topic)
        for key in [key for key in self.logs if key[0] == topic]:
            self.gone.update(each.number for each in self.logs.pop(key) if each.fate is Fate.COMMITTED)

    def forget(self, written: Iterable[int]) -> None:
        """Record that the broker was restored from a backup. Records that the backup lacks are gone."""
        self.gone.update(set(written) - {each.number for log in self.logs.values() for each in log})

    def numbers(self) -> set[int]:
        """Return all records that were ever committed, whether or not they still exist."""
        return self.gone | {
            each.number for log in self.logs.values() for each in log if each.fate is Fate.COMMITTED
        }

    def deleted(self, partitions: Iterable[Partition]) -> set[int]:
        """Return the records that DeleteRecords has deleted, including those of open transactions."""
        return {each.number for key in partitions for each in self.logs.get(key, ()) if each.is_deleted}

    def before(self, offsets: Mapping[Partition, int]) -> set[int]:
        """Return the records below these offsets."""
        return {
            each.number
            for key, end in offsets.items()
            for each in self.logs.get(key, ())
            if each.offset < end
        }

    def _replaced(self) -> set[int]:
        """Return the records of compacted topics that a later record replaces."""
        replaced: set[int] = set()
        for (topic, _), log in self.logs.items():
            if topic in self.compacted:
                last = {each.key: each.number for each in log if each.fate is not Fate.ABORTED}
                replaced.update(each.number for each in log if last.get(each.key) != each.number)
        return replaced

    def expected(self, read: Iterable[Partition], begun: set[Partition], forgiven: set[int]) -> Expected:
        """Return what an output must hold if its pipeline reads these partitions.

        In partitions that the pipeline has begun to read, the output must hold deleted records too: a
        pipeline that has not read them must not end without error. Records after an open transaction are not
        due yet.
        """
        once: set[int] = set()
        for key in read:
            for each in self.logs.get(key, ()):
                if each.fate is Fate.OPEN:
                    break
                if each.fate is Fate.COMMITTED and not (each.is_deleted and key not in begun):
                    once.add(each.number)
        once -= forgiven | self._replaced()
        return Expected(once, self.numbers() - once)
