"""Waiting for something that is on its way: ask again until it is true or the time is up."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.02


def until(check: Callable[[], T | None], seconds: float = 20.0, what: str = "it") -> T:
    """The first true answer of `check`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < deadline, (
            f"{what} did not happen within {seconds} seconds; last: {answer!r}"
        )
        time.sleep(PAUSE_SECONDS)


async def until_async(check: Callable[[], Awaitable[T | None]], seconds: float = 20.0, what: str = "it") -> T:
    """The first true answer of `check`, on the event loop."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await check()
        if answer:
            return answer
        assert time.monotonic() < deadline, (
            f"{what} did not happen within {seconds} seconds; last: {answer!r}"
        )
        await asyncio.sleep(PAUSE_SECONDS)
