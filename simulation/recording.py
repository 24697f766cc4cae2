"""Record what the actors did and know, as operations that ``semel.check`` understands."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from semel.check import history as h
from semel.client.consume.offsets import Isolation
from semel.wire.errors import ErrorCode
from simulation.producing import Known
from simulation.reading import Polled
from simulation.virtual_time import VirtualLoop

_OUTCOMES: dict[Known, h.Outcome] = {Known.DONE: h.OK, Known.NOT_DONE: h.FAIL, Known.UNKNOWN: h.INFO}
_ISOLATIONS: dict[Isolation, h.Isolation] = {
    Isolation.READ_COMMITTED: h.READ_COMMITTED,
    Isolation.READ_UNCOMMITTED: h.READ_UNCOMMITTED,
}


class Knowledge:
    """What an actor learns of its operation. An actor that is killed meanwhile learns nothing."""

    def __init__(self) -> None:
        self.known = Known.UNKNOWN
        self.code = 0
        self.offset: int | None = None
        self.found: Polled | None = None
        self.is_refused = False
        self.pair = (-1, -1)

    @property
    def outcome(self) -> h.Outcome:
        """The outcome as recorded in the history."""
        return _OUTCOMES[self.known]

    @property
    def error(self) -> str | None:
        """The name of the error code."""
        return ErrorCode(self.code).name if self.code else None


class Txn:
    """A transaction of the history."""

    def __init__(self, name: str) -> None:
        self.name = name


class Recording:
    """All operations of one history."""

    def __init__(
        self,
        loop: VirtualLoop,
        visibilities: Mapping[str, h.Visibility],
        *,
        tells_timeouts: bool,
        tells_ends: bool,
    ) -> None:
        self._loop = loop
        self.operations: list[h.Operation] = [
            h.Topic(name, visibility) for name, visibility in visibilities.items()
        ]
        self._topics = frozenset(visibilities)
        self._tells_timeouts = tells_timeouts
        self._tells_ends = tells_ends
        self._numbers = itertools.count(1)

    def now(self) -> int:
        """Virtual time in nanoseconds; no two values are equal."""
        return int(self._loop.now * 1e9) * 1_000 + next(self._numbers)

    @contextmanager
    def initialising(self, process: str, transactional_id: str, timeout_ms: int) -> Iterator[Knowledge]:
        """Record the initialisation of a producer."""
        known, started = Knowledge(), self.now()
        try:
            yield known
        finally:
            self.operations.append(
                h.Init(
                    process,
                    started,
                    self.now(),
                    known.outcome,
                    transactional_id,
                    *known.pair,
                    timeout_ms * 1_000_000_000 if self._tells_timeouts else None,
                    known.error,
                )
            )

    def begin(self, process: str, transactional_id: str) -> Txn:
        """Record the begin of a transaction."""
        txn = Txn(f"{process}#{next(self._numbers)}")
        now = self.now()
        self.operations.append(h.Begin(process, now, now, h.OK, txn.name, transactional_id))
        return txn

    @contextmanager
    def sending(
        self,
        process: str,
        txn: Txn | None,
        topic: str,
        partition: int,
        values: list[str],
        *,
        idempotent: bool,
    ) -> Iterator[Knowledge]:
        """Record a batch."""
        known, started = Knowledge(), self.now()
        try:
            yield known
        finally:
            if topic in self._topics:
                self.operations.append(
                    h.Produce(
                        process,
                        started,
                        self.now(),
                        known.outcome,
                        topic,
                        partition,
                        tuple(values),
                        known.offset if known.offset is not None and known.offset >= 0 else None,
                        None if txn is None else txn.name,
                        idempotent,
                        known.error,
                    )
                )

    @contextmanager
    def sending_offsets(
        self, process: str, txn: Txn, group: str, claims: tuple[h.Claim, ...]
    ) -> Iterator[Knowledge]:
        """Record input offsets of a transaction."""
        known, started = Knowledge(), self.now()
        try:
            yield known
        finally:
            self.operations.append(
                h.SendOffsets(
                    process, started, self.now(), known.outcome, txn.name, group, claims, known.error
                )
            )

    @contextmanager
    def ending(self, process: str, txn: Txn, *, is_commit: bool) -> Iterator[Knowledge]:
        """Record the end of a transaction."""
        known, started = Knowledge(), self.now()
        kind = h.Commit if is_commit else h.Abort
        try:
            yield known
        finally:
            self.operations.append(kind(process, started, self.now(), known.outcome, txn.name, known.error))

    def assigned(self, process: str, topic: str, partition: int, position: int) -> None:
        """Record where a process begins to read."""
        now = self.now()
        self.operations.append(h.Assign(process, now, now, h.OK, topic, partition, position))

    @contextmanager
    def polling(
        self, process: str, topic: str, partition: int, isolation: Isolation, txn: Txn | None = None
    ) -> Iterator[Knowledge]:
        """Record a poll."""
        known, started = Knowledge(), self.now()
        yield known
        found = known.found
        if found is None:
            return
        ended = self.now()
        if self._tells_ends:
            # Ends that one broker has shown must not go back at another.
            seen = (0, found.last_stable_offset, found.high_watermark)
            self.operations.append(h.Ends(process, started, ended, h.OK, topic, partition, *seen))
        self.operations.append(
            h.Poll(
                process,
                started,
                ended,
                h.OK,
                topic,
                partition,
                tuple((each.offset, each.value) for each in found.records),
                _ISOLATIONS[isolation],
                None if txn is None else txn.name,
                found.next_offset,
                found.last_stable_offset,
            )
        )

    def fetched_offset(
        self, process: str, started: int, group: str, topic: str, partition: int, position: int
    ) -> None:
        """Record a fetch of a group's offset."""
        self.operations.append(
            h.OffsetFetch(
                process,
                started,
                self.now(),
                h.OK,
                group,
                topic,
                partition,
                position if position >= 0 else None,
            )
        )

    def ends(self, topic: str, partition: int, log_start: int, stable: int, high: int) -> None:
        """Record the final offsets of a partition."""
        now = self.now()
        self.operations.append(
            h.Ends("the end", now, now, h.OK, topic, partition, log_start, stable, high, is_settled=True)
        )
