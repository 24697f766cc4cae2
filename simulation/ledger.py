"""The ledger of the simulation: the queries over folded facts."""

from collections.abc import Sequence
from typing import Any

from semel.core.types import (
    CommittedOffset,
    EntityKey,
    GroupKey,
    OffsetKey,
    PartitionKey,
    PolicyKey,
    ProducerKey,
    ProducerState,
    Topic,
    TopicKey,
    Transaction,
    TransactionKey,
    TransactionState,
    V,
)
from semel.store.contract import BatchLocation, Counts, GroupSummary, StoredBatch
from simulation.folded_facts import FoldedFacts


class SimulatedLedger(FoldedFacts):
    """All entities and all batches, as of the last durable commit."""

    def copy(self) -> "SimulatedLedger":
        """Return a copy that later folds do not change."""
        other = SimulatedLedger()
        other.values = dict(self.values)
        other.batches = {key: list(batches) for key, batches in self.batches.items()}
        other._staged = {key: list(staged) for key, staged in self._staged.items()}
        other._aborted = {key: list(aborted) for key, aborted in self._aborted.items()}
        return other

    async def load(self, keys: Sequence[EntityKey[V]]) -> list[V | None]:
        """Return the entities with these keys."""
        return [self._get(key) for key in keys]

    async def find_batches(
        self, partition: PartitionKey, offset: int, *, before: int, bytes_max: int, batches_max: int
    ) -> list[StoredBatch]:
        """Return batches from an offset on."""
        found: list[StoredBatch] = []
        size = 0
        for each in self.batches.get(partition, []):
            if each.last_offset < offset:
                continue
            if each.last_offset >= before or len(found) >= batches_max:
                break
            if found and size + each.location.length > bytes_max:
                break
            found.append(each)
            size += each.location.length
        return found

    async def first_batch_since(self, partition: PartitionKey, timestamp: int) -> StoredBatch | None:
        """Return the first batch whose largest timestamp is at or after this one."""
        found = (each for each in self.batches.get(partition, []) if each.max_timestamp >= timestamp)
        return next(found, None)

    async def offset_at_size(self, partition: PartitionKey, size_bytes: int) -> int:
        """Return the smallest offset from which the partition is no larger than this."""
        offset, left = self._get(partition).high_watermark, size_bytes
        for each in reversed(self.batches[partition]):
            left -= each.location.length
            if left < 0:
                break
            offset = each.base_offset
        return int(offset)

    async def size_below(self, partition: PartitionKey, offset: int) -> tuple[int, int]:
        """Return the log start, and the bytes below an offset."""
        value = self._get(partition)
        if value is None:
            return 0, 0
        below = (each.location.length for each in self.batches[partition] if each.last_offset < offset)
        return value.log_start_offset, sum(below)

    async def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic with this id."""
        return next((each for each in await self.topics() if each.topic_id == topic_id), None)

    async def topics(self, *, after: str = "", limit: int = 10_000) -> list[Topic]:
        """Return topics, ordered by name."""
        return self._of(TopicKey, after)[:limit]

    def _of(self, kind: type, after: str) -> list[Any]:
        named = sorted((key.values()[0], value) for (each, key), value in self.values.items() if each is kind)
        return [value for name, value in named if name > after]

    async def counts(self) -> Counts:
        """Return the counts of what clients can create."""
        kinds = [kind for kind, _ in self.values]
        return Counts(*(kinds.count(kind) for kind in (PartitionKey, GroupKey, TransactionKey)))

    async def groups(self, *, after: str = "", limit: int = 10_000) -> list[GroupSummary]:
        """Return groups, ordered by id, including those that only have offsets."""
        rows = {
            key.group_id: GroupSummary(key.group_id, "", "", "")
            for kind, key in self.values
            if kind is OffsetKey
        }
        for group in self._of(GroupKey, ""):
            row = GroupSummary(group.group_id, group.kind, group.protocol_type, group.state_name)
            rows[group.group_id] = row
        return [rows[name] for name in sorted(rows) if name > after][:limit]

    async def group_offsets(self, group_id: str) -> list[tuple[OffsetKey, CommittedOffset]]:
        """Return everything a group has committed."""
        return sorted(
            (key, value)
            for (kind, key), value in self.values.items()
            if kind is OffsetKey and key.group_id == group_id
        )

    async def producers(self, partition: PartitionKey) -> list[tuple[int, ProducerState]]:
        """Return the producers that a partition remembers."""
        return sorted(
            (key.producer_id, value)
            for (kind, key), value in self.values.items()
            if kind is ProducerKey and key[:2] == partition
        )

    async def producers_unseen_since(
        self, before_ms: int, *, after: ProducerKey | None = None, limit: int
    ) -> list[ProducerKey]:
        """Return producers without an open transaction that were last seen before this time."""
        unseen = [
            key
            for (kind, key), value in self.values.items()
            if kind is ProducerKey and value.seen_ms <= before_ms and not value.has_open_transaction
            if after is None or key > after
        ]
        return sorted(unseen)[:limit]

    async def aborted(self, partition: PartitionKey, first: int, before: int) -> list[tuple[int, int]]:
        """Return the aborted transactions in a range."""
        return sorted(
            (
                (producer_id, first_offset)
                for marker_offset, producer_id, first_offset in self._aborted.get(partition, [])
                if marker_offset >= first and first_offset < before
            ),
            key=lambda pair: pair[1],
        )

    async def policies(
        self, *, after: PolicyKey | None = None, limit: int = 10_000
    ) -> list[tuple[PolicyKey, str]]:
        """Return policies and their values."""
        found = sorted((key, body) for (kind, key), body in self.values.items() if kind is PolicyKey)
        return [each for each in found if after is None or each[0] > after][:limit]

    async def transactions(self, *, after: str = "", limit: int = 10_000) -> list[Transaction]:
        """Return transactional ids in order."""
        return list(self._of(TransactionKey, after))[:limit]

    async def open_transactions(self, *, after: str = "", limit: int) -> list[Transaction]:
        """Return open transactions in order."""
        known = self._of(TransactionKey, after)
        return [each for each in known if each.state is TransactionState.ONGOING][:limit]

    async def transactions_unused_since(self, before_ms: int, *, after: str = "", limit: int) -> list[str]:
        """Return transactional ids that were not used after this time."""
        unused = (
            each.transactional_id
            for each in self._of(TransactionKey, after)
            if each.state is not TransactionState.ONGOING and each.updated_ms <= before_ms
        )
        return list(unused)[:limit]

    async def leftovers(self, *, limit: int) -> list[BatchLocation]:
        """Return nothing: space is unlimited, so nothing has to be swept."""
        return []

    async def sweep(self, *, limit: int) -> list[BatchLocation]:
        """Return nothing: there is nothing to sweep."""
        return []

    async def chunk_references(self) -> dict[int, int]:
        """Return how many bytes of each chunk are in use."""
        return {}

    async def close(self) -> None:
        """Nothing to release."""
