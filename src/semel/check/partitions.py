"""One partition's part of a history, indexed once for all checks.

The *view* of a reader is what it must receive: all records (`read_uncommitted` on a topic with markers), or
the committed ones. A *session* is what a process read of the partition from one assignment to the next: a
contiguous range of the log, in order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from semel.check import history
from semel.check.transactions import ABORTED, COMMITTED, Fate


def _moment(step: history.Produce | history.Poll | history.Assign) -> tuple[int, str]:
    """The sort key of an operation. At equal times those of one process keep their order, across files."""
    return (step.started, str(step.process))


class Read(NamedTuple):
    """A received record, and its poll."""

    offset: int
    value: history.Name
    poll: history.Poll

    @property
    def proof(self) -> history.Poll:
        """The poll, reduced to this record."""
        return self.poll._replace(records=((self.offset, self.value),))


@dataclass(slots=True)
class ReadSession:
    """What a process read of the partition in one session."""

    start: int | None
    assign: history.Assign | None
    polls: list[history.Poll] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    """The position after each poll. The process will receive no more records before it."""

    @property
    def end(self) -> int:
        """The last position of the process."""
        return self.marks[-1] if self.marks else -1

    def add(self, poll: history.Poll) -> None:
        """Add a poll."""
        self.polls.append(poll)
        mark = self.end
        if poll.records:
            self.start = poll.records[0][0] if self.start is None else self.start
            mark = max(mark, poll.records[-1][0] + 1)
        if poll.position is not None and self.start is not None:
            mark = max(mark, poll.position)
        self.marks.append(mark)

    def went_past(self, offset: int) -> history.Poll:
        """Return the poll that passed the offset, with its first record after it."""
        poll = self.polls[bisect_right(self.marks, offset)]
        index = bisect_right(poll.records, offset, key=lambda record: record[0])
        return poll._replace(records=poll.records[index : index + 1])


@dataclass
class View:
    """What readers of one kind received, and which ranges of the log they covered."""

    is_committed: bool
    sessions: list[ReadSession] = field(default_factory=list)
    found: dict[history.Name, Read] = field(default_factory=dict)
    """The first read of each value."""
    places: dict[int, history.Name] = field(default_factory=dict)

    @cached_property
    def offsets(self) -> list[int]:
        """All offsets at which anything was found, in order."""
        return sorted(self.places)

    def between(self, first: int, until: int) -> int | None:
        """Return the first offset at which something was found, from `first` on and before `until`."""
        index = bisect_left(self.offsets, first)
        return self.offsets[index] if index < len(self.offsets) and self.offsets[index] < until else None

    @cached_property
    def _stretches(self) -> tuple[list[int], list[int]]:
        """The union of the ranges that sessions covered, as starts and ends."""
        starts: list[int] = []
        ends: list[int] = []
        for start, end in sorted((each.start, each.end) for each in self.sessions if each.start is not None):
            if starts and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            elif end > start:
                starts.append(start)
                ends.append(end)
        return starts, ends

    def covers(self, offset: int) -> bool:
        """Whether a session passed the offset."""
        starts, ends = self._stretches
        index = bisect_right(starts, offset) - 1
        return index >= 0 and offset < ends[index]

    @cached_property
    def _furthest(self) -> tuple[list[int], list[ReadSession]]:
        """The starts of sessions in order and, for each, the session that went furthest of those up to it."""
        starts: list[int] = []
        best: list[ReadSession] = []
        begun = [(each.start, number) for number, each in enumerate(self.sessions) if each.start is not None]
        for start, number in sorted(begun):
            session = self.sessions[number]
            starts.append(start)
            best.append(session if not best or session.end > best[-1].end else best[-1])
        return starts, best

    def witness(self, offset: int) -> history.Poll | None:
        """Return a poll that passed the offset."""
        starts, best = self._furthest
        index = bisect_right(starts, offset) - 1
        return best[index].went_past(offset) if index >= 0 and best[index].end > offset else None


class PartitionHistory:
    """The operations of one partition, and what follows from them."""

    def __init__(
        self,
        key: history.Partition,
        operations: Iterable[history.Operation],
        fates: Mapping[history.Name, Fate],
        topic: history.Topic,
    ) -> None:
        self.key = key
        self.where = f"{key[0]}/{key[1]}"
        self.topic = topic
        self.is_journal = topic.visibility == history.JOURNAL
        self.fates = fates
        self.produces: list[history.Produce] = []
        self.polls: list[history.Poll] = []
        self.ends: list[history.Ends] = []
        self._assigns: list[history.Assign] = []
        self.trimmed = 0
        """Records before this offset may be gone."""
        for each in operations:
            self._take(each)
        self.produces.sort(key=_moment)
        self.polls.sort(key=_moment)

    def _take(self, operation: history.Operation) -> None:
        if isinstance(operation, history.Produce):
            self.produces.append(operation)
        elif isinstance(operation, history.Poll):
            self.polls.append(operation)
        elif isinstance(operation, history.Assign):
            self._assigns.append(operation)
        elif isinstance(operation, history.Ends) and operation.outcome == history.OK:
            self.ends.append(operation)
            self.trimmed = max(self.trimmed, operation.log_start or 0)
        elif isinstance(operation, history.Trim) and operation.outcome != history.FAIL:
            self.trimmed = max(self.trimmed, operation.before)

    # ---- writers

    @cached_property
    def writers(self) -> dict[history.Name, history.Produce]:
        """The produce of each value. The entry from its end replaces the one from its start."""
        found: dict[history.Name, history.Produce] = {}
        for produce in self.produces:
            for value in produce.values:
                if value not in found or found[value].outcome == history.INFO:
                    found[value] = produce
        return found

    def fate(self, produce: history.Produce) -> Fate | None:
        """Return the outcome of a produce's transaction; None if it is in none."""
        return None if produce.transaction is None else self.fates[produce.transaction]

    def counts(self, produce: history.Produce) -> bool:
        """Whether an acknowledged produce counts: it has no transaction, or its transaction was committed.

        A transaction of unknown outcome counts as committed if readers of committed records received a value
        of this produce. A record that was acknowledged inside an uncommitted transaction may be lost in a
        crash, and its offset used again.
        """
        if produce.outcome != history.OK:
            return False
        fate = self.fate(produce)
        if fate is None or fate.outcome == COMMITTED:
            return True
        return fate.outcome != ABORTED and any(value in self.committed.found for value in produce.values)

    @cached_property
    def acknowledged(self) -> list[history.Produce]:
        """Produces that count and were answered with an offset, ordered by their start."""
        return [each for each in self.produces if each.offset is not None and self.counts(each)]

    # ---- readers

    @cached_property
    def committed(self) -> View:
        """What readers of committed records received."""
        return self._views[True]

    @cached_property
    def everything(self) -> View:
        """What readers of all records received; empty on a journal topic, which has no such readers."""
        return self._views[False]

    @cached_property
    def views(self) -> list[View]:
        """The views that have sessions."""
        return [each for each in self._views.values() if each.sessions]

    @cached_property
    def _views(self) -> dict[bool, View]:
        views = {True: View(is_committed=True), False: View(is_committed=False)}
        for poll in sorted(self.polls, key=attrgetter("ended")):
            view = views[self.is_committed_view(poll)]
            for offset, value in poll.records:
                view.places.setdefault(offset, value)
                if value not in view.found:
                    view.found[value] = Read(offset, value, poll)
        self._add_sessions(views)
        return views

    def is_committed_view(self, poll: history.Poll) -> bool:
        """Whether the poll is of a reader of committed records."""
        return self.is_journal or poll.isolation != history.READ_UNCOMMITTED

    def is_ordered(self, poll: history.Poll) -> bool:
        """Whether the reader receives records by offset."""
        return self.is_journal or poll.isolation != history.COMMIT_ORDER

    def _add_sessions(self, views: dict[bool, View]) -> None:
        steps: list[history.Assign | history.Poll] = [*self._assigns, *self.polls]
        steps.sort(key=_moment)
        current: dict[history.Name, tuple[ReadSession, bool | None]] = {}
        for step in steps:
            if isinstance(step, history.Assign):
                if step.outcome == history.OK:
                    current[step.process] = (ReadSession(step.position, step), None)
                continue
            if not self.is_ordered(step):
                continue
            kind = self.is_committed_view(step)
            session, had = current.get(step.process, (ReadSession(None, None), None))
            if had is not None and had is not kind:
                session, had = ReadSession(None, None), None
            if had is None:
                views[kind].sessions.append(session)
            current[step.process] = (session, kind)
            session.add(step)
