"""Makes fuzz inputs from the files of a store: from a WAL, and from a whole directory.

A directory is one input: its files with their names, compressed. It comes from the small store of ``turns``
under the workload of ``store_life``. Some of its files are damaged, truncated, replaced or removed, and the
directory is opened.
"""

import asyncio
import json
import random
import tempfile
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import msgpack

from semel.config import Settings
from semel.core.facts import ProducerIdAllocated
from semel.core.types import Cluster, ClusterKey, PartitionKey
from semel.store import opening
from semel.store.contract import StoreBroken, StoreRefused
from semel.store.embedded.store import EmbeddedStore
from semel.store.embedded.wal_reading import BODY_AT, HEADER, pack_frame
from verification.mutations import damaged
from verification.recorded_disk import lay_out
from verification.seeds import shared_memory
from verification.store_history import EVERYTHING, History
from verification.store_life import Life, Told
from verification.turns import small_store

SETTINGS: Final = Settings(semel_chunk_bytes_max=20 * 1024, semel_disk_reserve_bytes=0)
ERRORS: Final = (StoreBroken, StoreRefused, LookupError)
"""LookupError means that bytes of a batch are gone, which readers report."""
IMAGES: Final = 4
PLAIN: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    1,
    2,
    3,
    -1,
    99,
    2**64 - 1,
    1.5,
    "",
    "x",
    b"",
    b"\xff" * 16,
    (),
    (0,),
    (1, 7),
    (2,),
    [],
    {},
)


# -- images -----------------------------------------------------------------------------------------------


def packed(files: dict[str, bytes]) -> bytes:
    """Encode a directory as one input."""
    sizes = json.dumps({name: len(data) for name, data in files.items()}).encode()
    return zlib.compress(sizes + b"\n" + b"".join(files.values()))


def unpacked(data: bytes) -> dict[str, bytes]:
    """Decode the directory of an input."""
    sizes, _, rest = zlib.decompress(data).partition(b"\n")
    files, at = {}, 0
    for name, size in json.loads(sizes).items():
        files[name] = rest[at : at + size]
        at += size
    return files


@cache
def images() -> list[bytes]:
    """Return directories of stores that were killed or stopped cleanly."""
    with tempfile.TemporaryDirectory(dir=shared_memory()) as directory, small_store(lambda: "boot", 0):
        return [asyncio.run(_lived(Path(directory) / str(seed), seed)) for seed in range(IMAGES)]


async def _lived(directory: Path, seed: int) -> bytes:
    async def opened() -> EmbeddedStore:
        return await opening.open_store(directory, SETTINGS)

    life = Life(History(), random.Random(seed), opened, lambda told: None)
    life.use(await opened())
    life.know(Told())
    await life.go(15)
    killed = _files_in(directory)
    await life.close()
    return packed(killed if seed % IMAGES else _files_in(directory))


def _files_in(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm") and path.name != "lock"
    }


def image(chance: random.Random) -> bytes:
    """Return one of these directories."""
    return chance.choice(images())


def spoilt(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Damage some files of a directory."""
    files = unpacked(data)
    for _ in range(chance.choice((1, 1, 2))):
        name = chance.choice(list(files))
        what = chance.random()
        if what < 0.1:
            del files[name]
        elif what < 0.2:
            files[name] = files[chance.choice(list(files))]
        elif what < 0.3:
            files[name] = chance.randbytes(chance.choice((0, 1, 100, 5_000)))
        else:
            files[name] = damaged(files[name], chance, list(files.values()))
        if not files:
            break
    return packed(files)


def read_image(data: bytes) -> None:
    """Open the directory, read all of it, and write to it."""
    with tempfile.TemporaryDirectory(dir=shared_memory()) as directory, small_store(lambda: "boot", 0):
        lay_out(unpacked(data), Path(directory) / "data")
        asyncio.run(_read_all(Path(directory) / "data"))


async def _read_all(directory: Path) -> None:
    store = await opening.open_store(directory, SETTINGS)
    try:
        ledger = store.ledger
        for topic in await ledger.topics():
            for index in range(min(topic.partitions, 4)):
                key = PartitionKey(topic.topic_id, index)
                await ledger.load([key])
                await ledger.producers(key)
                await ledger.aborted(key, 0, 2**62)
                found = await ledger.find_batches(key, 0, **EVERYTHING)
                await store.chunks.read([each.location for each in found])
        for group in await ledger.groups():
            await ledger.group_offsets(group.group_id)
        await ledger.transactions()
        (cluster,) = await ledger.load([ClusterKey()])
        await store.commit([ProducerIdAllocated((cluster or Cluster()).next_producer_id)], [])
        released = await ledger.leftovers(limit=5)
        await store.checkpoint()
        await store.chunks.release(released)
        await ledger.sweep(limit=5)
        await store.sweep_orphans()
    finally:
        await store.close()


# -- the WAL ------------------------------------------------------------------------------------------


def wal(chance: random.Random) -> bytes:
    """Return both files of a WAL, concatenated."""
    files = unpacked(image(chance))
    return files["wal-0"][:3_000].ljust(3_000, b"\0") + files["wal-1"][:3_000].ljust(3_000, b"\0")


def sealed(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Damage the facts of the first frame, with a correct checksum.

    They are damaged as values, which the checks of types and numbers must find, or as bytes, which the
    MessagePack decoder must find.
    """
    _, _, owner, number, flushed, facts, batches, kind = HEADER.unpack_from(data)
    begin = BODY_AT
    packed = data[begin : begin + facts] or msgpack.encode(([], []))
    if chance.random() < 0.2:
        changed = damaged(packed, chance, others)
    else:
        changed = msgpack.encode(_other(msgpack.decode(packed), chance))
    rest = data[begin + facts : begin + facts + batches]
    frame = b"".join(pack_frame(owner, max(number, 1), flushed, kind, changed, [rest]))
    size = max(len(data) // 2, len(frame))
    return frame.ljust(size, b"\0") + bytes(size)


def _other(value: Any, chance: random.Random) -> Any:
    """Return a value with a random change somewhere in it."""
    if isinstance(value, tuple | list) and value and chance.random() < 0.9:
        parts = list(value)
        at = chance.randrange(len(parts))
        what = chance.random()
        if what < 0.1:
            del parts[at]
        elif what < 0.2:
            parts.insert(at, chance.choice(PLAIN))
        else:
            parts[at] = _other(parts[at], chance)
        return type(value)(parts)
    return chance.choice(PLAIN)
