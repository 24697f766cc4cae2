"""Helpers for tests of the rules: a state with one partition, and batches that consist of a header."""

from typing import Any

from semel.core.facts import DURABLE, Put
from semel.core.log.partition import Append, Appended, TransactionContext
from semel.core.state import BrokerState
from semel.core.topics import CreateTopic
from semel.core.types import (
    Command,
    Decision,
    Fact,
    Partition,
    PartitionKey,
    ProducerKey,
    Transaction,
    TransactionKey,
    TransactionState,
)
from semel.wire.records import BatchHeader

TOPIC_ID = bytes(range(16))
PARTITION = PartitionKey(TOPIC_ID, 0)


def header(
    sequence: int = -1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    count: int = 1,
    timestamp: int = 1_000,
    attributes: int = 0,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        length=100 * count,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


class Rules:
    """Decides and applies like the commit loop, without a store: a missing entity does not exist."""

    def __init__(self) -> None:
        self.state = BrokerState()
        self.now = 1_000_000
        self.facts: list[Fact] = []
        self.run(CreateTopic("t", TOPIC_ID, 1, {}))

    def decide(self, command: Command[Any]) -> Decision:
        self.load(command)
        return self.state.decide(command, self.now)

    def load(self, command: Command[Any]) -> None:
        for key in self.state.missing(command.keys()):
            self.state.put(key, None)
        if hasattr(command, "more_keys"):
            for key in self.state.missing(command.more_keys(self.state)):
                self.state.put(key, None)

    def run(self, command: Command[Any]) -> object:
        decision = self.decide(command)
        for fact in decision.facts:
            self.become(fact)
        return decision.answer

    def become(self, fact: Fact) -> None:
        self.state.apply(fact)
        if type(fact) in DURABLE:
            self.facts.append(fact)

    def append(self, sequence: int = -1, *, transaction: int = 0, **fields: int) -> Appended:
        """Append a batch of producer 7, or of no producer if it has no sequence.

        ``transaction`` is the version of the transaction that contains the batch. The transaction is opened
        without its coordinator, so that only the batch itself can be refused.
        """
        if sequence == -1:
            fields = {"producer_id": -1, "epoch": -1, **fields}
        batch = header(sequence, **fields)
        transaction_context = None
        if transaction:
            transaction_context = TransactionContext(f"id-{batch.producer_id}", transaction)
            self.open_transaction(transaction_context, batch)
        answer = self.run(Append(PARTITION, batch, b"", transaction_context=transaction_context))
        assert isinstance(answer, Appended)
        return answer

    def open_transaction(
        self, transaction_context: TransactionContext, batch: BatchHeader, partition: PartitionKey = PARTITION
    ) -> None:
        """Open the batch's transaction in this partition, without asking the coordinator."""
        known = self.state.transactions.get(TransactionKey(transaction_context.transactional_id))
        if known is not None and partition in known.partitions and known.epoch == batch.producer_epoch:
            return
        opened = Transaction(
            transaction_context.transactional_id,
            batch.producer_id,
            batch.producer_epoch,
            60_000,
            TransactionState.ONGOING,
            (*(known.partitions if known else ()), partition),
            started_ms=self.now,
            updated_ms=self.now,
            deadline_ms=self.now + 60_000,
            version=transaction_context.version,
        )
        self.become(Put.of(opened))

    @property
    def partition(self) -> Partition:
        partition = self.state.partitions[PARTITION]
        assert partition is not None
        return partition

    def producer_key(self, producer_id: int = 7) -> ProducerKey:
        return ProducerKey(TOPIC_ID, 0, producer_id)
