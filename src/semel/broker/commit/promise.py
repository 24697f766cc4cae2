"""A promise: a result that is available later.

The commit loop resolves promises in the turn in which a commit is durable. A callback runs in that same turn
and needs no task, which the hot path relies on. A coroutine can await a promise like a future.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_PENDING: Final[Any] = object()  # Any: it stands for a result
Work: TypeAlias = Coroutine[Any, Any, T]
"""A coroutine. Any: what it exchanges with the event loop."""


class Promise(Generic[T]):
    """Resolved once, on the event loop, with a result or an exception."""

    __slots__ = ("_callback", "_result", "first")

    def __init__(self, first: Work[None] | None = None) -> None:
        self.first = first
        """Work that has to be awaited before this can be resolved. Later requests must not overtake it."""
        self._callback: Callable[[T | Exception], None] | None = None
        self._result: T | Exception = _PENDING

    def resolve(self, result: T | Exception) -> None:
        """Pass the result to the callback, or keep it until there is one."""
        self._result = result
        if self._callback is not None:
            self._callback(result)

    def then(self, callback: Callable[[T | Exception], None]) -> None:
        """Call this with the result, at once if it is known. There is at most one callback."""
        self._callback = callback
        if self._result is not _PENDING:
            callback(self._result)

    def map(self, respond: Callable[[T | Exception], R]) -> "Promise[R]":
        """A promise of ``respond(result)``. If ``respond`` raises an exception, that is the result."""
        mapped: Promise[R] = Promise()
        self.then(partial(_resolve, mapped, respond))
        return mapped

    def __await__(self) -> Generator[Any, None, T]:
        if self.first is not None:
            yield from self.first.__await__()
        if self._result is _PENDING:
            resolved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # If the wait was cancelled, its future is done; the result stays valid without it.
            self.then(lambda result: None if resolved.done() else resolved.set_result(None))
            yield from resolved.__await__()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def resolved(result: T) -> Promise[T]:
    """A promise whose result is known."""
    promise: Promise[T] = Promise()
    promise.resolve(result)
    return promise


def _resolve(mapped: Promise[R], respond: Callable[[T | Exception], R], result: T | Exception) -> None:
    try:
        response: R | Exception = respond(result)
    except Exception as error:  # noqa: BLE001  the commit loop must not fail for one client's response
        response = error
    mapped.resolve(response)
