"""Determines the outcome of each transaction, as far as its clients can know.

A transaction was *committed* if a commit was acknowledged. It was *aborted* if an abort was acknowledged, or
if every commit was refused, or none was requested. Otherwise it is *unknown*, until a reader receives one of
its records.

A response says that an operation happened, that it did not, or nothing. `ok` and `fail` are certain, so the
table is short and everything else is `info`. Two rows are surprising:

- A commit that is answered with PRODUCER_FENCED or INVALID_TXN_STATE may have been executed: an earlier
  attempt without an answer may have committed before another producer took over the transactional id. It is a
  failure only if this was the answer to the only attempt.
- NOT_LEADER_OR_FOLLOWER after a produce says nothing: the record may have been appended before the leader was
  replaced (KAFKA-13574).
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from semel.check import history
from semel.check.catalogue import Anomaly, anomaly

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


def outcome_of(kind: str, error: str | None, *, is_only_attempt: bool = False) -> history.Outcome:
    """Return the outcome of an operation by the protocol's name of its error.

    `kind` is the name of the operation in a line of JSON. Clients retry on their own: set `is_only_attempt`
    only if the client is known to have sent one request.
    """
    if error is None or error == "NONE" or error in REPEATS.get(kind, ()):
        return history.OK
    if kind in READS:
        return history.FAIL
    return history.FAIL if is_only_attempt and error in REFUSALS[kind] else history.INFO


COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
UNKNOWN: Final = "unknown"
STATE_ERROR = "INVALID_TXN_STATE"


class Fate(NamedTuple):
    """The outcome of a transaction."""

    transaction: history.Name
    outcome: Literal["committed", "aborted", "unknown"]
    transactional_id: str | None
    begun: int | None
    asked: int | None
    """When a commit was first requested."""
    answered: int | None
    """When a commit was acknowledged."""
    end: history.Commit | history.Abort | None
    """The operation that shows the outcome, or the first that leaves it open."""
    refused: history.Commit | None
    """A commit that was answered with INVALID_TXN_STATE."""
    last_write: history.Produce | history.SendOffsets | None
    """The last write that was acknowledged."""
    fenced: history.Produce | history.SendOffsets | history.Commit | None
    """The first operation that was answered with one of the errors `FENCED`."""
    written: tuple[history.Partition, ...]
    claimed: tuple[history.Partition, ...]

    @property
    def where(self) -> str:
        """The name of the transaction in a verdict."""
        return f"transaction {self.transaction}"


class Trace(NamedTuple):
    """What readers of committed records saw of a transaction in one partition."""

    transaction: history.Name
    partition: history.Partition
    seen_at: int | None
    """When a reader first received one of its records."""
    seen: history.Poll | None
    missing: history.Produce | None
    """One of its records that was acknowledged, and that readers passed: if the transaction was committed
    before `missing_since`, `witness` must have seen it."""
    missing_since: int
    witness: history.Operation | None


Finding: TypeAlias = history.Produce | history.SendOffsets | history.Commit


_Step = TypeVar("_Step", bound=history.Timed)


def settled(operations: Iterable[_Step]) -> list[_Step]:
    """Drop the entries made at the start of operations that also have one from their end."""
    steps = list(operations)
    ended = {(type(each), each.process, each.started) for each in steps if each.ended is not None}
    return [
        each
        for each in steps
        if each.ended is not None or (type(each), each.process, each.started) not in ended
    ]


def fate_of(transaction: history.Name, operations: Iterable[history.Operation]) -> Fate:
    """Determine the outcome of a transaction from all of its operations."""
    begin: history.Begin | None = None
    ends: list[history.Commit | history.Abort] = []
    writes: list[history.Produce | history.SendOffsets] = []
    for each in operations:
        if isinstance(each, history.Produce | history.SendOffsets):
            writes.append(each)
        elif isinstance(each, history.Commit | history.Abort):
            ends.append(each)
        elif isinstance(each, history.Begin):
            begin = each
    ends = sorted(settled(ends), key=_started)
    commits = [each for each in ends if isinstance(each, history.Commit)]
    outcome, end = _outcome(commits, [each for each in ends if isinstance(each, history.Abort)])
    fenced: list[Finding] = [each for each in (*writes, *commits) if each.error in FENCED]
    return Fate(
        transaction=transaction,
        outcome=outcome,
        transactional_id=begin.transactional_id if begin else None,
        begun=begin.started if begin else None,
        asked=commits[0].started if commits else None,
        answered=min(
            (each.ended for each in commits if each.outcome == history.OK and each.ended is not None),
            default=None,
        ),
        end=end,
        refused=next(
            (each for each in commits if each.outcome != history.OK and each.error == STATE_ERROR), None
        ),
        last_write=max((each for each in writes if each.outcome == history.OK), key=_started, default=None),
        fenced=min(fenced, key=_started, default=None),
        written=tuple(
            {(each.topic, each.partition): None for each in writes if isinstance(each, history.Produce)}
        ),
        claimed=tuple(
            {
                (claim.topic, claim.partition): None
                for each in writes
                if isinstance(each, history.SendOffsets)
                for claim in each.claims
            }
        ),
    )


def _started(operation: history.Produce | history.SendOffsets | history.Commit | history.Abort) -> int:
    return operation.started


def _outcome(
    commits: list[history.Commit], aborts: list[history.Abort]
) -> tuple[Literal["committed", "aborted", "unknown"], history.Commit | history.Abort | None]:
    for commit in commits:
        if commit.outcome == history.OK:
            return COMMITTED, commit
    for abort in aborts:
        if abort.outcome == history.OK:
            return ABORTED, abort
    for commit in commits:
        if commit.outcome == history.INFO:
            return UNKNOWN, commit
    return ABORTED, commits[0] if commits else None


def two_outcomes(fate: Fate, operations: Iterable[history.Operation]) -> Iterator[Anomaly]:
    """Both a commit and an abort were acknowledged."""
    if fate.outcome != COMMITTED:
        return
    for each in operations:
        if isinstance(each, history.Abort) and each.outcome == history.OK:
            yield anomaly(
                "two-outcomes", fate.where, "its commit was acknowledged, and its abort too", fate.end, each
            )
            return


def error_but_committed(fate: Fate, traces: Iterable[Trace]) -> Iterator[Anomaly]:
    """The commit was answered with a state error, and yet it happened."""
    if fate.refused is None or fate.outcome == ABORTED:
        return  # A commit that was certainly refused and is seen all the same is an aborted read.
    for trace in traces:
        if trace.seen is not None:
            yield anomaly(
                "error-but-committed",
                fate.where,
                f"its commit was answered with {STATE_ERROR}, and a reader received one of its records",
                fate.refused,
                trace.seen,
            )
            return


def incomplete(fate: Fate, traces: Iterable[Trace]) -> Iterator[Anomaly]:
    """Records of a transaction are missing: all that readers could see of it, or only some."""
    if fate.outcome == ABORTED:
        return  # Seeing any of it is an anomaly of its own.
    seen = [each for each in traces if each.seen is not None and each.seen_at is not None]
    known = [each.seen_at for each in seen if each.seen_at is not None]
    if fate.outcome == COMMITTED and fate.answered is not None:
        known.append(fate.answered)
    if not known:
        return
    first = min(seen, key=lambda each: each.seen_at or 0) if seen else None
    for trace in traces:
        if trace.missing is None or trace.missing_since <= min(known):
            continue
        values = ", ".join(map(repr, trace.missing.values))
        place = f"{trace.partition[0]}/{trace.partition[1]}"
        if first is None:
            says = (
                f"{values} in {place} and then the commit were acknowledged; "
                "readers passed it, and none received it"
            )
            yield anomaly("lost-write", fate.where, says, trace.missing, fate.end, trace.witness)
        else:
            says = (
                f"a reader received a part of it, but readers passed {values} in {place} without receiving it"
            )
            yield anomaly(
                "torn-transaction", fate.where, says, trace.missing, fate.end, first.seen, trace.witness
            )


def final_fate(fate: Fate, traces: Iterable[Trace]) -> Fate:
    """Return the outcome with what readers know: a transaction whose records were received was committed."""
    if fate.outcome == UNKNOWN and any(each.seen is not None for each in traces):
        return fate._replace(outcome=COMMITTED)
    return fate
