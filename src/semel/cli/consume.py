"""`semel consume`: prints records as lines on standard output.

The input of `semel produce`, and JSON, are in `record_lines`.
"""

import base64
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from semel.cli.command import command
from semel.cli.options import Isolation, IsolationName, Json, Option, argument
from semel.cli.output import discard_output
from semel.printable import as_json, printable, printable_lines
from semel.record_lines import record_as_json
from semel.times import time_text

if TYPE_CHECKING:
    from semel.client import Client, ConsumedRecord, Consumer

    Write: TypeAlias = Callable[[ConsumedRecord], bytes]

FOLLOW_POLL_S = 0.2
INTERRUPTED = 130


class OutputFormat(StrEnum):
    """How a record is printed."""

    text = "text"
    full = "full"
    json = "json"
    hex = "hex"
    base64 = "base64"


def write_record(
    record: "ConsumedRecord", form: OutputFormat, separator: bytes | None, *, is_escaped: bool = False
) -> bytes:
    """Format a record as a line with a newline; ``is_escaped`` escapes control characters."""
    if form is OutputFormat.json:
        return as_json(record_as_json(record)).encode() + b"\n"
    if form is OutputFormat.full:
        return _full(record).encode() + b"\n"
    parts = [_wrapped(record.value, form)]
    if separator is not None:
        parts.insert(0, _wrapped(record.key, form))
    line = (separator or b"").join(parts)
    if is_escaped:
        line = printable_lines(line.decode("utf-8", "backslashreplace")).encode()
    return line + b"\n"


def _wrapped(data: bytes | None, form: OutputFormat) -> bytes:
    if data is None:
        return b""
    if form is OutputFormat.hex:
        return data.hex().encode()
    if form is OutputFormat.base64:
        return base64.b64encode(data)
    return data


def _full(record: "ConsumedRecord") -> str:
    where = f"{printable(record.topic)}/{record.partition}@{record.offset}"
    parts = [where, time_text(record.timestamp) or "-"]
    if record.key is not None:
        parts.append(f"key={_printable(record.key)}")
    parts += _header_texts(record.headers)
    parts.append("null" if record.value is None else _printable(record.value))
    return "  ".join(parts)


def _header_texts(headers: Iterable[tuple[str, bytes | None]]) -> list[str]:
    return [f"{printable(name)}:{'null' if value is None else _printable(value)}" for name, value in headers]


def _printable(data: bytes) -> str:
    return printable(data.decode("utf-8", "backslashreplace"))


@command()
def consume(
    *,
    topics: Annotated[list[str], argument("TOPIC", "Topics to read.")],
    from_beginning: Annotated[bool, Option("Start at the earliest record instead of the end.")] = False,
    follow: Annotated[bool, Option("At the end, wait for new records.", "-F")] = False,
    group: Annotated[str | None, Option("Read as a member of this group, and commit.", "-g", "GROUP")] = None,
    maximum: Annotated[int | None, Option("Stop after N records.", "--max", "-n", "N", lowest=1)] = None,
    partition: Annotated[
        list[int] | None, Option("Only this partition; may be repeated.", "-p", lowest=0)
    ] = None,
    offset: Annotated[int | None, Option("Start here; -N is N records before the end.", "-o")] = None,
    form: Annotated[OutputFormat, Option("How records are printed.", "--format", "-f")] = OutputFormat.text,
    key_separator: Annotated[
        str | None, Option("Print keys, followed by this separator.", "-k", "TEXT")
    ] = None,
    raw: Annotated[
        bool, Option("Print text unescaped at a terminal too, including control characters.")
    ] = False,
    isolation: Isolation = IsolationName.committed,
    client: "Client",
    as_json: Json = False,
) -> None:
    """Print records, one per line.

    It stops at the end that the topic had when the command started, unless --follow is given. Without
    --from-beginning, --offset and --group, it starts at the end and always follows.

    Formats: 'text' is the value, with the key in front if there is a --key-separator; 'full' adds offset,
    time, key and headers; 'json' is one object per line, which 'semel produce --format json' reads; 'hex' and
    'base64' are for binary values. Into a pipe or a file 'text' writes the bytes of the record; at a terminal
    control characters are escaped, unless --raw is given.

    Try:  semel consume orders --from-beginning --format full
    """
    if group is not None and (partition or offset is not None):
        raise typer.BadParameter("a group chooses partitions and offsets itself", param_hint="--group")
    starts_at_end = not from_beginning and offset is None and group is None
    form = OutputFormat.json if as_json else form
    separator = key_separator.encode() if key_separator else None
    write = partial(write_record, form=form, separator=separator, is_escaped=sys.stdout.isatty() and not raw)
    consumer = _consumer(client, topics, group, partition, isolation, from_beginning)
    if offset is not None:
        _seek(client, consumer, offset)
    try:
        with consumer:
            follows = follow or starts_at_end
            interrupted = (_follow if follows else _read)(consumer, maximum, write)
    except BrokenPipeError:
        # Records that the reader of the output has not read are not committed.
        discard_output()
        return
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _read(consumer: "Consumer", maximum: int | None, write: "Write") -> bool:
    """Print records up to the end."""
    out = sys.stdout.buffer
    for record in islice(consumer.read_to_end(), maximum):
        out.write(write(record))
    out.flush()
    return False


def _follow(consumer: "Consumer", maximum: int | None, write: "Write") -> bool:
    """Print records as they arrive; return whether Ctrl-C stopped the command.

    Ctrl-C is the usual way to stop, so it takes effect after the current record: then exactly the printed
    records are committed. A second Ctrl-C stops at once.
    """
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True

    def records() -> "Iterator[ConsumedRecord]":
        while not stopped:
            yield from consumer.poll(FOLLOW_POLL_S, max_records=1)

    out = sys.stdout.buffer
    before = signal.signal(signal.SIGINT, stop)
    try:
        for record in islice(records(), maximum):
            out.write(write(record))
            out.flush()
    finally:
        signal.signal(signal.SIGINT, before)
    return stopped


def _consumer(
    client: "Client",
    topics: list[str],
    group: str | None,
    partitions: list[int] | None,
    isolation: IsolationName,
    from_beginning: bool,
) -> "Consumer":
    from semel.client import Consumer, Start

    start = Start.EARLIEST if from_beginning else Start.LATEST
    for topic in topics:
        client.topic(topic)  # Do not create it: an unknown name is more likely a typo than a future topic.
    if not partitions:
        return Consumer(client, topics, group_id=group, isolation=isolation.wire, start=start)
    for topic in topics:
        count = len(client.topic(topic).partitions)
        for number in partitions:
            if number >= count:
                message = f"{topic} has no partition {number}, only 0 to {count - 1}"
                raise typer.BadParameter(message, param_hint="--partition")
    consumer = Consumer(client, isolation=isolation.wire, start=start)
    consumer.assign((topic, number) for topic in topics for number in partitions)
    return consumer


def _seek(client: "Client", consumer: "Consumer", offset: int) -> None:
    """Start all partitions at an offset, or N records before their end; within the bounds of the log."""
    from semel.client import EARLIEST, LATEST, Admin

    topics = Admin(client).topics
    first = topics.offsets(dict.fromkeys(consumer.assignment, EARLIEST))
    last = topics.offsets(dict.fromkeys(consumer.assignment, LATEST))
    for key in consumer.assignment:
        wanted = offset if offset >= 0 else last[key].offset + offset
        consumer.seek(key, min(max(wanted, first[key].offset), last[key].offset))
