"""Every anomaly that is looked for: its name, and its definition in a sentence.

"Readers of committed records" are those with isolation `read_committed` or `commit_order`, and on a topic
with `journal` visibility all of them. "Before" and "after" are by the clock: one operation ended before the
other started.
"""

from typing import NamedTuple

from semel.check.history import Operation

DEFINITIONS: dict[str, str] = {
    # what is read
    "aborted-read": (
        "a reader of committed records was handed a record whose transaction was aborted or never "
        "asked to commit, or whose produce was refused"
    ),
    "early-read": (
        "a reader of committed records was handed a record before anyone asked its transaction to "
        "commit, or before it was sent"
    ),
    "precommitted-read": "a transaction was handed a record that it wrote itself",
    "phantom": "a reader was handed a record that nobody sent to that partition",
    "read-past-stable": (
        "an answer to a reader of committed records has a record at or behind the last stable offset "
        "of the same answer"
    ),
    # where records are
    "inconsistent-offset": "two records have the same offset in the same partition",
    "duplicate": "a record of an idempotent producer has two offsets",
    "wrong-acknowledgement": (
        "a record was acknowledged with an offset, and another record is there, or it is elsewhere"
    ),
    "nonmonotonic-send": (
        "a producer sent one record after the other to a partition, and the later one has the smaller offset"
    ),
    "offset-inversion": (
        "a record was acknowledged before another was sent to the same partition, and has the larger "
        "offset; on a journal topic also a transaction that was committed before another was asked to "
        "commit"
    ),
    "split-transaction": "in a journal topic, a foreign record lies between the records of one transaction",
    # how it is read on
    "nonmonotonic-poll": (
        "a reader was handed an offset that is not behind the one before, or that lies before the "
        "position it was assigned"
    ),
    "skipped-poll": (
        "a reader went past a record that another reader with the same view of the partition was handed"
    ),
    "gap": "a reader of a journal topic was handed an offset that does not follow the one before",
    # what is missing
    "lost-write": (
        "a record was acknowledged, and its transaction too if it has one; readers went past its "
        "place, and none was handed it"
    ),
    "torn-transaction": (
        "a reader was handed one record of a transaction, and readers went past the place of another "
        "one without being handed it"
    ),
    # how transactions end
    "two-outcomes": "a transaction was acknowledged as committed and as aborted",
    "error-but-committed": "a commit was answered with INVALID_TXN_STATE, and readers see the transaction",
    "zombie-commit": (
        "a commit was acknowledged to a process after another one had taken over its transactional id"
    ),
    "zombie-write": (
        "a write in a transaction was acknowledged to a process after another one had taken over its "
        "transactional id"
    ),
    "needless-fence": (
        "a producer was fenced although nobody else asked for its transactional id and its "
        "transaction was younger than its timeout"
    ),
    "hanging-transaction": (
        "the last stable offset is before the high watermark when every transaction must have ended"
    ),
    # input and groups
    "double-claim": "two committed transactions of a group claim the same input",
    "skipped-input": "a group's position went past an input record that no transaction of the group claims",
    "aborted-offset": "a group has a position that only refused commits or aborted transactions gave it",
    "early-offset": "a group has a position before anyone asked the transaction that gave it to commit",
    "phantom-offset": "a group has a position that nobody gave it",
    "lost-offset": "a group has no position, or an older one, after a later one was acknowledged",
    "unstable-offset": "a stable position was told while a transaction had another one pending",
    # the ends of a partition
    "watermark-regress": (
        "the log start, the last stable offset or the high watermark went back, or the high watermark "
        "is not behind a record that was acknowledged before"
    ),
    "watermark-order": "not 0 ≤ log start ≤ last stable offset ≤ high watermark",
    # orders
    "cyclic-order": (
        "transactions have no order in which each was committed before those that read from it and, "
        "in journal topics, before those that are behind it"
    ),
}


class Anomaly(NamedTuple):
    """One thing that a correct log would not have shown, with the operations that prove it."""

    name: str
    where: str
    says: str
    proof: tuple[Operation, ...] = ()


def anomaly(name: str, where: str, says: str, *proof: Operation | None) -> Anomaly:
    """An anomaly of the catalogue; a part of the proof that is not there is left out."""
    assert name in DEFINITIONS
    return Anomaly(name, where, says, tuple(each for each in proof if each is not None))
