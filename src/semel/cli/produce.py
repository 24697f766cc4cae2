"""`semel produce`: writes lines of files or of standard input as records."""

import sys
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from semel.cli.command import command
from semel.cli.options import Option, argument
from semel.cli.output import Answer, Progress, Remark
from semel.record_lines import InputFormat, LineError, read_line

if TYPE_CHECKING:
    from semel.client import Client, Delivery, Producer

LINGER_S = 0.05
INTERACTIVE_LINGER_S = 0.0
#: Deliveries are checked this often, so that a long input is not kept in memory.
SETTLE_EVERY = 10_000


class CodecName(StrEnum):
    """How batches are compressed."""

    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    """Which acknowledgement the producer waits for."""

    all = "all"
    leader = "1"
    none = "0"


@command()
def produce(
    *,
    topic: Annotated[str, argument("TOPIC", "The topic to write to.")],
    files: Annotated[
        list[Path] | None, argument("FILE", "Files to read; by default, or for '-', standard input.")
    ] = None,
    key_separator: Annotated[str | None, Option("The separator between key and value.", "-k", "TEXT")] = None,
    header: Annotated[
        list[str] | None, Option("A header for every record; may be repeated.", "-H", "NAME=VALUE")
    ] = None,
    form: Annotated[InputFormat, Option("The format of a line.", "--format", "-f")] = InputFormat.text,
    partition: Annotated[int | None, Option("The partition; else the key decides.", "-p", lowest=0)] = None,
    codec: Annotated[CodecName, Option("How batches are compressed.", "-z")] = CodecName.none,
    acks: Annotated[Acks, Option("Which acknowledgement to wait for.")] = Acks.all,
    client: "Client",
) -> Answer:
    """Write records, one per line of the input.

    Lines of text may start with a key (--key-separator). Lines of JSON are objects with "value", and
    optionally "key", "headers", "partition" and "timestamp", as 'semel consume --json' prints them; binary
    data is written as {"base64": "..."}. With --acks all, the default, every record is written exactly once.

    Try:  echo 'customer-7:three apples' | semel produce orders -k :
    """
    from semel.client import Codec, Producer

    headers = [_header(text) for text in header or ()]
    separator = key_separator.encode() if key_separator else None
    lines = _lines(files or [Path("-")])
    started = time.monotonic()
    producer = Producer(
        client,
        codec=Codec[codec.name.upper()],
        acks=-1 if acks is Acks.all else int(acks.value),
        idempotent=acks is Acks.all,
        linger_s=INTERACTIVE_LINGER_S if _is_typed(files) else LINGER_S,
    )
    with producer:
        counts = _send(producer, topic, lines, form, separator, headers, partition)
    total, took_s = sum(counts.values()), time.monotonic() - started
    partitions = {str(number): count for number, count in sorted(counts.items())}
    return Answer(
        {"topic": topic, "records": total, "partitions": partitions},
        Remark(f"Produced {total:,} {'record' if total == 1 else 'records'} in {took_s:.2f} s."),
    )


def _send(
    producer: "Producer",
    topic: str,
    lines: Iterable[tuple[str, bytes]],
    form: InputFormat,
    separator: bytes | None,
    headers: list[tuple[str, bytes | None]],
    partition: int | None,
) -> dict[int, int]:
    counts: dict[int, int] = {}
    waiting: list[Delivery] = []
    progress = Progress("records")
    for where, line in lines:
        try:
            read = read_line(line, form, separator)
        except LineError as error:
            producer.flush()
            _count(waiting, counts)
            sent = sum(counts.values())
            raise LineError(f"{where} is not a record: {error}. Records written before it: {sent}.") from None
        delivery = producer.send(
            topic,
            read.value,
            key=read.key,
            headers=[*headers, *read.headers],
            partition=partition if partition is not None else read.partition,
            timestamp_ms=read.timestamp_ms,
        )
        waiting.append(delivery)
        progress.step()
        if len(waiting) >= SETTLE_EVERY:
            producer.flush()
            _count(waiting, counts)
    producer.flush()
    _count(waiting, counts)
    progress.end()
    return counts


def _count(waiting: "list[Delivery]", counts: dict[int, int]) -> None:
    for delivery in waiting:
        counts[delivery.partition] = counts.get(delivery.partition, 0) + 1
    waiting.clear()


def _lines(files: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Return every line without its end, and its position."""
    for path in files:
        if str(path) == "-":
            yield from _lines_of("standard input", sys.stdin.buffer)
        else:
            with path.open("rb") as file:
                yield from _lines_of(str(path), file)


def _lines_of(name: str, file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(file, 1):
        yield f"line {number} of {name}", line.removesuffix(b"\n").removesuffix(b"\r")


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode()


def _is_typed(files: list[Path] | None) -> bool:
    """Whether a user types the lines, so that each should be sent at once."""
    return not files and sys.stdin.isatty()
