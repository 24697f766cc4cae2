"""Server-side assignors of KIP-848: who should own which partition.

An assignor is a function of who wants which topics, what the topics are, and who owned what before. It is
deterministic, so that the same group gives the same answer on every broker.

- ``uniform`` spreads partitions evenly (counts differ by one at most when all want the same topics) and
  leaves with a member what it had, as far as that is even.
- ``range`` gives neighbouring partitions of each topic to a member, the same ranges for topics of the same
  size, which is what joins over several topics need. It does not look at what was before.
"""

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from semel.core.groups.model import NO_ASSIGNMENT, Assignment, Owned, TopicShape

Wanted: TypeAlias = Mapping[str, frozenset[str]]
"""Member id to topic names, in the order in which members are served."""
Assignor: TypeAlias = Callable[
    [Wanted, Mapping[str, TopicShape], Mapping[str, Assignment]], dict[str, Assignment]
]


def assign_range(
    wanted: Wanted, topics: Mapping[str, TopicShape], previous: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Neighbouring partitions of each topic to each member that wants it."""
    assigned: dict[str, set[Owned]] = {member_id: set() for member_id in wanted}
    for name, shape in topics.items():
        members = [member_id for member_id, names in wanted.items() if name in names]
        if not members:
            continue
        each, extra = divmod(shape.partitions, len(members))
        first = 0
        for index, member_id in enumerate(members):
            after = first + each + (1 if index < extra else 0)
            assigned[member_id].update((shape.topic_id, partition) for partition in range(first, after))
            first = after
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def assign_uniform(
    wanted: Wanted, topics: Mapping[str, TopicShape], previous: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """As even as can be, and as it was as far as it can be."""
    if len(set(wanted.values())) == 1:
        return _assign_evenly(wanted, topics, previous)
    return _assign_by_load(wanted, topics, previous)


def _assign_evenly(
    wanted: Wanted, topics: Mapping[str, TopicShape], previous: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """All members want the same: each gets its share, and keeps of its own what fits into the share."""
    names = next(iter(wanted.values()))
    sizes = {shape.topic_id: shape.partitions for name, shape in topics.items() if name in names}
    share, extra = divmod(sum(sizes.values()), len(wanted))
    kept: dict[str, list[Owned]] = {}
    taken: set[Owned] = set()
    for member_id in wanted:
        own = [
            owned
            for owned in previous.get(member_id, NO_ASSIGNMENT)
            if owned[1] < sizes.get(owned[0], 0) and owned not in taken
        ]
        size = share
        if len(own) > share and extra:
            extra -= 1
            size += 1
        if len(own) > size:
            own = sorted(own)[:size]
        kept[member_id] = own
        taken.update(own)
    in_order = ((topic_id, partition) for topic_id in sorted(sizes) for partition in range(sizes[topic_id]))
    free = [owned for owned in in_order if owned not in taken]
    free.reverse()
    for own in kept.values():
        while len(own) < share:
            own.append(free.pop())
    for own in kept.values():
        if free and len(own) == share:
            own.append(free.pop())
    return {member_id: frozenset(own) for member_id, own in kept.items()}


def _assign_by_load(
    wanted: Wanted, topics: Mapping[str, TopicShape], previous: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Members want different topics: topics that few want first, each to the least loaded member."""
    order = {member_id: index for index, member_id in enumerate(wanted)}
    eligible = {name: [each for each, names in wanted.items() if name in names] for name in topics}
    owner: dict[Owned, str] = {}
    for member_id, names in wanted.items():
        current = {topics[name].topic_id: topics[name].partitions for name in names if name in topics}
        for topic_id, partition in previous.get(member_id, NO_ASSIGNMENT):
            if partition < current.get(topic_id, 0):
                owner.setdefault((topic_id, partition), member_id)
    load = dict.fromkeys(wanted, 0)
    for member_id in owner.values():
        load[member_id] += 1
    for name in sorted(topics, key=lambda each: (len(eligible[each]), each)):
        _fill(topics[name], eligible[name], owner, load, order)
    for name in sorted(topics, key=lambda each: (-len(eligible[each]), each)):
        _even_out(topics[name], eligible[name], owner, load, order)
    assigned: dict[str, set[Owned]] = {member_id: set() for member_id in wanted}
    for owned, member_id in owner.items():
        assigned[member_id].add(owned)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _fill(
    shape: TopicShape,
    eligible: list[str],
    owner: dict[Owned, str],
    load: dict[str, int],
    order: dict[str, int],
) -> None:
    """Give each partition of a topic that nobody owns to the least loaded member."""
    heap = [(load[member_id], order[member_id], member_id) for member_id in eligible]
    heapify(heap)
    for partition in range(shape.partitions):
        if (shape.topic_id, partition) in owner or not heap:
            continue
        _, position, member_id = heappop(heap)
        owner[shape.topic_id, partition] = member_id
        load[member_id] += 1
        heappush(heap, (load[member_id], position, member_id))


def _even_out(
    shape: TopicShape,
    eligible: list[str],
    owner: dict[Owned, str],
    load: dict[str, int],
    order: dict[str, int],
) -> None:
    """Move partitions of a topic from loaded members to idle ones, while that makes them more even."""
    heap = [(load[member_id], order[member_id], member_id) for member_id in eligible]
    heapify(heap)
    for partition in range(shape.partitions):
        giver = owner.get((shape.topic_id, partition))
        # A heap entry is stale when its member has given since; it is put back with what it has now.
        while heap and heap[0][0] != load[heap[0][2]]:
            _, position, member_id = heappop(heap)
            heappush(heap, (load[member_id], position, member_id))
        if giver is None or not heap or load[giver] - heap[0][0] <= 1:
            continue
        _, position, taker = heappop(heap)
        owner[shape.topic_id, partition] = taker
        load[giver] -= 1
        load[taker] += 1
        heappush(heap, (load[taker], position, taker))


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR: Final = "uniform"
