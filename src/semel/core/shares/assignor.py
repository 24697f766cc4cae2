"""The simple assignor (KIP-932): give every partition members, and spread members evenly.

Members of a share group can have the same partition. If a topic has more subscribers than partitions, each
member gets one partition; otherwise each partition gets one member. Both are spread evenly. Members keep
their previous partitions as far as the balance allows.
"""

from collections.abc import Mapping

from semel.core.groups.model import NO_ASSIGNMENT, Assignment, Owned, TopicShape


def assign(
    wanted: Mapping[str, frozenset[str]], topics: Mapping[str, TopicShape], previous: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Return the partitions of each member."""
    assigned: dict[str, set[Owned]] = {member_id: set() for member_id in wanted}
    for name, shape in topics.items():
        members = sorted(member_id for member_id, names in wanted.items() if name in names)
        if not members:
            continue
        if len(members) > shape.partitions:
            _spread_members(assigned, shape, members, previous)
        else:
            _spread_partitions(assigned, shape, members, previous)
    return {member_id: frozenset(each) for member_id, each in assigned.items()}


def _spread_members(
    assigned: dict[str, set[Owned]],
    shape: TopicShape,
    members: list[str],
    previous: Mapping[str, Assignment],
) -> None:
    """More members than partitions: give each member one; members per partition differ by one at most."""
    share, extra = divmod(len(members), shape.partitions)
    counts = [0] * shape.partitions
    waiting: list[str] = []
    for member_id in members:
        mine = _kept(previous, member_id, shape)
        fits = [index for index in mine if counts[index] < share]
        if not fits and extra > 0:
            fits = [index for index in mine if counts[index] == share]
            extra -= bool(fits)
        if fits:
            counts[fits[0]] += 1
            assigned[member_id].add((shape.topic_id, fits[0]))
        else:
            waiting.append(member_id)
    for member_id in waiting:
        index = min(range(shape.partitions), key=lambda each: (counts[each], each))
        counts[index] += 1
        assigned[member_id].add((shape.topic_id, index))


def _spread_partitions(
    assigned: dict[str, set[Owned]],
    shape: TopicShape,
    members: list[str],
    previous: Mapping[str, Assignment],
) -> None:
    """Enough partitions for all members: give each partition one; member loads differ by one at most."""
    share, extra = divmod(shape.partitions, len(members))
    free = dict.fromkeys(range(shape.partitions))
    room: dict[str, int] = {}
    for member_id in members:
        kept = [index for index in _kept(previous, member_id, shape) if index in free][: share + (extra > 0)]
        extra -= len(kept) > share
        room[member_id] = share - len(kept)
        for index in kept:
            del free[index]
            assigned[member_id].add((shape.topic_id, index))
    for member_id in members:
        for index in list(free)[: max(room[member_id], 0)]:
            del free[index]
            assigned[member_id].add((shape.topic_id, index))
    for member_id, index in zip((each for each in members if room[each] >= 0), list(free), strict=False):
        assigned[member_id].add((shape.topic_id, index))


def _kept(previous: Mapping[str, Assignment], member_id: str, shape: TopicShape) -> list[int]:
    mine = previous.get(member_id, NO_ASSIGNMENT)
    return sorted(
        index for topic_id, index in mine if topic_id == shape.topic_id and index < shape.partitions
    )
