"""Bounded retries: how often, how long, and with which pauses.

    response = retrying(lambda: client.send(request), timeout_s=10)

An attempt that fails is repeated if its error is retriable and there is time left; otherwise its error is
raised. The pauses are random, so that clients do not retry at the same time. A loop that makes progress, or
that retries only some of its steps, uses `Attempts`.
"""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from semel.client.errors import ClientError, KafkaError, is_retriable

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
IDLE_PAUSE_S = 0.02
"""The pause of a consumer between two polls that return nothing at once."""

T = TypeVar("T")


class BackOff:
    """The pauses between attempts: each is about twice as long as the one before."""

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S

    def next_s(self) -> float:
        """Return the length of the next pause."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, LONGEST_PAUSE_S)
        return pause_s * random.uniform(0.8, 1.2)


class Attempts:
    """The attempts at one operation, within one time limit."""

    def __init__(self, timeout_s: float, *, retriable: Callable[[Exception], bool] = is_retriable) -> None:
        self.deadline = time.monotonic() + timeout_s
        self._is_retriable = retriable
        self._pauses = BackOff()

    @property
    def remaining_s(self) -> float:
        """The remaining time, never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def failed(self, error: Exception) -> None:
        """Wait before the next attempt; raise the error if it is not retriable or no time is left."""
        pause_s = self._pauses.next_s()
        if not self._is_retriable(error) or self.remaining_s <= pause_s:
            raise error
        time.sleep(pause_s)


def retrying(
    attempt: Callable[[], T],
    timeout_s: float,
    *,
    retriable: Callable[[Exception], bool] = is_retriable,
    on_failure: Callable[[], None] | None = None,
) -> T:
    """Return what the first attempt returns that does not fail; raise the error of the last.

    `on_failure` is called after every attempt that failed, also the last: to forget what may be outdated.
    """
    attempts = Attempts(timeout_s, retriable=retriable)
    while True:
        try:
            return attempt()
        except (KafkaError, ClientError) as error:
            if on_failure is not None:
                on_failure()
            attempts.failed(error)


class Outage:
    """A series of polls that fail. It is tolerated for a while, and ended by the first poll that succeeds."""

    def __init__(self) -> None:
        self._since: float | None = None

    def tolerate(self, error: Exception, limit_s: float) -> None:
        """Pause before the next poll; raise the error if a broker refused it for good, or if time is over."""
        if isinstance(error, KafkaError) and not error.retriable:
            raise error
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > limit_s:
            raise error
        time.sleep(IDLE_PAUSE_S)

    def end(self) -> None:
        """Note a success."""
        self._since = None
