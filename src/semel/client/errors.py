"""What can go wrong for a client, and what to do about it.

Two families. `KafkaError` is an answer: a broker understood the request and refused it with an `ErrorCode`.
`ClientError` is the lack of one: no broker could be reached, the connection broke, the answer did not come
in time, or broker and client have no version in common. Both say in their text what happened and, where
there is something to do, what to do; the command line prints exactly that text.

In a transaction the question is what to do next, so the class of a `TransactionError` answers it:

    MustAbort            abort, and go on with the next transaction
    TransactionAborted   it is aborted already; go on with the next
    OutcomeUnknown       ask for the commit again, until there is an answer
    ProducerFenced       stop: somebody else has the transactional id now
    ProducerFailed       close this producer, mend the cause, and make another
"""

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
    "is_retriable",
]


class ClientError(Exception):
    """There is no answer from a broker."""


class BrokerUnreachable(ClientError):
    """No connection could be made. The request was not sent."""


class AuthenticationFailed(ClientError):
    """Broker and client do not trust each other. It is no use to ask again."""


class ConnectionLost(ClientError):
    """The connection ended before the answer came. The request may or may not have been carried out."""


class RequestTimedOut(ClientError):
    """The answer did not come in time. The request may or may not have been carried out."""


class UnsupportedRequest(ClientError):
    """Broker and client have no version of this request in common."""


class TransactionMisuse(ClientError):
    """The call does not fit what the transaction is at. Nothing was sent and nothing has changed."""


class TransactionError(KafkaError):
    """A transaction did not go as it was asked to. What to do about it is the meaning of its class."""

    @classmethod
    def of(cls, error: Exception, what: str, reason: str = "") -> Self:
        """The error of this class with the code of another, which is its cause."""
        code = error.code if isinstance(error, KafkaError) else ErrorCode.REQUEST_TIMED_OUT
        made = cls(code, f"{what} ({reason.rstrip('.')})." if reason else f"{what}.")
        made.__cause__ = error
        return made

    @property
    def retriable(self) -> bool:
        """Never by itself: what may be done again is said by the class."""
        return False


class MustAbort(TransactionError):
    """This transaction cannot be committed any more. Abort it; the producer can then begin the next."""


class TransactionAborted(TransactionError):
    """The transaction is aborted and nothing of it counts. The producer can begin the next."""


class OutcomeUnknown(TransactionError):
    """The commit was asked for and may or may not have been carried out. Ask for it again."""


class ProducerFenced(TransactionError):
    """Somebody else has the transactional id now. This producer has to stop."""


class ProducerFailed(TransactionError):
    """This producer cannot go on, whatever it tries."""


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
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "The id was forgotten, or belongs to another producer by now.",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "It may be up to the broker's transaction.max.timeout.ms.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Ask for access to the id; two-phase commit may be off.",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "See 'semel transactions list' for those there are.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "The transaction before is still being ended.",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "An open transaction is about to change it.",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "Use another codec, such as gzip.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for access to the topic.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for access to the group.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for access to the cluster.",
}


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise the `KafkaError` of a code that is not zero; `what` says what was tried."""
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
    """Whether asking again may help. For a lost answer that is true only of requests that may be repeated."""
    if isinstance(error, KafkaError):
        return error.retriable
    return isinstance(error, BrokerUnreachable | ConnectionLost | RequestTimedOut)
