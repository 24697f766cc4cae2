"""Finds stale reads: what was acknowledged must be visible to the next reader, at any broker.

A fetch response contains the last stable offset, up to which records are committed. The record at that offset
is not visible to the reader, so either its transaction may be open, or it is not acknowledged yet.
"""

from collections import defaultdict
from collections.abc import Iterable

from semel.check import history as h


def stale_reads(operations: Iterable[h.Operation]) -> list[str]:
    """Return the polls that did not see what was acknowledged before they began."""
    operations = list(operations)
    ended = {
        each.transaction: each.ended
        for each in operations
        if isinstance(each, h.Commit | h.Abort) and each.outcome == h.OK
    }
    done: dict[h.Name, int] = {}
    for each in operations:
        if isinstance(each, h.Produce) and each.outcome == h.OK and each.ended is not None:
            when = each.ended if each.transaction is None else ended.get(each.transaction)
            if when is not None:
                done.update((value, when) for value in each.values)
    polls = [each for each in operations if isinstance(each, h.Poll)]
    places: defaultdict[tuple[str, int], dict[int, h.Name]] = defaultdict(dict)
    for poll in polls:
        places[poll.topic, poll.partition].update(poll.records)
    problems = []
    for poll in polls:
        if poll.last_stable is None:
            continue
        value = places[poll.topic, poll.partition].get(poll.last_stable)
        if value is not None and done.get(value, poll.started) < poll.started:
            problems.append(
                f"stale-read: {value!r} at {poll.topic}/{poll.partition} offset {poll.last_stable} was"
                f" acknowledged before {poll.process} began to read, and not visible to it"
            )
    return problems
