"""The model of the truth: which records were written where, and what became of them.

A record is a number that no other record of the scenario has. The model knows nothing of pipelines, groups
or checkpoints; `expected` says what an output must hold if the query that writes it has ended without error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

Partition = tuple[str, int]


class Fate(Enum):
    """What became of the transaction of a record. A record without one is committed."""

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
    """By DeleteRecords."""


@dataclass(slots=True)
class Expected:
    """What an output must hold. Numbers that are in neither set must not be there at all."""

    once: set[int]
    at_most_once: set[int]


@dataclass
class Truth:
    """The topics that are read, with all that was ever written to them."""

    logs: dict[Partition, list[Entry]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """Committed records of logs that are no longer there: they may have been counted before they went."""
    compacted: set[str] = field(default_factory=set)
    """The topics in which a record goes when a later one has its key, whether or not it was read before."""

    def create(self, topic: str, partitions: int, first: int = 0, *, is_compacted: bool = False) -> None:
        """A topic has these partitions from now on."""
        if is_compacted:
            self.compacted.add(topic)
        for number in range(first, partitions):
            self.logs[topic, number] = []

    def delete(self, topic: str) -> None:
        """A topic is gone, and its records with it."""
        self.compacted.discard(topic)
        for key in [key for key in self.logs if key[0] == topic]:
            self.gone.update(each.number for each in self.logs.pop(key) if each.fate is Fate.COMMITTED)

    def forget(self, written: Iterable[int]) -> None:
        """The broker was restored from a backup that does not hold these records."""
        self.gone.update(set(written) - {each.number for log in self.logs.values() for each in log})

    def numbers(self) -> set[int]:
        """All records that were ever committed, whether or not they are still there."""
        return self.gone | {
            each.number for log in self.logs.values() for each in log if each.fate is Fate.COMMITTED
        }

    def deleted(self, partitions: Iterable[Partition]) -> set[int]:
        """What DeleteRecords took away, also of transactions that were open then."""
        return {each.number for key in partitions for each in self.logs.get(key, ()) if each.is_deleted}

    def before(self, offsets: Mapping[Partition, int]) -> set[int]:
        """The records below these offsets."""
        return {
            each.number
            for key, end in offsets.items()
            for each in self.logs.get(key, ())
            if each.offset < end
        }

    def _replaced(self) -> set[int]:
        """Records of compacted topics that a later one replaces."""
        replaced: set[int] = set()
        for (topic, _), log in self.logs.items():
            if topic in self.compacted:
                last = {each.key: each.number for each in log if each.fate is not Fate.ABORTED}
                replaced.update(each.number for each in log if last.get(each.key) != each.number)
        return replaced

    def expected(self, read: Iterable[Partition], begun: set[Partition], forgiven: set[int]) -> Expected:
        """What an output must hold whose pipeline reads these partitions.

        Records that DeleteRecords took away must be there all the same in partitions that the pipeline has
        begun: if it had not read them, it must not end without error. Records behind an open transaction
        are not due yet.
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
