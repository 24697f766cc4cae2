"""Measures the time for which a request occupies the event loop, for request quotas."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Timed:
    """Awaits a coroutine, and measures its time on the event loop, without the time for which it waits."""

    def __init__(self, work: Coroutine[Any, Any, Any], clock: Callable[[], float]) -> None:
        self._work = work
        self._clock = clock
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            started = self._clock()
            try:
                waited_for = step(value)
            except StopIteration as ended:
                return ended.value
            finally:
                self.seconds += self._clock() - started
            try:
                step, value = self._work.send, (yield waited_for)
            except BaseException as error:  # noqa: BLE001  passed on to the coroutine
                step, value = self._work.throw, error

    def close(self) -> None:
        """Close the coroutine."""
        self._work.close()
