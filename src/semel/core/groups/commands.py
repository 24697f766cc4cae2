"""The commands of groups, and their answers. The rules are in the modules that decide them.

Whatever depends on a request's version is a plain field here (``requires_member_id``), so that the rules are
independent of versions. The caller provides settings and the random parts of ids, because the core has
neither.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from semel.core.data import Data
from semel.core.groups.model import NOTHING, Assignment, Group, TopicShape
from semel.core.shares.group import shares_of
from semel.core.types import Command, ErrorCode, GroupKey, Key, OffsetKey, PendingKey, Ticket

if TYPE_CHECKING:
    from semel.core.state import BrokerState

# ``sessions_max`` in the commands that add a member: how many groups may have a session at the same time. A
# session cannot be evicted from memory, so further groups have to wait.

# ``consumer_session_timeout_ms`` in the commands of the classic protocol: if the command begins the session
# of a consumer group, this is the session timeout of the members that use the consumer protocol.

GROUP_TICK_MS: Final = 100
"""How often ``GroupTick`` should be submitted: the precision of deadlines."""


class JoinGroup(Command["Joined"]):
    """Join a classic group, or take part in its rebalance. May be parked; the answer is ``Joined``."""

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
    """Whether a member without an id must join again with one (KIP-394)."""
    can_skip_assignment: bool = True
    """Whether the client can be leader without computing an assignment (KIP-814)."""
    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_delay_ms: int = 3_000
    members_max: int = 10_000
    member_bytes_max: int = 1_048_576
    group_bytes_max: int = 16_777_216
    sessions_max: int = 100_000
    consumer_session_timeout_ms: int = 45_000
    topics: Mapping[str, TopicShape | None] | None = None
    """In a consumer group: its topics and the member's, as the caller looked them up (``TopicsNeeded``)."""

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class TopicsNeeded(Data):
    """The answer to a command that needs topics which the caller has not looked up. Nothing has changed.

    The caller looks them up and submits the command again. They are needed for ``JoinGroup`` to a consumer
    group, and for a ``ConsumerHeartbeat`` that makes a classic group a consumer group.
    """

    names: frozenset[str]


class JoinedMember(Data):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(Data):
    """The answer to ``JoinGroup``. Only the leader gets the members."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncGroup(Command["Synced"]):
    """Send the assignments (leader) or wait for them (other members). The answer is ``Synced``."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]
    ticket: Ticket
    consumer_session_timeout_ms: int = 45_000

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class Synced(Data):
    """The answer to ``SyncGroup``."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Heartbeat(Command[ErrorCode]):
    """A heartbeat of a classic member. The answer is an ErrorCode."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    consumer_session_timeout_ms: int = 45_000

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class LeavingMember(Data):
    """A member to remove: by member id, or by instance id alone (a static member, by an administrator)."""

    member_id: str
    instance_id: str | None = None


class LeaveGroup(Command["Left"]):
    """Remove members from a classic group. The answer is ``Left``."""

    group_id: str
    members: tuple[LeavingMember, ...]
    consumer_session_timeout_ms: int = 45_000

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class Left(Data):
    """The answer to ``LeaveGroup``: one error for the group, or one per member."""

    error: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


class ConsumerHeartbeat(Command["ConsumerAnswer"]):
    """A consumer member joins (epoch 0), heartbeats, or leaves (-1, -2). The answer is ``ConsumerAnswer``."""

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
    """The partitions that the member lists as owned; None if it sent no list."""
    connection_id: int = 0
    """The connection of the heartbeat."""
    topics: Mapping[str, TopicShape | None] = NOTHING
    """The group's subscribed topics as the caller looked them up; None for topics that do not exist."""
    regex_matches: Mapping[str, tuple[str, ...]] = NOTHING
    """The topics that match each regular expression of the group, as the caller looked them up."""
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
"""How soon an expression finds a new topic; matching all topics at every heartbeat is too expensive."""


class ReadSubscriptions(Command["Subscriptions"]):
    """Read the subscriptions of a consumer group. The answer is ``Subscriptions``.

    Submitted before ``ConsumerHeartbeat``, so that the caller can look the topics up. The two need not be one
    step: a subscription that changes in between is looked up at the next heartbeat.
    """

    group_id: str
    may_upgrade: bool = True
    """Whether the heartbeat may make a classic group a consumer group; then its topics are needed, too."""

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class Subscriptions(Data):
    """The answer to ``ReadSubscriptions``."""

    topic_names: frozenset[str] = frozenset()
    """Includes the topics that regular expressions matched the last time."""
    regexes: frozenset[str] = frozenset()
    """The expressions that should be matched now."""


class DescribeGroup(Command[Group | None]):
    """Describe a group. The answer is the Group, or None."""

    group_id: str

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)


class DeleteGroup(Command[ErrorCode]):
    """Delete an empty group, its offsets and share-partitions. The answer is an ErrorCode."""

    group_id: str

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """Its share-partitions."""
        return shares_of(state.groups[GroupKey(self.group_id)])


class GroupTick(Command[int]):
    """Expire what is overdue in all groups with a session. The answer is how many groups were due.

    Submit it every ``GROUP_TICK_MS``; it compares one number per group. After startup, name the groups that
    have members in the ledger once. This starts their sessions, so that members that died with the old
    process time out.
    """

    group_ids: tuple[str, ...] = ()
    consumer_session_timeout_ms: int = 45_000
    share_session_timeout_ms: int = 45_000

    def keys(self) -> Iterable[Key]:
        """The named groups; groups with a session are in memory anyway."""
        return [GroupKey(group_id) for group_id in self.group_ids]


class ExpireOffsets(Command[int]):
    """Expire the offsets committed at or before a given time, if the group has had no members since.

    ``forget_group`` means that the caller saw no other offsets of the group; then an empty group is deleted
    too.
    """

    group_id: str
    offsets: tuple[OffsetKey, ...]
    before_ms: int
    forget_group: bool = False

    def keys(self) -> Iterable[Key]:
        """The group, the offsets, and the pending offsets."""
        return (GroupKey(self.group_id), PendingKey(self.group_id), *self.offsets)
