"""A raw client of a cluster: each request is sent to the broker that is responsible for it.

The client does not look up leaders or coordinators. A broker that is not responsible answers with an error
and does nothing, so the client tries one broker after another.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from semel.wire.errors import ErrorCode
from semel.wire.schema import Declared, Request
from support.clients.raw import RawClient
from support.waiting import until

ELSEWHERE = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


_ask = RawClient.ask  # RawClient.ask may be replaced by a function that uses this module


class RoutedClient(RawClient):
    """One connection to each broker. A request must be about one partition, one id or one group."""

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
        """Return the answer of the first broker that is responsible; retry until there is one."""
        return until(lambda: list(self._answers(request, version)), what=f"an answer to {request!r}")[0]

    def _answers(self, request: Request, version: int) -> Iterator[Any]:
        """Yield the answer of the first broker that is responsible, if there is one."""
        for address in list(self._addresses):
            try:
                answer = _ask(self._client(address), request, version)
            except (OSError, AssertionError):
                # RawClient reports a connection that the broker has closed as a failed assertion.
                self._forget(address)
                continue
            if ELSEWHERE.isdisjoint(error_codes(answer)):
                # The next request is probably for the same broker.
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
    """Return a raw client of one broker, or of several."""
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
