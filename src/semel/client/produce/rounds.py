"""A round of a producer: the first batch of every partition, sent to all brokers in parallel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.client.consume.offsets import Partition
from semel.client.net.connection import Pending
from semel.client.produce.batches import Batch, Outgoing

REQUEST_BYTES_MAX = 16 << 20

Heads: TypeAlias = Mapping[Partition, tuple[Outgoing, Batch]]


@dataclass(slots=True)
class Round:
    """Batches that were sent, and their outstanding answers."""

    heads: Heads = field(default_factory=dict)
    posted: list[tuple[list[Partition], Pending | None]] = field(default_factory=list)
    is_sent: bool = True  # False if a broker could not be reached

    @property
    def size_bytes(self) -> int:
        """The size of its batches, as the producer counts buffered bytes."""
        return sum(batch.size_bytes for _, batch in self.heads.values())

    @property
    def is_answered(self) -> bool:
        """Whether no batch of it has to be sent again."""
        return not any(batch.error for _, batch in self.heads.values() if not batch.deliveries[0].done)


def portions(keys: Sequence[Partition], heads: Heads) -> list[list[Partition]]:
    """Group partitions so that the batches of a group fit into one request."""
    found: list[list[Partition]] = []
    size_bytes = REQUEST_BYTES_MAX
    for key in keys:
        length = len(heads[key][1].data or b"")
        if size_bytes + length > REQUEST_BYTES_MAX:
            found.append([])
            size_bytes = 0
        found[-1].append(key)
        size_bytes += length
    return found
