"""Writes records: one from a form, the lines of a file, or several in one transaction.

Without a transaction, an idempotent producer writes every record exactly once; after an error, some records
may have been written. In a transaction, all records count or none. The transaction can also be aborted on
purpose, to see how readers handle it.

Chosen records can be sent again, to the same topic or another one. Keys, values and headers are copied as
they are. Records are read by offset, whatever the outcome of their transaction: a user may want to send a
record of an aborted one again. If a record is gone or has too many headers, the replay is refused before
anything is written.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from semel.client import (
    Admin,
    Client,
    ClientError,
    Delivery,
    ErrorCode,
    FetchLimits,
    KafkaError,
    Producer,
    TransactionalProducer,
    UnsupportedRequest,
)
from semel.console.clients import StoppableClient
from semel.console.messages.limits import (
    HEADERS_COPIED_MAX,
    PRODUCED_BYTES_MAX,
    RECORDS_PRODUCED_MAX,
    REPLAYED_MAX,
)
from semel.console.messages.marks import Mark
from semel.console.messages.reading import MarkedRecord, Reader, bounds_of
from semel.record_lines import InputFormat, Line, LineError, read_line

TRANSACTION_TIMEOUT_MS = 60_000
OWN_PREFIX = "semel-console-"


class Outcome(StrEnum):
    """How records are written."""

    PLAIN = "plain"
    COMMIT = "commit"
    ABORT = "abort"


class ProduceError(ValueError):
    """The input is not a record; the text says what is wrong, and with which line."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write. Without a partition, the key determines it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


Sender: TypeAlias = Producer | TransactionalProducer


def of_lines(
    data: bytes,
    form: InputFormat,
    separator: str,
    headers: Sequence[tuple[str, bytes | None]],
    partition: int | None,
) -> list[NewRecord]:
    """Read one record from every line that is not empty."""
    if len(data) > PRODUCED_BYTES_MAX:
        raise ProduceError(f"the input has {len(data):,} bytes; {PRODUCED_BYTES_MAX:,} are allowed")
    records = []
    for number, line in _lines(data):
        try:
            read = read_line(line, form, separator.encode() or None)
        except LineError as error:
            raise ProduceError(f"line {number} is not a record: {error}. Nothing was written.") from None
        records.append(_record(read, headers, partition))
        if len(records) > RECORDS_PRODUCED_MAX:
            raise ProduceError(
                f"the input has more than {RECORDS_PRODUCED_MAX:,} records; "
                "write them in parts, or use 'semel produce'"
            )
    if not records:
        raise ProduceError("there is no record in the input. Nothing was written.")
    return records


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    begin = number = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        number += 1
        if line := data[begin:end].removesuffix(b"\r"):
            yield number, line
        begin = end + 1


def _record(line: Line, headers: Sequence[tuple[str, bytes | None]], partition: int | None) -> NewRecord:
    return NewRecord(
        line.key,
        line.value,
        (*headers, *line.headers),
        line.partition if partition is None else partition,
        line.timestamp_ms,
    )


def parse_headers(text: str) -> list[tuple[str, bytes | None]]:
    """Read headers as lines of NAME: VALUE or NAME=VALUE."""
    found: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        at = min((i for i in (line.find(":"), line.find("=")) if i > 0), default=-1)
        if at < 0:
            raise ProduceError(f"the header {line!r} is not NAME: VALUE")
        found.append((line[:at].strip(), line[at + 1 :].strip().encode()))
    return found


def new_transactional_id() -> str:
    """Return a transactional id for one transaction of the console."""
    return f"{OWN_PREFIX}{secrets.token_hex(4)}"


def in_use(client: Client, transactional_id: str) -> str | None:
    """Return what a transaction of this id would fence; None if the id is new, or the console's own and idle.

    A coordinator does not know whether a producer is alive, only that there was one.
    """
    try:
        found = Admin(client).transactions.describe(transactional_id)
    except UnsupportedRequest:
        return None
    except KafkaError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return None
    if found.state == "Ongoing" or found.state.startswith("Prepare"):
        return f"{transactional_id} has an open transaction, which would be aborted, and its producer fenced"
    if found.state == "Dead" or transactional_id.startswith(OWN_PREFIX):
        return None
    return f"{transactional_id} is the id of another producer, which would be fenced if it still runs"


def write(
    client: Client, topic: str, records: Sequence[NewRecord], outcome: Outcome, transactional_id: str
) -> dict[str, Any]:
    """Write records; return how they were written, and the positions of the first hundred."""
    client.topic(topic)  # Fail for an unknown name: it is more likely a typo than a topic to create.
    if outcome is Outcome.PLAIN:
        with Producer(client) as producer:
            deliveries = _send(producer, topic, records)
    else:
        deliveries = _in_transaction(client, topic, records, outcome, transactional_id)
    written = [each.result() for each in deliveries[:100]]
    return {
        "topic": topic,
        "records": len(records),
        "outcome": outcome.value,
        "transactional_id": None if outcome is Outcome.PLAIN else transactional_id,
        "written": [{"partition": each.partition, "offset": each.offset} for each in written],
    }


def _in_transaction(
    client: Client, topic: str, records: Sequence[NewRecord], outcome: Outcome, transactional_id: str
) -> list[Delivery]:
    producer = TransactionalProducer(
        client, transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, timeout_s=client.timeout_s
    )
    producer.init()
    try:
        producer.begin()
        deliveries = _send(producer, topic, records)
        _end_in_any_case(client)
        if outcome is Outcome.COMMIT:
            producer.commit()
        else:
            producer.abort()
    finally:
        # After an error, this aborts the open transaction. That error says more than one of closing.
        _end_in_any_case(client)
        with suppress(KafkaError, ClientError):
            producer.close()
    return deliveries


def _end_in_any_case(client: Client) -> None:
    """Allow requests even after a stop: readers of the topic must not wait for the transaction's timeout."""
    if isinstance(client, StoppableClient):
        client.finish()


def _send(producer: Sender, topic: str, records: Iterable[NewRecord]) -> list[Delivery]:
    deliveries = [
        producer.send(
            topic,
            each.value,
            key=each.key,
            headers=each.headers,
            partition=each.partition,
            timestamp_ms=each.timestamp_ms,
        )
        for each in records
    ]
    producer.flush()
    return deliveries


_PLACE: Final = re.compile(r"(\d{1,7}):(\d{1,19})")
_ONE: Final = FetchLimits(max_wait_ms=100, max_bytes=1, partition_max_bytes=1)
"""A broker returns at least one batch, whatever the limits."""
ATTEMPTS_MAX: Final = 5


class RecordPosition(NamedTuple):
    """The position of a record."""

    partition: int
    offset: int


def parse_places(text: str) -> list[RecordPosition]:
    """Parse a list like `0:12,0:13`. ProduceError if it is malformed."""
    places = []
    for part in text.replace(" ", "").split(","):
        match = _PLACE.fullmatch(part)
        if match is None:
            raise ProduceError(f"{part!r} is not PARTITION:OFFSET")
        places.append(RecordPosition(int(match[1]), int(match[2])))
        if len(places) > REPLAYED_MAX:
            raise ProduceError(f"{REPLAYED_MAX:,} records can be sent again at once; choose fewer")
    return sorted(set(places))


def read_places(
    client: Client, topic: str, places: Sequence[RecordPosition], headers_max: int = HEADERS_COPIED_MAX
) -> list[MarkedRecord]:
    """Read these records. ProduceError if one of them is gone, or if they are too large together."""
    bounds = bounds_of(client, topic, sorted({place.partition for place in places}))
    reader = Reader(client, topic, bounds, committed=False, control=True, headers_max=headers_max)
    found: dict[RecordPosition, MarkedRecord] = {}
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
                found[RecordPosition(place.partition, marked.offset)] = marked
                size += marked.record.size_bytes
        if place not in found:
            raise ProduceError(f"{topic}/{place.partition} has no readable record at offset {place.offset}")
        if size > PRODUCED_BYTES_MAX:
            raise ProduceError(f"the records have more than {PRODUCED_BYTES_MAX:,} bytes; choose fewer")
    return [found[place] for place in places]


def find(client: Client, topic: str, place: RecordPosition) -> MarkedRecord | None:
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


def _batch_at(reader: Reader, place: RecordPosition, end: int) -> Iterator[MarkedRecord]:
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
