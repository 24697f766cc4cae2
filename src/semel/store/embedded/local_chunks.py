"""Chunks as files in a local directory.

A chunk is one file, named by its id. It only grows. Room is allocated in steps before it is written, and the
chunk is sealed when the next append would make it larger than ``chunk_bytes_max``. Written bytes are never
overwritten and a file is never truncated: after a restart or a failed write a new chunk is begun, so bytes
that no row references do no harm and need no repair.

Allocated room makes a flush cheap (the file's size does not change), and it is where a full disk shows. If
there is no room, or less than the reserve would remain, ``StoreFull`` is raised before anything is written.
The reserve applies to explicit requests for room. An append without one may use the reserve, because the end
of a transaction must find room for its markers. Later failures, in the write or in the flush, have an unknown
outcome and raise ``StoreBroken``.

An append has two steps: ``reserve`` computes the locations, and ``write_now`` writes the bytes later, on the
writer's thread. Written bytes may stay unflushed for a while, because the WAL has them. Reads run on separate
threads, unless the bytes are in the page cache, as recently written ones are: then they are copied on the
event loop.

Released space is punched out of the file, block by block (see ``released``), and reads as zeros from then on.
A reader that learned of a location before its release must check, after reading, that the batch still exists.

Merge ranges of chunks, so that fewer calls read or release them.

Read chunk files: on a thread, or on the event loop if the bytes are in the page cache.

Collect released ranges of a chunk until they cover whole blocks.

A file system releases space in blocks, and batches do not end at block boundaries. Two adjacent batches that
are released one after the other would leave the block they share, and small batches that are released one by
one would leave everything. So released ranges are remembered, and a block is released with its last byte.

The ranges are only in memory: after a restart, partly released blocks stay until their chunk is deleted.
Beyond ``RANGES_MAX`` ranges the chunk least recently released from is forgotten, with the same effect.
"""

import contextlib
import errno
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, TypeVar

from semel.core.types import Buffer
from semel.store.contract import BatchLocation, StoreBroken, StoreFull
from semel.store.embedded.chunk_header import (
    HEADER_BYTES,
    SUFFIX,
    ChunkHeader,
    is_proven,
    look_at_chunk,
    next_slot,
    path_of,
)
from semel.store.embedded.files import IOV_MAX, Files, OpenFiles, end_of_data, write_all
from semel.store.worker import StoreHealth, Worker

RANGES_MAX: Final = 100_000
"""About 20 MB."""


class Released:
    """Released ranges by chunk, sorted and disjoint."""

    def __init__(self, ranges_max: int = RANGES_MAX) -> None:
        self._ranges_max = ranges_max
        self._chunks: dict[int, tuple[list[int], list[int]]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def add(self, chunk_id: int, start: int, end: int, block: int) -> tuple[int, int]:
        """Add a range. Return the range of blocks that became free, possibly empty."""
        with self._lock:
            whole_start, whole_end = self._unite(chunk_id, start, end)
            self._shrink()
        free_from = max(-(-whole_start // block), start // block) * block
        free_to = min(whole_end // block, -(-end // block)) * block
        return free_from, max(free_from, free_to)

    def forget(self, chunk_id: int) -> None:
        """Forget a deleted chunk."""
        with self._lock:
            self._drop(chunk_id)

    def _unite(self, chunk_id: int, start: int, end: int) -> tuple[int, int]:
        starts, ends = self._chunks.pop(chunk_id, ([], []))
        # The ranges that touch the new one are merged with it.
        first, last = bisect_left(ends, start), bisect_right(starts, end)
        whole_start = min(start, starts[first]) if first < last else start
        whole_end = max(end, ends[last - 1]) if first < last else end
        starts[first:last] = [whole_start]
        ends[first:last] = [whole_end]
        self._chunks[chunk_id] = starts, ends
        self._count += 1 - (last - first)
        return whole_start, whole_end

    def _drop(self, chunk_id: int) -> None:
        self._count -= len(self._chunks.pop(chunk_id, ([], []))[0])

    def _shrink(self) -> None:
        while self._count > self._ranges_max:
            self._drop(next(iter(self._chunks)))


_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


class ChunkReading:
    """Reads batch locations, from any thread. Recently used files stay open."""

    def __init__(self, path_of: Callable[[int], Path]) -> None:
        self._path_of = path_of
        self._open_files = OpenFiles()

    def read(self, locations: Sequence[BatchLocation], buffers: Sequence[Buffer]) -> None:
        """Fill the buffers with the bytes at these locations. LookupError if some are gone, OSError."""
        for chunk_id, position, run in runs(locations, buffers):
            try:
                file = self._open_files.take(self._path_of(chunk_id))
            except FileNotFoundError:
                raise LookupError(f"chunk {chunk_id} is gone") from None
            assert file is not None
            try:
                _read_run(file.descriptor, chunk_id, position, run)
            finally:
                self._open_files.give_back(file)

    def read_cached(self, locations: Sequence[BatchLocation], buffers: Sequence[Buffer]) -> bool:
        """Read without waiting for the disk. Return False unless all bytes were in memory."""
        if not _NOWAIT:
            return False
        for chunk_id, position, run in runs(locations, buffers):
            file = self._open_files.take(self._path_of(chunk_id), if_open=True)
            if file is None:
                return False
            try:
                if os.preadv(file.descriptor, run, position, _NOWAIT) != sum(map(len, run)):
                    return False
            except OSError:
                # Not in memory, or the file system cannot tell: the caller reads on a thread.
                return False
            finally:
                self._open_files.give_back(file)
        return True

    def forget(self, path: Path) -> None:
        """Close a file that was removed."""
        self._open_files.forget(path)

    def close(self) -> None:
        """Close every file."""
        self._open_files.close()


def _read_run(descriptor: int, chunk_id: int, position: int, run: Sequence[Buffer]) -> None:
    wanted = sum(map(len, run))
    views = run
    while wanted:
        taken = os.preadv(descriptor, views, position)
        if taken == 0:
            raise LookupError(f"chunk {chunk_id} ends at {position}, {wanted} bytes too early")
        wanted -= taken
        position += taken
        if wanted:
            views = rest_of(views, taken)


B = TypeVar("B", bound=Buffer)


def runs(locations: Sequence[BatchLocation], buffers: Sequence[B]) -> Iterator[tuple[int, int, list[B]]]:
    """Group adjacent locations, so that one call reads or writes a group: chunk, position, buffers."""
    run: list[B] = []
    chunk_id = start = end = -1
    for location, buffer in zip(locations, buffers, strict=True):
        if location.chunk_id != chunk_id or location.position != end or len(run) == IOV_MAX:
            if run:
                yield chunk_id, start, run
            run = []
            chunk_id = location.chunk_id
            start = end = location.position
        run.append(buffer)
        end += location.length
    if run:
        yield chunk_id, start, run


def rest_of(views: Sequence[Buffer], taken: int) -> list[Buffer]:
    """Return the parts of the buffers that are still empty after this many bytes were read."""
    rest: list[Buffer] = []
    for view in views:
        if taken >= len(view):
            taken -= len(view)
        else:
            rest.append(memoryview(view)[taken:])
            taken = 0
    return rest


def merged(locations: Sequence[BatchLocation]) -> Iterator[tuple[int, int, int]]:
    """Merge adjacent ranges. Only whole blocks can be released, so larger ranges release more."""
    chunk_id = start = end = -1
    for location in sorted(locations):
        if location.chunk_id != chunk_id or location.position != end:
            if end > start:
                yield chunk_id, start, end
            chunk_id, start, end = location.chunk_id, location.position, location.position
        end += location.length
    if end > start:
        yield chunk_id, start, end


ROOM_BYTES: Final = 16 * 1024 * 1024
"""How much room is allocated at a time. A crash leaves at most this much unused in the last chunk."""
INLINE_BYTES_MAX: Final = 1024 * 1024
"""Reads up to this size, the usual request for one partition, are copied from the page cache on the event
loop. That is cheaper than a thread."""
INLINE_PLACES_MAX: Final = 16
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
NO_STORE: Final = bytes(16)
"""The id of a chunk store without a ledger."""


class _Writing:
    """The chunk that is being written."""

    __slots__ = ("chunk_id", "descriptor", "has_header", "position", "room_end")

    def __init__(self, chunk_id: int, descriptor: int) -> None:
        self.chunk_id = chunk_id
        self.descriptor = descriptor
        self.has_header = False
        self.position = HEADER_BYTES
        """The end of the reserved locations. Possibly not all of them are written yet."""
        self.room_end = 0


class LocalChunks:
    """A chunk store in a directory that only this process writes to."""

    def __init__(
        self,
        directory: Path,
        chunk_bytes_max: int,
        reserve_bytes: int,
        *,
        files: Files | None = None,
        writer: Worker | None = None,
        health: StoreHealth | None = None,
        store_id: bytes = NO_STORE,
        unproven: Collection[int] = (),
    ) -> None:
        self.directory = directory
        self._store_id = store_id
        self._unproven = unproven
        self._chunk_bytes_max = chunk_bytes_max
        self._reserve_bytes = reserve_bytes
        self._files = files or Files()
        self._files.make_directory(directory)
        self._next_id = max(self._ids(), default=0) + 1
        self._give_back_room(self._next_id - 1)
        self._health = health or StoreHealth()
        self._reading = ChunkReading(self._path)
        self._released = Released()
        self._writing: _Writing | None = None
        self._unflushed: dict[int, int] = {}
        """Chunks written to since their last flush, and where their written bytes end."""
        # Threads start last: if anything above failed, they would not be stopped.
        self._own_writer = writer is None
        self._writer = writer or Worker("chunk-writer")
        self._readers = Worker("chunk-reader", threads=2)

    # -- the contract -------------------------------------------------------------------------------------

    async def append(self, batches: Sequence[Buffer]) -> list[BatchLocation]:
        """Write these batches one after another and flush them. StoreFull, StoreBroken."""
        return await self._writer.run(lambda: self._health.guard(self._append_durably, batches))

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """Return the bytes at these locations, each in a new buffer. LookupError if one is gone.

        An OSError of the disk is passed on: the bytes exist but are unreadable, which is not "gone".
        """
        buffers = [bytearray(location.length) for location in locations]
        await self._read_into(locations, buffers)
        return buffers

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """Like `read`, but return a single buffer."""
        ends = list(accumulate((location.length for location in locations), initial=0))
        buffer = bytearray(ends[-1])
        view = memoryview(buffer)
        await self._read_into(locations, [view[start:end] for start, end in pairwise(ends)])
        return buffer

    async def _read_into(self, locations: Sequence[BatchLocation], buffers: Sequence[Buffer]) -> None:
        self._health.check()
        is_little = len(locations) <= INLINE_PLACES_MAX and sum(map(len, buffers)) <= INLINE_BYTES_MAX
        if is_little and self._reading.read_cached(locations, buffers):
            return
        await self._readers.run(self._reading.read, locations, buffers)

    def forget(self, location: BatchLocation) -> None:
        """Do nothing: there are no copies."""

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """Release the space of ranges that are no longer referenced."""
        self._health.check()
        await self._readers.run(self._release_now, locations)

    async def delete(self, chunk_id: int) -> None:
        """Remove a chunk. It is no error if the chunk does not exist."""
        self._health.check()
        await self._writer.run(self._seal_if, chunk_id)
        await self._readers.run(self._unlink, chunk_id)

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Return every chunk and the disk space that it uses."""
        self._health.check()
        return await self._readers.run(self._list_now)

    async def close(self) -> None:
        """Release files and threads."""
        if self._own_writer:
            self._writer.stop()
        self._readers.stop()
        self.close_now()

    # -- on the writer's thread ---------------------------------------------------------------------------

    @property
    def writing_id(self) -> int:
        """The chunk that is being written, or the next one. All before it are sealed."""
        return self._writing.chunk_id if self._writing else self._next_id

    def reserve(self, lengths: Sequence[int]) -> list[BatchLocation]:
        """Reserve locations for batches of these lengths. Called by one task, after ``has_room``."""
        if not lengths:
            return []
        writing = self._writing
        assert writing is not None
        chunk_id, position = writing.chunk_id, writing.position
        locations: list[BatchLocation] = []
        for length in lengths:
            locations.append(BatchLocation(chunk_id, position, length))
            position += length
        writing.position = position
        return locations

    def write_now(self, locations: Sequence[BatchLocation], batches: Sequence[Buffer]) -> None:
        """Write bytes to their reserved locations. Durable after the next ``flush_now``. StoreBroken."""
        for chunk_id, position, run in runs(locations, batches):
            end = position + sum(map(len, run))
            self._unflushed[chunk_id] = max(end, self._unflushed.get(chunk_id, 0))
            try:
                with self._to_write(chunk_id) as descriptor:
                    write_all(self._files, descriptor, run, position)
            except OSError as error:
                raise StoreBroken(f"writing {self._path(chunk_id)} failed: {error}") from error

    def flush_now(self, number: int = 0) -> None:
        """Flush everything written, up to this commit. StoreBroken."""
        for chunk_id, end in list(self._unflushed.items()):
            try:
                with self._to_write(chunk_id) as descriptor:
                    self._write_header(descriptor, chunk_id, number, end)
                    self._files.flush(descriptor)
            except FileNotFoundError:
                # The chunk was deleted, so its contents are not needed.
                pass
            except OSError as error:
                raise StoreBroken(f"flushing {self._path(chunk_id)} failed: {error}") from error
            self._unflushed.pop(chunk_id, None)

    def has_chunk(self, chunk_id: int) -> bool:
        """Whether the file exists. It does not if everything in it was released."""
        return self._path(chunk_id).exists()

    def is_proven(self, chunk_id: int) -> bool:
        """Whether the chunk certainly is this store's, or was never written to."""
        try:
            return is_proven(look_at_chunk(self._path(chunk_id)), self._store_id, self._unproven)
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _to_write(self, chunk_id: int) -> Iterator[int]:
        """Open a chunk. The current one is open already; a sealed one may get bytes at reserved locations."""
        if self._writing is not None and self._writing.chunk_id == chunk_id:
            yield self._writing.descriptor
            return
        descriptor = os.open(self._path(chunk_id), os.O_RDWR | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def has_room(self, length: int) -> bool:
        """Whether this many bytes fit into the allocated room. If not, the disk may still have more."""
        writing = self._writing
        return writing is not None and writing.position + length <= writing.room_end

    def make_room_now(self, length: int, *, may_use_reserve: bool = False) -> None:
        """Allocate room for an append of up to this many bytes. StoreFull, without any effect."""
        self._make_room(length, may_use_reserve=may_use_reserve)

    def check_free(self, length: int) -> None:
        """Raise StoreFull if less than this, or than the reserve, is free on the disk."""
        least = max(length, self._reserve_bytes)
        if self._files.free_bytes(self.directory) < least:
            raise StoreFull(f"less than {least} bytes are free in {self.directory}")

    def close_now(self) -> None:
        """Close every file. The threads must have ended."""
        self._seal()
        self._reading.close()

    def _append_durably(self, batches: Sequence[Buffer]) -> list[BatchLocation]:
        self.make_room_now(sum(map(len, batches)))
        locations = self.reserve([len(batch) for batch in batches])
        self.write_now(locations, batches)
        self.flush_now()
        return locations

    def _make_room(self, length: int, *, may_use_reserve: bool) -> _Writing:
        """Return a chunk with room for this many bytes. StoreFull if none; then nothing was written."""
        writing = self._writing
        if writing is not None and self._is_too_full(writing, length):
            writing = None
        if writing is not None and writing.position + length <= writing.room_end:
            return writing
        missing = (HEADER_BYTES if writing is None else writing.position - writing.room_end) + length
        # Never beyond the size of a chunk, unless a single append is larger.
        allocated = 0 if writing is None else writing.room_end
        step = max(missing, min(ROOM_BYTES, self._chunk_bytes_max + HEADER_BYTES - allocated))
        free = self._files.free_bytes(self.directory)
        if may_use_reserve and free - step < self._reserve_bytes:
            # No more than needed: the reserve must last for many of these.
            step, reserve_bytes = missing, 0
        else:
            reserve_bytes = self._reserve_bytes
        if free - step < reserve_bytes:
            raise StoreFull(f"less than {reserve_bytes} bytes would be left free in {self.directory}")
        if writing is None:
            self._seal()
            writing = self._begin()
        try:
            self._files.allocate(writing.descriptor, writing.room_end, step)
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFull(f"there is no room in {self.directory}: {error}") from error
            raise
        writing.room_end += step
        if not writing.has_header:
            # The header is flushed before any batch is written.
            self._write_header(writing.descriptor, writing.chunk_id, 0, HEADER_BYTES)
            self._files.flush(writing.descriptor)
            writing.has_header = True
        return writing

    def _is_too_full(self, writing: _Writing, length: int) -> bool:
        batch_bytes = writing.position - HEADER_BYTES
        return batch_bytes > 0 and batch_bytes + length > self._chunk_bytes_max

    def _begin(self) -> _Writing:
        chunk_id = self._next_id
        try:
            descriptor = self._files.create(self._path(chunk_id))
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFull(f"there is no room in {self.directory}: {error}") from error
            raise
        self._files.flush_directory(self.directory)
        # In this order, so that ``writing_id`` never makes this chunk look sealed.
        writing = self._writing = _Writing(chunk_id, descriptor)
        self._next_id += 1
        return writing

    def _write_header(self, descriptor: int, chunk_id: int, number: int, end: int) -> None:
        """Record in a chunk's header where its data ends after this commit."""
        header = ChunkHeader(self._store_id, chunk_id, number, end)
        if (slot := next_slot(descriptor, header)) is not None:
            write_all(self._files, descriptor, [slot.data], slot.position)

    def _seal(self) -> None:
        writing, self._writing = self._writing, None
        if writing is None:
            return
        # Release the unused room. The file keeps its length. A failure only wastes the space until the chunk
        # is deleted.
        with contextlib.suppress(OSError):
            self._punch(writing.descriptor, writing.position, writing.room_end)
        os.close(writing.descriptor)

    def _seal_if(self, chunk_id: int) -> None:
        if self._writing is not None and self._writing.chunk_id == chunk_id:
            self._seal()

    # -- on any thread ------------------------------------------------------------------------------------

    def read_now(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """Read on the calling thread."""
        buffers = [bytearray(location.length) for location in locations]
        self._reading.read(locations, buffers)
        return buffers

    def _release_now(self, locations: Sequence[BatchLocation]) -> None:
        for chunk_id, start, end in merged(locations):
            # A chunk that was deleted meanwhile has no space left to release.
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(self._path(chunk_id), os.O_RDWR | os.O_CLOEXEC)
                try:
                    block = os.fstat(descriptor).st_blksize
                    self._punch(descriptor, *self._released.add(chunk_id, start, end, block))
                finally:
                    os.close(descriptor)

    def _give_back_room(self, chunk_id: int) -> None:
        """Release the unused room that a crash left at the end of the last chunk.

        If that fails, the space is lost until the chunk is deleted.
        """
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path(chunk_id), os.O_RDWR | os.O_CLOEXEC)
            try:
                self._punch(descriptor, end_of_data(descriptor), os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)

    def _punch(self, descriptor: int, start: int, end: int) -> None:
        block = os.fstat(descriptor).st_blksize
        first = -(-start // block) * block
        last = end // block * block
        if last > first:
            self._files.punch(descriptor, first, last - first)

    def _unlink(self, chunk_id: int) -> None:
        path = self._path(chunk_id)
        self._files.remove(path)
        self._reading.forget(path)
        self._released.forget(chunk_id)

    def _list_now(self) -> list[tuple[int, int]]:
        chunks: list[tuple[int, int]] = []
        for chunk_id in sorted(self._ids()):
            with contextlib.suppress(FileNotFoundError):
                chunks.append((chunk_id, self._path(chunk_id).stat().st_blocks * 512))
        return chunks

    def _ids(self) -> Iterator[int]:
        for path in self.directory.glob(f"*{SUFFIX}"):
            if path.stem.isdecimal():
                yield int(path.stem)

    def _path(self, chunk_id: int) -> Path:
        return path_of(self.directory, chunk_id)
