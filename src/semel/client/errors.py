"""The errors of the client, and how to handle them.

There are two families. `KafkaError` is an answer: a broker understood the request and refused it with an
`ErrorCode`. `ClientError` is the lack of one: no broker could be reached, the connection broke, the answer
did not come in time, or broker and client have no version in common. The text of both says what happened and,
if possible, what to do; the command line prints exactly that text.

In a transaction, the class of a `TransactionError` says what to do next:

    MustAbort            abort, and continue with the next transaction
    TransactionAborted   already aborted; continue with the next transaction
    OutcomeUnknown       repeat the commit until there is an answer
    ProducerFenced       stop: another producer has the transactional id now
    ProducerFailed       close this producer, fix the cause, and create another
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Self

from semel.wire.errors import ErrorCode, KafkaError, ProtocolError

__all__ = [
    "AuthenticationFailed",
    "BrokerUnreachable",
    "ClientError",
    "ConnectionLost",
    "ErrorCode",
    "KafkaError",
    "MustAbort",
    "OutcomeUnknown",
    "ProducerFailed",
    "ProducerFenced",
    "ProtocolError",
    "RequestTimedOut",
    "TransactionAborted",
    "TransactionError",
    "TransactionMisuse",
    "UnsupportedRequest",
    "check",
    "close_after",
    "is_retriable",
]


class ClientError(Exception):
    """No answer from a broker."""


class BrokerUnreachable(ClientError):
    """No connection could be made. The request was not sent."""

    def __init__(self, message: str, *, is_first_contact: bool = False) -> None:
        super().__init__(message)
        #: No broker of the cluster was ever reached: the address may be wrong, so this is not retried.
        self.is_first_contact = is_first_contact


class AuthenticationFailed(ClientError):
    """The broker rejected the client, or the client the broker. A retry does not help."""


class ConnectionLost(ClientError):
    """The connection ended before the answer came. The request may or may not have been executed."""


class RequestTimedOut(ClientError):
    """The answer did not come in time. The request may or may not have been executed."""


class UnsupportedRequest(ClientError):
    """Broker and client have no version of this request in common."""


class TransactionMisuse(ClientError):
    """The call is invalid in the current state of the transaction. Nothing was sent or changed."""


class TransactionError(KafkaError):
    """A transaction failed. Its class says what to do."""

    @classmethod
    def of(cls, error: Exception, what: str, reason: str = "") -> Self:
        """Return an error of this class with the code of `error`, which becomes its cause."""
        code = error.code if isinstance(error, KafkaError) else ErrorCode.REQUEST_TIMED_OUT
        made = cls(code, f"{what} ({reason.rstrip('.')})." if reason else f"{what}.")
        made.__cause__ = error
        return made

    @property
    def retriable(self) -> bool:
        """Always False: the class says what may be repeated."""
        return False


class MustAbort(TransactionError):
    """This transaction can no longer be committed. Abort it; the producer can then begin the next."""


class TransactionAborted(TransactionError):
    """The transaction is aborted. The producer can begin the next."""


class OutcomeUnknown(TransactionError):
    """The commit was sent and may or may not have been executed. Call it again."""


class ProducerFenced(TransactionError):
    """Another producer has the transactional id now. This one has to stop."""


class ProducerFailed(TransactionError):
    """This producer cannot continue."""


_ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the name, or create it with 'semel topics create'.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name, or change the topic with 'semel topics alter'.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "A name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'.",
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller records or batches, or raise the topic's max.message.bytes.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The offset is no longer, or not yet, in the log; see 'semel offsets'.",
    ErrorCode.NON_EMPTY_GROUP: "Stop the members of the group first; see 'semel groups describe'.",
    ErrorCode.UNKNOWN_MEMBER_ID: "The group has members of its own; stop them before you change its offsets.",
    ErrorCode.GROUP_ID_NOT_FOUND: "See 'semel groups list' for the groups there are.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "A member still reads this topic; stop it first.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The broker's disk may be full or broken; see its log.",
    ErrorCode.INVALID_PARTITIONS: "The number of partitions can only grow.",
    ErrorCode.INVALID_PRODUCER_EPOCH: "A newer producer took over; this one has to stop.",
    ErrorCode.PRODUCER_FENCED: "A newer producer took over; this one has to stop.",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "The id has expired, or belongs to another producer by now.",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "It may be up to the broker's transaction.max.timeout.ms.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Ask for access to the id; two-phase commit may be off.",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "See 'semel transactions list' for those there are.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "The previous transaction is still ending.",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "An open transaction is about to change it.",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "Use another codec, such as gzip.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for access to the topic.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for access to the group.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for access to the cluster.",
}


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise a `KafkaError` unless the code is 0; `what` says what was tried."""
    if code == ErrorCode.NONE:
        return
    known = code in ErrorCode._value2member_map_
    detail = message.rstrip(".") if message else ""
    parts = [what + (f" ({detail})" if detail else "") + "."]
    if known and (advice := _ADVICE.get(ErrorCode(code))):
        parts.append(advice)
    elif not known:
        parts.append(f"The broker's error code {code} is unknown to this client.")
    raise KafkaError(code, " ".join(parts))


def is_retriable(error: Exception) -> bool:
    """Whether a retry may help. After a lost answer, only idempotent requests may be retried."""
    if isinstance(error, KafkaError):
        return error.retriable
    if isinstance(error, BrokerUnreachable):
        return not error.is_first_contact
    return isinstance(error, ConnectionLost | RequestTimedOut)


def close_after(error: object, close: Callable[[], None]) -> None:
    """Close at the end of a `with` block. If the block failed, errors of closing are suppressed."""
    if error is None:
        close()
        return
    with suppress(KafkaError, ClientError):
        close()
