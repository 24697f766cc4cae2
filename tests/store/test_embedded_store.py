"""The embedded store: bytes and facts together, through crashes, faults, full disks and second processes."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.stores.embedded import SETTINGS, append, assert_dense, log_of, opened

from semel.config import Settings
from semel.core.facts import ProducerIdAllocated
from semel.core.types import Cluster, ClusterKey, PartitionKey
from semel.store.contract import StoreBroken, StoreLocked
from semel.store.embedded import wal
from semel.store.opening import open_store

# -- together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_bytes_and_facts_are_committed_together(tmp_path: Path, scribe: Any, kind: str) -> None:
    async with opened(tmp_path / "data" if kind == "disk" else None) as store:
        created = scribe.created(partitions=2)
        first = await store.commit([created], [])
        keys = [PartitionKey(created.topic.topic_id, index) for index in range(2)]
        for number in range(30):
            assert await append(store, scribe, keys[number % 2], 1 + number % 7) == first + number + 1
        for key in keys:
            log = await log_of(store, key)
            assert_dense(log)
            assert len(log) == scribe.partitions[key].high_watermark
        assert await store.ledger.load(keys) == [scribe.partitions[key] for key in keys]
        assert store.flush_seconds > 0
        counted: Counter[int] = Counter()
        for key in keys:
            for batch, _ in await log_of(store, key):
                counted[batch.location.chunk_id] += batch.location.length
        assert await store.ledger.chunk_references() == counted
        assert [chunk_id for chunk_id, _ in await store.chunks.list_chunks()] == sorted(counted)


async def test_stores_in_memory_share_nothing() -> None:
    async with opened(None) as one, opened(None) as other:
        await one.commit([ProducerIdAllocated(5)], [])
        assert await other.ledger.load([ClusterKey()]) == [Cluster(0)]
        assert one.cluster_id != other.cluster_id


async def test_close_leaves_no_thread_and_no_open_file(tmp_path: Path, scribe: Any, open_files: Any) -> None:
    before = set(threading.enumerate())
    for directory in (tmp_path / "data", None):
        store = await open_store(directory, SETTINGS)
        created = scribe.created()
        await store.commit([created], [])
        await append(store, scribe, PartitionKey(created.topic.topic_id, 0))
        await log_of(store, PartitionKey(created.topic.topic_id, 0))
        await store.close()
        await store.close()
        for again in (store.commit([], []), store.ledger.topics(), store.sweep_orphans()):
            with pytest.raises((StoreBroken, LookupError)):
                await again
    assert set(threading.enumerate()) <= before
    assert not [name for name in open_files() if str(tmp_path) in name]


async def test_a_cancelled_commit_happens(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that goes away loses its answer; what was given to the store is not taken back."""
    async with opened(tmp_path / "data") as store:
        (key,) = await scribe.create(store)
        await append(store, scribe, key)
        # A flush that is waited for on a thread, whatever the disk is like.
        monkeypatch.setattr(wal, "QUICK_SECONDS", 0)
        task = asyncio.create_task(append(store, scribe, key))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await append(store, scribe, key)
        assert len(await log_of(store, key)) == 3


async def test_identity_outlives_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        cluster_id = store.cluster_id
        assert (store.term, store.stopped_cleanly) == (1, True)
    async with opened(tmp_path / "data") as store:
        assert (store.cluster_id, store.term, store.stopped_cleanly) == (cluster_id, 1, True)
    with pytest.raises(ValueError, match=cluster_id):
        await open_store(tmp_path / "data", Settings(cluster_id="another"))
    # The one that was refused has let go of the directory.
    async with opened(tmp_path / "data") as store:
        assert store.cluster_id == cluster_id


# -- crashes ----------------------------------------------------------------------------------------------


async def test_a_start_begins_a_chunk_of_its_own(tmp_path: Path, scribe: Any) -> None:
    """What nobody points at is not written over, after a kill and after a clean stop."""
    async with opened(tmp_path / "data") as store:
        (key,) = await scribe.create(store)
        await append(store, scribe, key, 3)
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    for directory, is_clean in ((tmp_path / "data", True), (tmp_path / "killed", False)):
        async with opened(directory) as store:
            assert store.stopped_cleanly == is_clean
            log = await log_of(store, key)
            assert_dense(log)
            assert len(log) == 3
            (later,) = await store.chunks.append([b"later"])
            assert later.chunk_id > max(batch.location.chunk_id for batch, _ in log)


CHILD = textwrap.dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    from semel.config import Settings
    from semel.core.facts import BatchAppended, Put, TopicCreated
    from semel.core.types import Partition, PartitionKey, Topic, TopicKey
    from semel.store.opening import open_store

    async def main():
        settings = Settings(semel_chunk_bytes_max=64 * 1024, semel_disk_reserve_bytes=0)
        store = await open_store(Path(sys.argv[1]), settings)
        topic = (await store.ledger.load([TopicKey("t")]))[0]
        if topic is None:
            topic = Topic("t", os.urandom(16), 1, {})
            await store.commit([TopicCreated(topic)], [])
        key = PartitionKey(topic.topic_id, 0)
        before = (await store.ledger.load([key]))[0]
        offset, size = before.high_watermark, before.size_bytes
        while True:
            facts, data = [], []
            for number in range(offset, offset + 1 + offset % 5):
                each = f"batch {number} ".encode() * (1 + number % 50)
                facts.append(BatchAppended(key, number, number, number, number, len(each), -1, False, False))
                data.append(each)
            offset += len(facts)
            size += sum(map(len, data))
            facts.append(Put(key, Partition(0, offset, offset - 1, size)))
            await store.commit(facts, data)
            os.write(1, f"{offset}\\n".encode())

    asyncio.run(main())
    """
)


def _start(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(directory)], stdout=subprocess.PIPE)


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    acknowledged = 0
    for acknowledgements in (1, 40, 150):
        child = _start(directory)
        assert child.stdout is not None
        for _ in range(acknowledgements):
            acknowledged = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        # What it said before it died counts too.
        for line in child.stdout.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                acknowledged = int(line)
        child.stdout.close()
        child.wait()

        async with opened(directory) as store:
            (topic,) = await store.ledger.topics()
            key = PartitionKey(topic.topic_id, 0)
            log = await log_of(store, key)
            assert_dense(log)
            # One commit may have happened without its answer.
            assert acknowledged <= len(log) <= acknowledged + 5
            assert (await store.ledger.load([key]))[0].high_watermark == len(log)
            assert not store.stopped_cleanly
            assert store.term == 1


# -- one process ------------------------------------------------------------------------------------------


async def test_a_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    child = _start(directory)
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        with pytest.raises(StoreLocked, match=rf"{directory} .* {child.pid}"):
            await open_store(directory, SETTINGS)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    # The lock went with the process.
    async with opened(directory):
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
            await open_store(directory, SETTINGS)
    async with opened(directory):
        pass


async def test_a_directory_that_cannot_be_used_leaves_nothing_behind(
    tmp_path: Path, failing_files: Any
) -> None:
    before = set(threading.enumerate())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chunks").write_text("a file where a directory should be")
    with pytest.raises(NotADirectoryError):
        await open_store(tmp_path / "data", SETTINGS)
    assert set(threading.enumerate()) <= before
    (tmp_path / "data" / "chunks").unlink()
    async with opened(tmp_path / "data"):
        pass
