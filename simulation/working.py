"""Workers: members of a share group that take jobs, write results, and acknowledge the jobs in a transaction.

A job is a record of the input. Once everything has settled, every job has exactly one result.
"""

from collections import Counter
from collections.abc import Sequence

from semel.check.history import Operation, Poll
from semel.client.consume.offsets import Isolation
from semel.client.shares.session import AcknowledgeType
from semel.wire.errors import ErrorCode
from simulation.actors import ABORTABLE, TransactionalActor, offset_of
from simulation.group_member import Lost
from simulation.network import World
from simulation.producing import Known, Producer, Result
from simulation.queue_member import QUEUE, QueueMember, Taken
from simulation.recording import Recording, Txn

LOST_JOB = ABORTABLE | {ErrorCode.INVALID_RECORD_STATE}
"""Errors after which the transaction is aborted, and the next one may begin."""


class Worker(TransactionalActor):
    """One member of the share group."""

    def __init__(
        self,
        world: World,
        history: Recording,
        name: str,
        jobs: tuple[str, int],
        results: tuple[str, int],
        timeout_ms: int,
    ) -> None:
        super().__init__(world, history, name, timeout_ms)
        self._jobs = jobs
        self._results = results
        self.took_last = 0.0
        """When this worker last took a job."""

    async def work(self) -> None:
        """Join, and work until the membership or the producer is lost; then restart as another process."""
        producer = await self.begin_producer(generation=2)
        if producer is None:
            return
        member = QueueMember(self, *self._jobs)
        try:
            while not self.is_ending:
                await self.step()
                if member.is_due:
                    await member.heartbeat()
                found = await member.take()
                if found is not None and found.jobs:
                    self.took_last = self.world.loop.now
                    await self._do(member, producer, found)
                else:
                    await member.caller.pause()
        except Lost:
            await member.caller.pause()

    async def _do(self, member: QueueMember, producer: Producer, found: Taken) -> None:
        await self.step()
        if self.world.random.random() < 0.1:
            member.give_back(found)
            return
        txn = self.history.begin(self.process, self.transactional_id)
        result = await self._write(member, producer, txn, found)
        commits = result.is_done and self.world.random.random() < 0.75
        await self.step()
        with self.history.ending(self.process, txn, is_commit=commits) as end:
            ended = await producer.end(commit=commits)
            end.known, end.code = ended.known, ended.code
        if not ended.is_done or not (result.is_done or result.code in LOST_JOB):
            raise Lost

    async def _write(self, member: QueueMember, producer: Producer, txn: Txn, found: Taken) -> Result:
        """Write the results and acknowledge the jobs, in either order."""
        result = Result(Known.DONE, ErrorCode.NONE)
        for step in self.world.random.sample((self._send, self._acknowledge), 2):
            result = await step(member, producer, txn, found)
            if not result.is_done:
                break
            await self.step()
        return result

    async def _send(self, member: QueueMember, producer: Producer, txn: Txn, found: Taken) -> Result:
        topic, partitions = self._results
        partition = self.world.random.randrange(partitions)
        values = [f"{job}>{txn.name}" for job in found.jobs.values()]
        with self.history.sending(self.process, txn, topic, partition, values, idempotent=True) as sent:
            result = await producer.send(topic, partition, values)
            sent.known, sent.code, sent.offset = result.known, result.code, offset_of(result)
        return result

    async def _acknowledge(self, member: QueueMember, producer: Producer, txn: Txn, found: Taken) -> Result:
        kinds = dict.fromkeys(found.jobs, AcknowledgeType.ACCEPT) | dict.fromkeys(
            found.gaps, AcknowledgeType.GAP
        )
        return await producer.acknowledge(QUEUE, member.member_id, found.topic, found.partition, kinds)


def wrong_results(operations: Sequence[Operation], jobs: str, results: str) -> list[str]:
    """Return the jobs that do not have exactly one result, by what was committed in the end."""
    committed = {topic: _read_at_the_end(operations, topic) for topic in (jobs, results)}
    done = Counter(value.partition(">")[0] for value in committed[results])
    found = [f"{job} has {done[job]} results" for job in committed[jobs] if done[job] != 1]
    invented = done.keys() - set(committed[jobs])
    return found + [f"{job} has a result, and is no job" for job in sorted(invented)]


def _read_at_the_end(operations: Sequence[Operation], topic: str) -> list[str]:
    process = f"the end by {Isolation.READ_COMMITTED.name}"
    return [
        str(value)
        for each in operations
        if isinstance(each, Poll) and each.process == process and each.topic == topic
        for _, value in each.records
    ]
