"""What the consumers of different clients share in tests: read until there is enough, then close."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from support.waiting import LIMIT_SECONDS, until

WAIT_SECONDS = LIMIT_SECONDS


class PollingReader(ABC):
    """A consumer that notes what it got."""

    consumer: Any

    @abstractmethod
    def poll(self) -> list[Any]:
        """Everything that it got so far, after one more look."""

    @property
    @abstractmethod
    def values(self) -> list[bytes]:
        """The values of everything that it got."""

    def read(self, count: int) -> list[bytes]:
        until(lambda: len(self.poll()) >= count, WAIT_SECONDS, f"reading {count} records")
        return self.values


R = TypeVar("R", bound=PollingReader)


@contextmanager
def subscribed(reader: R, topic: str | None) -> Iterator[R]:
    """The reader, which reads the topic if there is one, and is closed at the end."""
    if topic is not None:
        reader.consumer.subscribe([topic])
    try:
        yield reader
    finally:
        reader.consumer.close()


def check_came_back(sent: list[tuple[Any, ...]], records: list[Any]) -> None:
    """What was sent is there, field by field, and a tombstone besides."""
    got = [(r.partition, r.offset, r.key, r.value, r.timestamp, r.headers) for r in records]
    assert sorted(each for each in got if each[3] is not None) == sorted(sent)
    assert [r.key for r in records if r.value is None] == [b"tombstone"]
