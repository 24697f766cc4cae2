"""Subscribe and copy: a group of several members consumes, transforms and produces, exactly once.

Members come from two libraries. aiokafka is not among them: it sends offsets without its member id, so a
broker cannot refuse those of a member that has lost its partitions.
"""

import itertools
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaException, TopicPartition

from semel.check import Claim, Process
from semel.client import Client, Consumer, Isolation, Partition
from support.clients.raw_log import Log
from support.clients.routed import raw_client
from support.waiting import until
from support.workloads.clients import Sent
from support.workloads.running import (
    PATIENCE_SECONDS,
    QUIET,
    Place,
    Producing,
    Reader,
    Worker,
    Workload,
    Writer,
)

PARTITIONS = 3
BATCH = 50
ABORTS = 0.15


class Taken(NamedTuple):
    """A record that a member has received."""

    partition: int
    offset: int
    value: str


class Copy(Workload):
    """A feeder that writes in transactions, and a group that copies the committed records per partition."""

    def __init__(
        self,
        place: Place,
        name: str,
        members: Sequence[str],
        chance: random.Random,
        visibility: str = "marker",
        feeder: str = "aiokafka",
    ) -> None:
        self.source, self.target = f"{name}-source", f"{name}-target"
        super().__init__(place, {self.source: PARTITIONS, self.target: PARTITIONS}, visibility)
        self.group = f"{name}-copiers"
        self._numbers = itertools.count()
        seeds = [chance.randrange(2**32) for _ in range(1 + len(members))]
        self.feeder = Writer(self.place, feeder, f"{name}-feeder", self._feed, seeds[0])
        self.copiers = [
            MEMBERS[kind](self, f"{name}-copier-{index}", seeds[1 + index])
            for index, kind in enumerate(members)
        ]
        self.workers = [
            self.feeder,
            *self.copiers,
            Reader(self.place, self.partitions, Isolation.READ_COMMITTED),
        ]

    @property
    def transactional_ids(self) -> list[str]:
        producing = [self.feeder.producing, *(each.producing for each in self.copiers)]
        return [each.transactional_id for each in producing]

    @property
    def groups(self) -> dict[str, list[Partition]]:
        return {self.group: [(self.source, index) for index in range(PARTITIONS)]}

    def _feed(self, chance: random.Random) -> list[Sent]:
        count = chance.randrange(1, 4)
        return [
            Sent(self.source, chance.randrange(PARTITIONS), f"{next(self._numbers)}") for _ in range(count)
        ]

    def drain(self) -> None:
        """Stop the feeder, and let the group copy the rest."""
        self.feeder.finish()
        with suppress(AssertionError):
            until(lambda: self._is_copied() or self.failures(), PATIENCE_SECONDS)

    def _is_copied(self) -> bool:
        with suppress(*QUIET):
            return not self._differences()
        return False

    def _differences(self) -> list[str]:
        with raw_client(self.place.bootstrap) as client:
            pairs = [
                (Log(client, self.source, index).values(), Log(client, self.target, index).values())
                for index in range(PARTITIONS)
            ]
        return [
            f"partition {index}: {len(source)} records became {len(target)}, or others, or in another order"
            for index, (source, target) in enumerate(pairs)
            if source != [value.split(b" ", 1)[0] for value in target]
        ]

    def has_copied(self) -> bool:
        """Whether a copy exists. Its transaction may have committed without any client knowing."""
        with suppress(*QUIET), raw_client(self.place.bootstrap) as client:
            return any(Log(client, self.target, index).values() for index in range(PARTITIONS))
        return False

    def problems(self) -> list[str]:
        problems = self._differences()
        if not self.has_copied():
            problems.append("nothing was copied")
        return problems


class Copier(Worker):
    """One member, which writes the records it received and its offsets in one transaction."""

    kind = ""
    has_always_work = False  # A group may leave a member without partitions.

    def __init__(self, workload: Copy, name: str, seed: int) -> None:
        super().__init__(f"{self.kind} {name}", workload.place)
        self.workload = workload
        self.producing = Producing(workload.place, self.kind, name)
        self.chance = random.Random(seed)

    def copy(self, taken: Iterable[Taken], metadata: Any) -> bool:
        """Copy in one transaction; return whether it counts. If not, the member must rewind."""
        source, target = self.workload.source, self.workload.target
        spans: dict[int, tuple[int, int]] = {}
        records: list[Sent] = []
        for each in taken:
            first, _ = spans.get(each.partition, (each.offset, 0))
            spans[each.partition] = (first, each.offset + 1)
            # In the history each record has one writer, so every attempt at a copy writes its own record.
            records.append(Sent(target, each.partition, f"{each.value} {self.name} {self.steps}"))
        claims = [Claim(source, partition, *span) for partition, span in spans.items()]
        done = self.producing.transaction(
            records,
            is_commit=self.chance.random() >= ABORTS,
            group=(self.workload.group, metadata, claims),
        )
        self.steps += 1
        return done

    def note(self, process: Process, started: int, taken: Iterable[Taken]) -> None:
        source = self.workload.source
        process.poll(started, [(source, each.partition, each.offset, each.value) for each in taken])


class _NotingConsumer(Consumer):
    """A consumer that reports which partitions it lost, and perhaps got again, since the last report."""

    begun: set[Partition]

    def _drop(self, key: Partition) -> None:
        super()._drop(key)
        self.begun.add(key)


class OwnCopier(Copier):
    """A KIP-848 member, with Semel's client."""

    kind = "own"

    def work(self) -> None:
        process = self.place.recorder.process("member")
        try:
            with Client(self.place.bootstrap, timeout_s=PATIENCE_SECONDS) as client:
                consumer = _NotingConsumer(client, group_id=self.workload.group, auto_commit=False)
                consumer.begun = set()
                consumer.subscribe([self.workload.source])
                while not self.stopping.is_set():
                    self._round(process, consumer)
                consumer.close()
        finally:
            self.producing.close()

    def _round(self, process: Process, consumer: _NotingConsumer) -> None:
        found = consumer.poll(0.1, max_records=BATCH)
        if not found:
            return
        # One poll returns only records from after the partitions were lost and assigned again.
        process.assign(dict.fromkeys(consumer.begun, None))
        consumer.begun.clear()
        taken = [Taken(each.partition, each.offset, (each.value or b"").decode()) for each in found]
        self.note(process, self.place.recorder.clock(), taken)
        if not self.copy(taken, consumer.group_metadata()):
            # Fetch unknown positions from the group again.
            for key in consumer.assignment:
                consumer._drop(key)


class LibrdkafkaCopier(Copier):
    """A librdkafka member, in the protocol that the class names."""

    kind = "librdkafka"
    protocol = "consumer"

    def work(self) -> None:
        process = self.place.recorder.process("member")
        consumer = LibrdkafkaConsumer(
            {
                "bootstrap.servers": self.place.bootstrap,
                "group.id": self.workload.group,
                "group.protocol": self.protocol,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "metadata.recovery.strategy": "none",
                "log_level": 0,
                **({"session.timeout.ms": 6_000} if self.protocol == "classic" else {}),
            }
        )
        self._taken: list[Taken] = []
        try:
            consumer.subscribe(
                [self.workload.source],
                on_assign=self._assigned(process),
                on_revoke=self._lost,
                on_lost=self._lost,
            )
            while not self.stopping.is_set():
                self._round(process, consumer)
        finally:
            self.producing.close()
            consumer.close()

    def _assigned(self, process: Process) -> Any:
        def assigned(_: LibrdkafkaConsumer, partitions: list[TopicPartition]) -> None:
            process.assign({(each.topic, each.partition): None for each in partitions})

        return assigned

    def _lost(self, _: LibrdkafkaConsumer, partitions: list[TopicPartition]) -> None:
        """Drop records that were received but not copied: other members have their partitions now."""
        gone = {each.partition for each in partitions}
        self._taken = [each for each in self._taken if each.partition not in gone]

    def _round(self, process: Process, consumer: LibrdkafkaConsumer) -> None:
        self._taken = []
        for number in range(BATCH):
            # One by one: a callback precedes the record of the same call, and never follows it.
            message = consumer.poll(0 if number else 0.1)
            if message is None:
                break
            partition, offset, value = message.partition(), message.offset(), message.value()
            if message.error() is None and partition is not None and offset is not None and value is not None:
                taken = Taken(partition, offset, value.decode())
                self.note(process, self.place.recorder.clock(), [taken])
                self._taken.append(taken)
        if self._taken and not self.copy(self._taken, consumer.consumer_group_metadata()):
            self._rewind(process, consumer)

    def _rewind(self, process: Process, consumer: LibrdkafkaConsumer) -> None:
        def done() -> bool:
            with suppress(KafkaException):
                found = consumer.committed(consumer.assignment(), 5)
                positions = [
                    TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in found
                ]
                for each in positions:
                    consumer.seek(each)
                process.assign({(each.topic, each.partition): each.offset for each in positions})
                return True
            return False

        until(done, PATIENCE_SECONDS, "finding the positions")


class ClassicCopier(LibrdkafkaCopier):
    """The same in the classic protocol."""

    protocol = "classic"


MEMBERS: dict[str, type[Copier]] = {
    "own": OwnCopier,
    "librdkafka": LibrdkafkaCopier,
    "classic": ClassicCopier,
}
