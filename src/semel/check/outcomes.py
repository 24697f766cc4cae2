"""What a response says about an operation: that it happened, that it did not, or nothing.

`ok` and `fail` are certain, so the table is short and everything else is `info`. Two rows are surprising:

- A commit that is answered with PRODUCER_FENCED or INVALID_TXN_STATE may have been executed: an earlier
  attempt without an answer may have committed before another producer took over the transactional id. It is a
  failure only if this was the answer to the only attempt.
- NOT_LEADER_OR_FOLLOWER after a produce says nothing: the record may have been appended before the leader was
  replaced (KAFKA-13574).
"""

from semel.check.history import FAIL, INFO, OK, Outcome

#: Another producer has the transactional id, or the transaction does not exist.
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

#: Errors that are refusals, by kind of operation, unless an earlier attempt got no answer.
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
#: Errors that mean that the operation happened before, by kind.
REPEATS: dict[str, frozenset[str]] = {"produce": frozenset({"DUPLICATE_SEQUENCE_NUMBER"})}


def outcome_of(kind: str, error: str | None, *, is_only_attempt: bool = False) -> Outcome:
    """Return the outcome of an operation by the protocol's name of its error.

    `kind` is the name of the operation in a line of JSON. Clients retry on their own: set `is_only_attempt`
    only if the client is known to have sent one request.
    """
    if error is None or error == "NONE" or error in REPEATS.get(kind, ()):
        return OK
    if kind in READS:
        return FAIL
    return FAIL if is_only_attempt and error in REFUSALS[kind] else INFO
