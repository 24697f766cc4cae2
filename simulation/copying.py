"""Copiers: members of a group that read input, write it to an output topic, and commit both in a transaction.

Members join, leave and pause, so partitions change owners at any moment.
"""

from collections.abc import Callable
from typing import Any

from semel.check.history import Claim
from semel.client.offsets import Isolation
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    TopicPartitions,
)
from simulation.actors import ABORTABLE, NEW_ID_ODDS, Actor, offset_of
from simulation.network import MOVED, Caller, Refused, Unanswered, World, of_group
from simulation.producing import Known, Producer, Result
from simulation.reading import poll
from simulation.recording import Recording, Txn

GROUP = "copiers"
HEARTBEAT_SECONDS_MAX = 0.08
BatchLocation = tuple[str, int]


class Lost(Exception):
    """This member is no longer in the group, or its session is over."""


class Copier(Actor):
    """One member of the group."""

    def __init__(
        self,
        world: World,
        history: Recording,
        name: str,
        source: str,
        target: tuple[str, int],
        generation: int,
        timeout_ms: int,
    ) -> None:
        super().__init__(world, history, name)
        self._source = source
        self._target = target
        self._generation = generation
        self._timeout_ms = timeout_ms
        self._transactional_id = name

    def killed(self) -> None:
        """Sometimes return under another id, so that only the timeout ends the open transaction."""
        if self.world.random.random() < NEW_ID_ODDS:
            self._transactional_id = f"{self.name}-{self._incarnation}"

    async def work(self) -> None:
        """Join, and copy until the membership or session is lost; then restart as another process."""
        caller = Caller(self.world, self.process)
        own_id, timeout_ms = self._transactional_id, self._timeout_ms
        producer = Producer(self.world, self.process, own_id, self._generation, timeout_ms)
        with self.history.initialising(self.process, own_id, timeout_ms) as taken:
            is_begun = await producer.init()
            taken.known = Known.DONE if is_begun else Known.UNKNOWN
            taken.pair = (producer.producer_id, producer.epoch)
        if not is_begun:
            return
        member = Member(self, caller, self._source)
        try:
            while not self.is_ending:
                await self.step()
                if member.is_due and await member.heartbeat():
                    await member.find_positions()
                if member.positions:
                    await self._copy(member, producer)
                else:
                    await caller.pause()
        except Lost:
            await caller.pause()

    async def _copy(self, member: "Member", producer: Producer) -> None:
        location = self.world.random.choice(sorted(member.positions))
        txn = self.history.begin(self.process, self._transactional_id)
        values, claim = await member.read(location, txn)
        if claim is None:
            return
        result = await self._write(producer, txn, member, values, claim)
        commits = result.is_done and self.world.random.random() < 0.75
        await self.step()
        with self.history.ending(self.process, txn, is_commit=commits) as end:
            ended = await producer.end(commit=commits)
            end.known, end.code = ended.known, ended.code
        if not ended.is_done or not (result.is_done or result.code in ABORTABLE):
            raise Lost
        if commits:
            member.positions[location] = claim.until
        else:
            # Input of an aborted transaction is read again.
            await member.find_positions()

    async def _write(
        self, producer: Producer, txn: Txn, member: "Member", values: list[str], claim: Claim
    ) -> Result:
        topic, partitions = self._target
        partition = claim.partition % partitions
        result = await producer.add(topic, partition)
        if result.is_done and values:
            await self.step()
            copies = [f"{value}>{txn.name}" for value in values]
            sending = self.history.sending(self.process, txn, topic, partition, copies, idempotent=True)
            with sending as sent:
                result = await producer.send(topic, partition, copies)
                sent.known, sent.code, sent.offset = result.known, result.code, offset_of(result)
        if not result.is_done:
            return result
        await self.step()
        with self.history.sending_offsets(self.process, txn, GROUP, (claim,)) as sent:
            offsets = {(claim.topic, claim.partition): claim.until}
            result = await producer.send_offsets(GROUP, member.member_id, member.epoch, offsets)
            sent.known, sent.code = result.known, result.code
        return result


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

    async def heartbeat(self) -> bool:
        """Send a heartbeat. Return whether the assignment has changed."""
        world = self._actor.world
        self._next_heartbeat = world.loop.now + world.random.uniform(0, HEARTBEAT_SECONDS_MAX)
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
        for partition in sorted(self._owned):
            request = OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id=GROUP,
                        member_id=self.member_id,
                        member_epoch=self.epoch,
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
