"""Repair: what an operator may decide about a data directory that the broker refuses.

``plan`` looks and changes nothing. ``carry_out`` goes on with what there is, and says what is given up:

- with a damaged or missing wal: from the last good commit. What came behind it is lost;
- with an older ledger: from its last commit. Chunks that it does not know are kept, and never deleted;
- without a chunk, or with an older copy of one: the batches in it are errors for whoever reads them.

Without a ledger, or with one that cannot be read, nothing knows which topic a batch belongs to, or its
offset: neither is in its bytes. What can be had then is records. ``salvage`` puts the old ledger and wal
aside and makes a new ledger over the same chunks, with one topic, ``salvaged``, and a partition for each
chunk, in which the batches lie in the order in which they were written. Names of topics, offsets, groups,
transactions and configs are lost, and records of aborted transactions are among the rest.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from semel.config import Settings
from semel.core.facts import BatchAppended, TopicCreated
from semel.core.types import Fact, PartitionKey, Topic
from semel.store.chunk_header import HEADER_BYTES, ChunkOnDisk
from semel.store.directory_lock import DirectoryLock
from semel.store.examination import LEDGER, Examined, examine
from semel.store.files import Files
from semel.store.interface import BatchLocation
from semel.store.ledger_writer import LedgerWriter
from semel.store.opening import open_store
from semel.store.wal import paths_in
from semel.wire.batch import MAGIC, BatchHeader, has_valid_crc, read_header

TOPIC: Final = "salvaged"
ASIDE: Final = ".aside"
_MAGIC_AT: Final = 16
_HEADER_BYTES: Final = 61
_MAGIC_BYTE: Final = re.compile(re.escape(bytes([MAGIC])))


class Plan(NamedTuple):
    """What is wrong with a directory, and what would be done about it."""

    problems: list[str]
    actions: list[str]
    needs_salvage: bool
    """Whether there is no ledger to go on with."""


def plan(directory: Path) -> Plan:
    """Look, and change nothing. StoreLocked, StoreBroken."""
    lock = DirectoryLock(directory)
    try:
        return _plan(examine(directory, lock.witness))
    finally:
        lock.release()


async def carry_out(directory: Path) -> Plan:
    """Go on with what there is. The plan that was followed. StoreLocked, StoreBroken."""
    lock = DirectoryLock(directory)
    try:
        examined = examine(directory, lock.witness)
    finally:
        lock.release()
    planned = _plan(examined)
    if not planned.problems or planned.needs_salvage:
        return planned
    assert examined.ledger is not None
    # What the WAL would have written to the chunks may be missing from any of them.
    gone, unsure = set[int](), set(examined.ledger.chunks)
    paths = {chunk.chunk_id: chunk.path for chunk in examined.chunks}
    for problem in examined.problems:
        if problem.kind == "foreign":
            _put_aside(paths[problem.chunk_id])
        if problem.kind in ("foreign", "missing"):
            gone.add(problem.chunk_id)
    store = await open_store(directory, Settings(semel_disk_reserve_bytes=0), accepts=True)
    try:
        await store.ledger.forget_chunks(sorted(gone), sorted(unsure))
    finally:
        await store.close()
    return planned


def _plan(examined: Examined) -> Plan:
    problems = [problem.text for problem in examined.problems]
    ledger = examined.ledger
    if not problems:
        return Plan([], [], needs_salvage=False)
    owned = [chunk for chunk in examined.chunks if chunk.header is not None]
    is_foreign = ledger is not None and owned and all(_is_foreign(each, ledger.store_id) for each in owned)
    if ledger is None or ledger.problems or is_foreign:
        actions = [
            f"put the right {LEDGER} back, with {LEDGER}-wal beside it, if there is a copy; or salvage:",
            f"put {LEDGER} and the WAL aside, and make a new ledger over {len(examined.chunks)} chunks:"
            f" one topic, {TOPIC!r}, with a partition for each chunk, which holds its records in the order"
            " in which they were written",
            "lost by that: names of topics, offsets, groups, transactions, configs; records of aborted"
            " transactions are among the rest",
        ]
        return Plan(problems, actions, needs_salvage=True)
    kinds = {problem.kind for problem in examined.problems}
    actions = [f"go on after commit {examined.known}, the last that ledger and wal have"]
    if kinds & {"wal", "ledger"}:
        missing = max(examined.last_seen - examined.known, 0)
        actions.append(
            f"lost by that: at least {missing} commits that were made later, with their records"
            if missing
            else "lost by that: whatever was committed later; how much that is nobody knows"
        )
        actions.append("keep the chunks that the ledger does not know, and never delete them")
    for kind, sentence in (
        ("missing", "answer an error for the batches in chunks that are missing: {}"),
        ("old", "answer an error for the batches that are gone from chunks that are cut off or old: {}"),
        ("foreign", "put the chunks of another store aside, and answer an error for what was in: {}"),
    ):
        if kind in kinds:
            named = [str(problem.chunk_id) for problem in examined.problems if problem.kind == kind]
            actions.append(sentence.format(", ".join(named)))
    return Plan(problems, actions, needs_salvage=False)


def _is_foreign(chunk: ChunkOnDisk, store_id: bytes) -> bool:
    return chunk.header is not None and chunk.header.store_id != store_id


# -- without a ledger ---------------------------------------------------------------------------------------


class Salvaged(NamedTuple):
    """What became of the chunks."""

    chunks: int
    batches: int
    records: int


def salvage(directory: Path) -> Salvaged:
    """Make a new ledger over the chunks, and put the old one and the WAL aside. StoreLocked."""
    lock = DirectoryLock(directory)
    try:
        chunks = examine(directory, lock.witness).chunks
        owners = Counter(chunk.header.store_id for chunk in chunks if chunk.header is not None)
        numbers = [chunk.header.number for chunk in chunks if chunk.header is not None]
        if lock.witness is not None:
            numbers.append(lock.witness.number)
        for path in [*directory.glob(f"{LEDGER}*"), *paths_in(directory)]:
            if path.exists() and ASIDE not in path.name:
                _put_aside(path)
        lock.forget()
        store_id = owners.most_common(1)[0][0] if owners else os.urandom(16)
        kept = [chunk for chunk in chunks if chunk.header is None or chunk.header.store_id == store_id]
        return _new_ledger(directory, store_id, kept, max(numbers, default=0))
    finally:
        lock.release()


def _new_ledger(directory: Path, store_id: bytes, chunks: list[ChunkOnDisk], last_number: int) -> Salvaged:
    writer = LedgerWriter(directory / LEDGER)
    batches = records = 0
    number = last_number
    try:
        writer.note({"store_id": store_id.hex()})
        topic = Topic(TOPIC, os.urandom(16), max(len(chunks), 1), {"retention.ms": "-1"})
        number += 1
        writer.commit([TopicCreated(topic)], [], number=number)
        for index, chunk in enumerate(chunks):
            facts: list[Fact] = []
            locations: list[BatchLocation] = []
            offset = peak = size = 0
            key = PartitionKey(topic.topic_id, index)
            for location, header in batches_in(chunk):
                last = offset + header.last_offset_delta
                peak = max(peak, header.max_timestamp)
                size += location.length
                facts.append(
                    BatchAppended(
                        key, offset, last, header.max_timestamp, peak, location.length, -1, False, False
                    )
                )
                locations.append(location)
                offset = last + 1
                records += header.record_count
            number += 1
            writer.commit(facts, locations, number=number, is_checkpoint=True)
            batches += len(locations)
        writer.forget_chunks((), [chunk.chunk_id for chunk in chunks])
        Files().flush_directory(directory)
    except BaseException:
        writer.close(cleanly=False)
        raise
    writer.close(cleanly=True)
    return Salvaged(len(chunks), batches, records)


def batches_in(chunk: ChunkOnDisk) -> Iterator[tuple[BatchLocation, BatchHeader]]:
    """The whole batches of data in a chunk, wherever they lie; markers are left out."""
    data = memoryview(chunk.path.read_bytes())
    at = HEADER_BYTES if chunk.header is not None else 0
    while at + _HEADER_BYTES <= len(data):
        header = _batch_at(data, at)
        if header is None:
            at = _next_candidate(data, at + 1)
            continue
        if not header.is_control and header.last_offset_delta >= 0:
            yield BatchLocation(chunk.chunk_id, at, header.length), header
        at += header.length


def _batch_at(data: memoryview, at: int) -> BatchHeader | None:
    if data[at + _MAGIC_AT] != MAGIC:
        return None
    header = read_header(data, at)
    if not _HEADER_BYTES <= header.length <= len(data) - at:
        return None
    return header if has_valid_crc(data, at, header) else None


def _next_candidate(data: memoryview, at: int) -> int:
    """Where a batch may begin: what was given back is zeros, and a batch has a byte that is not."""
    found = _MAGIC_BYTE.search(data, at + _MAGIC_AT)
    return len(data) if found is None else found.start() - _MAGIC_AT


def _put_aside(path: Path) -> None:
    """Rename a file so that nobody takes it for what it was."""
    number = 1
    while (target := path.with_name(f"{path.name}{ASIDE}-{number}")).exists():
        number += 1
    path.rename(target)
