"""The checks of the console: hanging transactions, checksums, pipelines, data directories.

A transaction hangs if it is open in a partition and unknown to every coordinator. A topic is checked by
reading it as a client does, and verifying the checksum of every batch. Comparing a pipeline and checking a
directory are commands of `semel`. A command runs in its own process, as the user of the console's process. So
it is offered only if the console requires no login: then only users of this machine can reach it.
"""

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, Any

from semel.client import (
    EARLIEST,
    LATEST,
    Client,
    ClientError,
    ErrorCode,
    FetchLimits,
    Isolation,
    KafkaError,
    Partition,
    ProtocolError,
    UnsupportedRequest,
)
from semel.client.admin import blocking
from semel.client.consume.fetch import fetch_batches
from semel.client.consume.offsets import list_offsets
from semel.client.errors import check
from semel.client.net.cluster import leader_may_move
from semel.client.net.retry import Attempts
from semel.console.rendering import iso
from semel.wire.batch import has_valid_crc, iter_batches
from semel.wire.schema import Buffer

LINES_MAX = 1000
LINE_MAX = 4000
OUTPUT_MAX = 1 << 20
STOP_SECONDS = 5.0


def run_command(
    client: Client,
    stop: threading.Event,
    arguments: Sequence[str],
    settings: Mapping[str, str],
    seconds: float,
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Run `semel ARGUMENTS --json`; report its lines as they come, then its result."""
    started = time.monotonic()
    with _settings_file(settings) as options, _running([*options, *arguments, "--json"]) as process:
        lines: queue.Queue[str] = queue.Queue(LINES_MAX)
        output: list[str] = []
        readers = [
            threading.Thread(target=_read_lines, args=(process.stderr, lines), daemon=True),
            threading.Thread(target=_read_all, args=(process.stdout, output), daemon=True),
        ]
        for each in readers:
            each.start()
        while process.poll() is None or not lines.empty():
            elapsed = time.monotonic() - started
            if stop.is_set():
                return
            if elapsed > seconds:
                yield "result", {"good": False, "text": f"Stopped after {elapsed:.0f} seconds."}
                return
            try:
                yield "progress", {"at": lines.get(timeout=0.5)}
            except queue.Empty:
                yield "progress", {"elapsed_seconds": round(elapsed)}
        for each in readers:
            each.join(STOP_SECONDS)
        yield "result", _result(process.returncode, "".join(output))


def _result(code: int, output: str) -> dict[str, Any]:
    try:
        details = json.loads(output)
    except ValueError:
        details = None
    text = "Everything is as it should be." if code == 0 else "Something is wrong; see the details."
    return {"good": code == 0, "text": text, "details": details if details is not None else output[:LINE_MAX]}


def _read_lines(stream: IO[str], lines: "queue.Queue[str]") -> None:
    for line in stream:
        with contextlib.suppress(queue.Full):  # Drop lines that come faster than they are read.
            lines.put_nowait(line[:LINE_MAX].rstrip("\n"))


def _read_all(stream: IO[str], output: list[str]) -> None:
    output.append(stream.read(OUTPUT_MAX))
    while stream.read(OUTPUT_MAX):
        pass  # Drain the pipe, so that the process does not block.


@contextlib.contextmanager
def _settings_file(settings: Mapping[str, str]) -> Iterator[list[str]]:
    """Write security settings to a file that only this user can read: all users can see a command line."""
    if not settings:
        yield []
        return
    with tempfile.NamedTemporaryFile("w", prefix="semel-console-", suffix=".properties") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
        file.flush()
        yield ["--command-config", file.name]


@contextlib.contextmanager
def _running(arguments: Sequence[str]) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


#: How many of the topics that could not be read the result names.
NAMED_MAX = 5


def find_hanging(
    client: Client, stop: threading.Event, only: str | None
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Search every topic, or one; report each topic and each finding."""
    names = [only] if only else sorted(each.name for each in client.describe().topics)
    found = 0
    skipped: list[str] = []
    for number, name in enumerate(names):
        if stop.is_set():
            return
        yield "progress", {"done": number, "total": len(names), "at": name}
        try:
            hanging = blocking.hanging_in(client, name)
        except UnsupportedRequest:
            text = "Nothing was checked: this broker does not describe producers (DescribeProducers)."
            yield "result", {"good": False, "text": text, "done": number, "total": len(names)}
            return
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                skipped.append(name)  # The principal may not describe its producers.
            elif error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or only:
                raise
            continue  # Not authorized, or deleted meanwhile.
        for each in hanging:
            found += 1
            yield "finding", _finding(each)
    seen = len(names) - len(skipped)
    text = f"{found} transactions hang." if found else f"No transaction hangs in {seen} topics."
    if skipped:
        more = "" if len(skipped) <= NAMED_MAX else f" and {len(skipped) - NAMED_MAX} more"
        text += (
            f" {len(skipped)} topics were not looked into, because you may not describe their producers: "
            f"{', '.join(skipped[:NAMED_MAX])}{more}."
        )
    is_good = not found and not skipped
    yield "result", {"good": is_good, "text": text, "done": len(names), "total": len(names)}


def _finding(each: blocking.Open) -> dict[str, Any]:
    where = f"{each.topic}/{each.partition} from offset {each.first_offset}"
    last = iso(each.producer.last_timestamp)
    return {
        "text": f"Producer {each.producer.producer_id} hangs in {where}; its last record is of {last}.",
        "address": f"/topics/{each.topic}/why/{each.partition}",
        "command": each.command,
    }


LIMITS = FetchLimits(max_wait_ms=200, min_bytes=1, max_bytes=8 << 20, partition_max_bytes=1 << 20)
PARTITIONS_AT_ONCE = 16
FINDINGS_MAX = 100


class _Counts:
    """What was read so far."""

    def __init__(self) -> None:
        self.batches = self.bytes = self.damaged = 0
        self.skipped: dict[Partition, int] = {}
        """The offset after the last one that was skipped as damaged."""


def check_records(
    client: Client, stop: threading.Event, topic: str, bytes_max: int, seconds_max: float
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Read each partition from its start to its end at the time of the call. Bounded in bytes and time.

    Damage is a wrong checksum, or bytes that are not a batch. Records that are deleted during the check are
    skipped. If a partition cannot be read for another reason, the check fails, after retries if they may
    help.
    """
    keys = [(topic, each.partition) for each in client.topic(topic, anew=True).partitions]
    first = {key: at.offset for key, at in list_offsets(client, dict.fromkeys(keys, EARLIEST)).items()}
    ends = {key: at.offset for key, at in list_offsets(client, dict.fromkeys(keys, LATEST)).items()}
    total = sum(ends[key] - first[key] for key in keys)
    at = dict(first)
    counts = _Counts()
    deadline = time.monotonic() + seconds_max
    attempts = Attempts(client.patience_s, retriable=leader_may_move)
    while not stop.is_set():
        left = {key: at[key] for key in keys if at[key] < ends[key]}
        done = sum(min(at[key], ends[key]) - first[key] for key in keys)
        yield "progress", {"done": done, "total": total, "at": f"{counts.bytes:,} bytes"}
        if not left:
            break
        if counts.bytes > bytes_max or time.monotonic() > deadline:
            text = f"Stopped after {counts.bytes:,} bytes; {counts.damaged} damaged batches so far."
            yield "result", {"good": not counts.damaged, "text": text, "done": done, "total": total}
            return
        positions = dict(islice(left.items(), PARTITIONS_AT_ONCE))
        problem: Exception | None = None
        try:
            for finding in _read(client, positions, at, counts):
                if counts.damaged <= FINDINGS_MAX:
                    yield "finding", {"text": finding}
        except (KafkaError, ClientError) as error:
            problem = error
        if any(at[key] > position for key, position in positions.items()):
            attempts = Attempts(client.patience_s, retriable=leader_may_move)
        if problem is not None:
            client.forget_topic(topic)
            attempts.failed(problem)
    text = f"{counts.batches:,} batches with {counts.bytes:,} bytes; {counts.damaged} are damaged."
    yield "result", {"good": not counts.damaged, "text": text, "done": total, "total": total}


def _read(
    client: Client, positions: dict[Partition, int], at: dict[Partition, int], counts: _Counts
) -> Iterator[str]:
    """Read a portion of each partition, advance its position in `at`, and yield the damage.

    If a partition cannot be read, raises the error: after reading the others if a retry may help, or at once.
    """
    problem: KafkaError | None = None
    for key, data in fetch_batches(client, positions, Isolation.READ_UNCOMMITTED, LIMITS):
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                at[key] = _start_after(client, key, at[key])
            elif data.error_code == ErrorCode.CORRUPT_MESSAGE:
                yield from _skip(key, "its checksum is wrong", at, counts)
            else:
                check(data.error_code, f"{_name(key)} cannot be read from offset {at[key]}")
                yield from _verify(key, data.records or b"", at, counts)
        except KafkaError as error:
            if not leader_may_move(error):
                raise
            problem = error
    if problem is not None:
        raise problem


def _verify(key: Partition, records: Buffer, at: dict[Partition, int], counts: _Counts) -> Iterator[str]:
    counts.bytes += len(records)
    try:
        for begin, header in iter_batches(records):
            counts.batches += 1
            if not has_valid_crc(records, begin, header):
                counts.damaged += 1
                yield f"{_name(key)} is damaged from {header.base_offset} to {header.last_offset}."
                at[key] += 1  # Advance even if the last offset in the header is wrong, too.
            at[key] = max(at[key], header.last_offset + 1)
    except ProtocolError as error:
        yield from _skip(key, str(error), at, counts)


def _skip(key: Partition, why: str, at: dict[Partition, int], counts: _Counts) -> Iterator[str]:
    """Skip one offset of a batch whose end is unknown. Consecutive skipped offsets are one finding."""
    if counts.skipped.get(key) != at[key]:
        counts.damaged += 1
        yield f"{_name(key)} is damaged from {at[key]}: {why}."
    at[key] += 1
    counts.skipped[key] = at[key]


def _start_after(client: Client, key: Partition, offset: int) -> int:
    """Return the log start offset of a partition whose first records were deleted during the check."""
    start = list_offsets(client, {key: EARLIEST})[key].offset
    if start <= offset:  # The log ends before the offset: it was truncated, or the topic was recreated.
        check(ErrorCode.OFFSET_OUT_OF_RANGE, f"{_name(key)} cannot be read from offset {offset}")
    return start


def _name(key: Partition) -> str:
    return f"{key[0]}/{key[1]}"
