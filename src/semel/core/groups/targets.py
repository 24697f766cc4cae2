"""The target assignment of a consumer group: its inputs, and when it is computed (KIP-848).

The group epoch is bumped when subscriptions or topics change. An assignor computes the target for an epoch
from all members. This is expensive, so the target of a large group is not computed for every member that
joins.

**Reconciling.** A partition has one owner at a time, so it is revoked from one member before another gets it.
A member that must revoke partitions stays in its epoch (UNREVOKED) until its heartbeat no longer lists them.
Then it moves to the target's epoch and gets those of its new partitions that are free. While other members
still own some of them it is UNRELEASED, and every heartbeat tries again. With all of them it is STABLE.

Invariant: a partition that is ``assigned`` to or being revoked from (``revoking``) one member is never given
to another.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from semel.core.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from semel.core.groups.model import (
    NO_ASSIGNMENT,
    Assignment,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    TopicShape,
)

if TYPE_CHECKING:
    from semel.core.groups.consumer import ConsumerTurn


def reconcile(group: ConsumerGroup, member: ConsumerMember, owned: Assignment | None) -> ConsumerMember:
    """Return the member after this heartbeat; ``owned`` are the partitions it lists, None without a list."""
    if member.state is MemberState.STABLE and member.epoch == group.target_epoch:
        return member
    if member.state is not MemberState.UNREVOKED:
        return _step(group, member, member.epoch, owned)
    if owned is None or owned & member.revoking:
        return member
    return _step(group, member, member.epoch + 1, owned)


def _step(
    group: ConsumerGroup, member: ConsumerMember, epoch: int, owned: Assignment | None
) -> ConsumerMember:
    target = group.target.get(member.member_id, NO_ASSIGNMENT)
    kept = member.assigned & target
    revoking = member.assigned - target
    # A partition that the heartbeat does not list is already revoked. A heartbeat without a list confirms
    # nothing.
    if revoking and (owned is None or owned & revoking):
        return _at(member, epoch).but(
            state=MemberState.UNREVOKED,
            assigned=kept,
            revoking=revoking,
            since=_since(member, kept | revoking, epoch),
        )
    wanted = target - kept
    available = wanted - owned_by_others(group, member.member_id) if wanted else wanted
    state = MemberState.STABLE if available == wanted else MemberState.UNRELEASED
    return _at(member, group.target_epoch).but(
        state=state,
        assigned=kept | available,
        revoking=NO_ASSIGNMENT,
        since=_since(member, kept | available, group.target_epoch),
    )


def _since(member: ConsumerMember, owned: Assignment, epoch: int) -> Mapping[int, Assignment]:
    """Record the epoch of partitions that the member got in this step; keep the epochs of those it kept."""
    # A static member that was temporarily away has given up what it was revoking.
    kept = owned & (member.assigned | member.revoking)
    before = {first: some & kept for first, some in member.since.items()}
    new = owned.difference(*before.values())
    since = {first: some for first, some in before.items() if some}
    if new:
        since[epoch] = new | since.get(epoch, NO_ASSIGNMENT)
    return since


def _at(member: ConsumerMember, epoch: int) -> ConsumerMember:
    if epoch == member.epoch:
        return member
    return member.but(epoch=epoch, previous_epoch=member.epoch)


def owned_by_others(group: ConsumerGroup, member_id: str) -> Assignment:
    """Return every partition that another member owns or has not revoked yet."""
    others = [member for member in group.members.values() if member.member_id != member_id]
    return NO_ASSIGNMENT.union(*(each.assigned for each in others), *(each.revoking for each in others))


ASSIGNED_AT_ONCE: Final = 100
PARTITIONS_AT_ONCE: Final = 5_000
"""Up to this many members and partitions the target is computed whenever the group has changed."""


def wanted_names(group: ConsumerGroup) -> frozenset[str]:
    """Return the topics that members subscribe to by name."""
    return frozenset().union(*{member.topic_names for member in group.members.values()})


def wanted_regexes(group: ConsumerGroup) -> frozenset[str]:
    """Return the members' regular expressions."""
    return frozenset(member.topic_regex for member in group.members.values() if member.topic_regex)


def refresh(
    turn: "ConsumerTurn",
    seen: Mapping[str, TopicShape | None],
    matches: Mapping[str, tuple[str, ...]],
    before: ConsumerMember | None,
    updated: ConsumerMember,
    *,
    is_changed: bool,
) -> None:
    """Bump the group epoch if subscriptions or topics changed, and compute the target if it is behind.

    ``seen`` are the topics and ``matches`` the regular expressions as the caller looked them up.
    The target of a large group is not computed for every member that joins: see ``_is_target_due``.
    """
    group = turn.group
    if is_changed or not _agrees(group, seen, matches):
        subscribed = turn.session.subscribed
        if before is None and subscribed is not None and updated.topic_regex is None:
            # A new member can only add names, so the others need not be visited.
            subscribed, regexes = subscribed.union(updated.topic_names), frozenset(group.regex_matches)
        else:
            subscribed, regexes = wanted_names(group), wanted_regexes(group)
        turn.session = turn.session.but(subscribed=subscribed)
        regex_matches = {
            regex: matches.get(regex, group.regex_matches.get(regex, ())) for regex in sorted(regexes)
        }
        topics = _shapes(subscribed.union(*regex_matches.values()), seen, group.topics)
        if is_changed or topics != group.topics or regex_matches != group.regex_matches:
            group = group.but(epoch=group.epoch + 1, topics=topics, regex_matches=regex_matches)
    if group.epoch > group.target_epoch and _is_target_due(turn):
        group = _with_target(group)
        turn.session = turn.session.but(assigned_ms=turn.now)
    turn.group = group


def _is_target_due(turn: "ConsumerTurn") -> bool:
    """Whether the target may be computed now. The cost grows with the group, so large groups wait.

    The target of a group of a thousand members is computed at most ten times a second, that of a group with
    100,000 partitions every two seconds. A member that joins in between owns nothing until one of its next
    heartbeats.
    """
    members = len(turn.group.members)
    partitions = sum(shape.partitions for shape in turn.group.topics.values())
    wait_ms = members // 10 if members > ASSIGNED_AT_ONCE else 0
    if partitions > PARTITIONS_AT_ONCE:
        wait_ms = max(wait_ms, partitions // 50)
    assigned_ms = turn.session.assigned_ms
    return assigned_ms < 0 or turn.now >= assigned_ms + wait_ms


def _agrees(
    group: ConsumerGroup,
    seen: Mapping[str, TopicShape | None],
    matches: Mapping[str, tuple[str, ...]],
) -> bool:
    """Whether the caller's view of the topics matches the group's: the usual case, and cheap to check."""
    return all(group.topics.get(name) == shape for name, shape in seen.items()) and all(
        group.regex_matches.get(regex) == names for regex, names in matches.items()
    )


def _shapes(
    names: frozenset[str], seen: Mapping[str, TopicShape | None], known: Mapping[str, TopicShape]
) -> dict[str, TopicShape]:
    shapes: dict[str, TopicShape] = {}
    for name in sorted(names):
        shape = seen[name] if name in seen else known.get(name)
        if shape is not None:
            shapes[name] = shape
    return shapes


def _with_target(group: ConsumerGroup) -> ConsumerGroup:
    votes = Counter(member.assignor for member in group.members.values() if member.assignor)
    name = min(votes, key=lambda each: (-votes[each], each)) if votes else DEFAULT_ASSIGNOR
    # Assign to static members in the order of their instance ids, so that a restart changes nothing.
    members = sorted(group.members.values(), key=lambda each: each.instance_id or each.member_id)
    wanted = {member.member_id: group.subscription(member) for member in members}
    target = ASSIGNORS[name](wanted, group.topics, group.target)
    return group.but(target=target, target_epoch=group.epoch, assignor=name)
