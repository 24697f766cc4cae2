"""The end of a transaction: all its consequences as the facts of one decision.

In a partition with marker visibility, a control batch is appended after the transaction's records, and
readers no longer wait for them. In one with journal visibility the staged batches get their offsets, or are
dropped. In a group the pending offsets become its position, or are dropped. In a share-partition the pending
records are settled, or available again. A partition without writes gets no marker: some clients would take it
for the end of a transaction.

All of it is written in one ledger commit, with the outcome and the next epoch. So a transaction is never half
ended, and the next one never has to wait.
"""

from typing import TYPE_CHECKING

from semel.core.facts import BatchAppended, Closing, Put, StagedCommitted, StagedDropped
from semel.core.shares.partition import end_pending
from semel.core.transactions.pending import settle
from semel.core.types import Buffer, Fact, Partition, PartitionKey, ProducerKey, ProducerState, Transaction
from semel.wire.records import marker

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class Ending:
    """Collects the facts of an end."""

    def __init__(self, state: "BrokerState", *, is_commit: bool, now: int) -> None:
        self._state = state
        self._is_commit = is_commit
        self._now = state.time_of_day(now)
        self.facts: list[Fact] = []
        self.batches: list[Buffer] = []
        self._markers: dict[tuple[int, int, int], Buffer] = {}

    def everywhere(self, transaction: Transaction, epoch: int) -> None:
        """End the transaction in everything that has joined it. Markers carry the given epoch."""
        producer_id = transaction.producer_id
        for key in transaction.partitions:
            partition = self._state.partitions[key]
            producer = self._state.producers[ProducerKey(key.topic_id, key.index, producer_id)]
            # The partition is None if its topic was deleted; the producer, if nothing was written there.
            if partition is not None and producer is not None and producer.has_open_transaction:
                self.in_partition(key, partition, producer_id, producer, epoch, self._state.term)
        for group_id in transaction.groups:
            self.facts += settle(self._state, group_id, producer_id, is_commit=self._is_commit)
        for share_key in transaction.shares:
            share = self._state.shares[share_key]
            # None if the topic, the group or its share-partitions of the topic were deleted.
            if share is not None:
                ended = end_pending(share, producer_id, is_commit=self._is_commit)
                if ended is not share:
                    self.facts.append(Put(share_key, ended))

    def in_partition(
        self,
        key: PartitionKey,
        partition: Partition,
        producer_id: int,
        producer: ProducerState,
        epoch: int,
        coordinator_epoch: int,
        *,
        has_markers: bool = True,
    ) -> None:
        """End the transaction in one partition. Older epochs are fenced even if nothing is open there."""
        if producer.staged is not None:
            self._unstage(key, partition, producer_id, producer)
        elif has_markers:
            self._mark(key, partition, producer_id, producer, epoch, coordinator_epoch)
        batches = producer.batches if epoch == producer.epoch else ()
        ended = ProducerState(epoch, batches, self._now, self._now, coordinator_epoch)
        self.facts.append(Put(ProducerKey(key.topic_id, key.index, producer_id), ended))

    def _unstage(
        self, key: PartitionKey, partition: Partition, producer_id: int, producer: ProducerState
    ) -> None:
        staged = producer.staged
        assert staged is not None
        if not self._is_commit:
            self.facts.append(StagedDropped(key, producer_id))
            return
        base, peak = partition.high_watermark, partition.peak_timestamp
        after = partition.but(
            high_watermark=base + staged.offsets,
            peak_timestamp=max(peak, staged.max_timestamp),
            size_bytes=partition.size_bytes + staged.size_bytes,
        )
        last = after.high_watermark - 1
        self.facts.append(StagedCommitted(key, producer_id, base, last, peak, after.peak_timestamp))
        self.facts.append(Put(key, after))

    def _mark(
        self,
        key: PartitionKey,
        partition: Partition,
        producer_id: int,
        producer: ProducerState,
        epoch: int,
        coordinator_epoch: int,
    ) -> None:
        offset, now = partition.high_watermark, self._now
        batch = self._marker(producer_id, epoch, coordinator_epoch)
        opened, aborted = partition.open_transactions, partition.last_aborted_offset
        first = producer.transaction_first_offset
        if first >= 0:
            opened = tuple(each for each in opened if each.producer_id != producer_id)
            aborted = aborted if self._is_commit else offset
        after = Partition(
            partition.log_start_offset,
            offset + 1,
            max(partition.peak_timestamp, now),
            partition.size_bytes + len(batch),
            opened,
            aborted,
            partition.cleaned_offset,
            partition.compactions,
        )
        closes = Closing(first, after.last_stable_offset, self._is_commit) if first >= 0 else None
        peak = after.peak_timestamp
        self.batches.append(batch)
        self.facts.append(
            BatchAppended(key, offset, offset, now, peak, len(batch), producer_id, True, False, closes)
        )
        self.facts.append(Put(key, after))

    def _marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> Buffer:
        """Return the marker, the same in every partition: base offsets are stamped when batches are read."""
        key = (producer_id, epoch, coordinator_epoch)
        made = self._markers.get(key)
        if made is None:
            made = marker(producer_id, epoch, self._is_commit, coordinator_epoch, self._now)
            self._markers[key] = made
        return made
