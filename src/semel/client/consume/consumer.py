"""`Consumer`: reads records in order, alone or as a member of a group.

    with Client("127.0.0.1:9092") as client, Consumer(client, "orders", group_id="billing") as consumer:
        for record in consumer:
            handle(record.key, record.value)

Without a group it reads all partitions of its topics, or the assigned ones, from `start`. In a group it reads
the partitions that the group assigns, from the committed offsets, or from `start` where there is none.

There is no thread: everything happens inside `poll` and the iteration, including the heartbeats of the group
and automatic commits. Positions count the records returned to the caller, not those fetched ahead. An
automatic commit happens before the next records are returned, so a record is committed only after the caller
has asked for more: at least once. Set `auto_commit=False` and call `commit` to choose the moment yourself.

It reads committed records only, unless `isolation="read_uncommitted"`. If an open transaction may change
offsets of the group, the consumer waits for it, so that records which the transaction has processed are not
read again. To commit offsets as part of a transaction, pass `group_metadata()` to
`TransactionalProducer.send_offsets` and set `auto_commit=False`.

Fetching and isolation are in `fetch`, membership in `membership`. `PollingConsumer` is the poll loop, also
that of `CommitOrderConsumer`.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Self

from semel.client.admin.group_offsets import (
    NOBODY,
    CommitAs,
    CommittedOffset,
    GroupMetadata,
    commit_offsets,
    fetch_offsets,
    is_unstable,
)
from semel.client.consume.fetch import ConsumedRecord, Fetched, FetchLimits, fetch
from semel.client.consume.membership import LOST_MEMBERSHIP, Member, join
from semel.client.consume.offsets import EARLIEST, LATEST, Isolation, OffsetAt, Partition, list_offsets
from semel.client.errors import ClientError, ErrorCode, KafkaError, check, close_after
from semel.client.net.cluster import UNKNOWN_TOPIC_WAIT_S, Client
from semel.client.net.retry import IDLE_PAUSE_S, Outage


class Start(Enum):
    """Where to start if there is no committed offset, or if it is no longer in the log."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


class PollingConsumer(ABC):
    """Returns records of a client's topics, by `poll` or as an iterator."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._outage = Outage()

    def __enter__(self) -> Self:
        return self

    def __iter__(self) -> Iterator[ConsumedRecord]:
        while True:
            yield from self.poll(1.0, max_records=1)

    def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[ConsumedRecord]:
        """Return the next records, at most this many; an empty list if there are none within the timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._look_after_group()
            if records := self._hand_out(max_records):
                return records
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 and timeout_s > 0:
                return []
            self._fetch(max(0.0, remaining_s))
            if timeout_s <= 0:
                return self._hand_out(max_records)

    def _look_after_group(self) -> None:  # noqa: B027 - a consumer without a group has none
        """Commit and send heartbeats if they are due."""

    @abstractmethod
    def _hand_out(self, max_records: int) -> list[ConsumedRecord]:
        """Return fetched records, at most this many."""

    @abstractmethod
    def _fetch(self, max_wait_s: float) -> None:
        """Fetch once. A failure is tolerated within the client's `timeout_s`."""


class Consumer(PollingConsumer):
    """Reads records through a client, which it does not close."""

    def __init__(
        self,
        client: Client,
        topics: str | Iterable[str] = (),
        *,
        group_id: str | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        start: Start | str = Start.EARLIEST,
        auto_commit: bool = True,
        commit_interval_s: float = 5.0,
        limits: FetchLimits | None = None,
    ) -> None:
        super().__init__(client)
        self._group_id = group_id
        self._isolation = Isolation.of(isolation)
        self._start = Start(start)
        self._auto_commit = auto_commit and group_id is not None
        self._commit_interval_s = commit_interval_s
        self._limits = limits or FetchLimits()
        self._member: Member | None = None
        self._assigned: frozenset[Partition] = frozenset()
        self._positions: dict[Partition, int] = {}  # after the last record returned
        self._fetch_from: dict[Partition, int] = {}  # after the last record fetched
        self._committed: dict[Partition, int] = {}
        self._ready: deque[Fetched] = deque()
        self._commit_at = time.monotonic() + commit_interval_s
        names = [topics] if isinstance(topics, str) else list(topics)
        if names:
            self.subscribe(names)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            # Processing the last record may have failed, so do not commit it. Leave the group anyway.
            self._auto_commit = False
        close_after(error, self.close)

    def close(self) -> None:
        """Commit if `auto_commit` is set, and leave the group. May be called again."""
        if self._auto_commit:
            self._commit_automatically()
        if self._member is not None:
            member, self._member = self._member, None
            member.leave()
        self._take_assignment(())

    # ---- what is read

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics: through the group if there is one, else all their partitions."""
        names = list(topics)
        for name in names:
            self._client.topic(name, create=True, wait_s=UNKNOWN_TOPIC_WAIT_S, anew=True)
        if self._group_id is not None:
            self._member = join(self._client, self._group_id, names)
        else:
            self.assign(
                (name, info.partition) for name in names for info in self._client.topic(name).partitions
            )

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, as (topic, number), without group assignment."""
        if self._member is not None:
            raise ClientError(
                "the group assigns the partitions of this consumer; assign() needs one without group_id."
            )
        self._take_assignment(partitions)

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions being read."""
        return self._assigned

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue at this offset of an assigned partition, or at `EARLIEST` or `LATEST`."""
        if partition not in self._assigned:
            raise ValueError(f"{partition[0]}/{partition[1]} is not assigned to this consumer")
        if offset < 0:
            found = list_offsets(self._client, {partition: offset}, isolation=self._isolation)
            offset = found[partition].offset
        self._positions[partition] = self._fetch_from[partition] = offset
        self._ready = deque(fetched for fetched in self._ready if fetched.partition != partition)

    def position(self, partition: Partition) -> int:
        """Return the offset of the next record to be returned from a partition."""
        self._find_positions(stable_within_s=self._client.timeout_s)
        return self._positions[partition]

    def positions(self) -> dict[Partition, int]:
        """Return the offset after the last returned record, for every partition with a known start."""
        return dict(self._positions)

    # ---- reading

    def read_to_end(self, timeout_s: float = 30.0) -> Iterator[ConsumedRecord]:
        """Iterate over the records up to the current ends; stop after `timeout_s` without a record."""
        deadline = time.monotonic() + timeout_s
        while not self._assigned and time.monotonic() < deadline:
            self._look_after_group()
            if not self._assigned:
                time.sleep(IDLE_PAUSE_S)
        wanted = dict.fromkeys(self._assigned, LATEST)
        ends = list_offsets(self._client, wanted, isolation=self._isolation)
        self._find_positions(stable_within_s=timeout_s)
        while self._is_before(ends):
            self._look_after_group()
            records = self._hand_out(1)
            # `_hand_out` may just have moved the positions past markers, which are all that was left.
            if not records and self._is_before(ends):
                self._fetch(0.5)
            for record in records:
                deadline = time.monotonic() + timeout_s
                end = ends.get((record.topic, record.partition))
                if end is None or record.offset < end.offset:
                    yield record
            if time.monotonic() >= deadline:
                return

    def _is_before(self, ends: Mapping[Partition, OffsetAt]) -> bool:
        return any(
            self._positions.get(key, -1) < end.offset for key, end in ends.items() if key in self._assigned
        )

    # ---- offsets of the group

    def commit(self, offsets: Mapping[Partition, int | CommittedOffset] | None = None) -> None:
        """Commit these offsets, or everything that was returned. KafkaError if the membership was lost."""
        if self._group_id is None:
            raise ClientError("a consumer without group_id cannot commit.")
        if offsets is None:
            offsets = {
                key: position
                for key, position in self._positions.items()
                if self._committed.get(key) != position
            }
        try:
            commit_offsets(self._client, self._group_id, offsets, self._commit_as)
        except KafkaError as error:
            if error.code is not ErrorCode.STALE_MEMBER_EPOCH or self._member is None:
                raise
            # The epoch changed since the last heartbeat. The next one updates it, and offsets of partitions
            # that are still assigned can be committed.
            self._follow_group()
            offsets = {key: offset for key, offset in offsets.items() if key in self._assigned}
            commit_offsets(self._client, self._group_id, offsets, self._commit_as)
        for key, value in offsets.items():
            self._committed[key] = value.offset if isinstance(value, CommittedOffset) else value

    def committed(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        """Return the group's committed offsets of these partitions, or of the assigned ones."""
        if self._group_id is None:
            raise ClientError("a consumer without group_id has no committed offsets.")
        return fetch_offsets(
            self._client, self._group_id, self._assigned if partitions is None else partitions
        )

    def group_metadata(self) -> GroupMetadata:
        """Return the membership for `send_offsets`. It may change, so call this for every transaction."""
        if self._group_id is None:
            raise ClientError("a consumer without group_id has no offsets to commit.")
        return GroupMetadata(self._group_id, self._commit_as)

    @property
    def _commit_as(self) -> CommitAs:
        return self._member.commit_as if self._member is not None else NOBODY

    # ---- inside

    def _look_after_group(self) -> None:
        if self._auto_commit and time.monotonic() >= self._commit_at:
            self._commit_automatically()
        self._follow_group()

    def _follow_group(self) -> None:
        if self._member is None:
            return
        changed = self._member.poll(self._revoked)
        if changed is not None:
            self._take_assignment(changed)

    def _revoked(self, partitions: Collection[Partition]) -> None:
        if self._auto_commit:
            self._commit_automatically()
        for key in partitions:
            self._drop(key)

    def _commit_automatically(self) -> None:
        self._commit_at = time.monotonic() + self._commit_interval_s
        try:
            self.commit()
        except KafkaError as error:
            # Another member has the partitions now and will read these records again: at least once.
            if error.code not in LOST_MEMBERSHIP:
                raise

    def _take_assignment(self, partitions: Iterable[Partition]) -> None:
        assigned = frozenset(partitions)
        for key in self._assigned - assigned:
            self._drop(key)
        self._assigned = assigned

    def _drop(self, key: Partition) -> None:
        self._positions.pop(key, None)
        self._fetch_from.pop(key, None)
        self._committed.pop(key, None)
        self._ready = deque(fetched for fetched in self._ready if fetched.partition != key)

    def _hand_out(self, max_records: int) -> list[ConsumedRecord]:
        records: list[ConsumedRecord] = []
        while self._ready and len(records) < max_records:
            fetched = self._ready[0]
            while fetched.records and len(records) < max_records:
                record = fetched.records.popleft()
                records.append(record)
                self._positions[fetched.partition] = record.offset + 1
            if not fetched.records:
                self._positions[fetched.partition] = fetched.next_offset
                self._ready.popleft()
        return records

    def _fetch(self, max_wait_s: float) -> None:
        wait_s = min(max_wait_s, self._limits.max_wait_ms / 1000)
        if self._member is not None:
            wait_s = min(wait_s, self._member.due_in_s)
        try:
            self._begin_if_stable()
            if not self._fetch_from:
                time.sleep(min(wait_s or IDLE_PAUSE_S, IDLE_PAUSE_S))
                return
            limits = replace(self._limits, max_wait_ms=int(wait_s * 1000))
            found = fetch(self._client, self._fetch_from, self._isolation, limits)
        except (KafkaError, ClientError) as error:
            self._outage.tolerate(error, self._client.timeout_s)
            return
        problem = self._keep(found)
        if problem is None:
            self._outage.end()
        else:
            self._outage.tolerate(problem, self._client.timeout_s)

    def _keep(self, found: Iterable[Fetched]) -> KafkaError | None:
        problem = None
        for fetched in found:
            key = fetched.partition
            if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE and self._start is not Start.ERROR:
                del self._fetch_from[key], self._positions[key]
                self._begin({key})
            elif fetched.error is not ErrorCode.NONE:
                self._client.forget_topic(key[0])
                try:
                    check(fetched.error, f"{key[0]}/{key[1]} cannot be read at offset {fetched.offset}")
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    problem = error
            elif fetched.next_offset > fetched.offset:
                self._fetch_from[key] = fetched.next_offset
                self._ready.append(fetched)
        return problem

    def _begin_if_stable(self) -> None:
        """Find positions of new partitions; skip them while an open transaction may change their offsets."""
        try:
            self._find_positions()
        except KafkaError as error:
            if not is_unstable(error):
                raise

    def _find_positions(self, stable_within_s: float = 0.0) -> None:
        """Determine where to start in newly assigned partitions."""
        fresh = self._assigned - self._positions.keys()
        if not fresh:
            return
        if self._group_id is not None:
            found = fetch_offsets(self._client, self._group_id, fresh, stable_within_s=stable_within_s)
            for key, committed in found.items():
                self._positions[key] = self._fetch_from[key] = self._committed[key] = committed.offset
        self._begin(fresh - self._positions.keys())

    def _begin(self, keys: Collection[Partition]) -> None:
        if not keys:
            return
        if self._start is Start.ERROR:
            names = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(keys))
            check(ErrorCode.OFFSET_OUT_OF_RANGE, f"there is no committed offset for {names}")
        where = EARLIEST if self._start is Start.EARLIEST else LATEST
        found = list_offsets(self._client, dict.fromkeys(keys, where), isolation=self._isolation)
        for key, at in found.items():
            self._positions[key] = self._fetch_from[key] = at.offset
