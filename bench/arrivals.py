"""A reader in its own thread that records when committed records arrive."""

import threading
import time

from bench.raw import RawClient


class Arrivals:
    """Waits for committed records of a topic, and records when each arrived."""

    def __init__(self, bootstrap: str, topic: str, max_wait_ms: int) -> None:
        self.topic = topic
        self.came: list[float] = []
        self._max_wait_ms = max_wait_ms
        self._client = RawClient(bootstrap)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def follow(self, count: int, seconds: float) -> None:
        """Wait until this many have arrived, or the time is up."""
        end = time.perf_counter() + seconds
        while len(self.came) < count and time.perf_counter() < end:
            time.sleep(0.001)

    def delay_since(self, moment: float, number: int) -> float:
        """Return the seconds from a moment until this record arrived."""
        while len(self.came) <= number:
            assert time.perf_counter() - moment < 30, f"record {number} of {self.topic} did not come"
            time.sleep(0.0001)
        return self.came[number] - moment

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()

    def _read(self) -> None:
        offset = 0
        while not self._is_over.is_set():
            count, offset = self._client.fetch(self.topic, offset, max_wait_ms=self._max_wait_ms)
            self.came += [time.perf_counter()] * count
