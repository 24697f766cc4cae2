"""Detects whether compaction has changed what a reader holds, and reads a held transaction again.

Brokers with the feature `semel.snapshot` at level 2 report through ListOffsets how often a partition was
compacted. If the number is the same before and after a read, no record was removed meanwhile. They also hold
compaction on request, which makes that likely. A hold is no proof, because a broker limits its holds and
loses them when it restarts; only the number is.

A transaction that is held in commit order is certain if the log was not compacted between the fetch of its
first batch and the fetch of its marker: then no earlier marker was removed. How the reader finds out depends
on the broker:

- Topics that are not compacted: always certain.
- Semel: the number is queried after each fetch that returned records of a compacted topic. It must equal the
  number known before the first batch.
- Other brokers: an abort marker outlives the records before it by at least `delete.retention.ms`: one
  cleaning removes the records; a later one, which finds none of them, starts that period for the marker. A
  reader that takes less time than the period reads the marker. The limit here is half of the period, because
  replicas are cleaned at different times.

An uncertain transaction is read again. Below the last stable offset the broker lists the aborted
transactions, so the remaining batches of the producer that are not aborted belong to the transaction that was
just committed. Above the last stable offset no log is ever compacted.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from semel.client.admin.configs import ConfigAdmin
from semel.client.consume.commit_order_log import Mark, OpenTransaction
from semel.client.consume.fetch import FetchLimits, NoRecordsYet, fetch_batches, shown
from semel.client.consume.offsets import LATEST, Isolation, Partition, list_offsets
from semel.client.consume.spool import Held, Spool
from semel.client.errors import check, is_retriable
from semel.client.net.cluster import Client
from semel.client.net.retry import retrying
from semel.wire.messages import DescribeConfigsRequest, PartitionData
from semel.wire.records import read_header

FEATURE = "semel.snapshot"
FEATURE_LEVEL = 2
#: Timestamps with a special meaning to Semel.
COMPACTIONS = -1001
HOLD_COMPACTION = -1002
VISIBILITY = "semel.visibility"
JOURNAL = "journal"
#: How long the configs of a topic are cached: its cleanup.policy may change.
CONFIGS_AGE_S = 60.0


class Compactions(NamedTuple):
    """How often batches of a partition were replaced, and for how long compaction is held."""

    number: int
    held_ms: int  # -1 if compaction is not held, or the topic is not compacted


def tells_compactions(client: Client) -> bool:
    """Whether the brokers support the queries of this module."""
    return client.feature(FEATURE) >= FEATURE_LEVEL


def compactions(
    client: Client, partitions: Iterable[Partition], *, hold: bool = False
) -> dict[Partition, Compactions]:
    """Return how often each partition was compacted; with `hold`, also hold compaction from now on."""
    wanted = dict.fromkeys(partitions, HOLD_COMPACTION if hold else COMPACTIONS)
    return {key: Compactions(*answer) for key, answer in list_offsets(client, wanted).items()}


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The effects of a topic's configs on readers in commit order."""

    is_journal: bool = False
    is_compacted: bool = True  # until known otherwise
    certain_s: float = 0.0  # how long it stays certain if the broker reports no compactions

    @classmethod
    def of(cls, client: Client, topic: str) -> "TopicRules":
        """Read the configs of a topic."""
        if not client.serves(DescribeConfigsRequest.api_key):
            return cls()
        configs = {config.name: config.value or "" for config in ConfigAdmin(client).of_topic(topic)}
        return cls(
            configs.get(VISIBILITY) == JOURNAL,
            "compact" in configs.get("cleanup.policy", "compact"),
            int(configs.get("delete.retention.ms") or 0) / 2000,
        )


class CompactionWatch:
    """What one reader knows about compaction in its partitions."""

    def __init__(self, client: Client, spool: Spool, limits: FetchLimits) -> None:
        self._client = client
        self._spool = spool
        self._limits = replace(limits, max_wait_ms=0)
        self._rules: dict[str, tuple[float, TopicRules]] = {}
        self._compactions: dict[Partition, int] = {}

    def rules(self, topic: str) -> TopicRules:
        """Return the rules of a topic, cached for `CONFIGS_AGE_S`."""
        asked_at, rules = self._rules.get(topic, (0.0, None))
        if rules is None or time.monotonic() - asked_at > CONFIGS_AGE_S:
            rules = TopicRules.of(self._client, topic)
            self._rules[topic] = time.monotonic(), rules
        return rules

    def mark(self, partition: Partition) -> Mark:
        """Return the mark of a fetch that is about to start."""
        return Mark(self._compactions.get(partition), time.monotonic())

    def query(self, partitions: Iterable[Partition]) -> None:
        """Query the numbers of compactions. Call it after a fetch, before any of its records are released."""
        wanted = [key for key in partitions if self._may_be_overtaken(key[0])]
        if wanted and tells_compactions(self._client):
            found = compactions(self._client, wanted)
            self._compactions |= {key: count.number for key, count in found.items()}

    def check(self, partition: Partition, transaction: OpenTransaction) -> None:
        """Make sure that the held batches of a transaction are the committed ones; replace them if needed."""
        if not self._is_certain(partition, transaction.mark):
            transaction.held = self._verified(partition, transaction)

    def _may_be_overtaken(self, topic: str) -> bool:
        rules = self.rules(topic)
        return rules.is_compacted and not rules.is_journal

    def _is_certain(self, partition: Partition, mark: Mark | None) -> bool:
        if not self._may_be_overtaken(partition[0]):
            return True
        if mark is None:
            return False
        if tells_compactions(self._client):
            return mark.compactions is not None and mark.compactions == self._compactions.get(partition)
        return time.monotonic() - mark.at_s < self.rules(partition[0]).certain_s

    def _verified(self, partition: Partition, transaction: OpenTransaction) -> Held:
        wanted = {partition: LATEST}
        stable = list_offsets(self._client, wanted, isolation=Isolation.READ_COMMITTED)[partition].offset
        verified = self._spool.hold()
        try:
            self._read_again(partition, transaction, stable, verified)
            for batch in transaction.held.batches():
                if read_header(batch).base_offset >= stable:
                    verified.add(batch)
        except BaseException:
            verified.drop()
            raise
        transaction.held.drop()
        return verified

    def _read_again(
        self, partition: Partition, transaction: OpenTransaction, stable: int, verified: Held
    ) -> None:
        position, end = transaction.first_offset, min(stable, transaction.last_offset + 1)
        while position < end:
            data = self._fetch(partition, position)
            records = memoryview(data.records or b"")
            for at, header, is_shown in shown(records, data.aborted_transactions, Isolation.READ_COMMITTED):
                is_of_it = header.is_transactional and header.producer_id == transaction.producer_id
                if is_shown and is_of_it and position <= header.last_offset < end:
                    verified.add(bytes(records[at : at + header.length]))
                position = max(position, header.last_offset + 1)

    def _fetch(self, partition: Partition, position: int) -> PartitionData:
        topic, number = partition
        where = (
            f"{topic}/{number} cannot be read again at offset {position} after a compaction, so it is not "
            "known which of the records read before are committed. Read from a later position"
        )

        def fetch() -> PartitionData:
            wanted = {partition: position}
            for _, data in fetch_batches(self._client, wanted, Isolation.READ_COMMITTED, self._limits):
                check(data.error_code, where)
                if data.records:
                    return data
            raise NoRecordsYet(f"{where}: the broker returned no records")

        return retrying(
            fetch,
            self._client.timeout_s,
            retriable=_may_pass,
            on_failure=lambda: self._client.forget_topic(topic),
        )


def _may_pass(error: Exception) -> bool:
    return isinstance(error, NoRecordsYet) or is_retriable(error)
