"""What is read back from the ledger is what lived in memory, whatever happened and whenever it was closed.

Commands are decided against a live state, in ticks, as the commit loop does it; facts go to a real ledger on
disk. On the way rows are swept, the state is forgotten and the ledger is closed and opened, which must make
no difference. At the end every entity that was ever loaded is loaded anew and compared.
"""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.rules import header

from semel.core.facts import (
    DURABLE,
    BatchAppended,
    GroupChanged,
    GroupDeleted,
    OffsetCommitted,
    OffsetDeleted,
)
from semel.core.groups import ClassicGroup, ConsumerGroup
from semel.core.partition import AllocateProducerId, Append, DeleteRecords, ExpireProducer
from semel.core.state import BrokerState
from semel.core.topics import AddPartitions, AlterTopic, CreateTopic, DeleteTopic
from semel.core.types import Command, CommittedOffset, Fact, Key, OffsetKey, PartitionKey, ProducerKey
from semel.store.interface import Place
from semel.store.sqlite_ledger import SqliteLedger

names = st.sampled_from(["orders", "orders", "payments"])
indexes = st.integers(0, 1)
group_ids = st.sampled_from(["g", "h"])
offset_keys = st.builds(OffsetKey, group_ids, names, indexes)
committed = st.builds(
    CommittedOffset, st.integers(-1, 99), st.integers(-1, 3), st.text(max_size=3), st.integers(0, 9)
)
groups = st.one_of(
    st.tuples(group_ids, st.integers(0, 9)).map(lambda drawn: ClassicGroup(drawn[0], generation=drawn[1])),
    st.tuples(group_ids, st.integers(0, 9)).map(lambda drawn: ConsumerGroup(drawn[0], epoch=drawn[1])),
)
appends = st.tuples(
    st.just("append"),
    names,
    indexes,
    st.integers(-1, 2),
    st.integers(0, 1),
    st.integers(1, 4),
    st.integers(0, 60),
)
facts = st.tuples(
    st.just("fact"),
    st.one_of(
        st.builds(OffsetCommitted, offset_keys, committed),
        st.builds(OffsetDeleted, offset_keys),
        st.builds(GroupChanged, groups),
        st.builds(GroupDeleted, group_ids),
    ),
)
usual = st.one_of(
    appends,
    appends,
    appends,
    st.tuples(st.just("trim"), names, indexes, st.integers(1, 8)),
    st.tuples(st.just("expire"), names, indexes, st.integers(0, 2)),
    st.tuples(st.just("allocate")),
    facts,
)
rare = st.one_of(
    st.tuples(st.just("create"), names, st.integers(1, 3)),
    st.tuples(st.just("create"), names, st.integers(1, 3)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("grow"), names, st.integers(1, 3)),
    st.tuples(st.just("alter"), names, st.sampled_from(["1", "2"])),
)
# Mostly records, and now and then a topic that comes or goes: a log must live long enough to be looked at.
steps = st.integers(0, 9).flatmap(lambda chance: rare if chance == 9 else usual)
between = st.sampled_from(["nothing", "nothing", "nothing", "sweep", "sweep", "reopen", "reopen", "forget"])


class Broker:
    """A commit loop without a loop."""

    def __init__(self, path: Path, ledger: SqliteLedger) -> None:
        self.path = path
        self.ledger = ledger
        self.state = BrokerState()
        self.seen: dict[Key, None] = {}
        self.live_places: set[Place] = set()
        self._existing: set[str] = set()
        self._topic_ids: dict[str, bytes] = {}
        self._sequences: dict[tuple[Any, ...], int] = {}
        self._now = 1_000
        self._chunk_end = 0

    async def tick(self, asked: list[tuple[Any, ...]]) -> None:
        facts: list[Fact] = []
        places: list[Place] = []
        # Everything is loaded before anything is decided: what this tick decides is not in the ledger yet.
        commands = [None if step[0] == "fact" else await self._command(step) for step in asked]
        for command in commands:
            if command is not None:
                await self._load(command.keys())
        for step, command in zip(asked, commands, strict=True):
            decided = (step[1],) if command is None else self.state.decide(command, self._now).facts
            for fact in decided:
                self.state.apply(fact)
                facts.append(fact)
                if isinstance(fact, BatchAppended):
                    places.append(Place(1 + self._chunk_end // 5_000, self._chunk_end, fact.size_bytes))
                    self._chunk_end += fact.size_bytes
        self._now += 1
        self.live_places.update(places)
        await self.ledger.commit([fact for fact in facts if type(fact) in DURABLE], places)

    async def between(self, what: str) -> None:
        if what == "sweep":
            for place in await self.ledger.sweep(limit=7):
                self.live_places.remove(place)
        elif what == "forget":
            self._remember_keys()
            self.state = BrokerState()
        elif what == "reopen":
            await self.ledger.close()
            self.ledger = await SqliteLedger.open(self.path)

    async def check(self) -> None:
        self._remember_keys()
        keys = list(self.seen)
        for key, value in zip(keys, await self.ledger.load(keys), strict=True):
            if not self.state.missing([key]):
                assert value == self.state.tables[type(key)][key], key
        await self._check_logs()

    async def _check_logs(self) -> None:
        for key, partition in self.state.partitions.items():
            found = await self.ledger.find_batches(key, 0, before=2**62, bytes_max=2**40, batches_max=10_000)
            if partition is None:
                assert found == []
                continue
            assert sum(batch.place.length for batch in found) == partition.size_bytes
            assert all(batch.last_offset >= partition.log_start_offset for batch in found)
            ends = [batch.last_offset + 1 for batch in found]
            assert [batch.base_offset for batch in found[1:]] == ends[:-1]
            assert (ends or [partition.high_watermark])[-1] == partition.high_watermark
        assert await self.ledger.chunk_references() == self._bytes_of_chunks()

    async def check_swept(self) -> None:
        """Once everything is swept, exactly what can be reached is pointed at."""
        while places := await self.ledger.sweep(limit=3):
            self.live_places.difference_update(places)
        reached: set[Place] = set()
        for topic in await self.ledger.topics():
            for index in range(topic.partitions):
                key = PartitionKey(topic.topic_id, index)
                found = await self.ledger.find_batches(
                    key, 0, before=2**62, bytes_max=2**40, batches_max=10_000
                )
                reached.update(batch.place for batch in found)
        assert reached == self.live_places
        assert await self.ledger.chunk_references() == self._bytes_of_chunks()

    def _bytes_of_chunks(self) -> dict[int, int]:
        counted: dict[int, int] = {}
        for chunk_id, _, length in self.live_places:
            counted[chunk_id] = counted.get(chunk_id, 0) + length
        return counted

    def _remember_keys(self) -> None:
        for table in self.state.tables.values():
            self.seen.update(dict.fromkeys(table))

    async def _load(self, keys: Any) -> None:
        missing = self.state.missing(keys)
        for key, value in zip(missing, await self.ledger.load(missing), strict=True):
            self.state.put(key, value)

    async def _command(self, step: tuple[Any, ...]) -> Command:
        what, *rest = step
        command: Any
        if what == "allocate":
            command = AllocateProducerId()
        elif what == "create":
            command = self._create(*rest)
        elif what == "delete":
            self._existing.discard(rest[0])
            command = DeleteTopic(*rest)
        elif what == "grow":
            command = AddPartitions(*rest)
        elif what == "alter":
            command = AlterTopic(rest[0], (("retention.ms", 0, rest[1]),))
        else:
            key = PartitionKey(self._topic_ids.get(rest[0], bytes(16)), rest[1])
            if what == "append":
                command = self._append(key, *rest[2:])
            elif what == "trim":
                command = await self._trim(key, rest[2])
            else:
                command = ExpireProducer(ProducerKey(*key, rest[2]), self._now)
        return command

    async def _trim(self, key: PartitionKey, eighths: int) -> DeleteRecords:
        """Delete a part of what is committed, as an asker who has the size from the ledger."""
        (partition,) = await self.ledger.load([key])
        offset = partition.high_watermark * eighths // 8 if partition else 0
        start, size = await self.ledger.size_below(key, offset)
        return DeleteRecords(key, offset, start, size)

    def _create(self, name: str, partitions: int) -> CreateTopic:
        topic_id = os.urandom(16)
        if name not in self._existing:
            self._existing.add(name)
            self._topic_ids[name] = topic_id
        return CreateTopic(name, topic_id, partitions, {"retention.bytes": "5"})

    def _append(
        self, key: PartitionKey, producer_id: int, transaction: int, count: int, timestamp: int
    ) -> Append:
        if producer_id < 0:
            return Append(key, header(producer_id=-1, epoch=-1, count=count, timestamp=timestamp), b"")
        sequence = self._sequences.get((*key, producer_id), 0)
        self._sequences[(*key, producer_id)] = sequence + count
        batch = header(sequence, producer_id=producer_id, count=count, timestamp=timestamp)
        return Append(key, batch, b"", transaction_version=transaction)


async def _replay(ticks: list[tuple[list[tuple[Any, ...]], str]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.db"
        broker = Broker(path, await SqliteLedger.open(path))
        try:
            await broker.tick([("create", "orders", 2), ("create", "payments", 1)])
            await broker.tick([("append", "orders", index % 2, index, 0, 2, 9) for index in range(3)])
            for asked, what in ticks:
                await broker.tick(asked)
                await broker.between(what)
            await broker.between("reopen")
            await broker.check()
            await broker.check_swept()
        finally:
            await broker.ledger.close()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.lists(steps, min_size=3, max_size=9), between), min_size=6, max_size=15))
def test_what_is_loaded_is_what_was_applied(ticks: list[tuple[list[tuple[Any, ...]], str]]) -> None:
    asyncio.run(_replay(ticks))
