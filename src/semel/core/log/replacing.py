"""Replace batches with their compacted form: one decision, so one commit.

``compaction`` works on batches that it has read, and the log may change meanwhile. Appends do not matter,
because it only touches batches below the last stable offset. But the batches must still be those of the log,
so the log start and the number of replacements must be the same as when it read them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.core.configs import words
from semel.core.facts import BatchesReplaced, Put
from semel.core.types import (
    Buffer,
    Command,
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
