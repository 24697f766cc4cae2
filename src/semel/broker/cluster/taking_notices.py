"""Applies the notices of other brokers to the copies in memory and to what readers see.

A fact replaces a copy only if the copy has the version before the commit. Other copies are older or newer,
and are loaded again when they are needed.
"""

from semel.broker.cluster.notice import Notice, batches_of, is_for_all
from semel.broker.cluster.state import SharedState
from semel.broker.commit.unsynced_work import UnsyncedWork
from semel.broker.reads.published_log import Publisher, partitions_of
from semel.core.facts import Put, TopicDeleted
from semel.core.placement import entity_of
from semel.core.types import OffsetKey, PartitionKey, ShareKey


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
        elif type(fact) is Put and type(fact.key) is OffsetKey:
            # Committed offsets have no version of their own.
            state.forget((fact.key,))
        elif type(fact) is Put and type(fact.key) is ShareKey:
            # Not published here, but waiting fetches find the change in the ledger.
            publisher.share_waits.wake(fact.key)
    state.keep(published, notice.version)
    state.forget(old)
    partitions = {key for key in current if type(key) is PartitionKey}
    # Unsynced work of this broker on them is durable too: the other broker's commit came later.
    earlier, their_batches = unsynced.take_partitions(partitions)
    if published:
        publisher.publish([*earlier, *published], [*their_batches, *batches])
    # Also those whose copy was loaded after the commit: readers may still see an older value.
    dropped = [key for key in notice.keys if type(key) is PartitionKey and key not in current]
    unsynced.take_partitions(dropped)
    publisher.drop(dropped)
