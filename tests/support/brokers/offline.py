"""Helpers for tests of a whole broker without a network: transactional producers, readers, and time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from semel.broker.broker import Broker
from semel.broker.reads.reads import FetchRange, FetchResult, Isolation
from semel.config import Settings
from semel.core.log.partition import Append, Appended, TransactionContext
from semel.core.topics import CreateTopic
from semel.core.transactions.commands import DescribeTransaction, EndTransaction, InitProducer, ProducerGiven
from semel.core.types import ErrorCode, PartitionKey, Transaction
from semel.wire.records import Record, encode_batch, read_header

MARKED = b"marker visibility"[:16]
STAGED = b"journal visibility"[:16]
M0 = PartitionKey(MARKED, 0)
J0 = PartitionKey(STAGED, 0)
COMMITTED = Isolation.READ_COMMITTED
UNCOMMITTED = Isolation.READ_UNCOMMITTED


def batch(producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    return encode_batch(
        [Record(0, 1_000, None, b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=producer_id >= 0,
    )


class Producer:
    """A transactional producer of version 2, without a network."""

    def __init__(self, broker: Broker, transactional_id: str, connection: int = 1) -> None:
        self.broker = broker
        self.transactional_id = transactional_id
        self.connection = connection
        self.sequences: dict[PartitionKey, int] = {}

    async def init(self, timeout_ms: int = 60_000) -> "Producer":
        self.given = await self.broker.ask(
            InitProducer(self.transactional_id, timeout_ms, connection=self.connection)
        )
        assert isinstance(self.given, ProducerGiven)
        assert self.given.error is ErrorCode.NONE
        self.sequences.clear()
        return self

    async def send(self, key: PartitionKey = M0) -> Appended:
        sequence = self.sequences.get(key, 0)
        data = batch(self.given.producer_id, self.given.epoch, sequence)
        answer = await self.broker.ask(
            Append(
                key,
                read_header(data),
                data,
                transaction_context=TransactionContext(self.transactional_id, 2),
                is_journal=key is J0,
            )
        )
        assert isinstance(answer, Appended)
        if answer.error is ErrorCode.NONE:
            self.sequences[key] = sequence + 1
        return answer

    async def end(self, *, is_commit: bool) -> ErrorCode:
        given = await self.broker.ask(
            EndTransaction(
                self.transactional_id,
                self.given.producer_id,
                self.given.epoch,
                is_commit,
                version=2,
                connection=self.connection,
            )
        )
        assert isinstance(given, ProducerGiven)
        if given.error is ErrorCode.NONE:
            self.given = given
            self.sequences.clear()
        return given.error


@asynccontextmanager
async def running(directory: Path | None = None, **settings: Any) -> AsyncIterator[Broker]:
    """A broker with the topics ``marked`` and ``staged``."""
    broker = await Broker.open(Settings(**settings), directory)
    try:
        await make_topics(broker)
        yield broker
    finally:
        await broker.close()


async def make_topics(broker: Broker) -> None:
    await broker.submit(
        [
            CreateTopic("marked", MARKED, 2, {}),
            CreateTopic("staged", STAGED, 2, {"semel.visibility": "journal"}),
        ]
    )


async def plain(broker: Broker, key: PartitionKey = M0) -> Appended:
    data = batch()
    answer = await broker.ask(Append(key, read_header(data), data))
    assert isinstance(answer, Appended)
    return answer


async def fetch(
    broker: Broker, key: PartitionKey = M0, offset: int = 0, isolation: Isolation = COMMITTED
) -> FetchResult:
    (result,) = await broker.reads.fetch([FetchRange(key, offset, 1 << 30, isolation)], 0, 1 << 30, 0)
    return result


def later(broker: Broker, ms: int) -> None:
    """Advance both clocks of the broker."""
    clock = broker.clock
    steady, time_of_day = clock._steady, clock._time_of_day
    clock._steady = lambda: steady() + ms / 1000
    clock._time_of_day = lambda: time_of_day() + ms / 1000


async def describe(broker: Broker, transactional_id: str) -> Transaction | None:
    found = await broker.ask(DescribeTransaction(transactional_id))
    assert found is None or isinstance(found, Transaction)
    return found


def counted(broker: Broker) -> dict[tuple[str, str], int]:
    return dict(broker.metrics.transactions.ended)
