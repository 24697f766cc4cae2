"""What an answer says about an operation: that it happened, that it did not, or nothing.

`ok` and `fail` are promises, so the table is short and what is not in it is `info`. Two rows surprise:

- A commit that is answered PRODUCER_FENCED or INVALID_TXN_STATE may have been carried out: an earlier attempt
  of it, which was not answered, may have committed before somebody else took over the transactional id. It is
  a failure only if this was the answer to the only attempt.
- NOT_LEADER_OR_FOLLOWER after a produce says nothing: the record may have been appended before the leader
  lost its place (KAFKA-13574).
"""

from semel.check.history import FAIL, INFO, OK, Outcome

#: Somebody else has the transactional id, or the transaction is not there.
FENCED = frozenset(
    {
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TXN_STATE",
        "PRODUCER_FENCED",
        "TRANSACTION_ABORTABLE",
    }
)
_FORBIDDEN = frozenset(
    {
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "INVALID_REQUEST",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNSUPPORTED_VERSION",
    }
)
_NOT_A_MEMBER = frozenset(
    {
        "FENCED_INSTANCE_ID",
        "FENCED_MEMBER_EPOCH",
        "ILLEGAL_GENERATION",
        "INVALID_COMMIT_OFFSET_SIZE",
        "INVALID_GROUP_ID",
        "OFFSET_METADATA_TOO_LARGE",
        "REBALANCE_IN_PROGRESS",
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
    }
)
_NOT_APPENDED = frozenset(
    {
        "CORRUPT_MESSAGE",
        "INVALID_RECORD",
        "INVALID_REQUIRED_ACKS",
        "INVALID_TIMESTAMP",
        "INVALID_TOPIC_EXCEPTION",
        "MESSAGE_TOO_LARGE",
        "NOT_ENOUGH_REPLICAS",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "RECORD_LIST_TOO_LARGE",
        "UNKNOWN_PRODUCER_ID",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    }
)

#: By kind of operation: errors that are refusals, if no earlier attempt went without an answer.
REFUSALS: dict[str, frozenset[str]] = {
    "init": _FORBIDDEN | FENCED | {"INVALID_TRANSACTION_TIMEOUT"},
    "produce": _FORBIDDEN | FENCED | _NOT_APPENDED,
    "send_offsets": _FORBIDDEN | FENCED | _NOT_A_MEMBER,
    "commit": _FORBIDDEN | FENCED,
    "abort": _FORBIDDEN | FENCED,
    "offset_commit": _FORBIDDEN | _NOT_A_MEMBER,
    "trim": _FORBIDDEN | {"OFFSET_OUT_OF_RANGE", "POLICY_VIOLATION"},
}
#: Operations that change nothing: with any error, they have not happened.
READS = frozenset({"begin", "assign", "poll", "offset_fetch", "ends"})
#: By kind of operation: errors that say that it happened before.
REPEATS: dict[str, frozenset[str]] = {"produce": frozenset({"DUPLICATE_SEQUENCE_NUMBER"})}


def outcome_of(kind: str, error: str | None, *, is_only_attempt: bool = False) -> Outcome:
    """The outcome of an operation that was answered with an error, by the error's name in the protocol.

    `kind` is the name of the operation in a line of JSON. Clients send a request again by themselves, so
    `is_only_attempt` is for one that knows that it has not.
    """
    if error is None or error == "NONE" or error in REPEATS.get(kind, ()):
        return OK
    if kind in READS:
        return FAIL
    return FAIL if is_only_attempt and error in REFUSALS[kind] else INFO
