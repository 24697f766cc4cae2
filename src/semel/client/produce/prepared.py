"""Prepared transactions: any process can end them, not only the one that wrote them.

    prepared = producer.prepare()                   # in the process that writes
    note = str(prepared)                            # stored with the decision

    prepared = PreparedTransaction.parse(note)      # in the process that decides
    end_transaction(client, prepared.transactional_id, prepared.producer_id, prepared.epoch, commit=True)

There are two ways. `end_transaction` needs the producer id and epoch that wrote the transaction, and is one
request that affects nothing else. It works with every Kafka broker, but the broker aborts the transaction
after its timeout, unless the writer used two-phase commit. `complete_transaction` needs only the
transactional id, takes it over by two-phase commit (KIP-939), and ends what is open. Both may be repeated.
"""

from dataclasses import dataclass
from typing import Self

from semel.client.errors import (
    ClientError,
    ErrorCode,
    KafkaError,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
    TransactionError,
    is_retriable,
)
from semel.client.net.cluster import Client
from semel.client.produce.transaction_coordinator import Coordinator, transaction_version
from semel.wire.batch import ProducerIdAndEpoch

TIMEOUT_S = 60.0
ANY_TIMEOUT_MS = 60_000  # two-phase commit has no timeout, but the request needs one

_SUPERSEDED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that only needs its outcome. `parse` reads its `str`."""

    transactional_id: str
    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}:{self.transactional_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the `str` of a prepared transaction. ValueError if it is something else."""
        numbers, _, transactional_id = text.partition(":")
        epoch, _, transactional_id = transactional_id.partition(":")
        if not (numbers.isdecimal() and epoch.isdecimal() and transactional_id):
            raise ValueError(f"{text!r} is not a prepared transaction; the format is PRODUCER_ID:EPOCH:ID")
        return cls(transactional_id, int(numbers), int(epoch))


def end_transaction(
    client: Client,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    version: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """End the transaction that was written with this producer id and epoch. Idempotent.

    `version` is the transaction version, by default that of the cluster. TransactionAborted: it was aborted
    before. ProducerFenced: the id has a newer epoch or has expired, and the outcome can no longer be
    determined. OutcomeUnknown: there was no answer; call it again.
    """
    coordinator = Coordinator(client, transactional_id, timeout_s)
    chosen = transaction_version(client) if version is None else version
    try:
        coordinator.end(ProducerIdAndEpoch(producer_id, epoch), chosen, commit=commit)
    except (KafkaError, ClientError) as error:
        raise _explained(error, PreparedTransaction(transactional_id, producer_id, epoch), commit) from error


def complete_transaction(
    client: Client, transaction: PreparedTransaction | str, *, commit: bool, timeout_s: float = TIMEOUT_S
) -> bool:
    """End the open transaction of a transactional id, by two-phase commit. False if none is open.

    If a `PreparedTransaction` is given and a different transaction is open, that one stays open and a
    TransactionError is raised. The previous owner of the id is fenced in any case.
    """
    wanted = transaction if isinstance(transaction, PreparedTransaction) else None
    transactional_id = wanted.transactional_id if wanted is not None else str(transaction)
    coordinator = Coordinator(client, transactional_id, timeout_s)
    taken = coordinator.init(ANY_TIMEOUT_MS, two_phase=True, keep_prepared=True)
    if taken.prepared is None:
        return False
    found = PreparedTransaction(transactional_id, *taken.prepared)
    if wanted is not None and found != wanted:
        raise TransactionError(
            ErrorCode.INVALID_TXN_STATE,
            f"the transaction {wanted} has ended, and another one, {found}, is open. It was not changed.",
        )
    try:
        coordinator.end(taken.identity, transaction_version(client), commit=commit)
    except (KafkaError, ClientError) as error:
        raise _explained(error, found, commit) from error
    return True


def _explained(error: KafkaError | ClientError, transaction: PreparedTransaction, commit: bool) -> Exception:
    """Translate an error into its meaning for the transaction."""
    if is_retriable(error):
        if not commit:
            return error
        unknown = f"whether {transaction} was committed is unknown; call again"
        return OutcomeUnknown.of(error, unknown, str(error))
    if not isinstance(error, KafkaError):
        return error
    if error.code is ErrorCode.INVALID_TXN_STATE:
        if commit:
            return TransactionAborted.of(error, f"{transaction} was not committed: nothing of it is open")
        return TransactionError.of(error, f"{transaction} was not aborted: nothing of it is open")
    if error.code in _SUPERSEDED:
        return ProducerFenced.of(error, f"the id of {transaction} has moved on; its outcome is unknown")
    return error
