"""Read a WAL, and tell a torn end from damage.

A frame counts if it carries the store's id and a correct checksum and is newer than what ledger and chunks
have on disk. Older frames are history: files are reused from their beginning, and nothing is erased. Numbers
are never reused, so history is never newer.

The frames that count must be consecutive. The end of a WAL may be torn: after a power failure, frames that
were written but not flushed exist in part or not at all. Anything else that is missing is *damage*. To tell
one from the other,

- every frame records up to which commit everything was flushed when it was written: a gap below is damage;
- every frame ends with a mark. If the operating system has not crashed, it has everything that was written,
  in order: then a frame, or the mark of one, after a gap is damage, and so is a mark without its frame.

**The layout of a frame.** A header, a checksum of everything but itself and the mark, the facts, the batches,
and a mark. The header begins with four magic bytes, names the format of the facts and the store, and gives
the commit number, the number up to which everything was flushed when the frame was written, and the lengths.
The mark repeats store and number. It is written last, so it proves that the frame was once complete.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from semel.core.types import Buffer, Fact
from semel.store.contract import BatchLocation, StoreBroken
from semel.store.fact_codec import FORMAT, unpack_facts

MAGIC: Final = b"SMLF"
END_MAGIC: Final = b"SMLE"
HEADER: Final = struct.Struct(">4sI8sqqIIB")
"""Magic bytes, format, store, number, flushed, length of the facts, length of the batches, kind."""
CHECKSUM: Final = struct.Struct(">I")
_END: Final = struct.Struct(">4s8sq")
END_BYTES: Final = _END.size + CHECKSUM.size
"""Magic bytes, store, number, and a checksum of these."""
BODY_AT: Final = HEADER.size + CHECKSUM.size
OVERHEAD: Final = BODY_AT + END_BYTES

WITHOUT_BATCHES: Final = 0
"""The batches are too large for the WAL, and only in their chunk."""
WITH_BATCHES: Final = 1
NOTE: Final = 2
"""Not a commit: only notes how far everything is flushed. Its number is that of the last commit."""


def short_id(store_id: bytes) -> bytes:
    """Return the part of a store's id that frames carry."""
    return store_id[:8]


def pack_frame(
    owner: bytes, number: int, flushed: int, kind: int, packed: bytes, batches: Sequence[Buffer]
) -> list[Buffer]:
    """Encode a frame of the store with this short id, as parts to be written one after another."""
    header = HEADER.pack(MAGIC, FORMAT, owner, number, flushed, len(packed), sum(map(len, batches)), kind)
    checksum = crc32c(packed, crc32c(header))
    for batch in batches:
        checksum = crc32c(batch, checksum)
    mark = _END.pack(END_MAGIC, owner, number)
    return [header, CHECKSUM.pack(checksum), packed, *batches, mark, CHECKSUM.pack(crc32c(mark))]


def read_mark(data: bytes, position: int) -> int | None:
    """Return the number in the mark at a position; None if the mark is not intact."""
    packed = data[position : position + _END.size]
    if data[position + _END.size : position + END_BYTES] != CHECKSUM.pack(crc32c(packed)):
        return None
    return int(_END.unpack(packed)[2])


class Frame(NamedTuple):
    """One commit, read from the WAL."""

    number: int
    facts: list[Fact]
    locations: list[BatchLocation]
    batches: list[Buffer] | None
    """None if they were too large for the WAL, and are only in the chunks."""


class Readout(NamedTuple):
    """The contents of a WAL."""

    frames: list[Frame]
    """The commits after the requested one, oldest first, without a gap."""
    flushed: int
    """According to the WAL, everything up to this commit was flushed."""
    last_seen: int
    """The largest number found anywhere in it."""
    problems: list[str]
    """Signs of damage, in words."""


class _Found(NamedTuple):
    """An intact frame."""

    path: Path
    position: int
    form: int
    number: int
    flushed: int
    kind: int
    facts: bytes
    batches: memoryview


def read_wal(paths: Sequence[Path], store_id: bytes, after: int, *, has_survived: bool = False) -> Readout:
    """Read the commits after ``after`` from both files. StoreBroken if another version of Semel wrote them.

    ``has_survived``: the operating system has been running since the WAL was written, so no write may be
    missing.
    """
    found: dict[int, _Found] = {}
    flushed = last_seen = after
    marks: dict[int, tuple[Path, int]] = {}
    for path in paths:
        data = _read(path)
        for each in _frames(path, data, store_id, after):
            flushed = max(flushed, each.flushed)
            last_seen = max(last_seen, each.number)
            if each.kind != NOTE:
                found[each.number] = each
        for number, position in _marks(data, store_id, after):
            last_seen = max(last_seen, number)
            marks[number] = (path, position)
    frames: list[Frame] = []
    while after + 1 + len(frames) in found:
        frames.append(_opened(found[after + 1 + len(frames)]))
    end = after + len(frames)
    problems: list[str] = []
    behind = sorted(number for number in found if number > end)
    if end < flushed or (has_survived and behind):
        problems.append(_gap(end, behind, flushed, found))
    elif has_survived and (unread := sorted(number for number in marks if number > end)):
        path, position = marks[unread[0]]
        problems.append(
            f"commit {unread[0]} in {path}, which ends at byte {position}, is damaged; it is the last"
        )
    return Readout(frames, flushed, last_seen, problems)


def whole_frames(paths: Sequence[Path], owner: bytes) -> Iterator[tuple[int, Frame | StoreBroken | None]]:
    """Yield every commit that left a trace: its number, and its frame; None if only its mark is intact.

    For use without a ledger, which would tell where history ends. StoreBroken in place of a frame that this
    version cannot read. The mark of an intact frame is yielded too, before the frame.
    """
    for path in paths:
        data = _read(path)
        for number, _ in _marks(data, owner, -1):
            yield number, None
        for found in _frames(path, data, owner, -1):
            if found.kind != NOTE:
                try:
                    yield found.number, _opened(found)
                except StoreBroken as error:
                    yield found.number, error


class FirstFrame(NamedTuple):
    """The beginning of a WAL file."""

    owner: bytes
    """``short_id`` of the store that wrote it."""
    number: int


def first_frame(path: Path) -> FirstFrame | None:
    """Return the frame at the beginning of a file, without reading more; None if there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(HEADER.size)
            if len(data) < HEADER.size or not data.startswith(MAGIC):
                return None
            _, _, owner, number, _, facts_length, batch_bytes, _ = HEADER.unpack(data)
            data += file.read(OVERHEAD - HEADER.size + facts_length + batch_bytes)
    except FileNotFoundError:
        return None
    end = BODY_AT + facts_length + batch_bytes
    return FirstFrame(owner, number) if _is_whole(memoryview(data), 0, end) else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _is_whole(data: memoryview, position: int, end: int) -> bool:
    """Whether the frame at this position, with a body up to ``end``, has a correct checksum."""
    body = position + BODY_AT
    if end > len(data):
        return False
    (checksum,) = CHECKSUM.unpack_from(data, position + HEADER.size)
    return bool(checksum == crc32c(data[body:end], crc32c(data[position : position + HEADER.size])))


def _frames(path: Path, data: bytes, store_id: bytes, after: int) -> Iterator[_Found]:
    """Yield all newer intact frames of a file, at any position, including those after damaged ones."""
    view = memoryview(data)
    owner = short_id(store_id)
    position = data.find(MAGIC)
    while position >= 0 and position + OVERHEAD <= len(data):
        _, form, its_owner, number, flushed, facts_length, batch_bytes, kind = HEADER.unpack_from(
            data, position
        )
        end = position + BODY_AT + facts_length + batch_bytes
        step = position + len(MAGIC)
        if its_owner == owner and end <= len(data):
            if number <= after:
                # History. It need not be intact.
                step = end
            elif _is_whole(view, position, end):
                begin = position + BODY_AT
                facts = data[begin : begin + facts_length]
                batches = view[begin + facts_length : end]
                yield _Found(path, position, form, number, flushed, kind, facts, batches)
                step = end
        position = data.find(MAGIC, step)


def _marks(data: bytes, store_id: bytes, after: int) -> Iterator[tuple[int, int]]:
    """Yield number and position of the marks of newer frames."""
    wanted = END_MAGIC + short_id(store_id)
    position = data.find(wanted)
    while position >= 0:
        number = read_mark(data, position)
        if number is not None and number > after:
            yield number, position
        position = data.find(wanted, position + len(wanted))


def _opened(found: _Found) -> Frame:
    if found.form != FORMAT:
        raise StoreBroken(
            f"{found.path} is of another version of Semel, which did not stop cleanly: start that once"
        )
    try:
        facts, locations = unpack_facts(found.facts)
    except ValueError as error:
        raise StoreBroken(f"commit {found.number} in {found.path} cannot be read: {error}") from error
    return Frame(
        found.number, facts, locations, _cut(found.batches, locations) if found.kind == WITH_BATCHES else None
    )


def _cut(data: memoryview, locations: Sequence[BatchLocation]) -> list[Buffer]:
    batches: list[Buffer] = []
    at = 0
    for location in locations:
        batches.append(data[at : at + location.length])
        at += location.length
    return batches


def _gap(end: int, behind: Sequence[int], flushed: int, found: dict[int, _Found]) -> str:
    """Describe commits that are missing although later ones, or their flush, are known."""
    until = behind[0] - 1 if behind else flushed
    missing = f"commit {end + 1}" if until <= end + 1 else f"commits {end + 1} to {until}"
    text = f"the WAL lacks {missing}"
    if end in found:
        last = found[end]
        text += f" (the last good frame, commit {end}, is at byte {last.position} of {last.path.name})"
    if behind:
        first = found[behind[0]]
        text += (
            f"; {len(behind)} good {'frame' if len(behind) == 1 else 'frames'} behind the gap,"
            f" from byte {first.position} of {first.path.name}"
        )
    return text
