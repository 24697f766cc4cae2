"""What is read back from the ledger is what lived in memory, whatever happened and whenever it was closed.

Commands are decided against a live state, in ticks, as the commit loop does it; facts go to a real ledger, on
disk or in PostgreSQL. Ticks with nothing but work inside transactions are held back and written together with
the next one, as the store does with early commits. On the way rows are swept, the state is forgotten and the
ledger is closed and opened, which must make no difference. At the end every entity that was ever loaded is
loaded anew and compared, and every log with what the facts say of it.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.models.rules import header
from support.stores.schemas import schemas

from semel.broker.commit.tick import newest_only
from semel.core.facts import (
    DURABLE,
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    GroupDeleted,
    Put,
    StagedCommitted,
    StagedDropped,
    TopicDeleted,
)
from semel.core.groups import ClassicGroup, ConsumerGroup
from semel.core.groups.offsets import Committer
from semel.core.log.compaction import ReplaceBatches
from semel.core.log.partition import (
    AllocateProducerId,
    Append,
    DeleteRecords,
    ExpireProducer,
    TransactionContext,
)
from semel.core.state import BrokerState
from semel.core.topics import AddPartitions, AlterTopic, CreateTopic, DeleteTopic
from semel.core.transactions import commands as transactions
from semel.core.types import (
    ClusterKey,
    Command,
    CommittedOffset,
    Fact,
    GroupKey,
    Key,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingKey,
    Rewritten,
    TransactionKey,
)
from semel.store.cluster.ledger import PostgresLedger
from semel.store.contract import BatchLocation, Ledger, StoredBatch
from semel.store.embedded.ledger import SqliteLedger

names = st.sampled_from(["orders", "orders", "payments", "journal", "journal"])
"""The last one has journal visibility."""
ids = st.sampled_from(["old", "new", "newer"])
VERSIONS = {"old": 1, "new": 2, "newer": 2}
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
    st.integers(1, 4),
    st.integers(0, 60),
)
writes = st.tuples(st.just("write"), ids, names, indexes, st.integers(1, 4), st.integers(0, 60))
inside = st.one_of(writes, writes, writes, st.tuples(st.just("pend"), ids, group_ids, names, indexes))
ends = st.tuples(st.just("end"), ids, st.booleans())
facts = st.tuples(
    st.just("fact"),
    st.one_of(
        st.tuples(offset_keys, st.none() | committed).map(lambda drawn: Put(*drawn)),
        groups.map(Put.of),
        st.builds(GroupDeleted, group_ids),
    ),
)
usual = st.one_of(
    appends,
    appends,
    inside,
    inside,
    ends,
    st.tuples(st.just("trim"), names, indexes, st.integers(1, 8)),
    st.tuples(st.just("replace"), names, indexes, st.integers(0, 2**16 - 1)),
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
seldom = st.one_of(
    st.tuples(st.just("init"), ids),
    st.tuples(st.just("abort"), ids),
    st.tuples(st.just("forget"), ids),
    st.tuples(st.just("mark"), ids, names, indexes, st.booleans()),
    st.tuples(st.just("feature"), st.integers(0, 2)),
)
# Mostly records, and now and then a topic that comes or goes: a log must live long enough to be looked at.
steps = st.sampled_from([usual] * 8 + [rare] + [seldom]).flatmap(lambda chosen: chosen)
ticks_of = st.one_of(
    st.lists(steps, min_size=3, max_size=9),
    st.lists(inside, min_size=1, max_size=4),
    # A transaction that ends in the tick in which it began, and one that began in the ticks before.
    st.tuples(ids, st.lists(writes, min_size=1, max_size=6), st.booleans()).map(
        lambda drawn: [*(("write", drawn[0], *each[2:]) for each in drawn[1]), ("end", drawn[0], drawn[2])]
    ),
    st.lists(ends, min_size=1, max_size=3),
)
between = st.sampled_from(["nothing", "nothing", "nothing", "sweep", "sweep", "reopen", "reopen", "forget"])


Prepared = tuple[Iterable[Key], Callable[[], Command[Any] | None]]
Ticks = list[tuple[list[tuple[Any, ...]], str]]
OpenLedger = Callable[[], Awaitable[Ledger]]
"""What a step needs to have loaded, and the command it comes to when it is its turn; None if to nothing."""


class Log:
    """What the facts say of one partition."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.staged: dict[int, list[tuple[BatchStaged, BatchLocation]]] = {}
        self.aborted: list[tuple[int, int, int]] = []
        """Marker, producer, first offset."""

    def apply(self, fact: Fact, location: BatchLocation | None, more: Sequence[BatchLocation] = ()) -> None:
        if isinstance(fact, BatchAppended):
            assert location is not None
            self.batches.append(StoredBatch(fact.base_offset, fact.last_offset, fact.max_timestamp, location))
            if fact.closes is not None and not fact.closes.is_commit:
                self.aborted.append((fact.base_offset, fact.producer_id, fact.closes.first_offset))
        elif isinstance(fact, BatchStaged):
            assert location is not None
            self.staged.setdefault(fact.producer_id, []).append((fact, location))
        elif isinstance(fact, StagedCommitted):
            offset = fact.base_offset
            for staged, where in self.staged.pop(fact.producer_id):
                last = offset + staged.offsets - 1
                self.batches.append(StoredBatch(offset, last, staged.max_timestamp, where))
                offset = last + 1
            assert offset == fact.last_offset + 1
        elif isinstance(fact, StagedDropped):
            del self.staged[fact.producer_id]
        elif isinstance(fact, BatchesReplaced):
            new = {
                each.base_offset: StoredBatch(each.base_offset, each.last_offset, each.max_timestamp, where)
                for each, where in zip(fact.rewritten, more, strict=True)
            }
            kept = [each for each in self.batches if each.base_offset not in fact.removed]
            self.batches = [new.get(each.base_offset, each) for each in kept]
            self.aborted = [each for each in self.aborted if each[0] not in fact.removed]

    def told(self, first: int, before: int) -> list[tuple[int, int]]:
        """What a reader of these offsets must know."""
        touched = [each for each in self.aborted if each[0] >= first and each[2] < before]
        return [(producer_id, began) for _, producer_id, began in sorted(touched, key=lambda each: each[2])]


class Broker:
    """A commit loop without a loop."""

    def __init__(self, open_ledger: OpenLedger, ledger: Ledger) -> None:
        self.open_ledger = open_ledger
        self.ledger = ledger
        self.state = BrokerState()
        self.seen: dict[Key, None] = {}
        self.live_locations: set[BatchLocation] = set()
        self.logs: dict[PartitionKey, Log] = {}
        self.early: tuple[list[Fact], list[BatchLocation]] = ([], [])
        self._existing: set[str] = set()
        self._topic_ids: dict[str, bytes] = {}
        self._sequences: dict[tuple[Any, ...], int] = {}
        self._now = 1_000
        self._chunk_end = 0

    async def tick(self, asked: list[tuple[Any, ...]]) -> None:
        facts: list[Fact] = []
        locations: list[BatchLocation] = []
        # Everything is loaded before anything is decided: what this tick decides is not in the ledger yet.
        prepared = [None if step[0] == "fact" else await self._prepare(step) for step in asked]
        for each in prepared:
            if each is not None:
                await self._load(each[0])
        defers_sync = True
        for step, each in zip(asked, prepared, strict=True):
            if each is None:
                decided: tuple[Fact, ...] = (step[1],)
                defers_sync = False
            else:
                command = each[1]()
                if command is None or self.state.missing(command.keys()):
                    continue
                decision = self.state.decide(command, self._now)
                self._remember_sequence(command, decision.answer)
                defers_sync = defers_sync and (decision.defers_sync or not decision.facts)
                decided = decision.facts
            for fact in decided:
                self.state.apply(fact)
                facts.append(fact)
                self._note(fact, locations)
        self._now += 1
        self.live_locations.update(locations)
        self.early[0].extend(newest_only([fact for fact in facts if type(fact) in DURABLE]))
        self.early[1].extend(locations)
        if not defers_sync:
            await self.flush()

    async def flush(self) -> None:
        facts, locations = self.early
        self.early = ([], [])
        await self.ledger.commit(facts, locations)

    async def between(self, what: str) -> None:
        if what == "nothing":
            return
        if what == "sweep":
            for location in await self.ledger.sweep(limit=7):
                self.live_locations.remove(location)
            return
        await self.flush()
        if what == "forget":
            self._remember_keys()
            self.state = BrokerState()
        elif what == "reopen":
            await self.ledger.close()
            self.ledger = await self.open_ledger()

    async def check(self) -> None:
        self._remember_keys()
        keys = list(self.seen)
        for key, value in zip(keys, await self.ledger.load(keys), strict=True):
            if not self.state.missing([key]):
                assert value == self.state.tables[type(key)][key], key
        known = [each for each in self.state.transactions.values() if each is not None]
        if len(known) == len(VERSIONS):
            assert await self.ledger.transactions() == sorted(known, key=lambda each: each.transactional_id)
        await self._check_logs()

    async def _check_logs(self) -> None:
        for key, partition in self.state.partitions.items():
            found = await self._batches(key)
            if partition is None:
                assert found == []
                continue
            start, end = partition.log_start_offset, partition.high_watermark
            log = self.logs.setdefault(key, Log())
            assert found == [batch for batch in log.batches if batch.last_offset >= start]
            assert sum(batch.location.length for batch in found) == partition.size_bytes
            ends = [batch.last_offset + 1 for batch in found]
            edges = zip(ends, (batch.base_offset for batch in found[1:]), strict=False)
            assert all(ended <= begun for ended, begun in edges)
            assert partition.compactions or len(found) < 2 or found[1].base_offset == ends[0]
            assert (ends or [end])[-1] == end
            for timestamp in (0, 20, 40, 60, 1_000):
                reached = next((each for each in found if each.max_timestamp >= timestamp), None)
                assert await self.ledger.first_batch_since(key, timestamp) == reached
            for first in range(start, end + 1, 3):
                # A range that ends at the log start is empty: its reader needs no list.
                for before in (each for each in (first, first + 2, end, end + 1) if each > start):
                    assert await self.ledger.aborted(key, first, before) == log.told(first, before)
        assert await self.ledger.chunk_references() == self._bytes_of_chunks()

    async def check_swept(self) -> None:
        """Once everything is swept, exactly what can be reached or may yet be is pointed at."""
        while locations := await self.ledger.sweep(limit=3):
            self.live_locations.difference_update(locations)
        reached: set[BatchLocation] = set()
        for topic in await self.ledger.topics():
            for index in range(topic.partitions):
                key = PartitionKey(topic.topic_id, index)
                reached.update(batch.location for batch in await self._batches(key))
                for staged in self.logs[key].staged.values() if key in self.logs else ():
                    reached.update(location for _, location in staged)
        assert reached == self.live_locations
        assert await self.ledger.chunk_references() == self._bytes_of_chunks()

    async def _batches(self, key: PartitionKey) -> list[StoredBatch]:
        return await self.ledger.find_batches(key, 0, before=2**62, bytes_max=2**40, batches_max=10_000)

    def _note(self, fact: Fact, locations: list[BatchLocation]) -> None:
        """What follows from a fact for the logs; the place of its bytes, if it has any."""
        location = None
        more: list[BatchLocation] = []
        if isinstance(fact, BatchAppended | BatchStaged):
            location = self._location(fact.size_bytes)
            locations.append(location)
        elif isinstance(fact, BatchesReplaced):
            more = [self._location(each.size_bytes) for each in fact.rewritten]
            locations += more
        if isinstance(fact, TopicDeleted):
            for index in range(fact.topic.partitions):
                self.logs.pop(PartitionKey(fact.topic.topic_id, index), None)
        elif isinstance(partition := getattr(fact, "partition", None), PartitionKey):
            self.logs.setdefault(partition, Log()).apply(fact, location, more)

    def _location(self, size_bytes: int) -> BatchLocation:
        location = BatchLocation(1 + self._chunk_end // 5_000, self._chunk_end, size_bytes)
        self._chunk_end += size_bytes
        return location

    def _bytes_of_chunks(self) -> dict[int, int]:
        counted: dict[int, int] = {}
        for chunk_id, _, length in self.live_locations:
            counted[chunk_id] = counted.get(chunk_id, 0) + length
        return counted

    def _remember_keys(self) -> None:
        for table in self.state.tables.values():
            self.seen.update(dict.fromkeys(table))

    async def _load(self, keys: Iterable[Key]) -> None:
        missing = self.state.missing(keys)
        for key, value in zip(missing, await self.ledger.load(missing), strict=True):
            self.state.put(key, value)

    # -- steps --------------------------------------------------------------------------------------------

    async def _prepare(self, step: tuple[Any, ...]) -> Prepared:
        what, *rest = step
        if what in ("write", "pend", "end", "init", "abort", "mark"):
            return await self._prepare_transactional(what, *rest)
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
        elif what == "feature":
            command = transactions.ChangeFeature(*rest)
        elif what == "forget":
            command = transactions.ForgetTransaction(rest[0], self._now - 3)
        else:
            key = self._key(rest[0], rest[1])
            if what == "append":
                return self._append(key, *rest[2:])
            looked = {"trim": self._trim, "replace": self._replace}
            if what in looked:
                command = await looked[what](key, rest[2])
            else:
                command = ExpireProducer(key.of(1_000 + rest[2]), self._now)
        return command.keys(), lambda: command

    async def _prepare_transactional(self, what: str, name: str, *rest: Any) -> Prepared:
        """The pair is that of the moment, so the command is made when it is its turn."""
        await self._load([TransactionKey(name), ClusterKey()])
        known = self.state.transactions[TransactionKey(name)]
        if what == "init":
            return transactions.keys_of(self.state, name), lambda: transactions.InitProducer(name, 50)
        if what == "abort":
            return transactions.keys_of(self.state, name), lambda: transactions.AbortOpen(name)
        if what == "end":
            return transactions.keys_of(self.state, name), lambda: self._end(name, *rest)
        if what == "pend":
            return [GroupKey(rest[0]), PendingKey(rest[0])], lambda: self._pend(name, *rest)
        key = self._key(rest[0], rest[1])
        keys: list[Key] = [key] if known is None else [key, key.of(known.producer_id)]
        if what == "mark":
            return keys, lambda: self._mark(name, key, rest[0] == "journal", is_commit=rest[2])
        return keys, lambda: self._write(name, key, rest[0] == "journal", *rest[2:])

    def _key(self, name: str, index: int) -> PartitionKey:
        return PartitionKey(self._topic_ids.get(name, bytes(16)), index)

    async def _trim(self, key: PartitionKey, eighths: int) -> DeleteRecords:
        """Delete a part of what is committed, as an asker who has the size from the ledger."""
        (partition,) = await self.ledger.load([key])
        offset = partition.high_watermark * eighths // 8 if partition else 0
        start, size = await self.ledger.size_below(key, offset)
        return DeleteRecords(key, offset, start, size, partition.compactions if partition else 0)

    async def _replace(self, key: PartitionKey, chance: int) -> ReplaceBatches:
        """Take some of what is stable away and rewrite some, as compaction would, with bits for a rule."""
        (partition,) = await self.ledger.load([key])
        partition = partition or Partition()
        stable = await self.ledger.find_batches(
            key, 0, before=partition.last_stable_offset, bytes_max=2**40, batches_max=10_000
        )
        chosen = [(each, chance >> (2 * at % 16) & 3) for at, each in enumerate(stable)]
        removed = [each for each, bits in chosen[:-1] if bits == 1]
        rewritten = [each for each, bits in chosen if bits >= 2]
        freed = sum(each.location.length for each in (*removed, *rewritten))
        smaller = [
            Rewritten(*each[:2], each.max_timestamp // 2, 1 + each.location.length // 2) for each in rewritten
        ]
        return ReplaceBatches(
            key,
            partition.log_start_offset,
            partition.compactions,
            tuple(smaller),
            (),
            tuple(each.base_offset for each in removed),
            freed,
            stable[-1].last_offset + 1 if stable else 0,
            next((name for name, each in self._topic_ids.items() if each == key.topic_id), ""),
        )

    def _create(self, name: str, partitions: int) -> CreateTopic:
        topic_id = os.urandom(16)
        if name not in self._existing:
            self._existing.add(name)
            self._topic_ids[name] = topic_id
        return CreateTopic(name, topic_id, partitions, {"retention.bytes": "5", "cleanup.policy": "compact"})

    def _append(self, key: PartitionKey, producer: int, count: int, timestamp: int) -> Prepared:
        """A batch outside transactions."""
        if producer < 0:
            batch = header(producer_id=-1, epoch=-1, count=count, timestamp=timestamp)
            return [key], lambda: Append(key, batch, b"")
        producer_id = 1_000 + producer

        def command() -> Command[Any]:
            sequence = self._sequences.get((key, producer_id, 0), 0)
            batch = header(sequence, producer_id=producer_id, count=count, timestamp=timestamp)
            return Append(key, batch, b"")

        return [key, key.of(producer_id)], command

    def _write(
        self, name: str, key: PartitionKey, is_journal: bool, count: int, timestamp: int
    ) -> Command[Any] | None:
        """A batch of a transaction, with the sequence that its producer would send."""
        transaction = self.state.transactions[TransactionKey(name)]
        if transaction is None:
            return None
        batch = header(
            self._sequences.get((key, transaction.producer_id, transaction.epoch), 0),
            producer_id=transaction.producer_id,
            epoch=transaction.epoch,
            count=count,
            timestamp=timestamp,
        )
        transaction_context = TransactionContext(name, VERSIONS[name], must_be_added=False)
        return Append(key, batch, b"", transaction_context=transaction_context, is_journal=is_journal)

    def _pend(self, name: str, group_id: str, topic: str, index: int) -> Command[Any] | None:
        transaction = self.state.transactions[TransactionKey(name)]
        if transaction is None:
            return None
        return transactions.CommitPending(
            name,
            transaction.producer_id,
            transaction.epoch,
            group_id,
            Committer(),
            ((OffsetKey(group_id, topic, index), CommittedOffset(self._now)),),
            VERSIONS[name],
            must_be_added=False,
        )

    def _end(self, name: str, is_commit: bool) -> Command[Any] | None:
        """An end, if all is loaded that it touches: what joined in this tick was loaded by what joined it."""
        transaction = self.state.transactions[TransactionKey(name)]
        if transaction is None or self.state.missing(transactions.keys_of(self.state, name)):
            return None
        pair = (transaction.producer_id, transaction.epoch)
        return transactions.EndTransaction(name, *pair, is_commit, VERSIONS[name])

    def _mark(
        self, name: str, key: PartitionKey, is_journal: bool, *, is_commit: bool
    ) -> Command[Any] | None:
        """Somebody with rights over the cluster ends what a producer has open in one partition."""
        transaction = self.state.transactions[TransactionKey(name)]
        if transaction is None:
            return None
        pair = (transaction.producer_id, transaction.epoch)
        return transactions.WriteMarker(key, *pair, 0, is_commit, is_journal=is_journal)

    def _remember_sequence(self, command: Command[Any], answer: Any) -> None:
        if isinstance(command, Append) and command.header.producer_id >= 0 and not answer.error:
            batch = command.header
            owner = (command.partition, batch.producer_id, batch.producer_epoch)
            self._sequences[owner] = batch.base_sequence + batch.last_offset_delta + 1


async def _replay(open_ledger: OpenLedger, ticks: Ticks) -> None:
    broker = Broker(open_ledger, await open_ledger())
    try:
        names = [("create", "orders", 2), ("create", "payments", 1), ("create", "journal", 2)]
        await broker.tick([*names, *(("init", each) for each in VERSIONS)])
        await broker.tick([("append", "orders", index % 2, index, 2, 9) for index in range(3)])
        for asked, what in ticks:
            await broker.tick(asked)
            await broker.between(what)
        await broker.between("reopen")
        await broker.check()
        await broker.check_swept()
    finally:
        await broker.ledger.close()


histories = st.lists(st.tuples(ticks_of, between), min_size=8, max_size=20)


@examples(25, few=12)
@given(histories)
def test_what_is_loaded_is_what_was_applied(ticks: Ticks) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_replay(lambda: SqliteLedger.open(Path(directory) / "ledger.db"), ticks))


@examples(10, few=4)
@given(histories)
def test_what_is_loaded_from_postgresql_is_what_was_applied(postgres_dsn: str, ticks: Ticks) -> None:
    with schemas(postgres_dsn).taken() as schema:
        asyncio.run(_replay(lambda: PostgresLedger.open(postgres_dsn, schema=schema), ticks))
