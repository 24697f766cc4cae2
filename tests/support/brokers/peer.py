"""The broker that tests run against: Semel in this process, or the one that SEMEL_PEER names."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import semel

PEER = os.environ.get("SEMEL_PEER")


@contextmanager
def broker_or_peer(settings: Mapping[str, Any]) -> Iterator[str]:
    """The address of a new broker with these settings, or of the peer, which has its own."""
    if PEER:
        yield PEER
        return
    with semel.embedded(settings=settings) as broker:
        yield broker.bootstrap_servers
