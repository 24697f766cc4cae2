"""An embedded broker that compacts when the test says so, and at no other time."""

import asyncio
from typing import Any

from semel.client import Client, Producer
from semel.embedded import Embedded

SETTINGS = {"log.cleaner.backoff.ms": 3_600_000}
CONFIGS: dict[str, Any] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
}


def compact(broker: Embedded) -> None:
    """One round of compaction over all topics."""
    assert broker._loop is not None
    assert broker._server is not None
    compaction = broker._server.broker._housekeeping.compaction
    asyncio.run_coroutine_threadsafe(compaction.compact(), broker._loop).result(30)


def put(broker: Embedded, topic: str, key: str, value: str | None, partition: int = 0) -> None:
    """A record outside transactions."""
    with Client(broker.bootstrap_servers) as client, Producer(client) as producer:
        data = None if value is None else value.encode()
        producer.send(topic, data, key=key.encode(), partition=partition)


def compact_markers_away(broker: Embedded, topic: str) -> None:
    """As many passes as it takes until aborted records, and after them their markers, are gone.

    The first takes the records. The second meets the marker without them and sets its horizon, which is now;
    the third takes the marker. Each needs something new to be due.
    """
    for number in range(3):
        put(broker, topic, "filler", f"filler {number}")
        compact(broker)
