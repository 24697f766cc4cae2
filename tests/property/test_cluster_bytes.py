"""The bytes of a cluster, through everything that moves or deletes them, with crashes at any moment.

Small and large commits, rolls, merges, compactions, deletions, sweeps and reconciliations happen in any
order, at two brokers. Any of them may be cut short: before or after an object is uploaded or deleted, or
before a transaction commits; the broker is then gone, with what it had in memory. After each step every
batch reads as it was written, and at the end nothing is left that nobody needs.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.examples import examples
from support.stores.cluster_bytes import Place, age, inline_chunks, listed, states
from support.stores.schemas import schemas

from semel.config import Settings
from semel.core.facts import BatchAppended, BatchesReplaced, LogStartAdvanced, Put, TopicCreated, TopicDeleted
from semel.core.types import Partition, PartitionKey, Rewritten, Topic
from semel.store.cluster.bytes import merging
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.bytes.reconciling import Reconciler
from semel.store.cluster.store import ClusterStore
from semel.store.contract import StoreRefused
from semel.wire.records import Record, encode_batch

SETTINGS = Settings(
    semel_roll_interval_ms=0,
    semel_merge_age_ms=0,
    semel_inline_bytes_max=1_000,
    semel_object_bytes=1_500,
    semel_block_cache_bytes=2_000,
)
PARTITIONS = 2
FAULTS = ["before upload", "after upload", "before deletion", "after deletion", "in transaction"]


BROKERS = INDEXES = st.integers(0, 1)


class Crash(Exception):
    """The broker is gone."""


class Bytes(RuleBasedStateMachine):
    """Brokers over one store, and what must be in it."""

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(merging, "RUN_BYTES", 1_000)
        self._patch.setattr(merging, "RUN_BATCHES", 4)
        self._fault: str | None = None
        self._reader = 0
        """The broker that did something last."""
        self._stores: list[ClusterStore | None] = [None, None]
        topic = Topic("t", os.urandom(16), PARTITIONS, {})
        self._topic = topic
        self._keys = [PartitionKey(topic.topic_id, index) for index in range(PARTITIONS)]
        self._partitions = {key: Partition() for key in self._keys}
        self._logs: dict[PartitionKey, dict[int, tuple[int, bytes]]] = {key: {} for key in self._keys}
        self._directory = tempfile.TemporaryDirectory()
        dsn = type(self).place.dsn
        self._schema = contextlib.ExitStack()
        schema = self._schema.enter_context(schemas(dsn).taken())
        self._place = Place.new(dsn, Path(self._directory.name).as_uri(), schema)
        self._run(self._begin)

    def teardown(self) -> None:
        try:
            self._fault = None
            self._run(self._end)
        finally:
            for store in self._stores:
                if store is not None:
                    self._runner.run(store.close())
            self._runner.close()
            self._schema.close()
            self._patch.undo()
            self._directory.cleanup()

    # -- what happens -------------------------------------------------------------------------------------

    @rule(broker=BROKERS, index=INDEXES, sizes=st.lists(st.integers(10, 900), min_size=1, max_size=4))
    def commit(self, broker: int, index: int, sizes: list[int]) -> None:
        key = self._keys[index]
        batches = [encode_batch([Record(0, 1_000, None, os.urandom(size))]) for size in sizes]
        before = self._partitions[key]
        facts: list[Any] = []
        new = {}
        offset = before.high_watermark
        for batch in batches:
            facts.append(BatchAppended(key, offset, offset, 1_000, 1_000, len(batch), -1, False, False))
            new[offset] = (offset, batch)
            offset += 1
        after = before.but(
            high_watermark=offset,
            peak_timestamp=1_000,
            size_bytes=before.size_bytes + sum(map(len, batches)),
        )
        if self._step(broker, lambda store: store.commit([*facts, Put(key, after)], batches)):
            self._partitions[key] = after
            self._logs[key] |= new

    @rule(broker=BROKERS, index=INDEXES, share=st.floats(0, 1))
    def trim(self, broker: int, index: int, share: float) -> None:
        key = self._keys[index]
        before = self._partitions[key]
        start = before.log_start_offset + round(share * (before.high_watermark - before.log_start_offset))
        kept = {base: each for base, each in self._logs[key].items() if each[0] >= start}
        size = sum(len(batch) for _, batch in kept.values())
        after = before.but(log_start_offset=start, size_bytes=size)
        facts = [LogStartAdvanced(key, start), Put(key, after)]

        async def check_and_trim(store: ClusterStore) -> None:
            _, below = await store.ledger.size_below(key, start)
            assert before.size_bytes - below == size
            await store.commit(facts, [])

        if self._step(broker, check_and_trim):
            self._partitions[key] = after
            self._logs[key] = kept

    @rule(broker=BROKERS, index=INDEXES, which=st.floats(0, 0.99), rewrites=st.booleans())
    def compact(self, broker: int, index: int, which: float, rewrites: bool) -> None:
        key = self._keys[index]
        bases = sorted(self._logs[key])
        # The last batch is never removed.
        if len(bases) < 2:
            return
        base = bases[int(which * (len(bases) - 1))]
        last, old = self._logs[key][base]
        new = encode_batch([Record(0, 1_000, None, b"compacted")])
        before = self._partitions[key]
        size = before.size_bytes - len(old) + (len(new) if rewrites else 0)
        after = before.but(size_bytes=size, compactions=before.compactions + 1)
        rewritten = (Rewritten(base, last, 1_000, len(new)),) if rewrites else ()
        fact = BatchesReplaced(key, rewritten, () if rewrites else (base,))
        batches = [new] if rewrites else []
        if self._step(broker, lambda store: store.commit([fact, Put(key, after)], batches)):
            self._partitions[key] = after
            del self._logs[key][base]
            if rewrites:
                self._logs[key][base] = (last, new)

    @rule(broker=BROKERS)
    def upload_without_a_commit(self, broker: int) -> None:
        self._step(broker, lambda store: store.chunks.put([os.urandom(2_000)]))

    @rule(broker=BROKERS)
    def roll(self, broker: int) -> None:
        self._step(broker, lambda store: store.roller.roll_once())

    @rule(broker=BROKERS)
    def merge(self, broker: int) -> None:
        self._step(broker, lambda store: store.merger.merge_once())

    @rule(broker=BROKERS, limit=st.integers(1, 20))
    def sweep(self, broker: int, limit: int) -> None:
        self._step(broker, lambda store: store.ledger.sweep(limit=limit))

    @rule(broker=BROKERS, states=st.lists(st.sampled_from(["uploading", "unused", "abandoned"]), max_size=2))
    def delete_unused(self, broker: int, states: list[str]) -> None:
        async def wait_and_delete(store: ClusterStore) -> None:
            await age(store, *states)
            await store.sweep_orphans()

        self._step(broker, wait_and_delete)

    @rule(broker=BROKERS)
    def reconcile(self, broker: int) -> None:
        async def reconcile(store: ClusterStore) -> None:
            await store.reconciler.reconcile_once()
            assert store.reconciler.missing == 0

        self._step(broker, reconcile)

    @rule(broker=BROKERS)
    def crash(self, broker: int) -> None:
        self._run(lambda: self._close(broker))

    @precondition(lambda self: self._fault is None)
    @rule(fault=st.sampled_from(FAULTS))
    def something_will_fail(self, fault: str) -> None:
        self._fault = fault

    @invariant()
    def every_batch_reads_as_it_was_written(self) -> None:
        async def check() -> None:
            await self._check(await self._open(self._reader))

        self._run(check)

    # -- how ----------------------------------------------------------------------------------------------

    def _step(self, broker: int, work: Callable[[ClusterStore], Awaitable[Any]]) -> bool:
        """Do something at a broker. Whether it was done."""
        self._reader = broker
        return bool(self._run(lambda: self._try(broker, work)))

    def _run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await work()

        return self._runner.run(run())

    async def _try(self, broker: int, work: Callable[[ClusterStore], Awaitable[Any]]) -> bool:
        store = await self._open(broker)
        is_done = False
        try:
            await work(store)
            is_done = True
        except Crash:
            await self._close(broker)
        except StoreRefused as refused:
            if "too long ago" not in str(refused):
                raise
        return is_done

    async def _begin(self) -> None:
        store = await self._open(0)
        await store.commit([TopicCreated(self._topic)], [])

    async def _open(self, broker: int) -> ClusterStore:
        store = self._stores[broker]
        if store is None:
            objects = Objects.open(self._place.address)
            store = await ClusterStore.open(
                self._place.dsn, objects, SETTINGS, schema=self._place.schema, broker_id=broker
            )
            self._make_faulty(store)
            self._stores[broker] = store
        return store

    async def _close(self, broker: int) -> None:
        store, self._stores[broker] = self._stores[broker], None
        if store is not None:
            await store.close()

    def _make_faulty(self, store: ClusterStore) -> None:
        objects, database = store.chunks.objects, store.ledger.database
        put, delete, transaction = objects.put, objects.delete, database.transaction

        async def faulty_put(*arguments: Any) -> None:
            self._fail("before upload")
            await put(*arguments)
            self._fail("after upload")

        async def faulty_delete(*arguments: Any) -> None:
            self._fail("before deletion")
            await delete(*arguments)
            self._fail("after deletion")

        @contextlib.asynccontextmanager
        async def faulty_transaction() -> Any:
            async with transaction() as connection:
                yield connection
                self._fail("in transaction")

        objects.put = faulty_put  # type: ignore[assignment, method-assign]  # patched
        objects.delete = faulty_delete  # type: ignore[assignment, method-assign]  # patched
        database.transaction = faulty_transaction  # type: ignore[method-assign]

    def _fail(self, where: str) -> None:
        if self._fault == where:
            self._fault = None
            raise Crash(where)

    async def _check(self, store: ClusterStore) -> None:
        for key in self._keys:
            found = await store.ledger.find_batches(key, 0, before=2**62, bytes_max=2**40, batches_max=10_000)
            assert {each.base_offset: each.last_offset for each in found} == {
                base: last for base, (last, _) in self._logs[key].items()
            }
            data = await store.chunks.read([each.location for each in found])
            assert data == [batch for _, (_, batch) in sorted(self._logs[key].items())]
            (partition,) = await store.ledger.load([key])
            assert partition == self._partitions[key]
            assert partition.size_bytes == sum(map(len, data))

    async def _end(self) -> None:
        """Everything still reads; when the topic is gone, nothing is left."""
        for broker in (0, 1):
            await self._close(broker)
        store = await self._open(0)
        await self._check(store)
        while await store.roller.roll_once():
            pass
        assert await inline_chunks(store) == []
        await self._check(store)
        await store.commit([TopicDeleted(self._topic)], [])
        while await store.ledger.sweep(limit=100):
            pass
        await store.reconciler.reconcile_once()
        await age(store, "uploading", "unused", "abandoned")
        await store.sweep_orphans()
        # An upload may have come after its number was given up. Such objects are below the newest numbers.
        await store.chunks.numbers.object_now()
        at_once = Settings(semel_object_delete_delay_ms=0)
        reconciler = Reconciler(store.ledger.database, store.chunks.objects, at_once)
        await reconciler.reconcile_once()
        await reconciler.delete_unused()
        assert await states(store) == {}
        assert await listed(store.chunks.objects) == []
        for table in ("batches", "chunks", "dropped", "merged"):
            assert await store.ledger.database.fetch(f"SELECT FROM {table}") == []


def test_every_batch_reads_as_it_was_written(postgres_dsn: str) -> None:
    Bytes.place = Place.new(postgres_dsn, "")
    run_state_machine_as_test(Bytes, settings=examples(15, few=4, stateful_step_count=30))
