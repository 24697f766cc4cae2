"""What may be asked of groups, and the answers. The rules are in the modules that decide them.

Whatever depends on a request's version is a plain field here (``requires_member_id``), so that the rules know
nothing of versions. Random parts of ids and settings are given by the asker, because the core has neither.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from semel.core.data import Data
from semel.core.groups.model import NOTHING, Assignment, TopicShape
from semel.core.types import ErrorCode, GroupKey, Key, OffsetKey, PendingKey, Ticket

# ``sessions_max`` in the commands that make somebody a member: how many groups may be alive at the same time.
# A session cannot leave memory while somebody counts on it, so the next group has to wait.

GROUP_TICK_MS: Final = 100
"""How often ``GroupTick`` should be asked: deadlines are kept to within this."""


class JoinGroup(Data):
    """Become a member of a classic group, or take part in its rebalance. Waits; answer: ``Joined``."""

    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    ticket: Ticket
    new_member_id: str
    """The id that the member gets if it has none."""
    requires_member_id: bool = True
    """Whether a member without an id must come back with one (KIP-394)."""
    can_skip_assignment: bool = True
    """Whether the client can be leader without computing an assignment (KIP-814)."""
    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_delay_ms: int = 3_000
    members_max: int = 10_000
    member_bytes_max: int = 1_048_576
    group_bytes_max: int = 16_777_216
    sessions_max: int = 100_000

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class JoinedMember(Data):
    """What the leader is told of a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(Data):
    """The answer to ``JoinGroup``. Only the leader is given the members."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncGroup(Data):
    """Give (the leader) or ask for (all others) assignments. Waits for the leader; answer: ``Synced``."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]
    ticket: Ticket

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class Synced(Data):
    """The answer to ``SyncGroup``."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Heartbeat(Data):
    """A classic member is alive. The answer is an ErrorCode."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class LeavingMember(Data):
    """Who leaves: by member id, or by instance id alone (an administrator removes a static member)."""

    member_id: str
    instance_id: str | None = None


class LeaveGroup(Data):
    """Members leave a classic group. The answer is ``Left``."""

    group_id: str
    members: tuple[LeavingMember, ...]

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class Left(Data):
    """The answer to ``LeaveGroup``: one error for all, or one for each."""

    error: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


class ConsumerHeartbeat(Data):
    """A consumer member joins (epoch 0), lives, or leaves (-1, -2). The answer is ``ConsumerAnswer``."""

    group_id: str
    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    """What the member says it owns; None if it did not say."""
    topics: Mapping[str, TopicShape | None] = NOTHING
    """The topics that the group wants, as far as the asker looked; None for those that are not there."""
    regex_matches: Mapping[str, tuple[str, ...]] = NOTHING
    """The topics that each regular expression of the group matches, as far as the asker looked."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = 10_000
    member_bytes_max: int = 1_048_576
    group_bytes_max: int = 16_777_216
    sessions_max: int = 100_000

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class ConsumerAnswer(Data):
    """The answer to ``ConsumerHeartbeat``. An assignment of None means that it is unchanged."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


REGEX_REFRESH_MS: Final = 3_000
"""How soon a new topic is found by an expression; looking through all topics is not for every heartbeat."""


class ReadSubscriptions(Data):
    """Which topics does a consumer group want? The answer is ``Subscriptions``.

    Asked before ``ConsumerHeartbeat``, so that the asker can look the topics up. The two are not one step,
    and need not be: a subscription that comes in between is looked up at the next heartbeat.
    """

    group_id: str

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class Subscriptions(Data):
    """The answer to ``ReadSubscriptions``."""

    topic_names: frozenset[str] = frozenset()
    """Also those that a regular expression matched when it was last looked at."""
    regexes: frozenset[str] = frozenset()
    """Those that should be looked at now."""


class DescribeGroup(Data):
    """What is this group? The answer is the Group, or None."""

    group_id: str

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class DeleteGroup(Data):
    """Delete an empty group and its offsets. The answer is an ErrorCode."""

    group_id: str

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class GroupTick(Data):
    """Time has passed: end what is overdue in all groups with a session. The answer is how many were due.

    Ask it every ``GROUP_TICK_MS``; it costs a look at one number per group. After a start, name the groups
    that have members according to the ledger once: their sessions begin, so that members that died with the
    old process are lost in time.
    """

    group_ids: tuple[str, ...] = ()
    consumer_session_timeout_ms: int = 45_000

    def keys(self) -> Iterable[Key]:
        """The groups that are named; those with a session are in memory anyway."""
        return [GroupKey(group_id) for group_id in self.group_ids]


class ExpireOffsets(Data):
    """Forget those of the positions that are not newer than a moment, if nobody was a member since.

    ``forget_group`` says that the asker saw no other offsets of the group; then an empty group goes too.
    """

    group_id: str
    offsets: tuple[OffsetKey, ...]
    before_ms: int
    forget_group: bool = False

    def keys(self) -> Iterable[Key]:
        """The group, the offsets, and what open transactions hold."""
        return (GroupKey(self.group_id), PendingKey(self.group_id), *self.offsets)
