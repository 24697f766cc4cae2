"""Encode the versions that a commit was decided on, for the database's functions (``versions.sql``).

All brokers take locks in the same order, so that deadlocks are rare. An entity that does not exist has no row
to lock: a commit that adds it, or relies on its absence, locks its shard.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from semel.core.entities import SHARDS, name_shard
from semel.core.facts import TopicChanged, TopicDeleted
from semel.core.placement import ABSENT, VERSIONED, shard_of, versioned_by
from semel.core.types import (
    Fact,
    GroupKey,
    Key,
    PartitionKey,
    PendingKey,
    ProducerKey,
    ShareKey,
    TopicKey,
    TransactionKey,
)
from semel.store.cluster.postgres.texts import stored

SLOT_SHIFT: Final = 44
"""A version is the slot of the broker that wrote it, shifted by this many bits, and the commit's number."""
_KINDS: Final = (TopicKey, PartitionKey, ProducerKey, TransactionKey, GroupKey, PendingKey, ShareKey)
assert set(_KINDS) == VERSIONED
_ALL_SHARDS: Final = list(range(SHARDS))
_UNNAMED: Final = (TopicChanged, TopicDeleted)
"""Facts that add or remove entities which they do not name: partitions, versions of groups."""


class Expectations:
    """What one commit expects, or one load locks."""

    def __init__(self, expected: Mapping[Key, int], written: Collection[Key], *, locks_all: bool) -> None:
        by_kind: dict[type, list[tuple[Any, Key]]] = {kind: [] for kind in _KINDS}
        unknown = [key for key in written if key not in expected]
        for key, version in expected.items():
            if type(key) in VERSIONED:
                by_kind[type(key)].append(((*_stored(key), version), key))
                if version == ABSENT:
                    unknown.append(key)
        for some in by_kind.values():
            some.sort(key=_row)
        self._keys = [[key for _, key in some] for some in by_kind.values()]
        rows = [[row for row, _ in some] for some in by_kind.values()]
        kinds = {type(key) for key in written}
        *earlier, shares = rows
        self.argument: Final = (
            *earlier,
            [sum(row[-1] != ABSENT for row in some) for some in rows],
            [kind in kinds for kind in _KINDS],
            _ALL_SHARDS if locks_all else sorted({_shard(key) for key in unknown}),
            shares,
        )
        """A value of the SQL type ``expectations``."""
        self.are_none: Final = not any(rows) and not self.argument[-2]
        """Whether nothing has to be checked or locked."""

    @classmethod
    def of_commit(cls, facts: Sequence[Fact], expected: Mapping[Key, int]) -> "Expectations":
        """Return what a commit of these facts expects."""
        written = {key for fact in facts for key in versioned_by(fact)}
        return cls(expected, written, locks_all=any(isinstance(fact, _UNNAMED) for fact in facts))

    @classmethod
    def of_locks(cls, keys: Iterable[Key]) -> "Expectations":
        """Return what locks these entities, whether or not they exist."""
        wanted = {key: ABSENT for key in keys if type(key) in VERSIONED}
        return cls(wanted, wanted, locks_all=False)

    def moved(self, detail: str) -> list[Key]:
        """Return the entities that have moved, from the detail of the database's error."""
        return [self._keys[kind][position] for kind, position in json.loads(detail)]


def _row(pair: tuple[Any, Key]) -> Any:
    return pair[0]


def _stored(key: Any) -> tuple[Any, ...]:
    values: tuple[Any, ...] = key.values()
    if isinstance(key, ShareKey):
        return key.topic_id, key.index, stored(key.group_id)
    # The keys of partitions and producers have no text.
    return (stored(values[0]),) if len(values) == 1 else values


def _shard(key: Key) -> int:
    shard = shard_of(key)
    return name_shard(key.name) if shard is None and isinstance(key, TopicKey) else shard or 0
