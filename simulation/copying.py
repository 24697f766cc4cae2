"""Copiers: members of a group that read input, write it to an output topic, and commit both in a transaction.

Members join, leave and pause, so partitions change owners at any moment. Each process uses one of the two
group protocols, so the group migrates from one to the other and back.
"""

from semel.check.history import Claim
from simulation.actors import ABORTABLE, TransactionalActor, offset_of
from simulation.classic_member import ClassicMember
from simulation.group_member import GROUP, Lost, Member
from simulation.network import Caller, World
from simulation.producing import Producer, Result
from simulation.recording import Recording, Txn

CLASSIC_ODDS = 0.25
"""The probability that a process uses the classic protocol. The group migrates when the protocol changes."""


class Copier(TransactionalActor):
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
        super().__init__(world, history, name, timeout_ms)
        self._source = source
        self._target = target
        self._generation = generation

    async def work(self) -> None:
        """Join, and copy until the membership or session is lost; then restart as another process."""
        caller = Caller(self.world, self.process)
        producer = await self.begin_producer(self._generation)
        if producer is None:
            return
        member = Member(self, caller, self._source)
        if self.world.random.random() < CLASSIC_ODDS:
            member = ClassicMember(self, caller, self._source, self._target[1])
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

    async def _copy(self, member: Member, producer: Producer) -> None:
        location = self.world.random.choice(sorted(member.positions))
        txn = self.history.begin(self.process, self.transactional_id)
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
        self, producer: Producer, txn: Txn, member: Member, values: list[str], claim: Claim
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
