"""Finds records that readers should not have received: aborted, early, their own, or never sent."""

from collections.abc import Iterator

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import FAIL, Name, Poll
from semel.check.partitions import PartitionHistory, Read
from semel.check.transactions import ABORTED


def uncommitted_reads(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Records that were not committed when they were received, or never."""
    for value, read in partition.committed.found.items():
        if found := _judge(partition, value, read):
            yield found


def _judge(partition: PartitionHistory, value: Name, read: Read) -> Anomaly | None:
    writer = partition.writers.get(value)
    if writer is None:
        return None
    where, told = partition.where, f"a reader received {value!r} at offset {read.offset}"
    if writer.outcome == FAIL:
        return anomaly("aborted-read", where, f"{told}, whose produce was refused", writer, read.proof)
    fate = partition.fate(writer)
    asked = writer.started if fate is None else fate.asked
    if fate is not None and fate.outcome == ABORTED:
        how = "was never asked to commit" if fate.end is None else "was aborted"
        return anomaly(
            "aborted-read", where, f"{told}, whose {fate.where} {how}", writer, fate.end, read.proof
        )
    is_own = writer.transaction is not None and writer.transaction == read.poll.transaction
    if not is_own and asked is not None and read.poll.ended < asked:
        how = "it was sent" if fate is None else f"{fate.where} was asked to commit"
        return anomaly(
            "early-read", where, f"{told} before {how}", writer, read.proof, fate.end if fate else None
        )
    return None


def precommitted_reads(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Records that a transaction received although it wrote them itself and was still open."""
    for poll in partition.polls:
        if poll.transaction is None or not partition.is_committed_view(poll):
            continue
        for offset, value in poll.records:
            writer = partition.writers.get(value)
            if writer is not None and writer.transaction == poll.transaction:
                says = f"transaction {poll.transaction} received its own {value!r} at offset {offset}"
                yield anomaly(
                    "precommitted-read", partition.where, says, writer, Read(offset, value, poll).proof
                )


def phantoms(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Records that no producer sent."""
    if partition.topic.has_other_writers:
        return
    for view in partition.views:
        for value, read in view.found.items():
            if value not in partition.writers:
                says = f"a reader received {value!r} at offset {read.offset}, but no producer sent it there"
                yield anomaly("phantom", partition.where, says, read.proof)


def reads_past_stable(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Records at or after the last stable offset in the same response."""
    for poll in partition.polls:
        if poll.last_stable is None or not partition.is_committed_view(poll):
            continue
        if found := _first_behind(poll, poll.last_stable):
            says = f"offset {found.offset} was returned with a last stable offset of {poll.last_stable}"
            yield anomaly("read-past-stable", partition.where, says, found.proof)


def _first_behind(poll: Poll, bound: int) -> Read | None:
    return next((Read(*record, poll) for record in poll.records if record[0] >= bound), None)
