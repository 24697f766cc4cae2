"""What consumers of different clients share in tests: read until there is enough, then close."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from support.waiting import LIMIT_SECONDS, until

WAIT_SECONDS = LIMIT_SECONDS


class PollingReader(ABC):
    """A consumer that keeps what it has read."""

    consumer: Any

    @abstractmethod
    def poll(self) -> list[Any]:
        """Poll once more, and return everything that was read so far."""

    @property
    @abstractmethod
    def values(self) -> list[bytes]:
        """The values of everything that was read so far."""

    def read(self, count: int) -> list[bytes]:
        until(lambda: len(self.poll()) >= count, WAIT_SECONDS, f"reading {count} records")
        return self.values


R = TypeVar("R", bound=PollingReader)


@contextmanager
def subscribed(reader: R, topic: str | None) -> Iterator[R]:
    """Subscribe the reader to the topic, if there is one, and close it at the end."""
    if topic is not None:
        reader.consumer.subscribe([topic])
    try:
        yield reader
    finally:
        reader.consumer.close()


def check_came_back(sent: list[tuple[Any, ...]], records: list[Any]) -> None:
    """Check that everything sent was read, field by field, and a tombstone besides."""
    got = [(r.partition, r.offset, r.key, r.value, r.timestamp, r.headers) for r in records]
    assert sorted(each for each in got if each[3] is not None) == sorted(sent)
    assert [r.key for r in records if r.value is None] == [b"tombstone"]
