"""Who may speak for a transactional id: pairs, epochs, connections and terms.

A *pair* is a producer id and an epoch. The pair that the id has is the only one that may write. It moves
when a producer begins, when the broker aborts, and, in version 2, at every end, so that whatever is still
under way for an older transaction is refused (KIP-890). Epochs are 16 bits: the last one but one is given
to no client, and a producer that has used them up goes on under a new producer id.

Two more ways in which old work comes late:

- In version 1 the pair does not move at an end, so a delayed request to end could end the *next* transaction
  (KAFKA-17754), and delayed offsets could come to lie in it. A client that sends a request again does so on
  a new connection. So once a newer connection has spoken for the id, what still comes on an older one is
  superseded.
- What was answered before it was flushed may be lost when the operating system dies. Then the *term* is
  another one, and a producer whose pair is of an older term may not go on: part of its transaction may be
  gone. It can abort, or begin anew.
"""

from typing import TYPE_CHECKING, Final

from semel.core.facts import LatestConnectionChanged
from semel.core.transactions.commands import NO_CONNECTION
from semel.core.types import NO_PRODUCER, ErrorCode, Fact, Transaction, TransactionState
from semel.wire.producer_id import ProducerIdAndEpoch

if TYPE_CHECKING:
    from semel.core.state import BrokerState

EPOCH_MAX = 32_767
"""Not given to any client: it is the epoch of the marker that ends the last transaction of a producer id."""

NEVER_MS: Final = 2**31 - 1
"""The timeout of a transaction that has none, as Kafka writes it."""


def is_exhausted(epoch: int) -> bool:
    """Whether no epoch is left to give to a client."""
    return epoch >= EPOCH_MAX - 1


def pair_before(transaction: Transaction) -> ProducerIdAndEpoch | None:
    """The pair whose request gave the current one; a retry of that request still shows it."""
    if transaction.last_epoch < 0:
        return None
    was_rotated = transaction.epoch == 0 and transaction.previous_producer_id != NO_PRODUCER
    producer_id = transaction.previous_producer_id if was_rotated else transaction.producer_id
    return ProducerIdAndEpoch(producer_id, transaction.last_epoch)


def check_pair(transaction: Transaction | None, pair: ProducerIdAndEpoch) -> ErrorCode:
    """Whether this is the pair of the id."""
    if transaction is None or pair.producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if pair.epoch != transaction.epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def is_of_old_term(state: "BrokerState", transaction: Transaction) -> bool:
    """Whether something that the producer was told is done may be lost. Two-phase work never is."""
    return transaction.term < state.term and not transaction.is_two_phase


def check_writer(
    state: "BrokerState", transaction: Transaction | None, pair: ProducerIdAndEpoch
) -> ErrorCode:
    """Whether this pair may add to the transaction of the id, or begin one."""
    if transaction is None or pair.producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if pair.epoch != transaction.epoch or is_of_old_term(state, transaction):
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE if transaction.prepared_epoch < 0 else ErrorCode.INVALID_TXN_STATE


def is_superseded(
    state: "BrokerState", transactional_id: str, connection: int, *, for_offsets: bool = False
) -> bool:
    """Whether a newer connection has spoken for the id."""
    latest_connections = state.latest_offset_connections if for_offsets else state.latest_connections
    return connection != NO_CONNECTION and connection < latest_connections.get(
        transactional_id, NO_CONNECTION
    )


def spoken(
    state: "BrokerState", transactional_id: str, connection: int, *, for_offsets: bool = False
) -> tuple[Fact, ...]:
    """This connection speaks for the id, unless a newer one does."""
    latest_connections = state.latest_offset_connections if for_offsets else state.latest_connections
    if connection <= latest_connections.get(transactional_id, NO_CONNECTION):
        return ()
    return (LatestConnectionChanged(transactional_id, connection, for_offsets),)


def is_open(transaction: Transaction | None) -> bool:
    """Whether the id has a transaction open."""
    return transaction is not None and transaction.state is TransactionState.ONGOING
