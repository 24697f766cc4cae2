"""A notice: facts of a commit about entities that another broker owns.

It carries the versions of those entities before and after the commit. So the owner sees whether its own copy
is the one that the facts replace.

A notice is applied to the copies in memory and to what readers see (``take_notice``). A fact replaces a copy
only if the copy has the version before the commit. Other copies are older or newer, and are loaded again when
they are needed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import DecodeError, msgpack

from semel.broker.cluster.state import SharedState
from semel.broker.commit.tick import Tick
from semel.broker.commit.unsynced_work import UnsyncedWork
from semel.broker.reads.published_log import Publisher, partitions_of
from semel.broker.reads.tail import BATCH_BYTES_MAX
from semel.core import dynamic_configs, topics, types
from semel.core.data import Data
from semel.core.entities import ENTITIES, entity_of, shard_of, versioned_by
from semel.core.facts import (
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    FeatureChanged,
    Put,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from semel.core.security import policies
from semel.core.security.policies import ConfirmPolicies, PutSecret
from semel.core.topics import CreateTopic
from semel.store.fact_codec import FORMAT, pack_facts, unpack_facts

UNKNOWN: Final = -1
"""The version before, if the broker that committed did not know it."""

Recipient: TypeAlias = int | None
"""A shard, whose owner gets the notice, or None for all brokers."""


class Notice(Data):
    """Facts that one broker sends to another after a commit."""

    facts: tuple[types.Fact, ...]
    batches: tuple[bytes | None, ...]
    """The bytes of each batch of the facts; None if the recipient reads them from the store instead."""
    version: int
    before: tuple[int, ...]
    """The earlier version of each entity in ``keys``."""
    confirms: bool = False
    """Whether the recipient must look up all topics and policies: earlier notices may still be in flight."""

    @property
    def keys(self) -> list[types.Key]:
        """The entities that got the new version, in the order of the facts."""
        return keys_of(self.facts)


Notices: TypeAlias = dict[Recipient, Notice]


class _Packed(Data):
    format: int
    facts: bytes
    batches: tuple[bytes | None, ...]
    version: int
    before: tuple[int, ...]
    confirms: bool = False


def keys_of(facts: Iterable[types.Fact]) -> list[types.Key]:
    """Return the entities that get a new version by these facts, each once."""
    return list(dict.fromkeys(key for fact in facts for key in versioned_by(fact)))


def is_for_all(fact: types.Fact) -> bool:
    """Whether every broker needs the fact."""
    if type(fact) is Put:
        return ENTITIES[type(fact.key)].shard is None
    return type(fact) in _FOR_ALL


def batches_of(fact: types.Fact) -> int:
    """Return how many batches travel beside a fact."""
    if isinstance(fact, BatchAppended | BatchStaged):
        return 1
    return len(fact.rewritten) if isinstance(fact, BatchesReplaced) else 0


def is_awaited(fact: types.Fact) -> bool:
    """Whether clients are answered only when the owner of the entity has the notice.

    False for an open transaction, to which a write has added a partition: its coordinator finds that out when
    it needs to know.
    """
    value = fact.value if type(fact) is Put else None
    return not (isinstance(value, types.Transaction) and value.state is types.TransactionState.ONGOING)


def outgoing(
    tick: Tick, version: int, before: Mapping[types.Key, int], owns: Callable[[types.Key | None], bool]
) -> tuple[Notices, Notices]:
    """Return the notices of a committed tick: those that its answers wait for, and the others."""
    parts: tuple[dict[Recipient, tuple[list[types.Fact], list[bytes | None]]], ...] = ({}, {})
    nth = iter(tick.batches)
    for fact in tick.durable:
        batches = [next(nth) for _ in range(batches_of(fact))]
        key = entity_of(fact)
        if is_for_all(fact):
            recipient = None
        elif key is None or owns(key):
            continue
        else:
            recipient = shard_of(key)
        facts, kept = parts[not is_awaited(fact)].setdefault(recipient, ([], []))
        facts.append(fact)
        kept += [_kept(fact, each) for each in batches]
    awaited, others = (
        {
            recipient: Notice(
                tuple(facts),
                tuple(kept),
                version,
                tuple(before.get(key, UNKNOWN) for key in keys_of(facts)),
            )
            for recipient, (facts, kept) in part.items()
        }
        for part in parts
    )
    return awaited, others


def is_confirming(tick: Tick) -> bool:
    """Whether the tick confirms to an administrator that there is nothing to change.

    Another broker may have made the change a moment ago without answering, and its notices may not have
    arrived everywhere. A topic that exists already needs no notice: brokers look up topics that they do not
    know. Nor does a secret, which never changes.
    """
    commands = [
        command
        for each in tick.pending
        for command in each.commands
        if type(command) in _CONFIRMED and not getattr(command, "validate_only", False)
    ]
    if not commands:
        return False
    changed = {entity_of(fact) for fact in tick.durable}
    return any(
        type(command) is ConfirmPolicies or not changed.issuperset(command.keys()) for command in commands
    )


def confirming(notices: Notices) -> Notices:
    """Return the notices with one for all brokers, which makes them look up all topics and policies."""
    for_all = notices.get(None) or Notice((), (), 0, ())
    return notices | {None: for_all.but(confirms=True)}


_FOR_ALL: Final = frozenset({TopicCreated, TopicChanged, TopicDeleted, FeatureChanged})
_CONFIRMED: Final = frozenset(
    {*policies.DECIDE, *dynamic_configs.DECIDE, *topics.DECIDE} - {CreateTopic, PutSecret}
)


def revealing(tick: Tick, notices: Notices) -> list[types.Key]:
    """Return the entities that reveal a committed tick: ticks that read them are answered after its notices.

    A client that repeats the end of a transaction reads only the transaction, which this broker may own.
    """
    ended = [key for key in keys_of(tick.durable) if type(key) is types.TransactionKey]
    return [*ended, *(key for notice in notices.values() for key in notice.keys)]


def _kept(fact: types.Fact, batch: types.Buffer) -> bytes | None:
    """The bytes to send. The owner keeps only appended batches in memory, and only small ones."""
    return bytes(batch) if type(fact) is BatchAppended and len(batch) <= BATCH_BYTES_MAX else None


def pack_notice(notice: Notice) -> bytes:
    """Encode a notice for another broker."""
    facts = pack_facts(notice.facts, ())
    packed = _Packed(FORMAT, facts, notice.batches, notice.version, notice.before, notice.confirms)
    return _ENCODER.encode(packed)


def unpack_notice(data: bytes) -> Notice:
    """Decode a notice. Raises ValueError if it is malformed or comes from another version of Semel."""
    try:
        packed = _DECODER.decode(data)
    except DecodeError as error:
        raise ValueError(f"not a notice: {error}") from error
    if packed.format != FORMAT:
        raise ValueError("the notice comes from another version of Semel")
    facts, _ = unpack_facts(packed.facts)
    notice = Notice(tuple(facts), packed.batches, packed.version, packed.before, packed.confirms)
    if len(notice.keys) != len(packed.before):
        raise ValueError("the notice has not one version for each entity")
    return notice


_ENCODER: Final = msgpack.Encoder()
_DECODER: Final = msgpack.Decoder(_Packed)


def take_notice(notice: Notice, state: SharedState, unsynced: UnsyncedWork, publisher: Publisher) -> None:
    """Apply a notice, between two ticks."""
    if notice.confirms:
        publisher.suspect_all()
    current, old = state.compare(notice.keys, notice.before, notice.version)
    published, batches = [], []
    nth = iter(notice.batches)
    for fact in notice.facts:
        mine = [next(nth) for _ in range(batches_of(fact))]
        if is_for_all(fact):
            publisher.learn(fact)
            state.forget_all(fact)
            if type(fact) is TopicDeleted:
                unsynced.take_partitions(partitions_of(fact.topic))
        elif entity_of(fact) in current:
            state.apply_committed(fact)
            published.append(fact)
            batches += mine
        elif type(fact) is Put and type(fact.key) is types.OffsetKey:
            # Committed offsets have no version of their own.
            state.forget((fact.key,))
        elif type(fact) is Put and type(fact.key) is types.ShareKey:
            # Not published here, but waiting fetches find the change in the ledger.
            publisher.share_waits.wake(fact.key)
    state.keep(published, notice.version)
    state.forget(old)
    partitions = {key for key in current if type(key) is types.PartitionKey}
    # Unsynced work of this broker on them is durable too: the other broker's commit came later.
    earlier, their_batches = unsynced.take_partitions(partitions)
    if published:
        publisher.publish([*earlier, *published], [*their_batches, *batches])
    # Also those whose copy was loaded after the commit: readers may still see an older value.
    dropped = [key for key in notice.keys if type(key) is types.PartitionKey and key not in current]
    unsynced.take_partitions(dropped)
    publisher.drop(dropped)
