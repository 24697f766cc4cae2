"""One step of a consumer member towards its target assignment (KIP-848).

A partition has one owner at a time, so it is revoked from one member before another gets it. A member that
must revoke partitions stays in its epoch (UNREVOKED) until its heartbeat no longer lists them. Then it moves
to the target's epoch and gets those of its new partitions that are free. While other members still own some
of them it is UNRELEASED, and every heartbeat tries again. With all of them it is STABLE.

Invariant: a partition that is ``assigned`` to or being revoked from (``revoking``) one member is never given
to another.
"""

from collections.abc import Mapping

from semel.core.groups.model import NO_ASSIGNMENT, Assignment, ConsumerGroup, ConsumerMember, MemberState


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
