"""Checks of readers: what they should not have received, and whether they skipped a record.

They should not receive records that are aborted, early, their own, or never sent. Their offsets increase, and
no visible record is skipped.
"""

from collections.abc import Iterator

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import FAIL, Name, Poll
from semel.check.partitions import PartitionHistory, Read, ReadSession, View
from semel.check.transactions import ABORTED


def nonmonotonic_polls(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Readers that received an offset again, or one before their assigned position."""
    for view in partition.views:
        for session in view.sessions:
            yield from _going_back(partition, session)


def _going_back(partition: PartitionHistory, session: ReadSession) -> Iterator[Anomaly]:
    last: Read | None = None
    for poll in session.polls:
        for offset, value in poll.records:
            read = Read(offset, value, poll)
            if last is not None and offset <= last.offset:
                says = f"process {poll.process} received offset {offset} after {last.offset}"
                yield anomaly("nonmonotonic-poll", partition.where, says, *_both(last, read))
            elif last is None and session.start is not None and offset < session.start:
                says = f"process {poll.process} received offset {offset}, but reads from {session.start} on"
                yield anomaly("nonmonotonic-poll", partition.where, says, session.assign, read.proof)
            last = read


def _both(first: Read, second: Read) -> tuple[Poll, ...]:
    """Return the proof of two reads: one poll if both are from the same poll."""
    if first.poll is not second.poll:
        return (first.proof, second.proof)
    records = ((first.offset, first.value), (second.offset, second.value))
    return (first.poll._replace(records=records),)


def skipped_polls(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Readers that skipped a record that others received or, on a journal topic, any offset."""
    if partition.topic.is_compacted:
        return
    for view in partition.views:
        for session in view.sessions:
            yield from _going_past(partition, view, session)


def _going_past(partition: PartitionHistory, view: View, session: ReadSession) -> Iterator[Anomaly]:
    expected, before = session.start, None
    for poll in session.polls:
        for offset, value in poll.records:
            read = Read(offset, value, poll)
            if expected is not None and offset > expected:
                yield from _missed(partition, view, session, before, (expected, offset, read))
            if expected is None or offset >= expected:
                expected, before = offset + 1, read
        if poll.position is not None and expected is not None and poll.position > expected:
            # Not a gap without a record after it: a position may be ahead of the last record.
            yield from _missed(partition, view, session, before, (expected, poll.position, None))
            expected = poll.position


def _missed(
    partition: PartitionHistory,
    view: View,
    session: ReadSession,
    before: Read | None,
    step: tuple[int, int, Read | None],
) -> Iterator[Anomaly]:
    expected, offset, read = step
    first = max(expected, partition.trimmed)
    missed = view.between(first, offset)
    is_gap = missed is None and partition.is_journal and read is not None and offset > first
    if missed is None and not is_gap:
        return
    process = session.polls[0].process
    begin, after = before.proof if before else session.assign, read.proof if read else None
    if missed is not None:
        value = view.places[missed]
        says = f"process {process} went from {expected} to {offset}, past {value!r} at {missed}"
        yield anomaly("skipped-poll", partition.where, says, begin, after, view.found[value].proof)
    else:
        says = f"process {process} received offset {offset} where {first} was expected"
        yield anomaly("gap", partition.where, says, begin, after)


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
