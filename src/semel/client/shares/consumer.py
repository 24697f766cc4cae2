"""`ShareConsumer`: a member of a share group. Its members share records the way workers share a queue.

    with Client("127.0.0.1:9092") as client, ShareConsumer(client, "workers", "jobs") as consumer:
        while True:
            for job in consumer.poll():
                work(job.value)
                consumer.acknowledge(job)

A record is held from `poll` until it is acknowledged, or until its lock is over (30 seconds by default; see
`renew`). Acknowledgements are sent by the next `poll`, or by `commit`, which also reports those that came too
late. A record that is not acknowledged when the consumer closes is delivered to another member.

Share groups deliver at least once. To produce the results of a record exactly once, acknowledge it in a
transaction: `TransactionalProducer.acknowledge`.

There is no thread: heartbeats are sent inside `poll`. Works with Semel, and with Kafka from 4.2 on (KIP-932).
"""

import time
import uuid
from collections import deque
from collections.abc import Collection, Container, Iterable
from contextlib import suppress
from typing import Self

from semel.client.consume.membership import JOIN_EPOCH, LEAVE_EPOCH, LOST_MEMBERSHIP
from semel.client.errors import ClientError, ErrorCode, KafkaError, UnsupportedRequest, check, close_after
from semel.client.net.cluster import UNKNOWN_TOPIC_WAIT_S, Client
from semel.client.net.retry import IDLE_PAUSE_S, Outage
from semel.client.shares.session import (
    Acknowledgements,
    AcknowledgeType,
    ShareRecord,
    ShareSession,
    TopicIdPartition,
    acquired,
)
from semel.wire.messages.groups import Assignment
from semel.wire.messages.shares import (
    ShareAcknowledgeRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

FETCH_WAIT_S = 0.5
RENEWAL_VERSION = 2  # of ShareAcknowledge


class ShareMember:
    """One member of a share group. Members may have the same partition, so none is revoked."""

    def __init__(self, client: Client, group_id: str, topics: Collection[str]) -> None:
        self.member_id = str(uuid.uuid4())
        self.assigned: frozenset[TopicIdPartition] = frozenset()
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
        assigned: set[TopicIdPartition] = set()
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
        response: ShareGroupHeartbeatResponse = self._client.ask_coordinator(self._group_id, request)
        return response


class ShareConsumer:
    """Takes records through a client, which it does not close."""

    def __init__(self, client: Client, group_id: str, topics: str | Iterable[str]) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if not client.serves(ShareGroupHeartbeatRequest.api_key):
            raise UnsupportedRequest("the broker has no share groups: Kafka has them from 4.2 on.")
        for name in names:
            client.topic(name, create=True, wait_s=UNKNOWN_TOPIC_WAIT_S, anew=True)
        self.group_id = group_id
        self._client = client
        self._member = ShareMember(client, group_id, names)
        self._sessions: dict[int, ShareSession] = {}
        self._ready: deque[tuple[float, ShareRecord]] = deque()
        """Acquired records, and when their locks are over."""
        self._unsent: Acknowledgements = {}
        self._outage = Outage()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        close_after(error, self.close)

    @property
    def member_id(self) -> str:
        """The id of this member, under which brokers keep the locks of its records."""
        return self._member.member_id

    def close(self) -> None:
        """Send the acknowledgements, release everything else, and leave the group. May be called again."""
        self._ready.clear()
        unsent, self._unsent = self._unsent, {}
        sessions, self._sessions = self._sessions, {}
        try:
            for session in sessions.values():
                session.acknowledge(_held_in(session, unsent), ends=True)
        finally:
            self._member.leave()

    # ---- taking records

    def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[ShareRecord]:
        """Return the next records, at most this many; an empty list if there are none within the timeout.

        Sends the acknowledgements first. Records whose acknowledgements are refused will be delivered again.
        """
        with suppress(KafkaError, ClientError):
            self.commit()
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._member.poll()
                if records := self._hand_out(max_records):
                    return records
                remaining_s = max(0.0, deadline - time.monotonic())
                self._fetch(min(remaining_s, FETCH_WAIT_S, self._member.due_in_s), max_records)
                self._outage.end()
            except (KafkaError, ClientError) as error:
                self._outage.tolerate(error, self._client.patience_s)
            if records := self._hand_out(max_records):
                return records
            if time.monotonic() >= deadline:
                return []

    def _hand_out(self, max_records: int) -> list[ShareRecord]:
        records: list[ShareRecord] = []
        while self._ready and len(records) < max_records:
            over_at, record = self._ready.popleft()
            # The record may have lost its lock while it waited here: the lock was over, or its session lost.
            if time.monotonic() < over_at and self.holds(record):
                records.append(record)
        return records

    def _fetch(self, wait_s: float, max_records: int) -> None:
        by_node: dict[int, set[TopicIdPartition]] = {}
        for topic_id, index in self._member.assigned:
            node = self._client.leader(self._member.names[topic_id], index)
            by_node.setdefault(node, set()).add((topic_id, index))
        self._end_idle_sessions(by_node)
        posted = []
        problems: list[Exception] = []
        for node, partitions in by_node.items():
            session = self._sessions.get(node)
            if session is None:
                session = ShareSession(self._client, node, self.group_id, self.member_id)
                self._sessions[node] = session
            try:
                pending = session.post_fetch(frozenset(partitions), max_records, int(wait_s * 1000))
                posted.append((session, pending))
            except ClientError as error:
                problems.append(error)
        if not posted:
            time.sleep(min(wait_s, IDLE_PAUSE_S))
        for session, pending in posted:
            try:
                self._take(session, session.take(pending, wait_s + self._client.timeout_s))
            except (KafkaError, ClientError) as error:
                problems.append(error)
        if problems:
            for name in self._member.names.values():
                # A leader may have moved.
                self._client.forget_topic(name)
            raise problems[0]

    def _end_idle_sessions(self, used: Container[int]) -> None:
        """End sessions in which no record is held, with brokers that no longer lead any of the partitions."""
        for node, session in list(self._sessions.items()):
            if node not in used and not any(session.held.values()):
                del self._sessions[node]
                with suppress(KafkaError, ClientError):
                    session.acknowledge({}, ends=True)

    def _take(self, session: ShareSession, response: ShareFetchResponse) -> None:
        over_at = time.monotonic() + response.acquisition_lock_timeout_ms / 1000
        refused = ErrorCode.NONE
        for topic in response.responses:
            topic_id = bytes(topic.topic_id)
            for partition in topic.partitions:
                key = (topic_id, partition.partition_index)
                if key in self._member.assigned:
                    refused = refused or ErrorCode(partition.error_code)
                name = self._member.names[topic_id]
                records, gaps = acquired(name, key, partition.records, partition.acquired_records)
                offsets = {*gaps, *(record.offset for record in records)}
                session.held.setdefault(key, set()).update(offsets)
                self._ready.extend((over_at, record) for record in records)
                for offset in gaps:
                    self._unsent.setdefault(key, {})[offset] = AcknowledgeType.GAP
        check(refused, "a broker refused to deliver records of a partition")

    # ---- acknowledging them

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Acknowledge a record. The next `poll` or `commit` sends the acknowledgement."""
        self._unsent.setdefault(record.place, {})[record.offset] = kind

    def commit(self) -> None:
        """Send the acknowledgements. After a KafkaError or ClientError, some records are delivered again."""
        unsent, self._unsent = self._unsent, {}
        problems: list[Exception] = []
        lost = {(key, offset) for key, kinds in unsent.items() for offset in kinds}
        for session in self._sessions.values():
            part = _held_in(session, unsent)
            lost -= {(key, offset) for key, kinds in part.items() for offset in kinds}
            if part:
                try:
                    session.acknowledge(part)
                except (KafkaError, ClientError) as error:
                    problems.append(error)
        if problems:
            raise problems[0]
        if lost:
            what = f"{len(lost)} records are not held any more, and will be delivered again"
            check(ErrorCode.INVALID_RECORD_STATE, what)

    def renew(self, *records: ShareRecord) -> None:
        """Hold these records for another lock duration. KafkaError if one is no longer held."""
        if not self._client.serves(ShareAcknowledgeRequest.api_key, RENEWAL_VERSION):
            raise UnsupportedRequest("the broker cannot renew the locks of records.")
        kinds: Acknowledgements = {}
        for record in records:
            kinds.setdefault(record.place, {})[record.offset] = AcknowledgeType.RENEW
        for key, renewed in kinds.items():
            # Send gaps now: their locks would end otherwise, and one acknowledgement without a lock makes the
            # broker refuse all those of its partition.
            others = self._unsent.get(key, {})
            gaps = [at for at, kind in others.items() if kind is AcknowledgeType.GAP]
            renewed |= {at: others.pop(at) for at in gaps}
        unsent, self._unsent = self._unsent, kinds
        try:
            self.commit()
        finally:
            self._unsent = unsent

    # ---- for transactions

    def holds(self, record: ShareRecord) -> bool:
        """Whether this member holds a record, as far as it knows."""
        return any(record.offset in session.held.get(record.place, ()) for session in self._sessions.values())

    def forget(self, record: ShareRecord) -> None:
        """Stop holding a record, because a transaction decides on it now."""
        for session in self._sessions.values():
            session.forget(record.place, (record.offset,))


def _held_in(session: ShareSession, unsent: Acknowledgements) -> Acknowledgements:
    """Return the acknowledgements of records that are held in a session."""
    part: Acknowledgements = {}
    for key, kinds in unsent.items():
        held = session.held.get(key, set())
        if of_held := {offset: kind for offset, kind in kinds.items() if offset in held}:
            part[key] = of_held
    return part
