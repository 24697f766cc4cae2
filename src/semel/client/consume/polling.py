"""The poll loop of the consumers: fetches until there are records or time is up; tolerates short failures."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from semel.client.consume.fetching import ConsumedRecord
from semel.client.net.cluster import Client

IDLE_PAUSE_S = 0.02


class PollingConsumer(ABC):
    """Returns records of a client's topics, by `poll` or as an iterator."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._failing_since: float | None = None

    def __enter__(self) -> Self:
        return self

    def __iter__(self) -> Iterator[ConsumedRecord]:
        while True:
            yield from self.poll(1.0, max_records=1)

    def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[ConsumedRecord]:
        """Return the next records, at most this many; an empty list if there are none within the timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._look_after_group()
            if records := self._hand_out(max_records):
                return records
            left_s = deadline - time.monotonic()
            if left_s <= 0 and timeout_s > 0:
                return []
            self._fetch(max(0.0, left_s))
            if timeout_s <= 0:
                return self._hand_out(max_records)

    def _look_after_group(self) -> None:  # noqa: B027 - a consumer without a group has none
        """Commit and send heartbeats if they are due."""

    @abstractmethod
    def _hand_out(self, max_records: int) -> list[ConsumedRecord]:
        """Return fetched records, at most this many."""

    @abstractmethod
    def _fetch(self, left_s: float) -> None:
        """Fetch once, and wait for this long at most."""

    def _note_failure(self, error: Exception) -> None:
        """Pause after a retriable error; raise it if fetches fail for longer than the client's timeout."""
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > self._client.timeout_s:
            raise error
        time.sleep(IDLE_PAUSE_S)
