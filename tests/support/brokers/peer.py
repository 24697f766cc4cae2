"""The broker that tests run against: Semel in this process, or the broker that SEMEL_PEER names."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import semel

PEER = os.environ.get("SEMEL_PEER")


@dataclass(frozen=True)
class Timed:
    """A broker whose clock a test advances. With a peer, the test waits instead."""

    address: str
    passes: Callable[[float], None]
    """Let this many seconds pass."""


@contextmanager
def timed_broker(settings: Mapping[str, Any]) -> Iterator[Timed]:
    """A new broker with these settings, or the peer, which has its own."""
    if PEER:
        yield Timed(PEER, time.sleep)
        return
    with semel.embedded(settings=settings) as broker:
        yield Timed(broker.bootstrap_servers, broker.advance)


@contextmanager
def broker_or_peer(settings: Mapping[str, Any]) -> Iterator[str]:
    """The address of a new broker with these settings, or of the peer."""
    with timed_broker(settings) as broker:
        yield broker.address
