"""A pipeline's driver and its attempts on the wire, without a client library."""

from typing import Any

from semel.wire.errors import ErrorCode
from semel.wire.messages.semel import (
    BeginAttemptRequest,
    CommitTransactionsPartition,
    CommitTransactionsRequest,
    CommitTransactionsTopic,
    CommitTransactionsTransaction,
)
from support.clients.raw import RawClient
from support.clients.raw_transactions import RawProducer, new_name


class RawDriver(RawProducer):
    """The driver of a pipeline; each instance begins a new run."""

    def __init__(self, client: RawClient, transactional_id: str | None = None) -> None:
        super().__init__(client, transactional_id or f"{new_name('pipeline')}/driver")

    @property
    def group(self) -> str:
        return self.transactional_id.removesuffix("/driver")

    def begin(self, name: str | None = None, **fields: Any) -> Any:
        """Ask for the producer id and epoch of an attempt."""
        request = BeginAttemptRequest(
            transactional_id=name or new_name(f"{self.group}/{self.producer_id}.{self.epoch}/attempt"),
            driver_transactional_id=self.transactional_id,
            driver_producer_id=self.producer_id,
            driver_producer_epoch=self.epoch,
            **fields,
        )
        return self.client.ask(request, 0)

    def request(
        self, *members: RawProducer, offsets: dict[str, int] | None = None, note: str = ""
    ) -> CommitTransactionsRequest:
        """Build a commit of these transactions, with an offset in partition 0 of each of these topics."""
        return CommitTransactionsRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            transactions=[
                CommitTransactionsTransaction(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    producer_epoch=each.epoch,
                )
                for each in members
            ],
            group_id=self.group if offsets else "",
            topics=[
                CommitTransactionsTopic(
                    name=topic,
                    partitions=[
                        CommitTransactionsPartition(
                            partition_index=0, committed_offset=offset, committed_metadata=note
                        )
                    ],
                )
                for topic, offset in (offsets or {}).items()
            ],
        )

    def decide(self, *members: RawProducer, **fields: Any) -> Any:
        return self.client.ask(self.request(*members, **fields), 0)


class RawAttempt(RawProducer):
    """A producer that begins as an attempt of a run."""

    def __init__(self, driver: RawDriver, generation: int = 2) -> None:
        self.client, self.generation = driver.client, generation
        self.transactional_id = new_name(f"{driver.group}/{driver.producer_id}.{driver.epoch}/attempt")
        self.sequences = {}
        answer = driver.begin(self.transactional_id, transaction_version=generation)
        assert answer.error_code == ErrorCode.NONE, answer
        self.pair = (answer.producer_id, answer.producer_epoch)
