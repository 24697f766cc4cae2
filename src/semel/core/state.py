"""BrokerState: the loaded entities, ``decide`` and ``apply``.

A command names the entities it reads (``command.keys()``). The broker loads the ``missing`` ones and calls
``decide``, which reads the state and changes nothing. The facts of the decision go to ``apply``, the only way
in which state changes. The commit loop, a replay and a simulator use the same three calls, and none of them
blocks.

An entity that does not exist is loaded as ``None``: "known to be absent" and "not loaded" are different.

Memory is bounded: ``evict`` drops the entities that were loaded longest ago. This is safe between two ticks,
because the ledger holds the same values. Groups with a live session are kept. So are open transactions and
share-partitions with acquired records: their deadlines are checked in memory, and their number is bounded by
what clients keep open.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from semel.core import dynamic_configs, groups, topics, transactions, types
from semel.core.entities import ENTITIES
from semel.core.facts import Put
from semel.core.groups import offsets
from semel.core.log import partition
from semel.core.security import policies
from semel.core.shares import rules as shares
from semel.core.shares.partition import Locks, SharePartition

_RULES = (topics, partition, offsets, groups, transactions, policies, dynamic_configs, shares)
DECIDE: dict[type, types.Decide] = {command: rule for each in _RULES for command, rule in each.DECIDE.items()}
_CHANGES = (topics, partition, groups, transactions, shares)
APPLY: dict[type, types.Apply | None] = {
    fact: change for each in _CHANGES for fact, change in each.APPLY.items()
}
# Any here and below: each table has the keys and values of its kind.
_NONE_KEPT: Final[tuple[dict[Any, Any], Callable[[Any], Any]]] = ({}, str)


class BrokerState:
    """The loaded entities. Owned by the commit loop."""

    def __init__(self, term: int = 0, migration: groups.Migration = groups.Migration()) -> None:  # noqa: B008
        self.term: Final = term
        # Which changes of a group's protocol are allowed.
        self.migration = migration
        # The time of day minus the steady clock (``now``) in this tick. It changes if the clock is set or the
        # machine is suspended.
        self.clock_lag_ms = 0
        self.tables: Final[dict[type, dict[Any, Any]]] = {kind: {} for kind in ENTITIES}
        self.topics: dict[types.TopicKey, types.Topic | None] = self.tables[types.TopicKey]
        self.partitions: dict[types.PartitionKey, types.Partition | None] = self.tables[types.PartitionKey]
        self.producers: dict[types.ProducerKey, types.ProducerState | None] = self.tables[types.ProducerKey]
        self.offsets: dict[types.OffsetKey, types.CommittedOffset | None] = self.tables[types.OffsetKey]
        self.groups: dict[types.GroupKey, groups.Group | None] = self.tables[types.GroupKey]
        self.pending: dict[types.PendingKey, tuple[types.PendingOffset, ...] | None] = self.tables[
            types.PendingKey
        ]
        self.transactions: dict[types.TransactionKey, types.Transaction | None] = self.tables[
            types.TransactionKey
        ]
        self.cluster: dict[types.ClusterKey, types.Cluster | None] = self.tables[types.ClusterKey]
        self.policies: dict[types.PolicyKey, str | None] = self.tables[types.PolicyKey]
        self.shares: dict[types.ShareKey, SharePartition | None] = self.tables[types.ShareKey]
        # Not entities: volatile state, see SessionChanged.
        self.sessions: dict[str, groups.GroupSession] = {}
        # The records that members of share groups hold, see ShareLocksChanged.
        self.share_locks: dict[types.ShareKey, Locks] = {}
        # The deadline of every open transaction (-1: none).
        self.ongoing: dict[str, int] = {}
        # The latest connection of each transactional id, see LatestConnectionChanged.
        self.latest_connections: dict[str, int] = {}
        self.latest_offset_connections: dict[str, int] = {}
        self._bounded: Final = (
            *self.tables.values(),
            self.latest_connections,
            self.latest_offset_connections,
        )
        # The tables whose entities are not evicted, and how an entity's key becomes a key of that table.
        self._kept: Final[dict[type, tuple[dict[Any, Any], Callable[[Any], Any]]]] = {
            types.GroupKey: (self.sessions, attrgetter("group_id")),
            types.TransactionKey: (self.ongoing, attrgetter("transactional_id")),
            types.ShareKey: (self.share_locks, lambda key: key),
        }

    def missing(self, keys: Iterable[types.Key]) -> list[types.Key]:
        """Return the keys that are not loaded."""
        tables = self.tables
        return [key for key in keys if key not in tables[type(key)]]

    def put(self, key: types.Key, value: types.Value | None) -> None:
        """Store a loaded entity."""
        self.tables[type(key)][key] = value
        if type(key) is types.TransactionKey:
            if isinstance(value, types.Transaction) and value.state is types.TransactionState.ONGOING:
                self.ongoing[key.transactional_id] = value.deadline_ms
            else:
                self.ongoing.pop(key.transactional_id, None)

    def time_of_day(self, now: int) -> int:
        """Return the time for records and for everything kept for days; ``now`` is for timeouts."""
        return now + self.clock_lag_ms

    def decide(self, command: types.AnyCommand, now: int) -> types.Decision:
        """Decide a command. Reads the state and changes nothing."""
        return DECIDE[type(command)](self, command, now)

    def apply(self, *facts: types.Fact) -> None:
        """Apply facts to the state."""
        for fact in facts:
            if type(fact) is Put:
                self.put(fact.key, fact.value)
                if fact.value is None:
                    self._forget_volatile(fact.key)
                continue
            change = APPLY[type(fact)]
            if change is not None:
                change(self, fact)

    def _forget_volatile(self, key: types.Key) -> None:
        """Drop what is in memory only about an entity that is gone."""
        if type(key) is types.ShareKey:
            self.share_locks.pop(key, None)
        elif type(key) is types.TransactionKey:
            self.latest_connections.pop(key.transactional_id, None)
            self.latest_offset_connections.pop(key.transactional_id, None)

    @property
    def size(self) -> int:
        """How many entities are in memory."""
        return sum(map(len, self.tables.values()))

    def evict(self, entities_max: int) -> int:
        """Drop the oldest entities of every kind beyond the limit; return how many were dropped."""
        if max(map(len, self._bounded)) <= entities_max:
            return 0
        forgotten = 0
        for kind, table in self.tables.items():
            if len(table) <= entities_max:
                continue
            kept, name_of = self._kept.get(kind, _NONE_KEPT)
            eighth = entities_max // 8
            # However many entities are kept, an eighth of the limit remains for the others.
            excess = len(table) - len(kept) - max(entities_max - len(kept), eighth)
            if excess <= 0:
                continue
            # Drop an eighth more than needed, so that a full table is not trimmed at every tick.
            oldest = (key for key in table if not kept or name_of(key) not in kept)
            for key in list(islice(oldest, excess + eighth)):
                del table[key]
                forgotten += 1
        for latest_connections in (self.latest_connections, self.latest_offset_connections):
            excess = len(latest_connections) - max(entities_max, len(self.ongoing))
            if excess > 0:
                # While a transaction is open, delayed requests on an older connection must be recognised.
                silent = (each for each in latest_connections if each not in self.ongoing)
                for transactional_id in list(islice(silent, excess + entities_max // 8)):
                    del latest_connections[transactional_id]
        return forgotten
