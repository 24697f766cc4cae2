"""What a proxy does to requests, and which requests it has seen."""

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from semel.wire.frames import RequestHeader
from semel.wire.messages import APIS
from support.waiting import LIMIT_SECONDS


class Act(enum.Enum):
    """What happens to a request."""

    PASS = enum.auto()
    HOLD = enum.auto()
    """The broker gets it when it is released. The client's connection stays open, without an answer."""
    STRAND = enum.auto()
    """Like HOLD, but the client's connection is closed at once, so that it need not wait for a timeout."""
    TWICE = enum.auto()
    """The broker gets it twice in a row; the client gets one answer."""
    ECHO = enum.auto()
    """The broker gets it, the client's connection is closed, and the broker gets it again when released."""
    LOSE = enum.auto()
    """The broker never gets it, and the client waits."""
    CUT = enum.auto()
    """The broker never gets it, and the client's connection is closed."""
    DEAFEN = enum.auto()
    """The broker gets it, and the client never gets the answer."""
    CUT_ANSWER = enum.auto()
    """The broker gets it, and the client's connection is closed instead of the answer."""
    LAST = enum.auto()
    """The broker gets it, the client gets the answer, and then no client can reach any broker."""


@dataclass
class Seen:
    """A request that arrived at the proxy."""

    connection: int
    header: RequestHeader
    frame: bytes
    position: int
    ports: tuple[int, int]
    """Source and destination port. Only both together identify a connection."""

    @cached_property
    def body(self) -> Any:
        """The request, decoded."""
        api = APIS[self.header.api_key]
        return api.request.decode(self.frame, self.header.api_version, self.position)


class Rule:
    """What happens to the next matching requests, and what became of them."""

    def __init__(self, act: Act, fits: Callable[[Seen], bool], times: int, after: int) -> None:
        self.act = act
        self.caught: list[Seen] = []
        self.delivered = threading.Event()
        """Set when the broker has answered a held request, or closed the connection on it."""
        self.was_refused = False
        """Whether the broker closed the connection instead of answering."""
        self.answered = threading.Event()
        """Set when the broker has answered, whether or not the client gets the answer."""
        self._fits = fits
        self._times = times
        self._skip = after
        self._came = threading.Event()
        self._released = threading.Event()

    def takes(self, seen: Seen) -> bool:
        if len(self.caught) >= self._times or not self._fits(seen):
            return False
        if self._skip:
            self._skip -= 1
            return False
        self.caught.append(seen)
        self._came.set()
        return True

    def wait(self) -> None:
        """Wait until a request was caught."""
        assert self._came.wait(LIMIT_SECONDS), "no such request came"

    def release(self) -> None:
        """Deliver what is held, now and later; return when the broker has answered or closed."""
        self._released.set()
        if self.caught and self.act in (Act.HOLD, Act.STRAND, Act.ECHO):
            assert self.delivered.wait(LIMIT_SECONDS), "what was held is not answered"

    def let_go(self) -> None:
        self._released.set()

    def until_released(self) -> None:
        self._released.wait()
