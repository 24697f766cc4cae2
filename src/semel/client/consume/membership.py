"""Membership in a group: joins, receives partitions, and sends heartbeats.

There are two protocols with one interface. `ConsumerMember` is KIP-848: the broker assigns partitions, and
heartbeats do everything. `ClassicMember` is the older protocol, in which the leader of the group, a member,
assigns partitions (`assign_range`); it is used with brokers without KIP-848. Both are driven by `poll`, in
the caller's thread: a consumer that does not poll for longer than the session timeout loses its partitions to
other members.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from semel.client.admin.group_offsets import NOBODY, CommitAs
from semel.client.consume.offsets import Partition
from semel.client.errors import ErrorCode, KafkaError, check, is_retriable
from semel.client.net.cluster import UNKNOWN_TOPIC_WAIT_S, Client, by_topic
from semel.client.net.retry import retrying
from semel.wire import messages as wire
from semel.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
REBALANCE_TIMEOUT_MS = 60_000
CLASSIC_SESSION_TIMEOUT_MS = 45_000
CLASSIC_HEARTBEAT_S = 3.0
RANGE = "range"

#: The member has to join again: the group does not know it or its epoch, or is rebalancing.
LOST_MEMBERSHIP = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


class Member(ABC):
    """One member of a group."""

    def __init__(self, client: Client, group_id: str, topics: Collection[str]) -> None:
        self._client = client
        self._group_id = group_id
        self._topics = sorted(topics)
        self._owned: frozenset[Partition] = frozenset()
        self._due_at = time.monotonic()

    @property
    def due_in_s(self) -> float:
        """The time until `poll` must be called again."""
        return max(0.0, self._due_at - time.monotonic())

    @abstractmethod
    def poll(self, revoke: Callable[[Collection[Partition]], None]) -> Collection[Partition] | None:
        """Join or send a heartbeat if due. Return the partitions to read if they changed, else None.

        `revoke` is called with partitions that the member is about to lose, while it can still commit them.
        """

    @property
    @abstractmethod
    def commit_as(self) -> CommitAs:
        """The membership under which offsets are committed."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group, so that others need not wait for the session to expire."""


def join(client: Client, group_id: str, topics: Collection[str]) -> Member:
    """Return a member of the group for these topics, with the best protocol that the broker supports."""
    features = client.connection().features
    # A broker may support the request and have the feature disabled. A broker that reports no features cannot
    # disable it.
    is_on = not features or features.get("group.version", 0) >= 1
    if is_on and client.serves(wire.ConsumerGroupHeartbeatRequest.api_key):
        return ConsumerMember(client, group_id, topics)
    return ClassicMember(client, group_id, topics)


class ConsumerMember(Member):
    """A member that uses the protocol of KIP-848."""

    def __init__(self, client: Client, group_id: str, topics: Collection[str]) -> None:
        super().__init__(client, group_id, topics)
        self._member_id = str(uuid.uuid4())
        self._epoch = JOIN_EPOCH
        # The broker sends an assignment once. It is kept here until it is applied, which may fail during an
        # outage.
        self._given: wire.Assignment | None = None
        # The ids of the assigned topics by name. Looking them up would fail during an outage.
        self._ids: dict[str, bytes] = {}
        self._must_report = False

    @property
    def commit_as(self) -> CommitAs:
        """The membership under which offsets are committed."""
        return CommitAs(self._member_id, self._epoch) if self._epoch > 0 else NOBODY

    def poll(self, revoke: Callable[[Collection[Partition]], None]) -> Collection[Partition] | None:
        """Send a heartbeat if one is due, and apply the assignment that it returns."""
        if self._given is None:
            if time.monotonic() < self._due_at:
                return None
            response = self._heartbeat(self._epoch)
            if response.error_code in LOST_MEMBERSHIP:
                return self._start_over(revoke)
            check(
                response.error_code,
                f"the heartbeat to group {self._group_id!r} was refused",
                response.error_message,
            )
            self._epoch = response.member_epoch
            self._due_at = time.monotonic() + response.heartbeat_interval_ms / 1000
            self._must_report = False
            self._given = response.assignment
        if self._given is None:
            return None
        assigned = self._named(self._given)
        self._given = None
        if assigned == self._owned:
            return None
        if given_up := self._owned - assigned:
            revoke(given_up)
        self._owned = assigned
        # Report it at once: the broker assigns revoked partitions to others when this member confirms.
        self._must_report, self._due_at = True, time.monotonic()
        return assigned

    def _named(self, given: wire.Assignment) -> frozenset[Partition]:
        """Return the assigned partitions by name. Retries during an outage, for the client's `timeout_s`."""

        def look_up() -> list[tuple[str, wire.TopicPartitions]]:
            return [
                (name, topic)
                for topic in given.topic_partitions
                if (name := self._client.topic_name(bytes(topic.topic_id))) is not None
            ]

        named = retrying(look_up, self._client.timeout_s)
        self._ids = {name: bytes(topic.topic_id) for name, topic in named}
        return frozenset((name, partition) for name, topic in named for partition in topic.partitions)

    def leave(self) -> None:
        """Leave the group."""
        if self._epoch > 0:
            self._heartbeat(LEAVE_EPOCH)
            self._epoch = JOIN_EPOCH

    def _start_over(self, revoke: Callable[[Collection[Partition]], None]) -> Collection[Partition] | None:
        self._epoch, self._must_report, self._due_at = JOIN_EPOCH, False, time.monotonic()
        if not self._owned:
            return None
        revoke(self._owned)
        self._owned = frozenset()
        return self._owned

    def _heartbeat(self, epoch: int) -> wire.ConsumerGroupHeartbeatResponse:
        joins = epoch == JOIN_EPOCH
        request = wire.ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if joins else -1,
            subscribed_topic_names=self._topics if joins else None,
            subscribed_topic_regex="" if joins else None,
            topic_partitions=self._owned_by_id() if joins or self._must_report else None,
        )
        response: wire.ConsumerGroupHeartbeatResponse = self._client.ask_coordinator(self._group_id, request)
        return response

    def _owned_by_id(self) -> list[wire.TopicPartitions]:
        return [
            wire.TopicPartitions(topic_id=self._ids[topic], partitions=partitions)
            for topic, partitions in by_topic(sorted(self._owned)).items()
        ]


class ClassicMember(Member):
    """A member that uses the classic protocol, with eager rebalances and the range assignor."""

    def __init__(self, client: Client, group_id: str, topics: Collection[str]) -> None:
        super().__init__(client, group_id, topics)
        self._member_id = ""
        self._generation = -1

    @property
    def commit_as(self) -> CommitAs:
        """The membership under which offsets are committed."""
        return CommitAs(self._member_id, self._generation) if self._generation >= 0 else NOBODY

    def poll(self, revoke: Callable[[Collection[Partition]], None]) -> Collection[Partition] | None:
        """Join if needed, else send a heartbeat if one is due."""
        if time.monotonic() < self._due_at:
            return None
        if self._generation < 0:
            self._owned = frozenset(retrying(self._join, self._client.timeout_s, retriable=_may_join_again))
            self._due_at = time.monotonic() + CLASSIC_HEARTBEAT_S
            return self._owned
        request = wire.HeartbeatRequest(
            group_id=self._group_id, generation_id=self._generation, member_id=self._member_id
        )
        response: wire.HeartbeatResponse = self._ask(request)
        self._due_at = time.monotonic() + CLASSIC_HEARTBEAT_S
        if response.error_code not in LOST_MEMBERSHIP:
            check(response.error_code, f"the heartbeat to group {self._group_id!r} was refused")
            return None
        if self._owned:
            revoke(self._owned)
        if response.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._member_id = ""
        self._owned, self._generation, self._due_at = frozenset(), -1, time.monotonic()
        return self._owned

    def leave(self) -> None:
        """Leave the group."""
        if self._member_id:
            members = [wire.MemberIdentity(member_id=self._member_id)]
            self._ask(
                wire.LeaveGroupRequest(group_id=self._group_id, member_id=self._member_id, members=members)
            )
            self._member_id, self._generation = "", -1

    def _join(self) -> set[Partition]:
        timeout_s = self._client.timeout_s + REBALANCE_TIMEOUT_MS / 1000
        try:
            joined: wire.JoinGroupResponse = self._ask(self._join_request(), timeout_s)
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = joined.member_id
                joined = self._ask(self._join_request(), timeout_s)
            check(joined.error_code, f"group {self._group_id!r} cannot be joined")
            self._member_id = joined.member_id
            return self._sync(joined)
        except KafkaError as error:
            if error.code in LOST_MEMBERSHIP and error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
                self._member_id = ""
            raise

    def _join_request(self) -> wire.JoinGroupRequest:
        protocol = wire.JoinGroupRequestProtocol(name=RANGE, metadata=encode_subscription(self._topics))
        return wire.JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=CLASSIC_SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )

    def _sync(self, joined: wire.JoinGroupResponse) -> set[Partition]:
        assignments = self._assign(joined) if joined.leader == joined.member_id else []
        request = wire.SyncGroupRequest(
            group_id=self._group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        response: wire.SyncGroupResponse = self._ask(request)
        check(response.error_code, f"group {self._group_id!r} assigned no partitions")
        self._generation = joined.generation_id
        given = decode_assignment(bytes(response.assignment))
        return {(topic, partition) for topic, partitions in given.items() for partition in partitions}

    def _assign(self, joined: wire.JoinGroupResponse) -> list[wire.SyncGroupRequestAssignment]:
        members = {
            member.member_id: decode_subscription(bytes(member.metadata)).topics for member in joined.members
        }
        wanted = {topic for topics in members.values() for topic in topics}
        counts = {topic: self._count(topic) for topic in wanted}
        return [
            wire.SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(partitions))
            for member_id, partitions in assign_range(members, counts).items()
        ]

    def _count(self, topic: str) -> int:
        try:
            return len(self._client.topic(topic, wait_s=UNKNOWN_TOPIC_WAIT_S, anew=True).partitions)
        except KafkaError:
            return 0  # One member's invalid topic must not stop the others from reading.

    def _ask(
        self,
        request: wire.JoinGroupRequest
        | wire.SyncGroupRequest
        | wire.HeartbeatRequest
        | wire.LeaveGroupRequest,
        timeout_s: float | None = None,
    ) -> Any:
        return self._client.ask_coordinator(self._group_id, request, timeout_s=timeout_s)


def assign_range(
    members: Mapping[str, Iterable[str]], partitions: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """Assign as Kafka's range assignor: each topic in ranges of equal length, to its subscribers in order."""
    shares: dict[str, dict[str, list[int]]] = {member: {} for member in members}
    for topic, count in sorted(partitions.items()):
        subscribers = sorted(member for member, topics in members.items() if topic in topics)
        if not subscribers:
            continue
        size, larger = divmod(count, len(subscribers))
        first = 0
        for place, member in enumerate(subscribers):
            length = size + (place < larger)
            if length:
                shares[member][topic] = list(range(first, first + length))
            first += length
    return shares


def _may_join_again(error: Exception) -> bool:
    return is_retriable(error) or (isinstance(error, KafkaError) and error.code in LOST_MEMBERSHIP)
