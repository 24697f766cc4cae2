"""Which producer may act for a transactional id: epochs, connections and terms.

Only the current producer id and epoch of a transactional id may write. A replaced producer (a zombie) is
refused by ``check_is_current`` and ``check_may_write``; only InitProducerId has its own rule (``beginning``),
and so have batches outside of transactions (``core.log.partition``). ``handlers.transaction_errors`` replaces
the error by the one that a client of the API and version expects.

The epoch is bumped when a producer is initialised, when the broker aborts and, in version 2, at every end, so
that delayed requests of an older transaction are refused (KIP-890). Epochs have 16 bits. The highest is given
to no client; a producer that has used up its epochs continues with a new producer id.

Two more cases of delayed or lost work:

- In version 1 an end does not bump the epoch, so a delayed EndTxn could end the *next* transaction
  (KAFKA-17754), and delayed offsets could become part of it. Clients retry on a new connection. So once a
  newer connection was used for the id, requests on an older one are superseded.
- Unsynced work may be lost when the operating system crashes. Then a new *term* starts, and a producer from
  an older term may not continue: part of its transaction may be lost. It may abort, or be initialised again.
"""

from typing import TYPE_CHECKING, Final

from semel.core.facts import LatestConnectionChanged
from semel.core.transactions.commands import NO_CONNECTION
from semel.core.types import NO_PRODUCER, ErrorCode, Fact, Transaction, TransactionState
from semel.wire.batch import ProducerIdAndEpoch

if TYPE_CHECKING:
    from semel.core.state import BrokerState

EPOCH_MAX = 32_767
"""Given to no client: it is the epoch of the marker that ends the last transaction of a producer id."""

NEVER_MS: Final = 2**31 - 1
"""The timeout that stands for no timeout, as in Kafka."""


def is_exhausted(epoch: int) -> bool:
    """Whether no epoch is left for clients."""
    return epoch >= EPOCH_MAX - 1


def previous_producer(transaction: Transaction) -> ProducerIdAndEpoch | None:
    """Return the producer id and epoch before the last bump; a retry of the request that bumped has these."""
    if transaction.last_epoch < 0:
        return None
    was_rotated = transaction.epoch == 0 and transaction.previous_producer_id != NO_PRODUCER
    producer_id = transaction.previous_producer_id if was_rotated else transaction.producer_id
    return ProducerIdAndEpoch(producer_id, transaction.last_epoch)


def check_is_current(transaction: Transaction | None, producer: ProducerIdAndEpoch) -> ErrorCode:
    """Check that this is the current producer id and epoch of the transactional id."""
    if transaction is None or producer.producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.epoch != transaction.epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def is_of_old_term(state: "BrokerState", transaction: Transaction) -> bool:
    """Whether acknowledged work of the producer may be lost. Two-phase work never is."""
    return transaction.term < state.term and not transaction.is_two_phase


def check_may_write(
    state: "BrokerState", transaction: Transaction | None, producer: ProducerIdAndEpoch
) -> ErrorCode:
    """Check that this producer may add to the open transaction, or start one."""
    if transaction is None or producer.producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.epoch != transaction.epoch or is_of_old_term(state, transaction):
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE if transaction.prepared_epoch < 0 else ErrorCode.INVALID_TXN_STATE


def is_superseded(
    state: "BrokerState", transactional_id: str, connection: int, *, for_offsets: bool = False
) -> bool:
    """Whether a newer connection was used for the transactional id."""
    latest_connections = state.latest_offset_connections if for_offsets else state.latest_connections
    return connection != NO_CONNECTION and connection < latest_connections.get(
        transactional_id, NO_CONNECTION
    )


def note_connection(
    state: "BrokerState", transactional_id: str, connection: int, *, for_offsets: bool = False
) -> tuple[Fact, ...]:
    """Set the latest connection of the transactional id, unless it or a newer one is set."""
    latest_connections = state.latest_offset_connections if for_offsets else state.latest_connections
    if connection <= latest_connections.get(transactional_id, NO_CONNECTION):
        return ()
    return (LatestConnectionChanged(transactional_id, connection, for_offsets),)


def is_open(transaction: Transaction | None) -> bool:
    """Whether the transactional id has an open transaction."""
    return transaction is not None and transaction.state is TransactionState.ONGOING
