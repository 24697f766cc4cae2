"""Checks that the order of transactions, by reads and by journals, has no cycles.

An edge means that one transaction was committed before another: the second one read a record of the first, or
its records follow in a journal topic, where the log is in commit order. Without cycles a total order exists.
Interleaving in topics with markers is not an edge: appends may interleave.

One pass finds the *knots*: sets of transactions in which each can be reached from every other (Tarjan's
strongly connected components). Transactions without incoming or outgoing edges are removed first; usually
that is everything.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import Name, Poll
from semel.check.partitions import PartitionHistory


class Edge(NamedTuple):
    """One transaction was committed before another."""

    before: Name
    after: Name
    proof: Poll
    """The read that shows it: in the second transaction, or in the journal."""


def edges(partition: PartitionHistory) -> Iterator[Edge]:
    """Return the edges that one partition shows."""
    reported: set[tuple[Name, Name]] = set()
    for poll in partition.polls:
        if poll.transaction is None or not partition.is_committed_view(poll):
            continue
        for record in poll.records:
            writer = partition.writers.get(record[1])
            if writer is None or writer.transaction is None or writer.transaction == poll.transaction:
                continue
            pair = (writer.transaction, poll.transaction)
            if pair not in reported:
                reported.add(pair)
                yield Edge(*pair, poll._replace(records=(record,)))
    if partition.is_journal:
        yield from _journal_edges(partition)


def _journal_edges(partition: PartitionHistory) -> Iterator[Edge]:
    view = partition.committed
    before: Name | None = None
    for offset in view.offsets:
        value = view.places[offset]
        writer = partition.writers.get(value)
        if writer is None or writer.transaction is None:
            continue
        if before is not None and before != writer.transaction:
            yield Edge(before, writer.transaction, view.found[value].proof)
        before = writer.transaction


def cycles(found: Iterable[Edge]) -> Iterator[Anomaly]:
    """Return one shortest cycle of every knot of transactions."""
    every = list(found)
    targets: dict[Name, set[Name]] = {}
    for edge in every:
        targets.setdefault(edge.before, set()).add(edge.after)
        targets.setdefault(edge.after, set())
    left = _peel(targets)
    out: dict[Name, dict[Name, Edge]] = {name: {} for name in sorted(left, key=str)}
    for edge in sorted((each for each in every if each.before in left and each.after in left), key=_place):
        out[edge.before].setdefault(edge.after, edge)
    for knot in _knots({name: list(ways) for name, ways in out.items()}):
        circle = _shortest(min(knot, key=str), out, knot)
        names = " → ".join(str(each.before) for each in circle)
        says = f"{names} → {circle[0].before}: each before the next"
        yield anomaly("cyclic-order", "transactions", says, *(each.proof for each in circle))


def _place(edge: Edge) -> tuple[str, str, int, str, int]:
    """The sort order of edges, the same in every run."""
    return (str(edge.before), str(edge.after), edge.proof.started, edge.proof.topic, edge.proof.partition)


def _peel(targets: dict[Name, set[Name]]) -> set[Name]:
    """Remove transactions without incoming or outgoing edges repeatedly; return the rest."""
    sources: dict[Name, set[Name]] = {name: set() for name in targets}
    for name, each in targets.items():
        for target in each:
            sources[target].add(name)
    left = set(targets)
    ready = deque(name for name in targets if not targets[name] or not sources[name])
    while ready:
        name = ready.popleft()
        if name not in left:
            continue
        left.discard(name)
        for ways, back in ((targets, sources), (sources, targets)):
            for other in ways[name]:
                back[other].discard(name)
                if not back[other]:
                    ready.append(other)
    return left


def _knots(targets: dict[Name, list[Name]]) -> Iterator[set[Name]]:
    """Return sets of more than one transaction in which each can be reached from every other."""
    number: dict[Name, int] = {}
    low: dict[Name, int] = {}
    path: list[Name] = []
    on_path: set[Name] = set()
    for root in targets:
        if root in number:
            continue
        steps: list[tuple[Name, Iterator[Name]]] = [(root, iter(targets[root]))]
        while steps:
            name, rest = steps[-1]
            if name not in number:
                number[name] = low[name] = len(number)
                path.append(name)
                on_path.add(name)
            target = next((each for each in rest if each not in number or each in on_path), None)
            if target is None:
                steps.pop()
                if steps:
                    low[steps[-1][0]] = min(low[steps[-1][0]], low[name])
                if low[name] == number[name]:
                    knot = {path.pop()}
                    while name not in knot:
                        knot.add(path.pop())
                    on_path -= knot
                    if len(knot) > 1:
                        yield knot
            elif target in number:
                low[name] = min(low[name], number[target])
            else:
                steps.append((target, iter(targets[target])))


def _shortest(start: Name, out: dict[Name, dict[Name, Edge]], knot: set[Name]) -> list[Edge]:
    """Return the shortest path from a transaction of a knot back to itself."""
    came: dict[Name, Edge] = {}
    queue = deque([start])
    while start not in came:
        for target, edge in out[queue.popleft()].items():
            if target in knot and target not in came:
                came[target] = edge
                queue.append(target)
    circle = [came[start]]
    while circle[-1].before != start:
        circle.append(came[circle[-1].before])
    return circle[::-1]
