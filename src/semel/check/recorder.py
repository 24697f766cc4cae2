"""`Recorder`: records what clients do as they do it, from any number of threads and processes.

A line is one write at the end of the file, so threads and processes may share a file, and what was written
survives the death of the process. Operations that change something are recorded twice: as `info` when they
start, so that the history has the request even if the client is killed, and again when they end.

    recorder = Recorder("history.jsonl")
    process = recorder.process("copier")
    transaction = process.begin("copier-0")
    with process.produce("orders", 0, ["a"], transaction) as told:
        told.offset = send("orders", 0, "a")
    with process.commit(transaction):
        producer.commit_transaction()

A block that ends normally is `ok`. If it raises, `semel.check.transactions` decides by the error, which is
raised again. Programs that keep operations in memory, such as simulations, create them directly.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self, TypeAlias

from semel.check.history import (
    INFO,
    NAMES,
    OK,
    READ_COMMITTED,
    Abort,
    Assign,
    Begin,
    Claim,
    Commit,
    Ends,
    Init,
    Isolation,
    Name,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Outcome,
    Partition,
    Poll,
    Produce,
    SendOffsets,
    Timed,
    to_line,
)
from semel.check.transactions import outcome_of

#: An operation that lasts as long as the block.
Block: TypeAlias = "AbstractContextManager[Told]"

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Recorder:
    """Appends operations to a file. Safe to use from threads, and by several processes on one file."""

    def __init__(self, path: str | Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock = clock
        """The clock, the same for all recorders of this history."""
        self._file = os.open(path, _NEW_FILE, 0o644)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. May be called again."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def write(self, operation: Operation) -> None:
        """Record an operation."""
        line = to_line(operation).encode("utf-8", "surrogateescape")
        with self._lock:
            if os.write(self._file, line) != len(line):
                raise OSError("the history was not written completely; is the disk full?")

    def process(self, name: str) -> "Process":
        """Return a new client in one life. The process id and a number are appended to its name."""
        return Process(self, f"{name}.{os.getpid()}.{next(self._numbers)}")


class Told:
    """Results that a block may set before it ends."""

    def __init__(self) -> None:
        self.offset: int | None = None
        """The offset of the first record; negative if the broker did not return it."""
        self.outcome: Outcome | None = None
        """The outcome, if set; otherwise the way in which the block ends determines it."""
        self.error: str | None = None
        self.pair: tuple[int, int] = (-1, -1)
        """The producer id and the epoch."""


class Process:
    """Records what one client does. One thread at a time may use it, as with the client."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name
        self._transactions = itertools.count(1)

    # ---- transactions

    def init(
        self, transactional_id: str, *, timeout: int | None = None, is_only_attempt: bool = False
    ) -> Block:
        """Record that the process takes over a transactional id, in this block."""
        start = Init(self.name, self._now(), None, INFO, transactional_id, timeout=timeout)
        return self._block(start, is_only_attempt)

    def begin(self, transactional_id: str) -> str:
        """Record that a transaction begins; return its name."""
        name = f"{self.name}/{next(self._transactions)}"
        now = self._now()
        self.recorder.write(Begin(self.name, now, now, OK, name, transactional_id))
        return name

    def produce(
        self,
        topic: str,
        partition: int,
        values: Iterable[Name],
        transaction: Name | None = None,
        *,
        is_idempotent: bool = True,
        is_only_attempt: bool = False,
    ) -> Block:
        """Record that records are sent and acknowledged in this block, which may set `offset`."""
        start = Produce(
            process=self.name,
            started=self._now(),
            ended=None,
            outcome=INFO,
            topic=topic,
            partition=partition,
            values=tuple(values),
            transaction=transaction,
            is_idempotent=is_idempotent,
        )
        return self._block(start, is_only_attempt)

    def send_offsets(
        self, transaction: Name, group: str, claims: Iterable[Claim], *, is_only_attempt: bool = False
    ) -> Block:
        """Record that positions become part of the transaction in this block."""
        start = SendOffsets(self.name, self._now(), None, INFO, transaction, group, tuple(claims))
        return self._block(start, is_only_attempt)

    def commit(self, transaction: Name, *, is_only_attempt: bool = False) -> Block:
        """Record that the transaction is committed in this block."""
        return self._block(Commit(self.name, self._now(), None, INFO, transaction), is_only_attempt)

    def abort(self, transaction: Name, *, is_only_attempt: bool = False) -> Block:
        """Record that the transaction is aborted in this block."""
        return self._block(Abort(self.name, self._now(), None, INFO, transaction), is_only_attempt)

    # ---- reading

    def assign(self, positions: Mapping[Partition, int | None]) -> None:
        """Record that the process reads these partitions from these positions; also after rebalances."""
        now = self._now()
        for (topic, partition), position in positions.items():
            self.recorder.write(Assign(self.name, now, now, OK, topic, partition, position))

    def poll(
        self,
        started: int,
        records: Iterable[tuple[str, int, int, Name]],
        *,
        isolation: Isolation = READ_COMMITTED,
        transaction: Name | None = None,
        positions: Mapping[Partition, int] | None = None,
    ) -> None:
        """Record that the process received these records: topic, partition, offset and value of each.

        `started` is `recorder.clock()` from before the poll. `positions`, if the client knows them, show how
        far it read in partitions without records.
        """
        now = self._now()
        by_partition: dict[Partition, list[tuple[int, Name]]] = {key: [] for key in positions or {}}
        for topic, partition, offset, value in records:
            by_partition.setdefault((topic, partition), []).append((offset, value))
        for key, found in by_partition.items():
            position = None if positions is None else positions.get(key)
            shown = tuple(found)
            self.recorder.write(
                Poll(self.name, started, now, OK, *key, shown, isolation, transaction, position)
            )

    def ends(
        self,
        started: int,
        partition: Partition,
        *,
        log_start: int | None = None,
        last_stable: int | None = None,
        high_watermark: int | None = None,
        is_settled: bool = False,
    ) -> None:
        """Record the start and the ends of a partition, as the broker returned them."""
        bounds = (log_start, last_stable, high_watermark)
        self.recorder.write(
            Ends(self.name, started, self._now(), OK, *partition, *bounds, is_settled=is_settled)
        )

    # ---- groups

    def offset_commit(
        self, group: str, partition: Partition, position: int, *, is_only_attempt: bool = False
    ) -> Block:
        """Record that a group's position is set outside of a transaction in this block."""
        start = OffsetCommit(
            self.name, self._now(), None, INFO, group, *partition, position, is_only_attempt=is_only_attempt
        )
        return self._block(start, is_only_attempt)

    def offset_fetch(
        self, started: int, group: str, partition: Partition, position: int | None, *, is_stable: bool = True
    ) -> None:
        """Record the position of a group that the broker returned."""
        now = self._now()
        self.recorder.write(OffsetFetch(self.name, started, now, OK, group, *partition, position, is_stable))

    # ---- inside

    def _now(self) -> int:
        return self.recorder.clock()

    def _block(self, start: Timed, is_only_attempt: bool) -> Block:
        return _recorded(self.recorder, start, is_only_attempt)


@contextmanager
def _recorded(recorder: Recorder, start: Timed, is_only_attempt: bool) -> Iterator[Told]:
    recorder.write(start)
    told = Told()
    try:
        yield told
    except BaseException as error:
        told.error = told.error or error_name(error)
        raise
    finally:
        if told.outcome is None:
            kind = NAMES[type(start)]
            told.outcome = outcome_of(kind, told.error, is_only_attempt=is_only_attempt)
        recorder.write(_ended(start, told, recorder.clock()))


def _ended(start: Timed, told: Told, now: int) -> Timed:
    changes: dict[str, Any] = {"ended": now, "outcome": told.outcome, "error": told.error}
    if isinstance(start, Produce) and told.offset is not None and told.offset >= 0:
        changes["offset"] = told.offset
    if isinstance(start, Init):
        changes["producer_id"], changes["epoch"] = told.pair
    return start._replace(**changes)


def error_name(error: BaseException) -> str:
    """Return the protocol's name for a client's error; the name of its class if there is none."""
    for each in (error, *error.args[:1]):
        code = getattr(each, "code", None)
        for name in (
            getattr(code, "name", None),
            getattr(each, "name", None),
            getattr(each, "message", None),
        ):
            found = name() if callable(name) else name
            if isinstance(found, str) and found.isupper():
                return found
    return type(error).__name__
