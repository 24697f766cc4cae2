"""The state of a broker that shares its ledger: entities with versions, and decisions that can be undone.

Each loaded entity has the version under which it was loaded or committed. ``apply`` remembers what a fact
replaces until the tick is committed (``keep``) or found to conflict with another broker's commit (``undo``).
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from semel.core.entities import ABSENT, ENTITIES, VERSIONED, versioned_by
from semel.core.facts import (
    FeatureChanged,
    GroupDeleted,
    GroupGathered,
    Put,
    SessionChanged,
    ShareLocksChanged,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from semel.core.groups import GroupSession
from semel.core.shares.partition import Locks
from semel.core.state import BrokerState
from semel.core.types import (
    ClusterKey,
    Fact,
    GroupKey,
    Key,
    PartitionKey,
    ShareKey,
    TransactionKey,
    Value,
)

_MISSING: Final[Any] = object()  # Any: it stands for a value
_TOPICS: Final = (TopicCreated, TopicChanged, TopicDeleted)


def _is_deletion(fact: Fact) -> bool:
    """Whether the versions of the fact's entities end with them."""
    if type(fact) is Put:
        return fact.value is None and not ENTITIES[type(fact.key)].keeps_version
    return type(fact) is TopicDeleted or type(fact) is GroupDeleted


class SharedState(BrokerState):
    """Owned by the commit loop of a broker in a cluster."""

    def __init__(self, term: int = 0) -> None:
        super().__init__(term)
        self.versions: dict[Key, int] = {}
        self._replaced: dict[Key, Value] = {}
        """What the facts of this tick have replaced."""
        self._sessions_replaced: dict[str, GroupSession | None] = {}
        self._locks_replaced: dict[ShareKey, Locks | None] = {}
        self._emptied: list[Fact] = []
        """Facts of this tick that change many entities at once."""

    def is_current(self, key: Key) -> bool:
        """Whether the entity is loaded, with its version if it has one."""
        return key in self.tables[type(key)] and (type(key) not in VERSIONED or key in self.versions)

    def put_versioned(self, key: Key, value: Value | None, version: int) -> None:
        """Store a loaded entity."""
        self.put(key, value)
        if type(key) in VERSIONED:
            self.versions[key] = version

    def expected(self, reads: Iterable[Key], facts: Iterable[Fact]) -> dict[Key, int]:
        """The versions that the decisions of this tick are based on."""
        versions = self.versions
        expected = {key: versions[key] for key in reads if key in versions}
        for fact in facts:
            for key in versioned_by(fact):
                if key in versions:
                    expected[key] = versions[key]
                else:
                    # A group is deleted without reading its pending offsets.
                    assert type(fact) is GroupDeleted, f"{key} is written without having been read"
        return expected

    def apply(self, *facts: Fact) -> None:
        """Apply facts to the state, so that they can be undone."""
        for fact in facts:
            self._remember_before(fact)
            super().apply(fact)

    def _remember_before(self, fact: Fact) -> None:
        if type(fact) is Put:
            self._remember(fact.key)
            if type(fact.key) is ShareKey and fact.value is None:
                self._remember_locks(fact.key)
        elif type(fact) is SessionChanged:
            self._remember_session(fact.group_id)
        elif type(fact) is ShareLocksChanged:
            self._remember_locks(fact.key)
        elif type(fact) is GroupGathered:
            self._remember(fact.group.key)
        elif isinstance(fact, _TOPICS):
            self._emptied.append(fact)
        elif type(fact) is GroupDeleted:
            self._emptied.append(fact)
            self._remember(GroupKey(fact.group_id))
            self._remember_session(fact.group_id)
        elif type(fact) is FeatureChanged:
            self._remember(ClusterKey())
        # An allocated producer id stays allocated: an undone decision gets another one when it is made again.

    def _remember_session(self, group_id: str) -> None:
        self._sessions_replaced.setdefault(group_id, self.sessions.get(group_id))

    def _remember_locks(self, key: ShareKey) -> None:
        self._locks_replaced.setdefault(key, self.share_locks.get(key))

    def apply_committed(self, fact: Fact) -> None:
        """Apply a fact that another broker has committed."""
        super().apply(fact)

    def compare(self, keys: Iterable[Key], before: Iterable[int], version: int) -> tuple[set[Key], list[Key]]:
        """Compare the copies in memory with a commit of another broker.

        Return the entities whose copies it replaces, and those whose copies are of another version. Copies
        that have the version of the commit already are in neither. A copy of an entity that does not exist is
        never replaced, because the entity may have been deleted after the commit.
        """
        current: set[Key] = set()
        old: list[Key] = []
        for key, replaced in zip(keys, before, strict=True):
            mine = self.versions.get(key)
            if mine == replaced != ABSENT and self.is_current(key):
                current.add(key)
            elif mine != version:
                old.append(key)
        return current, old

    def _remember(self, key: Key) -> None:
        if key not in self._replaced:
            self._replaced[key] = self.tables[type(key)].get(key, _MISSING)

    def keep(self, facts: Iterable[Fact], version: int) -> None:
        """Note that the facts since the last call are committed; their entities get this version."""
        for fact in facts:
            is_gone = _is_deletion(fact)
            for key in versioned_by(fact):
                if is_gone:
                    self.versions.pop(key, None)
                else:
                    self.versions[key] = version
        for fact in self._emptied:
            self.forget_all(fact)
        self.begin_tick()

    def undo(self) -> None:
        """Restore what the facts of this tick have replaced, because they were not committed."""
        for key, before in self._replaced.items():
            if before is _MISSING:
                self.forget((key,))
            else:
                self.put(key, before)
        for group_id, session in self._sessions_replaced.items():
            if session is None:
                self.sessions.pop(group_id, None)
            else:
                self.sessions[group_id] = session
        for key, locks in self._locks_replaced.items():
            if locks is None:
                self.share_locks.pop(key, None)
            else:
                self.share_locks[key] = locks
        for fact in self._emptied:
            self.forget_all(fact)
        self.begin_tick()

    def begin_tick(self) -> None:
        """Begin a tick: earlier facts cannot be undone any more."""
        self._replaced.clear()
        self._sessions_replaced.clear()
        self._locks_replaced.clear()
        self._emptied.clear()

    def take_over(self, other: "SharedState") -> None:
        """Take over what stays valid in a new term: sessions with their groups, locks, connections."""
        self.latest_connections.update(other.latest_connections)
        self.latest_offset_connections.update(other.latest_offset_connections)
        self.groups.update(other.groups)
        self.sessions.update(other.sessions)
        self.share_locks.update(other.share_locks)
        self.versions.update((key, each) for key, each in other.versions.items() if type(key) is GroupKey)

    # -- forgetting ---------------------------------------------------------------------------------------

    def forget(self, keys: Iterable[Key]) -> None:
        """Unload entities; they are loaded again when a command needs them.

        A group loses its session: its members come back, as after a restart of the broker. A share-partition
        keeps its locks: they are checked against what is loaded.
        """
        for key in keys:
            self.tables[type(key)].pop(key, None)
            self.versions.pop(key, None)
            if type(key) is TransactionKey:
                self.ongoing.pop(key.transactional_id, None)
            elif type(key) is GroupKey:
                self.sessions.pop(key.group_id, None)

    def forget_all(self, fact: Fact) -> None:
        """Unload everything that a fact for all brokers, or a deleted group, may change."""
        if type(fact) is FeatureChanged:
            self.forget((ClusterKey(),))
            return
        if type(fact) is Put:
            self.forget((fact.key,))
            return
        if type(fact) is GroupDeleted:
            name = fact.group_id
            self.forget(
                [key for table in (self.offsets, self.pending) for key in table if key.group_id == name]
            )
            return
        assert isinstance(fact, _TOPICS)
        topic = fact.topic
        self.forget([topic.key])
        self.forget([PartitionKey(topic.topic_id, index) for index in range(topic.partitions)])
        if type(fact) is TopicDeleted:
            self.forget([key for key in self.producers if key.topic_id == topic.topic_id])
            self.forget([key for key in self.shares if key.topic_id == topic.topic_id])
            for share in [each for each in self.share_locks if each.topic_id == topic.topic_id]:
                del self.share_locks[share]
            self.forget([*self.offsets, *self.pending])

    def forget_unless(self, is_kept: Callable[[Key], bool]) -> None:
        """Unload every entity that is not kept, with the sessions and connections that belong to it."""
        for table in self.tables.values():
            self.forget([key for key in table if not is_kept(key)])
        for group_id in [each for each in self.sessions if not is_kept(GroupKey(each))]:
            del self.sessions[group_id]
        for share in [each for each in self.share_locks if not is_kept(each)]:
            del self.share_locks[share]
        for connections in (self.latest_connections, self.latest_offset_connections):
            for name in [each for each in connections if not is_kept(TransactionKey(each))]:
                del connections[name]

    def evict(self, entities_max: int) -> int:
        """Drop the oldest entities of every kind beyond the limit; return how many were dropped."""
        forgotten = super().evict(entities_max)
        if forgotten:
            self.versions = {
                key: each for key, each in self.versions.items() if key in self.tables[type(key)]
            }
        return forgotten
