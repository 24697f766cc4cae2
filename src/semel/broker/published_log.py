"""The log as readers see it: published partitions, their newest batches, and the fetches that wait."""

from collections.abc import Iterable

from semel.broker.published_partitions import Isolation, PublishedPartitions
from semel.broker.tail import Tail
from semel.broker.waiting import Waiting
from semel.config import Settings
from semel.core.facts import BatchAppended, StagedCommitted
from semel.core.types import Buffer, Partition, PartitionKey
from semel.store.interface import Ledger


class PublishedLog:
    """Written by the commit loop (``Publisher``), read by ``Reads``. Lives on the event loop's thread."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self.partitions = PublishedPartitions(ledger, settings.semel_entities_max)
        self.tail = Tail()
        self.waiting = Waiting(settings.semel_fetch_waiting_partitions_max)

    def publish(
        self,
        partitions: dict[PartitionKey, Partition],
        appended: Iterable[tuple[BatchAppended | StagedCommitted, Buffer | None]],
        compacted: Iterable[PartitionKey] = (),
    ) -> None:
        """Publish a commit: the values of the partitions it touched, and its batches.

        A batch without its bytes is read from disk. In the ``compacted`` partitions batches were replaced.
        """
        for fact, buffer in appended:
            if fact.partition in partitions:
                self.tail.append(fact, buffer)
        for key, partition in partitions.items():
            before = self.partitions.publish(key, partition)
            if before is None or before.log_start_offset != partition.log_start_offset:
                self.tail.trim(key, partition.log_start_offset)
            self.waiting.published(key, before, partition)
        for key in compacted:
            # All replaced batches are below the last stable offset.
            if key in partitions:
                self.tail.trim(key, partitions[key].last_stable_offset)

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        """Remove deleted partitions."""
        for key in keys:
            self.partitions.forget(key)
            self.tail.forget(key)
            self.waiting.published(key, None, None)

    def is_awaited(self, keys: Iterable[PartitionKey]) -> bool:
        """Whether a READ_UNCOMMITTED reader waits for one of the partitions."""
        return self.waiting.is_awaited(keys, Isolation.READ_UNCOMMITTED)
