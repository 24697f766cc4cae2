"""Helpers for tests of compaction: a broker with a compacted topic, writers with keys, readers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from semel.broker.broker import Broker
from semel.broker.reads.reads import FetchRange, FetchResult, Isolation
from semel.config import Settings
from semel.core.log.partition import Append, Appended, TransactionContext
from semel.core.topics import CreateTopic
from semel.core.types import ErrorCode, Partition, PartitionKey
from semel.wire.records import (
    Codec,
    Record,
    encode_batch,
    iter_batches,
    iter_records,
    read_header,
    read_marker,
)
from support.brokers.offline import Producer

EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
COMMITTED = Isolation.READ_COMMITTED
UNCOMMITTED = Isolation.READ_UNCOMMITTED


def keyed(*pairs: tuple[str | None, str | None], timestamp: int = 1_000, **fields: Any) -> bytes:
    """Build a batch of these keys and values."""
    encoded = [[None if each is None else each.encode() for each in pair] for pair in pairs]
    records = [Record(at, timestamp + at, key, value) for at, (key, value) in enumerate(encoded)]
    return encode_batch(records, **fields)


@asynccontextmanager
async def compacting(
    directory: Path | None = None, configs: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator["Table"]:
    """Run a broker with one topic that is compacted only on request."""
    given = {"semel_disk_reserve_bytes": 0, "log_cleaner_backoff_ms": 3_600_000, **settings}
    broker = await Broker.open(Settings(**given), directory)
    try:
        yield await Table.make(broker, EAGER | (configs or {}))
    finally:
        await broker.close()


class Table:
    """One partition of a compacted topic."""

    def __init__(self, broker: Broker, configs: dict[str, str]) -> None:
        self.broker = broker
        self.key = PartitionKey(b"table".ljust(16, b"."), 0)
        self.is_journal = configs.get("semel.visibility") == "journal"

    @classmethod
    async def make(cls, broker: Broker, configs: dict[str, str]) -> "Table":
        table = cls(broker, configs)
        await broker.ask(CreateTopic("table", table.key.topic_id, 1, configs))
        return table

    async def put(self, *pairs: tuple[str | None, str | None], **fields: Any) -> Appended:
        """Append one batch."""
        return await self.append(keyed(*pairs, **fields))

    async def append(self, data: bytes) -> Appended:
        answer = await self.broker.ask(Append(self.key, read_header(data), data))
        assert isinstance(answer, Appended)
        assert answer.error is ErrorCode.NONE
        return answer

    async def put_each(self, *pairs: tuple[str | None, str | None], **fields: Any) -> None:
        """Append one batch for each pair."""
        for pair in pairs:
            await self.put(pair, **fields)

    async def put_in(self, producer: Producer, *pairs: tuple[str | None, str | None]) -> None:
        """Append one batch in the open transaction of a producer."""
        sequence = producer.sequences.get(self.key, 0)
        data = keyed(
            *pairs,
            producer_id=producer.given.producer_id,
            producer_epoch=producer.given.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        answer = await self.broker.ask(
            Append(
                self.key,
                read_header(data),
                data,
                transaction_context=TransactionContext(producer.transactional_id, 2),
                is_journal=self.is_journal,
            )
        )
        assert answer.error is ErrorCode.NONE
        producer.sequences[self.key] = sequence + len(pairs)

    async def compact(self) -> None:
        await self.broker._housekeeping.compaction.compact()

    async def partition(self) -> Partition:
        found = await self.broker.reads.partition(self.key)
        assert found is not None
        return found

    async def fetch(self, offset: int = 0, isolation: Isolation = COMMITTED) -> FetchResult:
        (result,) = await self.broker.reads.fetch(
            [FetchRange(self.key, offset, 1 << 30, isolation)], 0, 1 << 30, 0
        )
        return result

    async def records(self, offset: int = 0, isolation: Isolation = COMMITTED) -> list[Record]:
        """Return what a consumer gets from an offset to the end of the log."""
        found: list[Record] = []
        while True:
            result = await self.fetch(offset, isolation)
            assert result.error is ErrorCode.NONE
            ends = [header.last_offset + 1 for _, header in iter_batches(b"".join(result.buffers))]
            if not ends:
                return found
            found += seen(result, offset)
            offset = ends[-1]

    async def pairs(self, isolation: Isolation = COMMITTED) -> list[tuple[int, str, str | None]]:
        """Return offset, key and value of every record in the log."""
        return [
            (each.offset, (each.key or b"").decode(), None if each.value is None else each.value.decode())
            for each in await self.records(isolation=isolation)
        ]

    async def markers(self) -> list[int]:
        """Return the offsets of the remaining markers."""
        data = b"".join((await self.fetch(isolation=UNCOMMITTED)).buffers)
        return [header.base_offset for _, header in iter_batches(data) if header.is_control]


def seen(result: FetchResult, offset: int) -> list[Record]:
    """Return the records of a response as a client delivers them: without aborted transactions."""
    data = b"".join(result.buffers)
    coming = sorted(result.aborted or (), key=lambda pair: pair[1])
    aborted: set[int] = set()
    records: list[Record] = []
    for at, header in iter_batches(data):
        while coming and coming[0][1] <= header.last_offset:
            aborted.add(coming.pop(0)[0])
        if header.is_control:
            marker = read_marker(data, at)
            if marker is not None and not marker.commit:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            records += [each for each in iter_records(data, at) if each.offset >= offset]
    return records


CODECS = list(Codec)


def before_first(call: Callable[..., Awaitable[Any]], act: Callable[[], Awaitable[None]]) -> Any:
    """Wrap the call, so that `act` runs before the first call."""
    is_first = True

    async def called(*args: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            await act()
        return await call(*args)

    return called
