"""Quickly makes a ledger with many batches, like that of a broker that has run for long."""

from pathlib import Path

from semel.core.facts import TopicCreated
from semel.core.types import Topic
from semel.store.embedded.ledger_writer import LedgerWriter

PARTITIONS = 100
TOPIC_ID = bytes(range(16))

FILL = """
WITH RECURSIVE numbers (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < :last)
INSERT INTO batches
SELECT :partition_id, number * 10, number * 10 + 9, 1700000000000 + number, 1700000000000 + number,
    1 + number / 10000, number % 10000 * 1000, 1000
FROM numbers
"""


def make_large_ledger(path: Path, batches: int) -> Topic:
    """Create a topic whose hundred partitions hold this many batches together, with plain SQL."""
    topic = Topic("large", TOPIC_ID, PARTITIONS, {})
    writer = LedgerWriter(path)
    writer.commit([TopicCreated(topic)], [])
    count = batches // PARTITIONS
    for partition_id, *_ in writer.connection.execute("SELECT partition_id FROM partitions").fetchall():
        writer.connection.execute("BEGIN IMMEDIATE")
        writer.connection.execute(FILL, {"partition_id": partition_id, "last": count - 1})
        writer.connection.execute(
            "UPDATE partitions SET high_watermark = ?, size_bytes = ?, peak_timestamp = ?"
            " WHERE partition_id = ?",
            (count * 10, count * 1000, 1700000000000 + count - 1, partition_id),
        )
        writer.connection.execute("COMMIT")
        writer.rest(quiet=True)
    writer.connection.execute(
        "INSERT INTO chunks SELECT chunk_id, sum(length), 0, 0 FROM batches GROUP BY chunk_id"
    )
    writer.close(cleanly=True)
    return topic
