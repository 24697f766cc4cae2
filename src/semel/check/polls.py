"""Checks of the progress of readers: offsets increase, and no visible record is skipped."""

from collections.abc import Iterator

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import Poll
from semel.check.partitions import PartitionHistory, Read, Session, View


def nonmonotonic_polls(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Readers that received an offset again, or one before their assigned position."""
    for view in partition.views:
        for session in view.sessions:
            yield from _going_back(partition, session)


def _going_back(partition: PartitionHistory, session: Session) -> Iterator[Anomaly]:
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


def _going_past(partition: PartitionHistory, view: View, session: Session) -> Iterator[Anomaly]:
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
    session: Session,
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
