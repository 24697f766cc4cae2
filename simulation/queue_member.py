"""A member of the workers' share group (KIP-932), which takes jobs from one of its partitions at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from semel.client.shares.session import RECORD_LIMIT, AcknowledgeType, acquired, batches_of
from semel.core.groups.configs import (
    GROUP_CONFIGS,
    READ_COMMITTED,
    SHARE_DELIVERIES,
    SHARE_ISOLATION,
    SHARE_LOCK_DURATION,
    SHARE_RESET,
)
from semel.wire.errors import ErrorCode
from semel.wire.messages.configs import (
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from semel.wire.messages.shares import (
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
)
from simulation.actors import Actor
from simulation.group_member import Lost
from simulation.network import MOVED, Caller, Refused, Unanswered, leader, of_group

QUEUE = "workers"
HEARTBEAT_SECONDS_MAX = 0.08
JOBS_MAX = 3
GROUP_RESOURCE = 32
SHORT_LOCK_MS, LONG_LOCK_MS = 200, 2_000
"""Short locks end all the time; a shard can move to another broker and back while a long one lasts."""
DELIVERIES = 32_000


@contextmanager
def wider_limits() -> Iterator[None]:
    """Allow shorter locks, so that many of them end, and more deliveries, so that no job is given up."""
    before = dict(GROUP_CONFIGS)
    GROUP_CONFIGS[SHARE_LOCK_DURATION] = before[SHARE_LOCK_DURATION]._replace(low=SHORT_LOCK_MS)
    GROUP_CONFIGS[SHARE_DELIVERIES] = before[SHARE_DELIVERIES]._replace(high=DELIVERIES)
    try:
        yield
    finally:
        GROUP_CONFIGS.update(before)


async def configure_queue(caller: Caller, lock_ms: int) -> None:
    """Have the group begin at the log start, read committed records, and lock them for this time."""
    configs = {
        SHARE_RESET: "earliest",
        SHARE_ISOLATION: READ_COMMITTED,
        SHARE_LOCK_DURATION: str(lock_ms),
        SHARE_DELIVERIES: str(DELIVERIES),
    }
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsAlterConfigsResource(
                resource_type=GROUP_RESOURCE,
                resource_name=QUEUE,
                configs=[
                    IncrementalAlterConfigsAlterableConfig(name=name, value=value)
                    for name, value in configs.items()
                ],
            )
        ]
    )
    while True:
        try:
            answer = await caller.once(request, 1)
            break
        except Refused:
            continue  # a broker that has not joined yet
    assert not answer.responses[0].error_code, answer


class Taken(NamedTuple):
    """What a member has acquired: jobs by offset, and offsets without a record."""

    topic: str
    partition: int
    jobs: dict[int, str]
    gaps: list[int]


class QueueMember:
    """The state of a member: its epoch, its partition, and its share session with the leader."""

    def __init__(self, actor: Actor, topic: str, partitions: int) -> None:
        self._actor = actor
        self.caller = Caller(actor.world, actor.process)
        self.member_id = actor.process
        self._topic = topic
        self._topic_id = topic.encode().ljust(16, b".")
        self._partitions = partitions
        self._partition = actor.world.random.randrange(partitions)
        self._epoch = 0
        self._session = 0
        self._said: dict[int, AcknowledgeType] = {}
        """What the next request of the session acknowledges."""
        self._next_heartbeat = 0.0

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat is due."""
        return self._actor.world.loop.now >= self._next_heartbeat

    async def heartbeat(self) -> None:
        """Join, or renew the membership. Raises Lost."""
        world = self._actor.world
        self._next_heartbeat = world.loop.now + world.random.uniform(0, HEARTBEAT_SECONDS_MAX)
        request = ShareGroupHeartbeatRequest(
            group_id=QUEUE,
            member_id=self.member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=None if self._epoch else [self._topic],
        )
        to = of_group(QUEUE)
        for _ in range(12):
            try:
                answer = await self.caller.once(request, 1, to=to)
            except (Unanswered, Refused):
                await self.caller.pause()
                continue
            if answer.error_code == ErrorCode.NONE:
                self._epoch = answer.member_epoch
                return
            if answer.error_code not in MOVED:
                break
            self.caller.moved(to)
            await self.caller.pause()
        raise Lost

    def give_back(self, found: Taken) -> None:
        """Release jobs with the next request."""
        self._said |= dict.fromkeys(found.jobs, AcknowledgeType.RELEASE)
        self._said |= dict.fromkeys(found.gaps, AcknowledgeType.GAP)

    async def take(self) -> Taken | None:
        """Acquire some jobs. None if there are none, or if the session has ended, with its acquired jobs."""
        said, self._said = self._said, {}
        is_listed = self._session > 0 and not said
        place = ShareFetchPartition(
            partition_index=self._partition, acknowledgement_batches=batches_of(said) if self._session else []
        )
        request = ShareFetchRequest(
            group_id=QUEUE,
            member_id=self.member_id,
            share_session_epoch=self._session,
            max_wait_ms=30,
            min_bytes=1,
            max_records=JOBS_MAX,
            batch_size=JOBS_MAX,
            share_acquire_mode=RECORD_LIMIT,
            topics=[] if is_listed else [ShareFetchTopic(topic_id=self._topic_id, partitions=[place])],
        )
        to = leader(self._topic, self._partition)
        try:
            answer = await self.caller.once(request, 2, to=to)
        except (Unanswered, Refused):
            self._session = 0
            return None
        data = next((each for topic in answer.responses for each in topic.partitions), None)
        if answer.error_code or (data is not None and data.error_code):
            self._session = 0
            self.caller.moved(to)
            return None
        self._session += 1
        if data is None or not data.acquired_records:
            # Nothing is available here: the next session is for the next partition.
            self._partition, self._session = (self._partition + 1) % self._partitions, 0
            return None
        records, gaps = acquired(
            self._topic, (self._topic_id, self._partition), data.records or b"", data.acquired_records
        )
        jobs = {each.offset: (each.value or b"").decode() for each in records}
        if not jobs:
            self._said |= dict.fromkeys(gaps, AcknowledgeType.GAP)
        return Taken(self._topic, self._partition, jobs, gaps)
