"""Compaction against the obvious: whatever the log, the last value of every key is what it was.

The model reads a log from its start and keeps the last value of each key. It knows nothing of batches,
horizons or passes. A log is made of batches of any shape, plain ones and those of transactions that end in
either way, and it grows between passes that are cut into steps anywhere and broken off anywhere.
"""

from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from support.examples import examples

from semel.core.log.compaction import Batch, Newest, Pass
from semel.wire.records import (
    Codec,
    Record,
    decode_batch,
    encode_batch,
    marker,
    read_header,
    read_marker,
    stamp,
)

KEYS = [b"a", b"b", b"c" * 40, b""]
NOBODY = -1


class Log:
    """A partition in the plainest way."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.aborted: list[tuple[int, int, int]] = []
        """Producer, first offset, marker."""
        self.open: dict[int, int] = {}
        self.end = 0
        self.cleaned = 0
        self.ever: dict[int, Record] = {}
        """Every committed record there was, by its offset."""

    def append(self, data: bytes, count: int) -> None:
        latest = read_header(data).max_timestamp
        self.batches.append(Batch(self.end, self.end + count - 1, latest, data))
        self.end += count

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def told(self, first: int, before: int) -> list[tuple[int, int]]:
        """Aborted transactions as the ledger tells of them."""
        touched = [each for each in self.aborted if each[2] >= first and each[1] < before]
        return sorted(((producer, start) for producer, start, _ in touched), key=lambda pair: pair[1])

    def records(self) -> list[Record]:
        """What a reader of committed records gets, by the rules of the protocol."""
        coming, aborted, found = self.told(0, self.stable), set(), []
        for batch in self.batches:
            if batch.last_offset >= self.stable:
                break
            data = bytearray(batch.data)
            stamp(data, 0, batch.base_offset, 0)
            header = read_header(data)
            while coming and coming[0][1] <= batch.last_offset:
                aborted.add(coming.pop(0)[0])
            if header.is_control:
                ended = read_marker(data)
                if ended is not None and not ended.commit:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += decode_batch(data)
        return found

    def table(self) -> dict[bytes, bytes]:
        """The last value of each key; a tombstone is no value."""
        last: dict[bytes, bytes] = {}
        for record in self.records():
            if record.key is not None:
                last.pop(record.key, None)
                if record.value is not None:
                    last[record.key] = record.value
        return last


class Write(NamedTuple):
    """One batch, in the transaction of a producer or in none."""

    producer: int
    pairs: list[tuple[bytes | None, bytes | None]]
    codec: Codec


class End(NamedTuple):
    """The end of a transaction."""

    producer: int
    is_commit: bool


class Compact(NamedTuple):
    """A pass: when, how long tombstones stay, in steps of how many batches, how many keys, how many steps."""

    later: int
    retention: int
    step: int
    keys: int
    steps_max: int


pairs = st.tuples(st.sampled_from([*KEYS, None]), st.one_of(st.none(), st.binary(max_size=3)))
writes = st.builds(
    Write,
    st.sampled_from([NOBODY, NOBODY, 1, 2]),
    st.lists(pairs, min_size=1, max_size=5),
    st.sampled_from(list(Codec)),
)
ends = st.builds(End, st.sampled_from([1, 2]), st.booleans())
passes = st.builds(
    Compact,
    st.integers(0, 20),
    st.integers(0, 10),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from([99, 99, 99, 1, 2]),
)


@st.composite
def transactions(draw: DrawFn) -> list[Any]:
    """A few batches, perhaps among those of others, and an end, if it comes to one."""
    producer = draw(st.sampled_from([1, 2]))
    own = [each._replace(producer=producer) for each in draw(st.lists(writes, min_size=1, max_size=2))]
    others = draw(st.lists(writes, max_size=1))
    ending = draw(st.lists(st.builds(End, st.just(producer), st.booleans()), max_size=1))
    return [*own, *others, *ending]


parts = st.one_of(
    writes.map(lambda each: [each]),
    ends.map(lambda each: [each]),
    transactions(),
    transactions(),
    passes.map(lambda each: [each]),
    passes.map(lambda each: [each]),
)
lives = st.lists(parts, min_size=2, max_size=12).map(lambda parts: [step for part in parts for step in part])


def write(log: Log, step: Write, now: int) -> None:
    is_inside = step.producer != NOBODY
    records = [Record(at, now + at, *pair) for at, pair in enumerate(step.pairs)]
    if is_inside:
        log.open.setdefault(step.producer, log.end)
    data = encode_batch(
        records,
        codec=step.codec,
        producer_id=step.producer,
        producer_epoch=0 if is_inside else -1,
        base_sequence=0 if is_inside else -1,
        transactional=is_inside,
    )
    log.append(data, len(records))


def end(log: Log, step: End, now: int) -> None:
    first = log.open.pop(step.producer, None)
    if first is None:
        return
    if not step.is_commit:
        log.aborted.append((step.producer, first, log.end))
    log.append(marker(step.producer, 0, step.is_commit, 0, now), 1)


def compact(log: Log, asked: Compact, now: int) -> None:
    """What the broker does, over lists."""
    stable = log.stable
    dirty = [each for each in log.batches if log.cleaned <= each.base_offset and each.last_offset < stable]
    if not dirty:
        return
    newest = Newest(asked.keys)
    end_offset = log.cleaned
    for at in range(0, len(dirty), asked.step):
        part = dirty[at : at + asked.step]
        end_offset = newest.note(part, log.told(part[0].base_offset, part[-1].last_offset + 1))
        if newest.is_full:
            break
    going = Pass(
        newest,
        cleaned_offset=log.cleaned,
        end_offset=end_offset,
        now=now,
        delete_retention_ms=asked.retention,
    )
    below = [each for each in log.batches if each.last_offset < end_offset]
    for nth, at in enumerate(range(0, len(below), asked.step)):
        if nth >= asked.steps_max:
            return
        part = below[at : at + asked.step]
        told = log.told(part[0].base_offset, part[-1].last_offset + 1)
        refused = going.compact(part, told)
        going.undo()
        replaced = going.compact(part, told)
        assert replaced == refused
        swap(log, part, replaced)
    log.cleaned = end_offset


def swap(log: Log, part: list[Batch], replaced: Any) -> None:
    new = {
        each.base_offset: Batch(each.base_offset, each.last_offset, each.max_timestamp, data)
        for each, data in zip(replaced.rewritten, replaced.records, strict=True)
    }
    assert not replaced.unreadable
    old = {each.base_offset: each for each in part}
    assert {*new, *replaced.removed} <= old.keys()
    assert replaced.freed_bytes == sum(len(old[each].data) for each in (*new, *replaced.removed))
    for each in new.values():
        assert (each.last_offset, len(each.data)) == (old[each.base_offset].last_offset, len(each.data))
        assert each.max_timestamp <= old[each.base_offset].max_timestamp
    log.batches = [
        new.get(each.base_offset, each) for each in log.batches if each.base_offset not in replaced.removed
    ]
    log.aborted = [each for each in log.aborted if each[2] not in replaced.removed]


def write_or_end(log: Log, step: Any, now: int) -> None:
    if isinstance(step, Write):
        write(log, step, now)
    elif isinstance(step, End):
        end(log, step, now)


KEYLESS = Write(NOBODY, [(None, b"")], Codec.NONE)
ONE_PASS = Compact(0, 0, 4, 99, 99)


@given(lives)
@example([KEYLESS, ONE_PASS])
@example([KEYLESS, KEYLESS._replace(producer=2), KEYLESS._replace(producer=1), End(2, False), ONE_PASS])
@examples(150)
def test_the_last_value_of_every_key_is_what_it_was(life: list[Any]) -> None:
    log, now = Log(), 1_000
    for step in life:
        now += 1
        if not isinstance(step, Compact):
            write_or_end(log, step, now)
        else:
            now += step.later
            before, table, stable = {each.offset: each for each in log.records()}, log.table(), log.stable
            compact(log, step, now)
            after = log.records()
            offsets = [each.offset for each in after]
            assert log.table() == table
            assert log.stable == stable
            assert offsets == sorted(set(offsets)), "the order of the log is what it was"
            assert all(before.get(each.offset) == each for each in after), "a record is what it was or gone"
            ends_at = [each.last_offset + 1 for each in log.batches if each.last_offset < stable]
            assert ends_at[-1:] == [stable] * (stable > 0), "a reader can come to the end"


@given(lives)
@examples(40)
def test_where_a_pass_has_been_nothing_is_there_twice(life: list[Any]) -> None:
    log, now = Log(), 1_000
    for step in life:
        now += 1
        write_or_end(log, step, now)
    compact(log, Compact(0, 10, 3, 1_000, 99), now)
    compacted = [each for each in log.batches if each.last_offset < log.cleaned]
    if not compacted:
        return
    # The last batch stays whole if nothing of it would be left.
    last = compacted[-1].base_offset
    keys = [each.key for each in log.records() if each.offset < last]
    newer = {each.key for each in log.records() if each.offset >= last}
    assert None not in keys
    assert len(keys) == len(set(keys))
    assert newer.isdisjoint(keys)
