"""Group members without a client library: they send exactly what the test asks for, when it asks."""

import uuid

from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from support.clients.raw import RawClient


def join_request(group: str, session_timeout_ms: int = 10_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


class ClassicMember:
    """The only member of a classic group, and therefore its leader."""

    def __init__(self, client: RawClient, group: str, session_timeout_ms: int = 10_000) -> None:
        self.client = client
        self.group = group
        # Version 3 needs no second round for the member id.
        joined = client.ask(join_request(group, session_timeout_ms), 3)
        assert joined.error_code == ErrorCode.NONE
        self.member_id: str = joined.member_id
        self.generation: int = joined.generation_id
        synced = client.ask(
            SyncGroupRequest(
                group_id=group,
                generation_id=self.generation,
                member_id=self.member_id,
                assignments=[SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"mine")],
            ),
            3,
        )
        assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")

    def heartbeat(self, client: RawClient | None = None) -> int:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        code: int = (client or self.client).ask(request, 3).error_code
        return code


class ConsumerMember:
    """The only member of a KIP-848 group."""

    def __init__(self, client: RawClient, group: str, topic: str) -> None:
        self.client = client
        self.group = group
        self.member_id = str(uuid.uuid4())
        answer = client.ask(
            ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id=self.member_id,
                member_epoch=0,
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            ),
            0,
        )
        assert answer.error_code == ErrorCode.NONE
        self.epoch: int = answer.member_epoch
        self.assignment = answer.assignment

    def heartbeat(self, client: RawClient | None = None) -> int:
        """Return the error code; on success the member epoch must be unchanged."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, topic_partitions=None
        )
        answer = (client or self.client).ask(request, 0)
        assert answer.error_code != ErrorCode.NONE or answer.member_epoch == self.epoch
        code: int = answer.error_code
        return code


def commit_offset(
    client: RawClient, group: str, topic: str, offset: int, note: str = "", times: int = 1
) -> int:
    """Commit for the first `times` partitions, as a group without members; return the last error code."""
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=note)
        for index in range(times)
    ]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    answer = client.ask(OffsetCommitRequest(group_id=group, topics=topics), 8)
    code: int = answer.topics[0].partitions[-1].error_code
    return code
