"""Membership in a share group (KIP-932). Members may have the same partition, so none is revoked."""

import time
import uuid
from collections.abc import Collection

from semel.client.consume.membership import JOIN_EPOCH, LEAVE_EPOCH, LOST_MEMBERSHIP
from semel.client.errors import check
from semel.client.net.cluster import Client
from semel.client.shares.records import Place
from semel.wire.messages.groups import Assignment
from semel.wire.messages.shares import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


class ShareMember:
    """One member of a share group."""

    def __init__(self, client: Client, group_id: str, topics: Collection[str]) -> None:
        self.member_id = str(uuid.uuid4())
        self.assigned: frozenset[Place] = frozenset()
        """The partitions to fetch from."""
        self.names: dict[bytes, str] = {}
        """The names of all topics that were ever assigned, by topic id."""
        self._client = client
        self._group_id = group_id
        self._topics = sorted(topics)
        self._epoch = JOIN_EPOCH
        self._due_at = time.monotonic()

    @property
    def due_in_s(self) -> float:
        """The time until the next heartbeat is due."""
        return max(0.0, self._due_at - time.monotonic())

    def poll(self) -> None:
        """Join, or send a heartbeat, if that is due; apply the assignment that it returns."""
        if self.due_in_s > 0:
            return
        response = self._heartbeat(self._epoch)
        if response.error_code in LOST_MEMBERSHIP:
            response = self._heartbeat(JOIN_EPOCH)
        what = f"the heartbeat to share group {self._group_id!r} was refused"
        check(response.error_code, what, response.error_message)
        self._epoch = response.member_epoch
        self._due_at = time.monotonic() + response.heartbeat_interval_ms / 1000
        if response.assignment is not None:
            self._follow(response.assignment)

    def _follow(self, given: Assignment) -> None:
        assigned: set[Place] = set()
        for topic in given.topic_partitions:
            topic_id = bytes(topic.topic_id)
            name = self._client.topic_name(topic_id)
            if name is not None:
                self.names[topic_id] = name
                assigned.update((topic_id, partition) for partition in topic.partitions)
        self.assigned = frozenset(assigned)

    def leave(self) -> None:
        """Leave the group."""
        if self._epoch > 0:
            self._heartbeat(LEAVE_EPOCH)
            self._epoch, self.assigned = JOIN_EPOCH, frozenset()

    def _heartbeat(self, epoch: int) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            subscribed_topic_names=self._topics if epoch == JOIN_EPOCH else None,
        )
        response: ShareGroupHeartbeatResponse = self._client.ask_coordinator(
            self._group_id, request, lambda answer: [answer.error_code]
        )
        return response
