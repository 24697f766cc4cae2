"""Waiting for a condition: check again until it is true or the time is up."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, overload

T = TypeVar("T")

LIMIT_SECONDS: Final = 90.0
"""How long tests wait for what must happen. A busy machine may be slow; a test may take 120 seconds."""
FIRST_PAUSE_SECONDS: Final = 0.001
PAUSE_SECONDS: Final = 0.02
"""The pause between two checks, after a few shorter ones."""


def until(check: Callable[[], T | None], seconds: float = LIMIT_SECONDS, what: str = "") -> T:
    """Return the first true answer of `check`."""
    waiting = _Waiting(check, seconds, what)
    while not (answer := check()):
        time.sleep(waiting.pause(answer))
    return answer


@overload
async def until_async(
    check: Callable[[], Coroutine[Any, Any, T]], seconds: float = ..., what: str = ...
) -> T: ...


@overload
async def until_async(check: Callable[[], T | None], seconds: float = ..., what: str = ...) -> T: ...


async def until_async(check: Callable[[], Any], seconds: float = LIMIT_SECONDS, what: str = "") -> Any:
    """Return the first true answer of `check`, on the event loop. An answer may be awaitable."""
    waiting = _Waiting(check, seconds, what)
    while not (answer := await _answer(check)):  # noqa: ASYNC110  there is no event to wait for
        await asyncio.sleep(waiting.pause(answer))
    return answer


async def _answer(check: Callable[[], Any]) -> Any:
    answer = check()
    return await answer if inspect.isawaitable(answer) else answer


class _Waiting:
    def __init__(self, check: Callable[[], object], seconds: float, what: str) -> None:
        self._check = check
        self._seconds = seconds
        self._what = what
        self._deadline = time.monotonic() + seconds
        self._pause = FIRST_PAUSE_SECONDS

    def pause(self, answer: object) -> float:
        """Return the pause before the next check; fail with the last answer if the time is up."""
        if time.monotonic() >= self._deadline:
            raise AssertionError(f"waited {self._seconds:g} s for {self._name()}; last answer: {answer!r}")
        self._pause = min(2 * self._pause, PAUSE_SECONDS)
        return self._pause

    def _name(self) -> str:
        if self._what:
            return self._what
        try:
            return inspect.getsource(self._check).strip()
        except (OSError, TypeError):  # Not a function, or one without a file.
            return repr(self._check)
