"""Builds the errors of a transactional producer. Their class says what to do."""

from typing import Final

from semel.client.errors import (
    ErrorCode,
    KafkaError,
    MustAbort,
    OutcomeUnknown,
    ProducerFailed,
    ProducerFenced,
    TransactionAborted,
    TransactionError,
)

FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


def must_abort(transactional_id: str, error: Exception) -> TransactionError:
    """Return the error of a transaction that cannot be committed; the producer can continue with another."""
    reason = error.message if isinstance(error, KafkaError) else str(error)
    return MustAbort.of(
        error, f"the transaction of {transactional_id!r} cannot be committed; abort it", reason
    )


def has_to_stop(transactional_id: str, error: KafkaError, *, commit_in_doubt: bool) -> TransactionError:
    """Return the error of a producer that cannot continue."""
    name = f"the producer of {transactional_id!r}"
    doubt = "; its commit may have happened, since an answer was lost" if commit_in_doubt else ""
    if error.code in FENCED:
        return ProducerFenced.of(error, f"{name} must stop: another producer has the id now{doubt}")
    advice = f"cannot continue; close it and create another one{doubt}"
    return ProducerFailed.of(error, f"{name} {advice}", error.message)


def unknown_at_close(transactional_id: str) -> TransactionError:
    """Return the error of a producer that was closed while the outcome of its commit was unknown."""
    return OutcomeUnknown(
        ErrorCode.REQUEST_TIMED_OUT,
        f"the producer of {transactional_id!r} was closed before its commit was answered. "
        "See 'semel transactions describe'.",
    )


def not_sent(transactional_id: str) -> TransactionError:
    """Return the error of a record that an abort dropped."""
    text = f"the transaction of {transactional_id!r} was aborted before the record was sent"
    return TransactionAborted(ErrorCode.TRANSACTION_ABORTABLE, text)
