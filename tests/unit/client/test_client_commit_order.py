"""Commit order against a model, over logs that nobody wrote: every mix of transactions, cut anywhere."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semel.client.consume.spool
from semel.client.consume.commit_order_log import CommitOrderLog, CommitOrderPosition
from semel.client.consume.spool import Spool
from semel.wire.records import Codec, Record, encode_batch, marker, read_header, stamp

PARTITION = ("t", 0)
EXAMPLES = settings(max_examples=300, deadline=None)
PLAIN, WRITE, COMMIT, ABORT = "plain", "write", "commit", "abort"


class Step(NamedTuple):
    """What somebody did to the log: a batch of so many records, or the end of a transaction."""

    kind: str
    producer: int
    records: int


STEPS = st.lists(
    st.builds(
        Step, st.sampled_from([PLAIN, WRITE, WRITE, COMMIT, ABORT]), st.integers(1, 4), st.integers(1, 3)
    ),
    max_size=40,
)


class Log:
    """A log made of steps, and what a reader in commit order must see of it."""

    def __init__(self, steps: list[Step]) -> None:
        self.batches: list[bytes] = []
        self.expected: list[int] = []  # offsets
        self.end = 0
        written: dict[int, list[int]] = {}
        for step in steps:
            count = step.records if step.kind in (PLAIN, WRITE) else 1
            offsets = list(range(self.end, self.end + count))
            self._append(step, count)
            if step.kind == PLAIN:
                self.expected += offsets
            elif step.kind == WRITE:
                written.setdefault(step.producer, []).extend(offsets)
            else:
                shown = written.pop(step.producer, [])
                self.expected += shown if step.kind == COMMIT else []
        self.open = {producer: offsets[0] for producer, offsets in written.items()}

    def _append(self, step: Step, count: int) -> None:
        if step.kind in (COMMIT, ABORT):
            data = bytearray(marker(step.producer, 0, step.kind == COMMIT, 0, 1))
        else:
            records = [Record(0, 1, None, b"%d" % (self.end + n)) for n in range(count)]
            is_plain = step.kind == PLAIN
            data = bytearray(
                encode_batch(
                    records,
                    codec=Codec.NONE if step.producer % 2 else Codec.GZIP,
                    producer_id=-1 if is_plain else step.producer,
                    producer_epoch=-1 if is_plain else 0,
                    base_sequence=-1 if is_plain else 0,
                    transactional=not is_plain,
                )
            )
        stamp(data, 0, self.end, 0)
        self.batches.append(bytes(data))
        self.end += count

    def fetch(self, offset: int, batches: int) -> bytes:
        """What a broker answers: whole batches from the one that holds the offset on."""
        from_here = (data for data in self.batches if read_header(data).last_offset >= offset)
        return b"".join(itertools.islice(from_here, batches))


def read_all(log: Log, reader: CommitOrderLog, sizes: Iterator[int]) -> Iterator[int]:
    while reader.next_offset < log.end:
        for record in reader.read(log.fetch(reader.next_offset, next(sizes))):
            assert record.value == b"%d" % record.offset
            yield record.offset


@EXAMPLES
@given(STEPS, st.lists(st.integers(1, 5), min_size=1), st.integers(0, 400))
def test_transactions_come_in_the_order_of_their_commits(
    steps: list[Step], sizes: list[int], memory_bytes: int
) -> None:
    log, spool = Log(steps), Spool(memory_bytes)
    reader = CommitOrderLog(PARTITION, CommitOrderPosition(0, 0), spool)
    assert list(read_all(log, reader, itertools.cycle(sizes))) == log.expected
    assert reader.open_transactions == log.open
    assert reader.position == CommitOrderPosition(min(log.open.values(), default=log.end), log.end)
    assert spool.memory_bytes <= memory_bytes
    spool.close()


@EXAMPLES
@given(STEPS, st.lists(st.integers(1, 5), min_size=1), st.lists(st.integers(0, 12), max_size=8))
def test_a_reader_goes_on_from_any_position(steps: list[Step], sizes: list[int], stops: list[int]) -> None:
    """Each reader shows some records and is thrown away; only its position is kept."""
    log, chunk = Log(steps), itertools.cycle(sizes)
    position = CommitOrderPosition(0, 0)
    seen: list[int] = []
    for stop in [*stops, len(log.expected) + 1]:
        spool = Spool(200)
        reader = CommitOrderLog(PARTITION, position, spool)
        seen += itertools.islice(read_all(log, reader, chunk), stop)
        position = CommitOrderPosition(*reader.position)
        assert position.start <= position.offset
        spool.close()
    assert seen == log.expected


def test_a_position_in_the_middle_of_a_transaction_says_how_far_it_was_shown() -> None:
    log = Log([Step(WRITE, 1, 3), Step(WRITE, 2, 1), Step(COMMIT, 1, 1)])
    reader = CommitOrderLog(PARTITION, CommitOrderPosition(0, 0), Spool(1000))
    shown = reader.read(log.fetch(0, 9))
    assert next(shown).offset == 0
    assert reader.position == CommitOrderPosition(start=0, offset=4, shown=0)
    assert [record.offset for record in shown] == [1, 2]
    assert reader.position == CommitOrderPosition(start=3, offset=5)


def test_the_log_of_a_journal_topic_is_shown_as_it_is() -> None:
    log = Log([Step(WRITE, 1, 2), Step(PLAIN, 1, 1), Step(WRITE, 2, 1)])
    reader = CommitOrderLog(PARTITION, CommitOrderPosition(0, 0), Spool(0), is_journal=True)
    assert [record.offset for record in reader.read(log.fetch(0, 9))] == [0, 1, 2, 3]
    assert reader.position == CommitOrderPosition(4, 4)


@pytest.fixture
def batches() -> list[bytes]:
    return Log([Step(WRITE, 1, 3)] * 4).batches


def test_the_largest_goes_to_disk_first_and_comes_back_in_order(tmp_path: Path, batches: list[bytes]) -> None:
    size_bytes = len(batches[0])
    spool = Spool(3 * size_bytes, tmp_path)
    small, large = spool.hold(), spool.hold()
    small.add(batches[0])
    for batch in batches:
        large.add(batch)
    assert large.is_on_disk
    assert not small.is_on_disk
    assert spool.memory_bytes <= 3 * size_bytes
    assert list(small.batches()) == batches[:1]
    assert list(large.batches()) == batches
    spool.close()


def test_files_go_with_what_they_hold(tmp_path: Path, batches: list[bytes]) -> None:
    spool = Spool(0, tmp_path)
    one, two = spool.hold(), spool.hold()
    one.add(batches[0])
    two.add(batches[1])
    assert len(spool._files) == 2
    assert list(tmp_path.iterdir()) == [], "a process that is killed leaves nothing"
    one.drop()
    assert len(spool._files) == 1
    assert list(two.batches()) == [batches[1]]
    spool.close()
    assert spool._files == []
    assert spool.memory_bytes == 0


def test_many_share_a_few_files(
    tmp_path: Path, batches: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semel.client.consume.spool, "FILES_MAX", 2)
    spool = Spool(0, tmp_path)
    many = [spool.hold() for _ in range(5)]
    for batch in batches:
        for held in many:
            held.add(batch)
    assert len(spool._files) == 2
    for held in many:
        reading = held.batches()
        assert [next(reading), *reading] == batches
        held.drop()
    assert spool._files == []


def test_no_file_is_made_while_everything_fits(tmp_path: Path, batches: list[bytes]) -> None:
    spool = Spool(1 << 20, tmp_path)
    spool.hold().add(batches[0])
    assert spool._files == []
    spool.close()
