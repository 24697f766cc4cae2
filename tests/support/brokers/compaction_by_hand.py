"""An embedded broker that compacts only when the test asks for it."""

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
    """Run one round of compaction over all topics."""
    assert broker._loop is not None
    assert broker._server is not None
    compaction = broker._server.broker._housekeeping.compaction
    asyncio.run_coroutine_threadsafe(compaction.compact(), broker._loop).result(30)


def put(broker: Embedded, topic: str, key: str, value: str | None, partition: int = 0) -> None:
    """Write a record outside transactions."""
    with Client(broker.bootstrap_servers) as client, Producer(client) as producer:
        data = None if value is None else value.encode()
        producer.send(topic, data, key=key.encode(), partition=partition)


def compact_markers_away(broker: Embedded, topic: str) -> None:
    """Run as many passes as it takes to remove aborted records, and then their markers.

    The first pass removes the records. The second finds the marker without them and sets its delete horizon
    to now; the third removes the marker. A pass is due only if there is something new to compact.
    """
    for number in range(3):
        put(broker, topic, "filler", f"filler {number}")
        compact(broker)
