"""Histories: what the clients of a log did and saw, one record per operation.

A history is a set of operations. Each has its process, the times at which it started and ended, and its
outcome:

- `ok`: it was acknowledged, so it happened;
- `fail`: it was refused, so it certainly did not happen, and never will;
- `info`: it is unknown whether it happened. Use it when in doubt; `semel.check.outcomes` has the table.

A *process* is one client in one life: a client that crashes or is recreated is another process, and a process
does one thing after the other. Times are integers of one clock that all processes share, usually nanoseconds
of `time.monotonic_ns()`. A *value* identifies a record: it is unique in its partition. A *transaction* has a
unique name in the whole history, such as "copier-3/17".

The records are plain tuples, which are fast to create, for programs that record many. `semel.check.lines`
reads and writes them as lines of JSON, which docs/checker.md describes.
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
#: Committed records in commit order, one transaction after another, not by offset.
COMMIT_ORDER: Final = "commit_order"

MARKER: Final = "marker"
JOURNAL: Final = "journal"


class Topic(NamedTuple):
    """A declared topic. An undeclared one has `marker` visibility and no other writers."""

    topic: str
    visibility: Visibility = MARKER
    is_compacted: bool = False
    has_other_writers: bool = False
    """Clients whose operations are not in the history write to it too."""


class Init(NamedTuple):
    """A producer takes over a transactional id (InitProducerId), which fences its previous owner."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transactional_id: str
    producer_id: int = -1
    epoch: int = -1
    timeout: int | None = None
    """The transaction timeout in units of the clock. If given, the checker reports needless fences."""
    error: str | None = None


class Begin(NamedTuple):
    """A transaction begins in the client, under a transactional id."""

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
    """Offset of the first value; None if the broker returned none, as in a transaction on a journal topic."""
    transaction: Name | None = None
    is_idempotent: bool = True
    """Without idempotence a record may be written more than once."""
    error: str | None = None


class Claim(NamedTuple):
    """Input of a transaction: the records of a partition from `first` up to, but not including, `until`.

    `until` becomes the position of the group. If `first` is unknown, only the position is checked.
    """

    topic: str
    partition: int
    first: int | None
    until: int


class SendOffsets(NamedTuple):
    """A group's positions, and the claims they imply, become part of a transaction (TxnOffsetCommit)."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    group: str
    claims: tuple[Claim, ...]
    error: str | None = None


class Commit(NamedTuple):
    """A commit of a transaction, from its first request. Another attempt is another operation."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    error: str | None = None


class Abort(NamedTuple):
    """An abort of a transaction."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    error: str | None = None


class Assign(NamedTuple):
    """A process reads a partition from a position: an assignment, a rebalance, a seek, a rewind."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    position: int | None = None
    """None if it is unknown: then the first read determines it."""


class Poll(NamedTuple):
    """The records that a process received from one partition, in order."""

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
    """The process's own transaction in which it read."""
    position: int | None = None
    """The position afterwards, if known: after the last record, or further."""
    last_stable: int | None = None
    """The last stable offset that was returned with the records."""
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
    """It was sent once. Otherwise a delayed attempt may set the position again, at any later time."""


class OffsetFetch(NamedTuple):
    """A group's position is read."""

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
    """Whether the broker refuses to return a position that has a pending change."""
    error: str | None = None


class Ends(NamedTuple):
    """The start and the ends of a partition, as the broker returned them; None if not requested."""

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
    """Every transaction must have ended by now: all have, or their timeouts have passed."""
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
"""Operations with a start and an end."""
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
