"""Refuses output that the broker would delete at once, because its clock is ahead of this machine's.

The sink gives a record the time at which it is written, by the clock of the executor. The broker deletes it
when that is `retention.ms` ago by its own clock. Kafka shows a client that clock in one place:
DescribeTransactions returns when a transaction began. So when the first records of a topic are on the broker,
and before anything is decided, a task asks for the start of its own transaction and compares it with the
current time of the local clock. If the broker is ahead by half of the retention or more, the batch is
refused.
"""

import time
from collections.abc import Sequence

from semel.client import Client, ConfigValue, TransactionalProducer
from semel.client.admin.transactions import NO_TIME, describe_transactions
from semel.spark.errors import PipelineError
from semel.wire.messages import DescribeTransactionsRequest

#: Smaller differences are ignored, whatever the retention is.
TOLERATED_MS = 1_000


class BrokerClock:
    """Compares the clock of the broker with that of this process, by the transaction of a producer."""

    def __init__(self, client: Client, producer: TransactionalProducer) -> None:
        self._client = client
        self._producer = producer
        self._ahead_ms: int | None = None

    def check(self, topic: str, retention_ms: int) -> None:
        """PipelineError if the broker would delete what is written to this topic too early.

        The producer must have records to send, or have sent some.
        """
        if self._ahead_ms is None:
            self._ahead_ms = self._measured_ms()
        if self._ahead_ms >= max(TOLERATED_MS, retention_ms / 2):
            raise PipelineError(
                f"nothing was decided: topic {topic} keeps records for {retention_ms / 1000:.0f} s "
                f"(retention.ms={retention_ms}), and the clock of the broker, which deletes them, is ahead "
                f"of this one by {self._ahead_ms / 1000:.0f} s. What is written here would be deleted after "
                f"{max(0, retention_ms - self._ahead_ms) / 1000:.0f} s. Set the clocks of both machines; or "
                "set message.timestamp.type=LogAppendTime on the topic, so that the time of the broker counts"
            )

    def _measured_ms(self) -> int:
        """Return how far the start of the transaction is ahead: the broker is ahead by at least as much."""
        if not self._client.serves(DescribeTransactionsRequest.api_key):
            return 0
        self._producer.flush()
        now_ms = int(time.time() * 1000)
        name = self._producer.transactional_id
        known = describe_transactions(self._client, [name]).get(name)
        return 0 if known is None or known.started_ms == NO_TIME else max(0, known.started_ms - now_ms)


def retention_ms(configs: Sequence[ConfigValue]) -> int | None:
    """Return how long the broker keeps records by their timestamp; None if that does not matter."""
    values = {each.name: each.value or "" for each in configs}
    if values.get("message.timestamp.type") == "LogAppendTime":
        return None
    if "delete" not in values.get("cleanup.policy", "delete") or not values.get("retention.ms"):
        return None
    found = int(values["retention.ms"])
    return None if found < 0 else found
