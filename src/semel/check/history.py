"""Histories: what the clients of a log did and were told, one record per operation.

A history is a set of operations. Each has the process that did it, when it began and ended, and its outcome:

- `ok`: it was acknowledged, so it has happened;
- `fail`: it was refused, so it has certainly not happened, and never will;
- `info`: nobody knows. When in doubt it is this one; `semel.check.outcomes` has the table.

A *process* is one client in one life: a client that crashes, or is made anew, is another process, and a
process does one thing after the other. Times are whole numbers of one clock that all processes share, usually
nanoseconds of `time.monotonic_ns()`. A *value* names a record: no two records of a partition have the same. A
*transaction* has a name of its own in the whole history, such as "copier-3/17".

The records are plain tuples, quick to make, for programs that record many. `semel.check.lines` writes and
reads them as lines of JSON, and docs/checker.md describes those.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

Name: TypeAlias = int | str
Outcome: TypeAlias = Literal["ok", "fail", "info"]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted", "commit_order"]
Visibility: TypeAlias = Literal["marker", "journal"]
Partition: TypeAlias = tuple[str, int]

OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
#: Committed records, transaction after transaction as they were committed, not by offset.
COMMIT_ORDER: Final = "commit_order"

MARKER: Final = "marker"
JOURNAL: Final = "journal"


class Topic(NamedTuple):
    """What is known of a topic. One that is not declared has `marker` visibility and no other writers."""

    topic: str
    visibility: Visibility = MARKER
    is_compacted: bool = False
    has_other_writers: bool = False
    """Somebody whose operations are not in the history writes to it too."""


class Init(NamedTuple):
    """A producer takes over a transactional id (InitProducerId): whoever had it before is refused then."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transactional_id: str
    producer_id: int = -1
    epoch: int = -1
    timeout: int | None = None
    """The transaction timeout in units of the clock. If it is given, fencing must have a reason."""
    error: str | None = None


class Begin(NamedTuple):
    """A transaction begins in the client. Says under which transactional id."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    transactional_id: str


class Produce(NamedTuple):
    """Records are sent to a partition: one, or a batch, which has consecutive offsets."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    values: tuple[Name, ...]
    offset: int | None = None
    """Of the first value; None if the broker did not tell it, as in a transaction on a journal topic."""
    transaction: Name | None = None
    is_idempotent: bool = True
    """Without idempotence a record may be written more than once."""
    error: str | None = None


class Claim(NamedTuple):
    """Input of a transaction: the records of a partition from `first` up to before `until`.

    `until` becomes the position of the group. `first` may be unknown: then only the position is checked.
    """

    topic: str
    partition: int
    first: int | None
    until: int


class SendOffsets(NamedTuple):
    """A group's positions become part of a transaction (TxnOffsetCommit), and with them what it has read."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    group: str
    claims: tuple[Claim, ...]
    error: str | None = None


class Commit(NamedTuple):
    """A transaction is asked to commit, by the first request for it. Another attempt is another operation."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    error: str | None = None


class Abort(NamedTuple):
    """A transaction is asked to abort."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    error: str | None = None


class Assign(NamedTuple):
    """A process reads a partition from a position on: an assignment, a rebalance, a seek, a rewind."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    position: int | None = None
    """None if it is not known: then what is read first says it."""


class Poll(NamedTuple):
    """What a process was handed of one partition, in the order in which it was handed out."""

    process: Name
    started: int
    ended: int
    outcome: Outcome
    topic: str
    partition: int
    records: tuple[tuple[int, Name], ...]
    """Offset and value of each."""
    isolation: Isolation = READ_COMMITTED
    transaction: Name | None = None
    """In which transaction of its own the process read."""
    position: int | None = None
    """Where the process stands afterwards, if it knows: behind the last record, or further."""
    last_stable: int | None = None
    """The last stable offset that came with the records."""
    error: str | None = None


class OffsetCommit(NamedTuple):
    """A group's position is set outside of transactions, forwards or back."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    group: str
    topic: str
    partition: int
    position: int
    error: str | None = None
    is_only_attempt: bool = False
    """It was sent once. Else an attempt that was delayed may set the position again, at any later time."""


class OffsetFetch(NamedTuple):
    """A group's position is asked for."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    group: str
    topic: str
    partition: int
    position: int | None
    """None: the group has none."""
    is_stable: bool = True
    """Whether only a position without a pending one will do."""
    error: str | None = None


class Ends(NamedTuple):
    """Where a partition begins and ends, as the broker told it; what was not asked for is None."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    log_start: int | None = None
    last_stable: int | None = None
    high_watermark: int | None = None
    is_settled: bool = False
    """By now every transaction must have ended: all have, or their timeouts have passed."""
    error: str | None = None


class Trim(NamedTuple):
    """Records before an offset may be gone from now on: deleted on request or by retention."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    before: int
    error: str | None = None


Timed: TypeAlias = (
    Init
    | Begin
    | Produce
    | SendOffsets
    | Commit
    | Abort
    | Assign
    | Poll
    | OffsetCommit
    | OffsetFetch
    | Ends
    | Trim
)
"""What somebody did."""
Operation: TypeAlias = Topic | Timed

#: The name of each kind in a line of JSON.
KINDS: dict[str, type[Operation]] = {
    "topic": Topic,
    "init": Init,
    "begin": Begin,
    "produce": Produce,
    "send_offsets": SendOffsets,
    "commit": Commit,
    "abort": Abort,
    "assign": Assign,
    "poll": Poll,
    "offset_commit": OffsetCommit,
    "offset_fetch": OffsetFetch,
    "ends": Ends,
    "trim": Trim,
}
NAMES: dict[type[Operation], str] = {kind: name for name, kind in KINDS.items()}
