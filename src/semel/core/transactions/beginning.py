"""InitProducerId with a transactional id.

A producer that presents no epoch takes over the id: the epoch is bumped and every older instance is fenced. A
producer that presents the current epoch recovers (KIP-360): the epoch is bumped too, and a retry with the
same epoch, after a lost answer, gets the same answer. Any other epoch belongs to a fenced instance. It is
refused before anything changes, so a zombie cannot abort the transaction of its successor.

An open transaction is aborted in the same step. With ``keep_prepared`` (KIP-939) it is kept instead, and the
new producer may do nothing but end it.
"""

from typing import TYPE_CHECKING

from semel.core.facts import EndReason, LatestConnectionChanged
from semel.core.transactions.commands import NO_CONNECTION, NO_EPOCH, InitProducer, ProducerGiven
from semel.core.transactions.model import NEVER_MS, is_exhausted, is_open, note_connection, previous_producer
from semel.core.transactions.states import Event, becomes
from semel.core.transactions.update import TransactionUpdate
from semel.core.types import NO_PRODUCER, Decision, ErrorCode, Fact, Transaction, TransactionKey
from semel.wire.batch import ProducerIdAndEpoch

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def init_producer(state: "BrokerState", command: InitProducer, now: int) -> Decision:
    """Initialise a producer."""
    error = _check_options(command)
    if error is not ErrorCode.NONE:
        return Decision(ProducerGiven(error))
    known = state.transactions[TransactionKey(command.transactional_id)]
    if known is None:
        return _create(state, command, now)
    shown = None if command.epoch == NO_EPOCH else ProducerIdAndEpoch(command.producer_id, command.epoch)
    current = ProducerIdAndEpoch(known.producer_id, known.epoch)
    is_retry = shown is not None and shown == previous_producer(known) and not is_open(known)
    if shown is not None and shown != current and not is_retry:
        return Decision(ProducerGiven(ErrorCode.PRODUCER_FENCED))
    update = TransactionUpdate(state, known, now)
    if is_open(known):
        if command.keep_prepared:
            return _hand_over(update, command)
        update.fence(EndReason.FENCED)
        # The presented epoch is now the previous one, unless ``fence`` does not allow recovery (version 1).
        if shown is not None:
            is_retry = shown == previous_producer(update.transaction)
            if not is_retry:
                # The transaction is aborted even so, as in Kafka.
                return update.decision(ProducerGiven(ErrorCode.PRODUCER_FENCED))
    if not is_retry:
        _advance(update, recovers=shown is not None)
    begun = _with_options(update.transaction, command)
    update.transaction = begun.but(
        state=becomes(update.transaction.state, Event.INIT),
        started_ms=-1,
        deadline_ms=-1,
        updated_ms=state.time_of_day(now),
        term=state.term,
    )
    return update.decision(
        update.given(), connection_facts=_note_connection(state, command, is_retry=is_retry)
    )


def _check_options(command: InitProducer) -> ErrorCode:
    if command.is_two_phase and not command.may_two_phase:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if command.keep_prepared and not command.may_two_phase:
        return ErrorCode.UNSUPPORTED_VERSION
    if not command.is_two_phase and not 0 < command.timeout_ms <= command.timeout_max_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def _create(state: "BrokerState", command: InitProducer, now: int) -> Decision:
    unborn = Transaction(command.transactional_id, NO_PRODUCER, NO_EPOCH, command.timeout_ms)
    update = TransactionUpdate(state, unborn, now)
    update.transaction = _with_options(unborn, command).but(
        producer_id=update.new_producer_id(),
        epoch=0,
        state=becomes(None, Event.INIT),
        updated_ms=state.time_of_day(now),
        term=state.term,
    )
    return update.decision(update.given(), connection_facts=_note_connection(state, command, is_retry=False))


def _advance(update: TransactionUpdate, *, recovers: bool) -> None:
    """Bump the epoch. Only a recovering producer can retry with the previous epoch: others do not know it."""
    before = update.transaction
    last_epoch = before.epoch if recovers else NO_EPOCH
    if is_exhausted(before.epoch):
        update.transaction = before.but(
            producer_id=update.new_producer_id(),
            epoch=0,
            previous_producer_id=before.producer_id,
            last_epoch=last_epoch,
        )
    else:
        update.transaction = before.but(epoch=before.epoch + 1, last_epoch=last_epoch)


def _hand_over(update: TransactionUpdate, command: InitProducer) -> Decision:
    """Return an epoch with which the new producer may end the transaction, and the epoch that wrote it.

    If the epochs are used up, the epoch stays the same. This is harmless, because a producer with this epoch
    can only end the transaction.
    """
    before = update.transaction
    written = before.prepared_epoch if before.prepared_epoch >= 0 else before.epoch
    update.transaction = before.but(
        epoch=before.epoch if is_exhausted(before.epoch) else before.epoch + 1,
        last_epoch=NO_EPOCH,
        state=becomes(before.state, Event.HAND_OVER),
        updated_ms=update.state.time_of_day(update.now),
        prepared_epoch=written,
    )
    given = update.given().but(ongoing_producer_id=before.producer_id, ongoing_epoch=written)
    return update.decision(given, connection_facts=_note_connection(update.state, command, is_retry=False))


def _with_options(transaction: Transaction, command: InitProducer) -> Transaction:
    timeout_ms = NEVER_MS if command.is_two_phase else command.timeout_ms
    return transaction.but(timeout_ms=timeout_ms, is_two_phase=command.is_two_phase)


def _note_connection(state: "BrokerState", command: InitProducer, *, is_retry: bool) -> tuple[Fact, ...]:
    """Set the latest connection. After a bump only this one has the epoch, even if it is not the newest."""
    if is_retry or command.connection == NO_CONNECTION:
        return note_connection(state, command.transactional_id, command.connection)
    return (LatestConnectionChanged(command.transactional_id, command.connection),)
