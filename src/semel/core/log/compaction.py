"""Log compaction: keep the newest record of each key. Pure: batches in, batches out.

A pass has two phases. First it reads the part of the log that has not been compacted yet (the *dirty* part)
and notes the newest offset of each key in it (``Newest``). Then it walks the log once, batch by batch, from
its start to the end of the dirty part (``Pass``). A record stays unless a newer offset was noted for its key.
The pass only reads below the last stable offset, so the outcome of every transaction in it is known.

Also removed:

- records of aborted transactions, at once;
- records without a key, because no later record can replace them;
- tombstones, after the *delete horizon* of their batch. The first pass that meets them sets it to
  ``delete.retention.ms`` later. By then no older record of the key is left, and readers have had that long to
  see the tombstone;
- markers, likewise, but only once a pass meets no batch of their transaction before them: removing a marker
  before its data would turn aborted records into committed ones.

Invariants:

- No offset changes. A batch keeps its offset range when records in it are removed; an empty batch is removed.
- The last batch of a pass stays, unchanged if it would become empty: a reader that expects offsets up to the
  end of the range needs a batch that ends there, beyond the gap.
- An interrupted pass does no harm. Every record it removed has a newer one in the log, and the next pass
  starts from the same offset. Delete horizons above the compacted part are ignored, because a client may have
  set them.
- A batch that cannot be decoded is left as it is.

Batches are replaced with their compacted form by one decision, so by one commit. Compaction works on batches
that it has read, and the log may change meanwhile. Appends do not matter, because it only touches batches
below the last stable offset. But the batches must still be those of the log, so the log start and the number
of replacements must be the same as when it read them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from semel.core.configs import words
from semel.core.data import Data
from semel.core.facts import BatchesReplaced, Put
from semel.core.types import Buffer, Command, Decide, Decision, Key, PartitionKey, Rewritten, Topic, TopicKey
from semel.wire.errors import ProtocolError
from semel.wire.records import BatchHeader, read_header
from semel.wire.reducing import NO_HORIZON, Opened, open_batch, reduced

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class ReplaceBatches(Command[bool]):
    """Replace some batches with rewritten ones and remove others. The answer is whether it was done.

    The command is refused if the log start moved or batches were replaced since the log was read, if the
    partition was deleted, or if its topic is no longer compacted. If no batch changes, it only records
    ``cleaned_offset``.
    """

    partition: PartitionKey
    log_start_seen: int
    compactions_seen: int
    rewritten: tuple[Rewritten, ...]
    records: tuple[Buffer, ...]
    """The bytes of the rewritten batches, in the same order."""
    removed: tuple[int, ...]
    """The base offsets of the batches to remove."""
    freed_bytes: int
    """The size of the rewritten and removed batches before the change."""
    cleaned_offset: int
    """The offset up to which the log is compacted."""
    topic: str
    """The name of the partition's topic."""
    default_policy: str = "delete"
    """The cleanup policy of topics that do not set one."""

    def keys(self) -> Iterable[Key]:
        """The partition, and the topic that says whether it is compacted."""
        return (self.partition, TopicKey(self.topic))


def _replace_batches(state: "BrokerState", command: ReplaceBatches, now: int) -> Decision:
    partition = state.partitions[command.partition]
    topic = state.topics[TopicKey(command.topic)]
    if partition is None or topic is None or not _is_compacted(topic, command):
        return Decision(False)
    seen = (command.log_start_seen, command.compactions_seen)
    if seen != (partition.log_start_offset, partition.compactions):
        return Decision(False)
    assert command.cleaned_offset <= partition.last_stable_offset, (
        "compaction stays below the last stable offset"
    )
    added = sum(batch.size_bytes for batch in command.rewritten)
    after = partition.but(
        size_bytes=partition.size_bytes - command.freed_bytes + added,
        cleaned_offset=max(command.cleaned_offset, partition.cleaned_offset),
        compactions=partition.compactions + 1,
    )
    facts = (
        BatchesReplaced(command.partition, command.rewritten, command.removed),
        Put(command.partition, after),
    )
    return Decision(True, facts, command.records)


def _is_compacted(topic: Topic, command: ReplaceBatches) -> bool:
    # The topic may have been deleted and created again under the same name.
    policy = topic.configs.get("cleanup.policy", command.default_policy)
    return topic.topic_id == command.partition.topic_id and "compact" in words(policy)


DECIDE: dict[type, Decide] = {ReplaceBatches: _replace_batches}


_DIGEST_BYTES: Final = 32
"""Longer keys are represented by their digest, to bound the memory per key. Shorter keys are exact."""


class Batch(Data):
    """A batch of the log and its bytes. The base offset in the bytes is not stamped."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    data: Buffer


class Replaced(Data):
    """The changes to a series of batches. Batches that are not listed stay as they are."""

    rewritten: tuple[Rewritten, ...] = ()
    records: tuple[Buffer, ...] = ()
    """The bytes of the rewritten batches, in the same order."""
    removed: tuple[int, ...] = ()
    """The base offsets of the removed batches."""
    freed_bytes: int = 0
    """The size of the rewritten and removed batches before the change."""
    unreadable: tuple[int, ...] = ()
    """The base offsets of the batches that could not be decoded."""


def known_by(key: bytes) -> bytes:
    """Return the form of a key that is used for comparison."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Outcomes:
    """Determines which batches belong to aborted transactions. Batches must be passed in log order.

    ``aborted`` holds (producer id, first offset) in offset order, for all transactions with a marker at or
    after the first batch.
    """

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._coming = deque(aborted)
        self._aborted: set[int] = set()

    def is_aborted(self, base_offset: int, header: BatchHeader) -> bool:
        """Whether the batch is aborted data. A marker ends the aborted transaction of its producer."""
        while self._coming and self._coming[0][1] <= base_offset:
            self._aborted.add(self._coming.popleft()[0])
        if header.is_control:
            self._aborted.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._aborted


class Newest:
    """The newest offset of each key in the dirty part."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self.offsets: dict[bytes, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether the pass should end here. The last batch may exceed the limit: a pass has at least one."""
        return len(self.offsets) >= self._keys_max

    def note(self, batches: Iterable[Batch], aborted: Sequence[tuple[int, int]]) -> int:
        """Note the keys of the next batches until ``is_full``; return the offset after the last one noted."""
        outcomes = Outcomes(aborted)
        end_offset = -1
        for batch in batches:
            header = read_header(batch.data)
            if not outcomes.is_aborted(batch.base_offset, header) and not header.is_control:
                self._note(batch)
            end_offset = batch.last_offset + 1
            if self.is_full:
                break
        return end_offset

    def _note(self, batch: Batch) -> None:
        try:
            # Decode the whole batch before noting any key: readers cannot use a batch that is damaged at its
            # end.
            mine = {
                known_by(entry.key): batch.base_offset + entry.offset_delta
                for entry in open_batch(batch.data).entries()
                if entry.key is not None
            }
        except ProtocolError:
            return
        self.offsets.update(mine)


class Pass:
    """One pass over the log from its start to ``end_offset``, in log order."""

    def __init__(
        self,
        newest: Newest,
        *,
        cleaned_offset: int,
        end_offset: int,
        now: int,
        delete_retention_ms: int,
    ) -> None:
        self._newest = newest.offsets
        self._cleaned_offset = cleaned_offset
        self._end_offset = end_offset
        self._now = now
        self._horizon = now + delete_retention_ms
        self._with_data: set[int] = set()
        """Producers whose transaction had data in this pass, and no marker yet."""
        self._with_data_before: frozenset[int] = frozenset()
        self._has_unreadable = False
        """Whether a batch could not be decoded. From then on tombstones are kept: they may be newer than a
        value in that batch, which some readers may be able to decode."""

    def undo(self) -> None:
        """Undo the last ``compact``: its result was not applied, and its batches will be passed again."""
        self._with_data = set(self._with_data_before)

    def compact(self, batches: Iterable[Batch], aborted: Sequence[tuple[int, int]]) -> Replaced:
        """Return the changes to the next batches."""
        self._with_data_before = frozenset(self._with_data)
        outcomes = Outcomes(aborted)
        rewritten: list[Rewritten] = []
        records: list[Buffer] = []
        removed: list[int] = []
        unreadable: list[int] = []
        freed = 0
        for batch in batches:
            header = read_header(batch.data)
            is_aborted = outcomes.is_aborted(batch.base_offset, header)
            try:
                left = self._left_of(batch, header, is_aborted=is_aborted)
            except ProtocolError:
                unreadable.append(batch.base_offset)
                self._has_unreadable = True
                continue
            if left is batch.data:
                continue
            freed += len(batch.data)
            if left is None:
                removed.append(batch.base_offset)
                continue
            latest = read_header(left).max_timestamp
            # Records without a timestamp are dated by their arrival.
            latest = batch.max_timestamp if latest < 0 else min(latest, batch.max_timestamp)
            rewritten.append(Rewritten(batch.base_offset, batch.last_offset, latest, len(left)))
            records.append(left)
        return Replaced(tuple(rewritten), tuple(records), tuple(removed), freed, tuple(unreadable))

    def _left_of(self, batch: Batch, header: BatchHeader, *, is_aborted: bool) -> Buffer | None:
        """Return the batch itself if it is unchanged, a smaller batch, or None if the batch is removed."""
        is_last = batch.last_offset + 1 >= self._end_offset
        # A batch that was never compacted can only have a horizon set by a client: ignore it.
        horizon = header.delete_horizon if batch.base_offset < self._cleaned_offset else None
        if header.is_control:
            has_data = header.producer_id in self._with_data
            self._with_data.discard(header.producer_id)
            if has_data or is_last:
                return batch.data
            if horizon is None:
                return self._with_horizon(batch, open_batch(batch.data))
            return None if horizon <= self._now else batch.data
        if header.is_transactional:
            self._with_data.add(header.producer_id)
        if is_aborted:
            return batch.data if is_last else None
        opened = open_batch(batch.data)
        stays, has_tombstone = self._stays(batch.base_offset, opened, horizon)
        if not any(stays):
            return batch.data if is_last else None
        if has_tombstone and horizon is None:
            return self._with_horizon(batch, opened, stays)
        return batch.data if all(stays) else reduced(opened, stays, None)

    def _stays(self, base_offset: int, opened: Opened, horizon: int | None) -> tuple[bytearray, bool]:
        """Return one byte per record (1: it stays), and whether a tombstone stays."""
        newest = self._newest
        is_due = horizon is not None and horizon <= self._now and not self._has_unreadable
        stays = bytearray()
        has_tombstone = False
        for entry in opened.entries():
            offset = base_offset + entry.offset_delta
            is_kept = entry.key is not None and newest.get(known_by(entry.key), offset) <= offset
            if is_kept and entry.is_tombstone:
                is_kept = not is_due
                has_tombstone = has_tombstone or is_kept
            stays.append(is_kept)
        return stays, has_tombstone

    def _with_horizon(self, batch: Batch, opened: Opened, stays: bytearray | None = None) -> Buffer:
        """Set the time from which the tombstones or the marker of the batch may be removed."""
        kept = stays if stays is not None else bytearray(b"\x01" * opened.header.record_count)
        try:
            return reduced(opened, kept, self._horizon)
        except ValueError:
            # The client's timestamps leave no room for a horizon. The tombstones stay for good. A horizon set
            # by the client is erased, because the next pass would trust it.
            has_claimed = opened.header.delete_horizon is not None
            return batch.data if all(kept) and not has_claimed else reduced(opened, kept, NO_HORIZON)
