"""Server-side assignors of KIP-848: which member should own which partition.

An assignor is a function of the members' subscriptions, the topics, and the previous assignment. It is
deterministic, so every broker computes the same assignment for the same group.

- ``uniform`` spreads partitions evenly (counts differ by at most one when all subscriptions are equal) and
  keeps previous owners as far as the balance allows.
- ``range`` gives each member adjacent partitions of each topic, with the same ranges for topics of the same
  size, as joins over several topics require. It ignores the previous assignment.
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
Heap: TypeAlias = list[tuple[int, int, str]]
"""Members as (load, order, member id), the least loaded first."""


def assign_range(
    wanted: Wanted, topics: Mapping[str, TopicShape], previous: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Give each subscribed member adjacent partitions of each topic."""
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
    """Spread partitions evenly, and keep previous owners as far as possible."""
    if len(set(wanted.values())) == 1:
        return _assign_evenly(wanted, topics, previous)
    return _assign_by_load(wanted, topics, previous)


def _assign_evenly(
    wanted: Wanted, topics: Mapping[str, TopicShape], previous: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Equal subscriptions: give each member its share, and let it keep as many of its partitions as fit."""
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
    """Different subscriptions: topics with few subscribers first, partitions to the least loaded member."""
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
        _fill(topics[name], _by_load(eligible[name], load, order), owner, load)
    for name in sorted(topics, key=lambda each: (-len(eligible[each]), each)):
        _even_out(topics[name], _by_load(eligible[name], load, order), owner, load)
    assigned: dict[str, set[Owned]] = {member_id: set() for member_id in wanted}
    for owned, member_id in owner.items():
        assigned[member_id].add(owned)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _by_load(eligible: list[str], load: dict[str, int], order: dict[str, int]) -> Heap:
    """Return a heap of members by their current load."""
    heap = [(load[member_id], order[member_id], member_id) for member_id in eligible]
    heapify(heap)
    return heap


def _fill(shape: TopicShape, heap: Heap, owner: dict[Owned, str], load: dict[str, int]) -> None:
    """Give each unowned partition of a topic to the least loaded member."""
    for partition in range(shape.partitions):
        if (shape.topic_id, partition) in owner or not heap:
            continue
        _, position, member_id = heappop(heap)
        owner[shape.topic_id, partition] = member_id
        load[member_id] += 1
        heappush(heap, (load[member_id], position, member_id))


def _even_out(shape: TopicShape, heap: Heap, owner: dict[Owned, str], load: dict[str, int]) -> None:
    """Move partitions of a topic from more to less loaded members, while that evens out the load."""
    for partition in range(shape.partitions):
        giver = owner.get((shape.topic_id, partition))
        # A heap entry is stale when its member has given away partitions since; push it with its current
        # load.
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
