"""A raw client of a cluster: a request goes to the broker that answers for what it asks.

Nobody is asked who that is. A broker that is the wrong one says so and does nothing, so the request goes from
one to the next until it comes to the right one.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from semel.wire.declared import Declared
from semel.wire.errors import ErrorCode
from semel.wire.schema import Request
from support.clients.raw import RawClient
from support.waiting import until

ELSEWHERE = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


_ask = RawClient.ask  # which may be replaced by one that uses this module


class RoutedClient(RawClient):
    """One connection to each broker. A request is about one partition, one id or one group."""

    def __init__(self, bootstrap: str, client_id: str = "routed", timeout_seconds: float = 15.0) -> None:
        self._addresses = bootstrap.split(",")
        self._clients: dict[str, RawClient] = {}
        self._named = (client_id, timeout_seconds)

    def close(self) -> None:
        for each in self._clients.values():
            each.close()
        self._clients.clear()

    def __enter__(self) -> Self:
        return self

    def ask(self, request: Request, version: int) -> Any:
        """The answer of the first broker that is the right one, when there is one."""
        return until(lambda: list(self._answers(request, version)), what=f"an answer to {request!r}")[0]

    def _answers(self, request: Request, version: int) -> Iterator[Any]:
        """The first answer of a broker that is the right one, if one is."""
        for address in list(self._addresses):
            try:
                answer = _ask(self._client(address), request, version)
            except (OSError, AssertionError):
                # RawClient tells a connection that the broker has closed by a failed assertion.
                self._forget(address)
                continue
            if ELSEWHERE.isdisjoint(error_codes(answer)):
                # What comes next is about the same, most of the time.
                self._addresses.remove(address)
                self._addresses.insert(0, address)
                yield answer
                return

    def _client(self, address: str) -> RawClient:
        if address not in self._clients:
            self._clients[address] = RawClient(address, *self._named)
        return self._clients[address]

    def _forget(self, address: str) -> None:
        if address in self._clients:
            with contextlib.suppress(OSError):
                self._clients.pop(address).close()


def raw_client(bootstrap: str) -> RawClient:
    """A raw client of one broker, or of several."""
    return RoutedClient(bootstrap) if "," in bootstrap else RawClient(bootstrap)


def error_codes(answer: Any) -> Iterator[int]:
    """All error codes in an answer."""
    if isinstance(answer, list):
        for each in answer:
            yield from error_codes(each)
    elif isinstance(answer, Declared):
        for name in answer.declared:
            value = getattr(answer, name)
            if name.endswith("error_code") and isinstance(value, int):
                yield value
            elif isinstance(value, list | Declared):
                yield from error_codes(value)
