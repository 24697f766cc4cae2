"""A member of the copiers' group that uses the consumer protocol (KIP-848)."""

from collections.abc import Callable
from typing import Any

from semel.check.history import Claim
from semel.client.consume.offsets import Isolation
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    TopicPartitions,
)
from simulation.actors import Actor
from simulation.network import MOVED, Caller, Refused, Unanswered, of_group
from simulation.reading import poll
from simulation.recording import Txn

GROUP = "copiers"
HEARTBEAT_SECONDS_MAX = 0.08
BatchLocation = tuple[str, int]


class Lost(Exception):
    """This member is no longer in the group, or its session is over."""


class Member:
    """The state of a group member: its epoch, and its positions in its partitions."""

    def __init__(self, actor: Actor, caller: Caller, topic: str) -> None:
        self._actor = actor
        self._caller = caller
        self._topic = topic
        self._topic_id = topic.encode().ljust(16, b".")
        self.member_id = actor.process
        self.epoch = 0
        self.positions: dict[BatchLocation, int] = {}
        self._owned: frozenset[int] = frozenset()
        self._next_heartbeat = 0.0

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat is due."""
        return self._actor.world.loop.now >= self._next_heartbeat

    def _draw_next_heartbeat(self) -> None:
        world = self._actor.world
        self._next_heartbeat = world.loop.now + world.random.uniform(0, HEARTBEAT_SECONDS_MAX)

    @property
    def _identity(self) -> tuple[str | None, int]:
        """How the member identifies itself when it fetches offsets."""
        return self.member_id, self.epoch

    async def heartbeat(self) -> bool:
        """Send a heartbeat. Return whether the assignment has changed."""
        self._draw_next_heartbeat()
        joins = self.epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=600 if joins else -1,
            subscribed_topic_names=[self._topic] if joins else None,
            topic_partitions=self._partitions(),
        )
        answer = await self._ask(request, 1, lambda found: found.error_code)
        if answer.error_code != ErrorCode.NONE:
            raise Lost
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        owned = frozenset(
            partition
            for each in answer.assignment.topic_partitions
            if each.topic_id == self._topic_id
            for partition in each.partitions
        )
        changed, self._owned = owned != self._owned, owned
        return changed

    def _partitions(self) -> list[TopicPartitions]:
        if not self._owned:
            return []
        return [TopicPartitions(topic_id=self._topic_id, partitions=sorted(self._owned))]

    async def find_positions(self) -> None:
        """Start from the group's committed offsets, after waiting for pending ones."""
        self.positions = {}
        history = self._actor.history
        member_id, member_epoch = self._identity
        for partition in sorted(self._owned):
            request = OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id=GROUP,
                        member_id=member_id,
                        member_epoch=member_epoch,
                        topics=[OffsetFetchRequestTopics(name=self._topic, partition_indexes=[partition])],
                    )
                ],
                require_stable=True,
            )
            while True:
                started = history.now()
                answer = (await self._ask(request, 9, lambda found: found.groups[0].error_code)).groups[0]
                if answer.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    await self._caller.pause()
                    continue
                if answer.error_code != ErrorCode.NONE:
                    raise Lost
                row = answer.topics[0].partitions[0]
                if row.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    await self._caller.pause()
                    continue
                break
            position = row.committed_offset
            process = self._actor.process
            history.fetched_offset(process, started, GROUP, self._topic, partition, position)
            self.positions[self._topic, partition] = max(position, 0)
            history.assigned(process, self._topic, partition, max(position, 0))

    async def read(self, location: BatchLocation, txn: Txn) -> tuple[list[str], Claim | None]:
        """Read some input. Return it, and the part that a transaction claims."""
        actor, position = self._actor, self.positions[location]
        isolation = Isolation.READ_COMMITTED
        with actor.history.polling(actor.process, *location, isolation, txn) as polled:
            try:
                found = await poll(self._caller, *location, position, isolation, 30, 200)
            except (Unanswered, Refused):
                await self._caller.pause()
                return [], None
            if found.error:
                return [], None
            polled.found = found
        if found.next_offset == position:
            return [], None
        return [each.value for each in found.records], Claim(*location, position, found.next_offset)

    async def _ask(self, request: Any, version: int, code_of: Callable[[Any], int]) -> Any:
        to = of_group(GROUP)
        for _ in range(12):
            try:
                answer = await self._caller.once(request, version, to=to)
                if code_of(answer) not in MOVED:
                    return answer
                self._caller.moved(to)
            except (Unanswered, Refused):
                pass
            await self._caller.pause()
        raise Lost
