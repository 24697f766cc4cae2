"""One partition on the wire, as readers of either isolation level see it, with its aborted transactions."""

from typing import Any

from semel.wire.errors import ErrorCode
from semel.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionData,
)
from semel.wire.records import decode_batch, iter_batches, read_marker
from support.clients.raw import RawClient

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class Log:
    """One partition, as readers of either isolation level see it."""

    def __init__(self, client: RawClient, topic: str, partition: int = 0) -> None:
        self.client = client
        self.topic = topic
        self.partition = partition

    def fetch(
        self, offset: int = 0, *, isolation: int = READ_COMMITTED, version: int = 11, **fields: Any
    ) -> PartitionData:
        answer = self.client.ask(self.request(offset, isolation=isolation, **fields), version)
        part = answer.responses[0].partitions[0]
        assert isinstance(part, PartitionData)
        return part

    def request(
        self, offset: int = 0, *, isolation: int = READ_COMMITTED, max_wait_ms: int = 0, min_bytes: int = 0
    ) -> FetchRequest:
        wanted = FetchPartition(partition=self.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            isolation_level=isolation,
            topics=[FetchTopic(topic=self.topic, partitions=[wanted])],
        )

    def values(self, *, isolation: int = READ_COMMITTED) -> list[bytes]:
        """Return the values that a client delivers, which drops the records of the aborted transactions."""
        return self.read(isolation=isolation)[0]

    def read(self, *, isolation: int = READ_COMMITTED) -> tuple[list[bytes], int]:
        """Return the values that a client delivers, and the offset after the last batch."""
        values: list[bytes] = []
        offset = 0
        while True:
            part = self.fetch(offset, isolation=isolation)
            assert part.error_code == ErrorCode.NONE, (ErrorCode(part.error_code), offset)
            data = bytes(part.records or b"")
            if not data:
                return values, offset
            delivered, offset = deliver(data, part.aborted_transactions)
            values += delivered

    def markers(self) -> list[tuple[int, int, bool]]:
        """Return offset, epoch and outcome of every marker."""
        found: list[tuple[int, int, bool]] = []
        offset = 0
        while data := bytes(self.fetch(offset).records or b""):
            for at, header in iter_batches(data):
                offset = header.last_offset + 1
                marker = read_marker(data, at) if header.is_control else None
                if marker is not None:
                    found.append((header.base_offset, header.producer_epoch, marker.commit))
        return found

    def list_offset(self, timestamp: int = -1, *, isolation: int = READ_COMMITTED) -> tuple[int, int, int]:
        """Ask ListOffsets; return error, offset and timestamp."""
        wanted = ListOffsetsPartition(partition_index=self.partition, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name=self.topic, partitions=[wanted])],
        )
        found = self.client.ask(request, 7).topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp

    # A READ_UNCOMMITTED fetch makes the broker flush and publish unsynced work, so these include it.

    @property
    def stable(self) -> int:
        return self.fetch(isolation=READ_UNCOMMITTED).last_stable_offset

    @property
    def end(self) -> int:
        return self.fetch(isolation=READ_UNCOMMITTED).high_watermark

    @property
    def is_settled(self) -> bool:
        """Whether no transaction is open in the partition."""
        part = self.fetch(isolation=READ_UNCOMMITTED)
        return part.last_stable_offset == part.high_watermark


def deliver(data: bytes, aborted: list[AbortedTransaction] | None) -> tuple[list[bytes], int]:
    """Return what a client makes of fetched bytes: the values, and the offset of the next fetch."""
    waiting = sorted(aborted or (), key=lambda each: each.first_offset)
    dropped: set[int] = set()
    values: list[bytes] = []
    offset = 0
    for at, header in iter_batches(data):
        offset = header.last_offset + 1
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropped.add(waiting.pop(0).producer_id)
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            values += [record.value or b"" for record in decode_batch(data, at)]
    return values, offset
