"""A ledger that several brokers share: what a database server does for them.

It is an independent model of PostgreSQL with Semel's functions. A commit checks the epoch and session of its
broker, the term, and the versions that it was decided on. Then it is flushed, unless it defers that, and
other brokers see it. Changes of the same entities or of the same broker's row wait for it.

The server may crash. Then unflushed commits, or a suffix of them, are lost; a commit that was being flushed
may have happened. All locks are released, and the term ends.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, NamedTuple

from semel.core import facts as f
from semel.core.entities import ABSENT, SHARDS, VERSIONED, versioned_by
from semel.core.types import (
    Buffer,
    Cluster,
    ClusterKey,
    Fact,
    Key,
    OffsetKey,
    PartitionKey,
    PendingKey,
    Value,
)
from semel.store.cluster.contract import Conflict, Shard, TermEnded, Versioned
from semel.store.contract import BatchLocation, StoreFenced
from simulation.ledger import SimulatedLedger
from simulation.virtual_time import VirtualLoop, sleep

SLOT_SHIFT: Final = 44
PRODUCER_SHIFT: Final = 40
SHARD_EPOCH: Final = 0


class Lost(Exception):
    """The connection to the server was lost, so the outcome of the request is unknown."""


class VersionedFold(SimulatedLedger):
    """The fold of commits, which also has the version of every entity."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[Key, int] = {}
        self._version = ABSENT
        self._given: set[int] = set()

    def fold_commit(self, facts: Sequence[Fact], locations: Sequence[BatchLocation], version: int) -> None:
        """Apply a commit, whose entities get this version."""
        self._version = version
        self.fold(facts, locations)

    def _put(self, key: Key, value: Value | None) -> None:
        super()._put(key, value)
        if type(key) is PendingKey or (type(key) in VERSIONED and value is not None):
            self.versions[key] = self._version
        else:
            self.versions.pop(key, None)

    def _ProducerIdAllocated(self, fact: f.ProducerIdAllocated) -> None:  # noqa: N802
        assert fact.producer_id not in self._given, "no producer id is given away twice"
        self._given.add(fact.producer_id)

    def _GroupDeleted(self, fact: f.GroupDeleted) -> None:  # noqa: N802
        super()._GroupDeleted(fact)
        self.versions.pop(PendingKey(fact.group_id), None)

    def _TopicDeleted(self, fact: f.TopicDeleted) -> None:  # noqa: N802
        groups = {key.group_id for kind, key in self.values if kind is OffsetKey}
        super()._TopicDeleted(fact)
        # Their committed offsets have changed.
        self.versions.update((PendingKey(each), self._version) for each in groups)


class Claim(NamedTuple):
    """The broker of a commit, the number of the commit, and the term in which it was decided."""

    broker_id: int
    epoch: int
    session: int
    sequence: int
    term: int


@dataclass(slots=True)
class Row:
    """The row of a broker."""

    broker_id: int
    slot: int
    life: int
    """The life of the broker that holds the row."""
    epoch: int = 1
    session: int = 0
    sequence: int = 0
    lease_until: float = 0.0
    next_producer_id: int = 0
    is_member: bool = False
    is_leaving: bool = False
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    internal: tuple[str, int] = ("", 0)


class Notice(NamedTuple):
    """A message that waits for a broker."""

    to_broker: int
    to_epoch: int
    body: bytes


class _Committed(NamedTuple):
    claim: Claim
    facts: Sequence[Fact]
    locations: Sequence[BatchLocation]
    version: int


class LedgerServer:
    """The server, with everything that brokers share. ``shared_membership`` changes the rows of brokers."""

    def __init__(self, loop: VirtualLoop, random: Random, flush_seconds_max: float) -> None:
        self.loop = loop
        self.random = random
        self.bytes: dict[int, bytes] = {}
        self.rows: dict[int, Row] = {}
        self.shards: list[Shard] = [Shard(None, SHARD_EPOCH)] * SHARDS
        self.notices: dict[int, Notice] = {}
        self.ledger = VersionedFold()
        self.crashes = 0
        self.is_away = False
        """Whether the server does not answer, because it has crashed."""
        self.answered: set[tuple[int, int]] = set()
        """The commits that were answered as durable, by broker and number. They must never be lost."""
        self._commits: list[_Committed] = []
        self._durable = 0
        self._flushing: list[_Committed] = []
        self._term: int | None = 1
        self._last_term = 1
        self._chunk = 0
        self._notice = 0
        self._locks: dict[Any, object] = {}
        """The holder of each lock: on an entity, or on the row of a broker (an int)."""
        self._unlocked: asyncio.Future[None] | None = None
        self._flush_seconds_max = flush_seconds_max

    # -- queries ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The clock of the cluster."""
        return self.loop.now

    def current_term(self) -> int:
        """Return the term. Begins the next one if a crash has ended the last."""
        if self._term is None:
            self._last_term += 1
            self._term = self._last_term
            self.flush()
        return self._term

    def is_term(self, term: int) -> bool:
        """Whether this is the current term."""
        return self._term == term

    def load(self, keys: Iterable[Key], broker_id: int) -> list[Versioned[Any]]:
        """Return entities and their versions."""
        values, versions = self.ledger.values, self.ledger.versions
        return [
            Versioned(self._cluster(broker_id), ABSENT)
            if type(key) is ClusterKey
            else Versioned(values.get((type(key), key)), versions.get(key, ABSENT))
            for key in keys
        ]

    def _cluster(self, broker_id: int) -> Cluster:
        stored: Any = self.ledger.values.get((ClusterKey, ClusterKey())) or Cluster()
        return Cluster(
            self.rows[broker_id].next_producer_id, stored.transaction_version, stored.features_epoch
        )

    def is_durable(self, versions: Iterable[int]) -> bool:
        """Whether what was written with these versions is flushed."""
        unsynced = {each.version for each in self._commits[self._durable :]}
        return unsynced.isdisjoint(versions)

    # -- locks --------------------------------------------------------------------------------------------

    async def lock(self, owner: object, keys: Iterable[Any]) -> None:
        """Wait until these locks are free, and take them. Raises Lost if the server crashes meanwhile."""
        wanted, crashes = tuple(keys), self.crashes
        while any(self._locks.get(key, owner) is not owner for key in wanted):
            if self._unlocked is None:
                self._unlocked = self.loop.create_future()
            await asyncio.shield(self._unlocked)
            if crashes != self.crashes:
                raise Lost
        self._locks.update(dict.fromkeys(wanted, owner))

    def unlock(self, owner: object) -> None:
        """Give up all locks of an owner."""
        self._locks = {key: each for key, each in self._locks.items() if each is not owner}
        self._wake()

    def holds(self, owner: object, keys: Iterable[Any]) -> bool:
        """Whether an owner still has the locks."""
        return all(self._locks.get(key) is owner for key in keys)

    def _wake(self) -> None:
        unlocked, self._unlocked = self._unlocked, None
        if unlocked is not None:
            unlocked.set_result(None)

    # -- commits ------------------------------------------------------------------------------------------

    async def commit(
        self,
        claim: Claim,
        facts: Sequence[Fact],
        batches: Sequence[Buffer],
        expected: Mapping[Key, int],
        owner: object,
        *,
        is_synced: bool,
    ) -> None:
        """Commit. If it raises Conflict, TermEnded or StoreFenced, nothing was written. May raise Lost."""
        written = {key for fact in facts for key in versioned_by(fact)}
        versioned = {key for key in (*expected, *written) if type(key) in VERSIONED}
        crashes = self.crashes
        # A broker that commits is not idle: give its locks a new owner, which the idle timeout does not know.
        given, owner = owner, object()
        self._locks = {key: owner if each is given else each for key, each in self._locks.items()}
        try:
            await self.lock(owner, versioned | self._also_changed(facts))
            self._check_versions(facts, expected)
            await self.lock(owner, (claim.broker_id,))
            self._check_claim(claim)
            committed = self._prepared(claim, facts, batches)
            if is_synced:
                self._flushing.append(committed)
                await sleep(self.random.uniform(0, self._flush_seconds_max))
                if crashes != self.crashes:
                    raise Lost
                self._flushing.remove(committed)
            self._happened(committed)
            if is_synced:
                self.flush()
        finally:
            if crashes == self.crashes:
                self.unlock(owner)

    def _also_changed(self, facts: Sequence[Fact]) -> set[Key]:
        """Entities that facts about topics change and do not name."""
        changed: set[Key] = set()
        for fact in facts:
            if isinstance(fact, f.TopicChanged | f.TopicDeleted):
                changed |= {
                    PartitionKey(fact.topic.topic_id, index) for index in range(fact.topic.partitions)
                }
            if isinstance(fact, f.TopicDeleted):
                changed |= {key for key in self.ledger.versions if type(key) is PendingKey}
        return changed

    def _check_versions(self, facts: Sequence[Fact], expected: Mapping[Key, int]) -> None:
        versions = self.ledger.versions
        moved = [
            key
            for key, version in expected.items()
            if type(key) in VERSIONED and versions.get(key, ABSENT) != version
        ]
        if moved:
            raise Conflict(moved)
        stored: Any = self.ledger.values.get((ClusterKey, ClusterKey())) or Cluster()
        for fact in facts:
            if type(fact) is f.FeatureChanged and fact.features_epoch <= stored.features_epoch:
                raise Conflict((ClusterKey(),))

    def _check_claim(self, claim: Claim) -> None:
        if self._term != claim.term:
            raise TermEnded
        row = self.rows[claim.broker_id]
        if row.epoch != claim.epoch or row.session != claim.session:
            raise StoreFenced("another process took the place of the broker")

    def _prepared(self, claim: Claim, facts: Sequence[Fact], batches: Sequence[Buffer]) -> _Committed:
        locations = []
        for batch in batches:
            self._chunk += 1
            self.bytes[self._chunk] = bytes(batch)
            locations.append(BatchLocation(self._chunk, 0, len(batch)))
        return _Committed(claim, tuple(facts), locations, self.version(claim))

    def version(self, claim: Claim) -> int:
        """The version of what a commit writes."""
        return self.rows[claim.broker_id].slot << SLOT_SHIFT | claim.sequence

    def _happened(self, committed: _Committed) -> None:
        self._commits.append(committed)
        self._apply(committed)

    def _apply(self, committed: _Committed) -> None:
        row = self.rows[committed.claim.broker_id]
        row.sequence = committed.claim.sequence
        for fact in committed.facts:
            if type(fact) is f.ProducerIdAllocated:
                row.next_producer_id = max(row.next_producer_id, fact.producer_id + 1)
        self.ledger.fold_commit(committed.facts, committed.locations, committed.version)

    def flush(self) -> None:
        """Make everything that was committed durable."""
        self._durable = len(self._commits)

    def crash(self) -> None:
        """Lose unflushed commits, or a suffix of them. Clients learn only that their connection is gone."""
        random = self.random
        if self._flushing and random.random() < 0.5:
            # The log is one stream: what was written before it is durable too.
            for committed in self._flushing[: random.randint(1, len(self._flushing))]:
                self._commits.append(committed)
        else:
            del self._commits[random.randint(self._durable, len(self._commits)) :]
        self.flush()
        self._flushing.clear()
        self._rebuild()
        self.crashes += 1
        self._term = None
        self._locks.clear()
        self._wake()

    def _rebuild(self) -> None:
        self.ledger = VersionedFold()
        for broker_id, row in self.rows.items():
            first = row.slot << PRODUCER_SHIFT
            self.rows[broker_id] = replace(row, sequence=0, next_producer_id=first)
        for committed in self._commits:
            self._apply(committed)

    def lost(self) -> list[str]:
        """Return a problem if a commit that was answered as durable is gone."""
        there = {(each.claim.broker_id, each.claim.sequence) for each in self._commits}
        gone = sorted(self.answered - there)
        return [f"commits that were answered are gone: {gone[:3]}"] if gone else []

    # -- rows of brokers ----------------------------------------------------------------------------------

    async def with_rows(self, owner: object, broker_ids: Iterable[int], work: Callable[[], Any]) -> Any:
        """Call `work` on the rows of brokers while none of them commits, and make the result durable."""
        crashes = self.crashes
        await self.lock(owner, broker_ids)
        try:
            result = work()
        finally:
            if crashes == self.crashes:
                self.unlock(owner)
        self.flush()
        return result

    def leave_notice(self, notice: Notice) -> int:
        """Keep a notice. Return its number."""
        self._notice += 1
        self.notices[self._notice] = notice
        return self._notice
