"""Bounded retries: how often, how long, and with which pauses.

    for attempt in Attempts(timeout_s=10):
        try:
            return ask()
        except (KafkaError, ClientError) as error:
            attempt.failed(error)

`failed` raises the error again if it is not retriable or if there is no time left; otherwise it waits, longer
each time, and the loop continues. The pauses are random, so that clients do not retry at the same time.
"""

import random
import time
from collections.abc import Callable, Iterator

from semel.client.errors import is_retriable

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


class Attempts:
    """The attempts at one operation, within one time limit."""

    def __init__(
        self,
        timeout_s: float,
        *,
        also: Callable[[Exception], bool] = is_retriable,
        pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.deadline = time.monotonic() + timeout_s
        self._retriable = also
        self._pause_s = pause_s

    def __iter__(self) -> "Iterator[Attempts]":
        while True:
            yield self

    @property
    def left_s(self) -> float:
        """The remaining time, never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def failed(self, error: Exception) -> None:
        """Wait before the next attempt; raise the error if it is not retriable or no time is left."""
        pause_s = self._pause_s * random.uniform(0.8, 1.2)
        if not self._retriable(error) or self.left_s <= pause_s:
            raise error
        time.sleep(pause_s)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
