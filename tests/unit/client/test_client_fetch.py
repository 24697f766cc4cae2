"""What a reader may see of the batches in a fetch."""

from itertools import pairwise

import pytest

from semel.client import Isolation
from semel.client.consume.fetch import visible
from semel.wire.messages import AbortedTransaction
from semel.wire.records import Record, encode_batch, marker, stamp


def batch(offset: int, *values: bytes, producer: int = -1, transactional: bool = False) -> bytearray:
    records = [Record(0, 1, None, value) for value in values]
    sequence = 0 if producer >= 0 else -1
    data = bytearray(
        encode_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
    )
    stamp(data, 0, offset, 0)
    return data


def end(offset: int, producer: int, *, commit: bool) -> bytearray:
    data = bytearray(marker(producer, 0, commit=commit, coordinator_epoch=0, timestamp=1))
    stamp(data, 0, offset, 0)
    return data


def see(
    *parts: bytearray, offset: int = 0, aborted: list[tuple[int, int]] | None = None, committed: bool = True
) -> tuple[list[bytes | None], int]:
    isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
    listed = [AbortedTransaction(producer_id=who, first_offset=first) for who, first in aborted or []]
    records, next_offset = visible(("t", 0), offset, b"".join(parts), listed, isolation)
    assert all(one.offset < two.offset for one, two in pairwise(records))
    return [record.value for record in records], next_offset


def test_records_before_the_wanted_offset_are_left_out() -> None:
    assert see(batch(0, b"a", b"b", b"c"), batch(3, b"d"), offset=1) == ([b"b", b"c", b"d"], 4)


def test_a_batch_that_was_cut_off_is_for_the_next_fetch() -> None:
    assert see(batch(0, b"a"), batch(1, b"b")[:-1]) == ([b"a"], 1)
    assert see(batch(5, b"b")[:30], offset=5) == ([], 5)


def test_markers_are_passed_by_but_never_seen() -> None:
    log = [batch(0, b"a", producer=1, transactional=True), end(1, 1, commit=True)]
    assert see(*log) == ([b"a"], 2)
    assert see(*log, committed=False) == ([b"a"], 2)
    assert see(end(1, 1, commit=True), offset=1) == ([], 2)


def test_aborted_transactions_are_hidden_from_their_first_offset_to_their_marker() -> None:
    log = [
        batch(0, b"plain"),
        batch(1, b"aborted", producer=1, transactional=True),
        batch(2, b"kept", producer=2, transactional=True),
        batch(3, b"aborted too", producer=1, transactional=True),
        end(4, 1, commit=False),
        batch(5, b"next", producer=1, transactional=True),
        end(6, 1, commit=True),
        end(7, 2, commit=True),
    ]
    assert see(*log, aborted=[(1, 1)]) == ([b"plain", b"kept", b"next"], 8)
    everything = [b"plain", b"aborted", b"kept", b"aborted too", b"next"]
    assert see(*log, aborted=[(1, 1)], committed=False) == (everything, 8)


def test_the_list_of_aborted_transactions_is_in_any_order() -> None:
    log = [
        batch(0, b"x", producer=1, transactional=True),
        batch(1, b"y", producer=2, transactional=True),
        end(2, 2, commit=False),
        end(3, 1, commit=False),
        batch(4, b"z", producer=2, transactional=True),
        end(5, 2, commit=False),
        batch(6, b"seen"),
    ]
    assert see(*log, aborted=[(2, 4), (2, 1), (1, 0)]) == ([b"seen"], 7)


def test_a_fetch_may_begin_inside_an_aborted_transaction() -> None:
    """The broker lists a transaction that began before the fetched offset."""
    log = [batch(5, b"x", producer=1, transactional=True), end(6, 1, commit=False), batch(7, b"seen")]
    assert see(*log, offset=5, aborted=[(1, 2)]) == ([b"seen"], 8)


def test_entries_beyond_the_data_are_harmless() -> None:
    assert see(batch(0, b"a", producer=1, transactional=True), aborted=[(1, 50)]) == ([b"a"], 1)


def test_a_plain_batch_of_an_aborted_producer_id_is_seen() -> None:
    assert see(batch(0, b"a", producer=1), aborted=[(1, 0)]) == ([b"a"], 1)


@pytest.mark.parametrize("data", [b"", None])
def test_nothing(data: bytes | None) -> None:
    records, next_offset = visible(("t", 0), 9, data or b"", None, Isolation.READ_COMMITTED)
    assert (list(records), next_offset) == ([], 9)
