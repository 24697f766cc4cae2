"""The actors of a history: writers of every kind, copiers of a group, readers, and an administrator.

Each works until it is told to end, finishes what it has begun, and records (``recording``) what it did and
what it knows of the outcome.
"""

from collections.abc import Callable

from semel.client.consume.offsets import Isolation
from semel.wire.errors import ErrorCode
from simulation.network import Caller, Refused, Unanswered, World
from simulation.producing import Known, Producer, Result
from simulation.reading import poll
from simulation.recording import Recording, Txn
from simulation.virtual_time import sleep

Places = list[tuple[str, int]]

ABORTABLE = frozenset({ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

NEW_ID_ODDS = 0.4


class Actor:
    """A named client that can be paused and killed between any two steps."""

    rest_seconds_max = 0.01
    """The longest pause between two steps without faults."""

    def __init__(self, world: World, history: Recording, name: str) -> None:
        self.world = world
        self.history = history
        self.name = name
        self.is_ending = False
        self._incarnation = 0

    @property
    def process(self) -> str:
        """The name of the current incarnation. A restarted client is another process."""
        return f"{self.name}.{self._incarnation}"

    async def live(self) -> None:
        """Work until the end, restarting after each kill."""
        while not self.is_ending:
            self._incarnation += 1
            try:
                await self.work()
            except Killed:
                self.killed()
                await sleep(self.world.random.uniform(0, 0.15))

    async def work(self) -> None:
        """Do the work of one incarnation."""
        raise NotImplementedError

    def killed(self) -> None:
        """Forget what the next incarnation cannot know."""

    async def step(self) -> None:
        """Pause between two steps, usually briefly, sometimes for long. Sometimes raise Killed."""
        faults, random = self.world.faults, self.world.random
        seconds = random.uniform(0, self.rest_seconds_max)
        if faults.happens(random, "paused client"):
            seconds = random.uniform(0.1, 1.5)
        await sleep(seconds)
        if faults.happens(random, "killed client"):
            raise Killed


class Killed(Exception):
    """This incarnation was killed in the middle of its work."""


class TransactionalActor(Actor):
    """An actor that processes records in transactions."""

    def __init__(self, world: World, history: Recording, name: str, timeout_ms: int) -> None:
        super().__init__(world, history, name)
        self._timeout_ms = timeout_ms
        self.transactional_id = name

    def killed(self) -> None:
        """Sometimes return under another id, so that only the timeout ends the open transaction."""
        if self.world.random.random() < NEW_ID_ODDS:
            self.transactional_id = f"{self.name}-{self._incarnation}"

    async def begin_producer(self, generation: int) -> Producer | None:
        """Initialise a producer with the transactional id; None unless that has certainly succeeded."""
        own_id, timeout_ms = self.transactional_id, self._timeout_ms
        producer = Producer(self.world, self.process, own_id, generation, timeout_ms)
        with self.history.initialising(self.process, own_id, timeout_ms) as taken:
            is_begun = await producer.init()
            taken.known = Known.DONE if is_begun else Known.UNKNOWN
            taken.pair = (producer.producer_id, producer.epoch)
        return producer if is_begun else None


def offset_of(result: Result) -> int | None:
    """Return the offset of a batch, if the broker reported it."""
    if not result.is_done:
        return None
    return int(result.answer.responses[0].partition_responses[0].base_offset)


class TransactionalWriter(Actor):
    """Writes batches to several partitions, and commits or aborts."""

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
        """Sometimes return under another id, so that only the timeout ends the open transaction."""
        if not self._has_twin and self.world.random.random() < NEW_ID_ODDS:
            self._transactional_id = f"{self.name}-{self._incarnation}"

    async def work(self) -> None:
        """Run sessions, each until it is fenced or an outcome is unknown."""
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
        """Run one transaction. Return whether the session may continue."""
        txn = self.history.begin(self.process, self._transactional_id)
        return await self.finish(producer, txn, await self.write(producer, txn))

    async def write(self, producer: Producer, txn: Txn) -> Result:
        """Do the writes of the transaction. Return the result that stopped it, or the last one."""
        result = Result(Known.DONE, ErrorCode.NONE)
        for _ in range(self.world.random.randint(1, 4)):
            await self.step()
            result = await self.send(producer, txn, *self.world.random.choice(self.locations))
            if not result.is_done:
                break
        await self.step()
        return result

    async def send(self, producer: Producer, txn: Txn, topic: str, partition: int) -> Result:
        """Send one batch of new values."""
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
        """End the transaction. Return whether the session may continue."""
        commits = result.is_done and self.world.random.random() < 0.67
        with self.history.ending(self.process, txn, is_commit=commits) as end:
            ended = await producer.end(commit=commits)
            end.known, end.code = ended.known, ended.code
        # If the outcome of a batch or of the end is unknown, the writer needs a new epoch.
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
        """Run sessions, each until it gives up on a batch."""
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
    """Writes batches without idempotence, each sent once."""

    async def work(self) -> None:
        """Write until the end."""
        producer = Producer(self.world, self.process, None, 1, 0)
        while not self.is_ending:
            await self._one(producer)
            await self.step()


class Reader(Actor):
    """Reads partitions to their end, repeatedly."""

    rest_seconds_max = 0.06

    def __init__(
        self, world: World, history: Recording, name: str, locations: Places, isolation: Isolation
    ) -> None:
        super().__init__(world, history, name)
        self._locations = locations
        self._isolation = isolation

    async def work(self) -> None:
        """Read from the beginning, in every incarnation."""
        caller = Caller(self.world, self.process)
        positions = dict.fromkeys(self._locations, 0)
        for location in self._locations:
            self.history.assigned(self.process, *location, 0)
        while not self.is_ending:
            await self.step()
            location = self.world.random.choice(self._locations)
            positions[location] = await self.read(caller, location, positions[location])

    async def read(self, caller: Caller, location: tuple[str, int], position: int) -> int:
        """Poll once. Return the position after it."""
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
    """Wait for a condition. Return whether it became true in time."""
    deadline = world.loop.now + seconds
    while not check():
        if world.loop.now >= deadline:
            return False
        await sleep(0.05)
    return True
