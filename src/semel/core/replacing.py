"""Swapping batches for what compaction leaves of them: one decision, so one commit.

``compaction`` says what stays. It works on what it read, and the log lives on meanwhile. Appends do not
matter to it, because it only touches what lies below the last stable offset. What does matter is that the
batches it read are still those of the log: so the start of the log, and the number of swaps so far, must be
those it saw.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from semel.core.data import Data
from semel.core.facts import BatchesReplaced
from semel.core.topic_configs import value_of, words
from semel.core.types import (
    Buffer,
    Decide,
    Decision,
    Key,
    PartitionKey,
    Rewritten,
    Topic,
    TopicKey,
)

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class ReplaceBatches(Data):
    """Put rewritten batches in the place of others, and take some away. The answer says if it was done.

    It is not if the log start moved, or if batches were replaced, since the asker looked; or if the partition
    is gone, or its topic is not compacted any more. With nothing to replace it only notes how far compaction
    has come.
    """

    partition: PartitionKey
    log_start_seen: int
    compactions_seen: int
    rewritten: tuple[Rewritten, ...]
    records: tuple[Buffer, ...]
    """The bytes of those that are rewritten, in the same order."""
    removed: tuple[int, ...]
    """The base offsets of the batches that go."""
    freed_bytes: int
    """What all of these took before."""
    cleaned_offset: int
    """How far compaction has come."""
    topic: str
    """The name of the partition's topic."""

    def keys(self) -> Iterable[Key]:
        """The partition, and the topic that says whether it is compacted."""
        return (self.partition, TopicKey(self.topic))


def _replace_batches(state: "BrokerState", command: ReplaceBatches, now: int) -> Decision:
    partition = state.partitions[command.partition]
    topic = state.topics[TopicKey(command.topic)]
    if partition is None or topic is None or not _is_compacted(topic, command.partition):
        return Decision(False)
    seen = (command.log_start_seen, command.compactions_seen)
    if seen != (partition.log_start_offset, partition.compactions):
        return Decision(False)
    assert command.cleaned_offset <= partition.last_stable_offset, "what is not stable is not compacted"
    added = sum(batch.size_bytes for batch in command.rewritten)
    fact = BatchesReplaced(
        command.partition,
        command.rewritten,
        command.removed,
        partition.size_bytes - command.freed_bytes + added,
        max(command.cleaned_offset, partition.cleaned_offset),
        partition.compactions + 1,
    )
    return Decision(True, (fact,), command.records)


def _is_compacted(topic: Topic, partition: PartitionKey) -> bool:
    # A topic of the same name may be another one by now.
    policy = value_of("cleanup.policy", topic.configs, {})
    return topic.topic_id == partition.topic_id and "compact" in words(policy)


DECIDE: dict[type[Any], Decide] = {ReplaceBatches: _replace_batches}
