"""Every anomaly that the checker detects: its name, and its definition in a sentence.

"Readers of committed records" are those with isolation `read_committed` or `commit_order`, and on a topic
with `journal` visibility all of them. "Before" and "after" are by the clock: one operation ended before the
other started.
"""

from typing import NamedTuple

from semel.check.history import Operation

DEFINITIONS: dict[str, str] = {
    # reads
    "aborted-read": (
        "a reader of committed records received a record whose transaction was aborted or never "
        "asked to commit, or whose produce was rejected"
    ),
    "early-read": (
        "a reader of committed records received a record before its transaction was asked to "
        "commit, or before it was sent"
    ),
    "precommitted-read": "a transaction read a record that it wrote itself",
    "phantom": "a reader received a record that no producer sent to that partition",
    "read-past-stable": (
        "a response to a reader of committed records contains a record at or after the last stable "
        "offset in the same response"
    ),
    # offsets of records
    "inconsistent-offset": "two records have the same offset in the same partition",
    "duplicate": "a record of an idempotent producer has two offsets",
    "wrong-acknowledgement": (
        "a record was acknowledged with an offset at which readers find another record, or readers "
        "find it at another offset"
    ),
    "nonmonotonic-send": (
        "a producer sent two records to a partition, one after the other, and the later one has the "
        "smaller offset"
    ),
    "offset-inversion": (
        "a record was acknowledged before another was sent to the same partition, and has the "
        "larger offset; on a journal topic also a transaction that was committed before another was "
        "asked to commit"
    ),
    "split-transaction": "in a journal topic, a foreign record lies between the records of one transaction",
    # progress of readers
    "nonmonotonic-poll": (
        "a reader received an offset that is not larger than the previous one, or that lies before "
        "its assigned position"
    ),
    "skipped-poll": (
        "a reader skipped a record that another reader with the same view of the partition received"
    ),
    "gap": "a reader of a journal topic received an offset that does not directly follow the previous one",
    # missing records
    "lost-write": (
        "a record was acknowledged, and so was the commit of its transaction if it has one; readers "
        "passed its offset, and none received it"
    ),
    "torn-transaction": (
        "a reader received one record of a transaction, and readers passed the offset of another "
        "without receiving it"
    ),
    # ends of transactions
    "two-outcomes": "a transaction was acknowledged both as committed and as aborted",
    "error-but-committed": "a commit failed with INVALID_TXN_STATE, and readers see the transaction",
    "zombie-commit": (
        "a commit was acknowledged to a process after another process had taken over its transactional id"
    ),
    "zombie-write": (
        "a write in a transaction was acknowledged to a process after another process had taken "
        "over its transactional id"
    ),
    "needless-fence": (
        "a producer was fenced although no other process took over its transactional id and its "
        "transaction had not reached its timeout"
    ),
    "hanging-transaction": (
        "the last stable offset is below the high watermark when every transaction must have ended"
    ),
    # input and groups
    "double-claim": "two committed transactions of a group claim the same input",
    "skipped-input": "a group's position passed an input record that no transaction of the group claims",
    "aborted-offset": "a group has a position that only rejected commits or aborted transactions set",
    "early-offset": "a group has a position before the transaction that set it was asked to commit",
    "phantom-offset": "a group has a position that no operation set",
    "lost-offset": "a group has no position, or an older one, after a later one was acknowledged",
    "unstable-offset": "a stable position was returned while a transaction had another one pending",
    # the ends of a partition
    "watermark-regress": (
        "the log start, the last stable offset or the high watermark decreased, or the high "
        "watermark is not above a record that was acknowledged earlier"
    ),
    "watermark-order": "not 0 ≤ log start ≤ last stable offset ≤ high watermark",
    # orders
    "cyclic-order": (
        "no order of the transactions exists in which each is committed before those that read from "
        "it and, in journal topics, before those at later offsets"
    ),
}


class Anomaly(NamedTuple):
    """An anomaly, with the operations that prove it."""

    name: str
    where: str
    says: str
    proof: tuple[Operation, ...] = ()


def anomaly(name: str, where: str, says: str, *proof: Operation | None) -> Anomaly:
    """Return an anomaly of the catalogue; missing parts of the proof are left out."""
    assert name in DEFINITIONS
    return Anomaly(name, where, says, tuple(each for each in proof if each is not None))
