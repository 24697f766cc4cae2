"""Sends chosen records again, to the same topic or another one.

Keys, values and headers are copied as they are. Records are read by offset, whatever the outcome of their
transaction: a user may want to send a record of an aborted one again. If a record is gone or has too many
headers, the replay is refused before anything is written.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from semel.client import Client, FetchLimits
from semel.console.messages.limits import HEADERS_COPIED_MAX, PRODUCED_BYTES_MAX, REPLAYED_MAX
from semel.console.messages.marks import Mark
from semel.console.messages.producing import NewRecord, ProduceError
from semel.console.messages.reading import MarkedRecord, Reader, bounds_of

_PLACE: Final = re.compile(r"(\d{1,7}):(\d{1,19})")
_ONE: Final = FetchLimits(max_wait_ms=100, max_bytes=1, partition_max_bytes=1)
"""A broker returns at least one batch, whatever the limits."""
ATTEMPTS_MAX: Final = 5


class Place(NamedTuple):
    """The position of a record."""

    partition: int
    offset: int


def parse_places(text: str) -> list[Place]:
    """Parse a list like `0:12,0:13`. ProduceError if it is malformed."""
    places = []
    for part in text.replace(" ", "").split(","):
        match = _PLACE.fullmatch(part)
        if match is None:
            raise ProduceError(f"{part!r} is not PARTITION:OFFSET")
        places.append(Place(int(match[1]), int(match[2])))
        if len(places) > REPLAYED_MAX:
            raise ProduceError(f"{REPLAYED_MAX:,} records can be sent again at once; choose fewer")
    return sorted(set(places))


def read_places(
    client: Client, topic: str, places: Sequence[Place], headers_max: int = HEADERS_COPIED_MAX
) -> list[MarkedRecord]:
    """Read these records. ProduceError if one of them is gone, or if they are too large together."""
    bounds = bounds_of(client, topic, sorted({place.partition for place in places}))
    reader = Reader(client, topic, bounds, committed=False, control=True, headers_max=headers_max)
    found: dict[Place, MarkedRecord] = {}
    size = 0
    for place in places:
        if place in found:
            continue
        limits = bounds[place.partition]
        if not limits.start <= place.offset < limits.end:
            raise ProduceError(f"{topic}/{place.partition} has no record at offset {place.offset}")
        # The batch of this record may hold others that are wanted.
        among = {each.offset for each in places if each.partition == place.partition}
        for marked in _batch_at(reader, place, max(among) + 1):
            if marked.offset in among and not marked.is_unreadable:
                found[Place(place.partition, marked.offset)] = marked
                size += marked.record.size_bytes
        if place not in found:
            raise ProduceError(f"{topic}/{place.partition} has no readable record at offset {place.offset}")
        if size > PRODUCED_BYTES_MAX:
            raise ProduceError(f"the records have more than {PRODUCED_BYTES_MAX:,} bytes; choose fewer")
    return [found[place] for place in places]


def find(client: Client, topic: str, place: Place) -> MarkedRecord | None:
    """Read one record, with its mark; None if there is none at this offset."""
    bounds = bounds_of(client, topic, [place.partition])
    each = bounds[place.partition]
    if not each.start <= place.offset < each.end:
        return None
    reader = Reader(client, topic, bounds, committed=False, control=True)
    for marked in _batch_at(reader, place, place.offset + 1):
        if marked.offset == place.offset or marked.is_unreadable:
            return marked
    return None


def _batch_at(reader: Reader, place: Place, end: int) -> Iterator[MarkedRecord]:
    for _ in range(ATTEMPTS_MAX):
        for piece in reader.fetch({place.partition: place.offset}, _ONE):
            if piece.next_offset > place.offset:
                yield from reader.records(piece, place.offset, end)
                return


def copies(records: Sequence[MarkedRecord], *, keeps_partition: bool, keeps_time: bool) -> list[NewRecord]:
    """Return records to write. Markers cannot be written."""
    made = []
    for marked in records:
        record = marked.record
        if marked.mark is Mark.CONTROL:
            raise ProduceError(
                f"offset {record.offset} is a marker of a transaction, which cannot be sent again"
            )
        if record.header_count > len(record.headers):
            raise ProduceError(
                f"offset {record.offset} has {record.header_count:,} headers, too many to copy"
            )
        made.append(
            NewRecord(
                record.key,
                record.value,
                tuple(record.headers),
                marked.partition if keeps_partition else None,
                record.timestamp if keeps_time else None,
            )
        )
    return made
