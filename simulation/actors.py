"""Who takes part in a history: writers of every kind, copiers of a group, readers, and an administrator.

Each does its work until it is told to end, finishes what it has begun, and tells ``recording`` what it did
and what it knows of the outcome.
"""

from collections.abc import Callable

from semel.client.offsets import Isolation
from semel.wire.errors import ErrorCode
from simulation.network import Caller, Refused, Unanswered
from simulation.producing import Known, Producer, Result
from simulation.reading import poll
from simulation.recording import Recording, Txn
from simulation.virtual_time import sleep
from simulation.world import World

Places = list[tuple[str, int]]

ABORTABLE = frozenset({ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

NEW_ID_ODDS = 0.4


class Actor:
    """Somebody with a name, who can be paused and killed between any two steps."""

    rest_seconds_max = 0.01
    """Between two steps, when nothing goes wrong."""

    def __init__(self, world: World, history: Recording, name: str) -> None:
        self.world = world
        self.history = history
        self.name = name
        self.is_ending = False
        self._incarnation = 0

    @property
    def process(self) -> str:
        """One life of the client; whoever begins anew is another."""
        return f"{self.name}.{self._incarnation}"

    async def live(self) -> None:
        """Be killed and begin anew, until the end."""
        while not self.is_ending:
            self._incarnation += 1
            try:
                await self.work()
            except Killed:
                self.killed()
                await sleep(self.world.random.uniform(0, 0.15))

    async def work(self) -> None:
        """One incarnation's work."""
        raise NotImplementedError

    def killed(self) -> None:
        """What the next incarnation does not know any more."""

    async def step(self) -> None:
        """Between two steps: usually at once, sometimes much later, sometimes never."""
        faults, random = self.world.faults, self.world.random
        seconds = random.uniform(0, self.rest_seconds_max)
        if faults.happens(random, "paused client"):
            seconds = random.uniform(0.1, 1.5)
        await sleep(seconds)
        if faults.happens(random, "killed client"):
            raise Killed


class Killed(Exception):
    """This incarnation is gone, in the middle of what it did."""


def offset_of(result: Result) -> int | None:
    """Where a batch is, if the broker said so."""
    if not result.is_done:
        return None
    return int(result.answer.responses[0].partition_responses[0].base_offset)


class TransactionalWriter(Actor):
    """Writes some batches to some partitions, and commits or aborts."""

    def __init__(
        self,
        world: World,
        history: Recording,
        name: str,
        locations: Places,
        generation: int,
        timeout_ms: int,
        transactional_id: str | None = None,
        first_sequence: int = 0,
    ) -> None:
        super().__init__(world, history, name)
        self.locations = locations
        self._generation = generation
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id or name
        self._has_twin = transactional_id is not None
        self._first_sequence = first_sequence
        self._number = 0

    def killed(self) -> None:
        """Some come back under another id: only time ends what they have begun."""
        if not self._has_twin and self.world.random.random() < NEW_ID_ODDS:
            self._transactional_id = f"{self.name}-{self._incarnation}"

    async def work(self) -> None:
        """Sessions, each until it is fenced or something is not known."""
        while not self.is_ending:
            producer = Producer(
                self.world,
                self.process,
                self._transactional_id,
                self._generation,
                self._timeout_ms,
                self._first_sequence,
            )
            with self.history.initialising(self.process, self._transactional_id, self._timeout_ms) as taken:
                is_begun = await producer.init()
                taken.known = Known.DONE if is_begun else Known.UNKNOWN
                taken.pair = (producer.producer_id, producer.epoch)
            while is_begun and await self.one_transaction(producer):
                await self.step()

    async def one_transaction(self, producer: Producer) -> bool:
        """Whether the session may go on."""
        txn = self.history.begin(self.process, self._transactional_id)
        return await self.finish(producer, txn, await self.write(producer, txn))

    async def write(self, producer: Producer, txn: Txn) -> Result:
        """What the transaction does before its end; the result that stopped it, or the last one."""
        result = Result(Known.DONE, ErrorCode.NONE)
        for _ in range(self.world.random.randint(1, 4)):
            await self.step()
            result = await self.send(producer, txn, *self.world.random.choice(self.locations))
            if not result.is_done:
                break
        await self.step()
        return result

    async def send(self, producer: Producer, txn: Txn, topic: str, partition: int) -> Result:
        """One batch of new values."""
        result = await producer.add(topic, partition)
        if not result.is_done:
            return result
        values = []
        for _ in range(self.world.random.randint(1, 3)):
            self._number += 1
            values.append(f"{self.process}/{self._number}")
        with self.history.sending(self.process, txn, topic, partition, values, idempotent=True) as sent:
            result = await producer.send(topic, partition, values)
            sent.known, sent.code, sent.offset = result.known, result.code, offset_of(result)
        return result

    async def finish(self, producer: Producer, txn: Txn, result: Result) -> bool:
        """End it as it should; whether the session may go on."""
        commits = result.is_done and self.world.random.random() < 0.67
        with self.history.ending(self.process, txn, is_commit=commits) as end:
            ended = await producer.end(commit=commits)
            end.known, end.code = ended.known, ended.code
        # Whoever does not know what became of a batch, or of the end, takes a new epoch.
        may_go_on = ended.is_done and (result.is_done or result.code in ABORTABLE)
        return may_go_on and not self.is_ending


class IdempotentWriter(Actor):
    """Writes batches without transactions, each exactly once."""

    rest_seconds_max = 0.03

    def __init__(
        self, world: World, history: Recording, name: str, locations: Places, first_sequence: int = 0
    ) -> None:
        super().__init__(world, history, name)
        self._locations = locations
        self._first_sequence = first_sequence
        self._number = 0

    async def work(self) -> None:
        """Sessions, each until a batch is given up."""
        while not self.is_ending:
            producer = Producer(self.world, self.process, None, 1, 0, self._first_sequence)
            if await producer.init():
                while await self._one(producer):
                    await self.step()

    async def _one(self, producer: Producer) -> bool:
        topic, partition = self.world.random.choice(self._locations)
        self._number += 1
        values = [f"{self.process}/{self._number}"]
        has_id = producer.producer_id >= 0
        with self.history.sending(self.process, None, topic, partition, values, idempotent=has_id) as sent:
            result = await producer.send(topic, partition, values)
            sent.known, sent.code, sent.offset = result.known, result.code, offset_of(result)
        return result.is_done and not self.is_ending


class PlainWriter(IdempotentWriter):
    """Writes batches without any promise, each sent once."""

    async def work(self) -> None:
        """Until the end."""
        producer = Producer(self.world, self.process, None, 1, 0)
        while not self.is_ending:
            await self._one(producer)
            await self.step()


class Reader(Actor):
    """Reads partitions to their end, again and again."""

    rest_seconds_max = 0.06

    def __init__(
        self, world: World, history: Recording, name: str, locations: Places, isolation: Isolation
    ) -> None:
        super().__init__(world, history, name)
        self._locations = locations
        self._isolation = isolation

    async def work(self) -> None:
        """From the beginning, in every incarnation."""
        caller = Caller(self.world, self.process)
        positions = dict.fromkeys(self._locations, 0)
        for location in self._locations:
            self.history.assigned(self.process, *location, 0)
        while not self.is_ending:
            await self.step()
            location = self.world.random.choice(self._locations)
            positions[location] = await self.read(caller, location, positions[location])

    async def read(self, caller: Caller, location: tuple[str, int], position: int) -> int:
        """One poll; the position after it."""
        random = self.world.random
        wait_ms, size = random.choice((0, 0, 100)), random.choice((1, 200, 1 << 20))
        with self.history.polling(self.process, *location, self._isolation) as polled:
            try:
                found = await poll(caller, *location, position, self._isolation, wait_ms, size)
            except (Unanswered, Refused):
                await caller.pause()
                return position
            if found.error:
                polled.code = found.error
                return position
            polled.found = found
        return found.next_offset


async def until(world: World, check: Callable[[], bool], seconds: float) -> bool:
    """Whether it becomes true in time."""
    deadline = world.loop.now + seconds
    while not check():
        if world.loop.now >= deadline:
            return False
        await sleep(0.05)
    return True
