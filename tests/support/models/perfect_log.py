"""Correct histories: a log that does everything right, and clients that lose answers, crash and come back.

The log is a few lists. Clients are generators: at every `yield` another client may continue. A request may be
lost, its answer may be lost, or it may arrive long after its sender gave up. All choices come from one seed.
"""

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from semel.check import (
    FAIL,
    INFO,
    OK,
    Abort,
    Assign,
    Begin,
    Claim,
    Commit,
    Ends,
    Init,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Poll,
    Produce,
    SendOffsets,
    Topic,
    Trim,
    outcome_of,
)

Partition = tuple[str, int]
Step = Generator[None, None, Any]

INPUTS: list[Partition] = [("in", 0), ("in-journal", 0)]
OUTPUTS: list[Partition] = [("out", 0), ("out", 1), ("out-journal", 0), ("out-journal", 1)]
TRIMMED: Partition = ("short", 0)
JOURNALS = {"in-journal", "out-journal"}
FENCED = "PRODUCER_FENCED"
WRONG_STATE = "INVALID_TXN_STATE"
UNSTABLE = "UNSTABLE_OFFSET_COMMIT"
GROUP = "copiers"


@dataclass
class Log:
    """One partition: values with their transactions; a marker has no value, but an outcome."""

    entries: list[tuple[str | None, str | None, bool]] = field(default_factory=list)
    flushed: int = 0
    start: int = 0


@dataclass
class Open:
    """A transaction that is open."""

    name: str
    first: dict[Partition, int] = field(default_factory=dict)
    staged: dict[Partition, list[str]] = field(default_factory=dict)
    positions: dict[tuple[str, Partition], int] = field(default_factory=dict)


class PerfectLog:
    """The broker. Every call is atomic, and may be repeated."""

    def __init__(self) -> None:
        self.logs = {key: Log() for key in (*INPUTS, *OUTPUTS, TRIMMED)}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Open] = {}
        self.ended: dict[str, tuple[int, bool]] = {}
        self.positions: dict[tuple[str, Partition], int] = {}
        self.outcomes: dict[str, bool] = {}
        self._acknowledged: dict[tuple[str, ...], int | None] = {}

    def init(self, txid: str) -> int:
        if txid in self.open:
            self._end(txid, is_commit=False)
        self.epochs[txid] = self.epochs.get(txid, -1) + 1
        self.ended.pop(txid, None)
        return self.epochs[txid]

    def produce(
        self, key: Partition, values: tuple[str, ...], tx: tuple[str, int, str] | None, is_idempotent: bool
    ) -> Any:
        if is_idempotent and values in self._acknowledged:
            return self._acknowledged[values]
        log = self.logs[key]
        offset: int | None = len(log.entries)
        if tx is None:
            log.entries += [(value, None, True) for value in values]
            self._flush()
        else:
            txid, epoch, name = tx
            if self.epochs[txid] != epoch:
                return FENCED
            opened = self.open.setdefault(txid, Open(name))
            if key[0] in JOURNALS:
                opened.staged.setdefault(key, []).extend(values)
                offset = None
            else:
                opened.first.setdefault(key, len(log.entries))
                log.entries += [(value, name, True) for value in values]
        self._acknowledged[values] = offset
        return offset

    def send_positions(self, tx: tuple[str, int, str], claims: tuple[Claim, ...]) -> str | None:
        txid, epoch, name = tx
        if self.epochs[txid] != epoch:
            return FENCED
        opened = self.open.setdefault(txid, Open(name))
        for claim in claims:
            opened.positions[GROUP, (claim.topic, claim.partition)] = claim.until
        return None

    def end(self, txid: str, epoch: int, is_commit: bool) -> str | None:
        if self.ended.get(txid) == (epoch, is_commit):
            return None
        if self.epochs[txid] != epoch:
            return WRONG_STATE if self.ended.get(txid, (None,))[0] == epoch else FENCED
        if txid not in self.open and is_commit:
            return WRONG_STATE
        if txid in self.open:
            self._end(txid, is_commit)
        self.epochs[txid] += 1
        self.ended[txid] = (epoch, is_commit)
        return None

    def _end(self, txid: str, is_commit: bool) -> None:
        opened = self.open.pop(txid)
        self.outcomes[opened.name] = is_commit
        for key in opened.first:
            self.logs[key].entries.append((None, opened.name, is_commit))
        if is_commit:
            for key, values in opened.staged.items():
                self.logs[key].entries += [(value, opened.name, True) for value in values]
            self.positions |= opened.positions
        self._flush()

    def _flush(self) -> None:
        for log in self.logs.values():
            log.flushed = len(log.entries)

    def lose_power(self) -> None:
        """Remove what was not flushed, and abort open transactions."""
        for log in self.logs.values():
            del log.entries[log.flushed :]
        for txid in list(self.open):
            opened = self.open[txid]
            logs = self.logs
            opened.first = {key: first for key, first in opened.first.items() if first < logs[key].flushed}
            self.init(txid)

    def stable(self, key: Partition) -> int:
        firsts = [each.first[key] for each in self.open.values() if key in each.first]
        return min([*firsts, self.logs[key].flushed])

    def is_pending(self, group: str, key: Partition) -> bool:
        return any((group, key) in each.positions for each in self.open.values())

    def read(self, key: Partition, position: int, isolation: str, most: int) -> tuple[list[Any], int]:
        """Read from a position; return the records and the reader's next position."""
        log = self.logs[key]
        is_all = isolation == "read_uncommitted" or key[0] in JOURNALS
        bound = log.flushed if is_all else self.stable(key)
        found: list[tuple[int, str]] = []
        while position < bound and len(found) < most:
            value, name, _ = log.entries[position]
            if value is not None and (is_all or name is None or self.outcomes[name]):
                found.append((position, value))
            position += 1
        return found, position


class World:
    """The log, its clients, the time, and the recorded operations."""

    def __init__(self, seed: int, ticks: int = 250) -> None:
        self.rng = random.Random(seed)
        self.log = PerfectLog()
        self.operations: list[Operation] = [Topic(name, "journal") for name in sorted(JOURNALS)]
        self.now = 0
        self._late: list[Callable[[], Any]] = []
        self._lives = 0
        self._values = 0
        self.trouble = self.rng.choice((0.0, 0.05, 0.2))
        self._run(ticks)

    def _run(self, ticks: int) -> None:
        lives = self.rng.choice((2, 2, 3))  # A third one competes for the id of the first.
        actors: list[Step] = [
            *(self._writer(f"writer-{number % 2}") for number in range(lives)),
            *(self._copier(f"copier-{number % 2}", INPUTS[number % 2]) for number in range(lives)),
            *(
                self._reader(isolation)
                for isolation in ("read_committed", "read_uncommitted", "commit_order")
            ),
            self._reader("read_committed"),
            *(self._plain_writer(is_idempotent) for is_idempotent in (True, True, False)),
            self._plain_group(),
            self._watcher(),
        ]
        for _ in range(ticks):
            self.now += self.rng.choice((0, 1, 1, 3))
            self._step(actors)
            if self._late and self.rng.random() < 0.1:
                self._late.pop(self.rng.randrange(len(self._late)))()
            if self.rng.random() < 0.001:
                self.log.lose_power()
        for actor in actors:
            actor.close()
        self._settle()

    def _step(self, actors: list[Step]) -> None:
        actor = self.rng.choice(actors)
        try:
            next(actor)
        except StopIteration:
            actors.remove(actor)

    def _settle(self) -> None:
        self.now += 10
        for txid in sorted(self.log.epochs):
            epoch = self.log.init(txid)
            self.add(Init(self.life("end"), self.now, self.now, OK, txid, 0, epoch))
        self.now += 10
        for key, log in self.log.logs.items():
            end = log.flushed
            ends = (log.start, self.log.stable(key), end)
            self.add(Ends("end", self.now, self.now, OK, *key, *ends, is_settled=True))
        self.now += 10
        for isolation in ("read_committed", "read_uncommitted"):
            for key, log in self.log.logs.items():
                process = self.life("end")
                self.add(Assign(process, self.now, self.now, OK, *key, log.start))
                found, position = self.log.read(key, log.start, isolation, 1 << 30)
                times = (self.now, self.now)
                self.add(Poll(process, *times, OK, *key, tuple(found), isolation, None, position))
        for (group, key), position in self.log.positions.items():
            self.add(OffsetFetch("end", self.now, self.now, OK, group, *key, position))

    # ---- for clients

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def life(self, name: str) -> str:
        self._lives += 1
        return f"{name}.{self._lives}"

    def value(self, name: str) -> str:
        self._values += 1
        return f"{name}-{self._values}"

    def pause(self) -> Iterator[None]:
        for _ in range(self.rng.choice((0, 0, 0, 1, 5))):
            yield

    def rest(self) -> Iterator[None]:
        """Pause between two lives, so that a client that took over can make progress."""
        for _ in range(self.rng.choice((0, 5, 50))):
            yield

    def ask(self, effect: Callable[[], Any]) -> Step:
        """Ask until there is an answer or patience ends.

        Returns whether there is an answer, the answer, and whether it came at the only attempt."""
        for attempt in range(3):
            yield
            luck = self.rng.random()
            if luck >= self.trouble:
                answer = effect()
                yield
                return True, answer, attempt == 0
            if luck < self.trouble / 3:
                effect()
            elif luck < self.trouble * 2 / 3:
                self._late.append(effect)
            yield
            if self.rng.random() < 0.4:
                break
        return False, None, False

    def call(self, kind: str, made: Any, effect: Callable[[], Any]) -> Step:
        """Ask, and record the operation; return the outcome and the answer."""
        started = self.now
        start = made._replace(started=started, ended=None)
        if self.rng.random() < 0.3:
            self.add(start)  # Like a recorder: known even if the client is killed.
        try:
            is_answered, answer, is_only = yield from self.ask(effect)
        except GeneratorExit:
            self.add(start)
            raise
        error = answer if isinstance(answer, str) else None
        if not is_answered:
            error = "REQUEST_TIMED_OUT"
        outcome = outcome_of(kind, error, is_only_attempt=is_only)
        operation = made._replace(started=started, ended=self.now, outcome=outcome, error=error)
        if isinstance(operation, Produce) and outcome == OK:
            operation = operation._replace(offset=answer)
        if isinstance(operation, OffsetCommit):
            operation = operation._replace(is_only_attempt=is_only)
        self.add(operation)
        return outcome, answer

    # ---- clients

    def _begin(self, process: str, txid: str, count: int) -> str:
        name = f"{process}/{count}"
        self.add(Begin(process, self.now, self.now, OK, name, txid))
        return name

    def _taken_over(self, process: str, txid: str) -> Step:
        outcome, epoch = yield from self.call(
            "init", Init(process, 0, 0, INFO, txid), lambda: self.log.init(txid)
        )
        return epoch if outcome == OK else None

    def _writer(self, txid: str) -> Step:
        while True:
            yield from self.rest()
            process = self.life(txid)
            epoch = yield from self._taken_over(process, txid)
            count = 0
            while epoch is not None:
                count += 1
                name = self._begin(process, txid, count)
                epoch = yield from self._transaction(process, (txid, epoch, name), ())
                yield from self.pause()

    def _transaction(self, process: str, tx: tuple[str, int, str], claims: tuple[Claim, ...]) -> Step:
        """Run one transaction; return the epoch of the next one, or None if this life is over."""
        rng = self.rng
        is_well = True
        for _ in range(rng.randint(1, 4)):
            key, values = rng.choice(OUTPUTS), tuple(self.value(tx[0]) for _ in range(rng.choice((1, 1, 3))))
            made = Produce(process, 0, 0, INFO, *key, values, None, tx[2])
            effect = self._producing(key, values, tx)
            outcome, _ = yield from self.call("produce", made, effect)
            is_well = is_well and outcome == OK
            yield from self.pause()
            if rng.random() < 0.03:
                return None
        if claims and is_well:
            made_offsets = SendOffsets(process, 0, 0, INFO, tx[2], GROUP, claims)
            outcome, _ = yield from self.call(
                "send_offsets", made_offsets, lambda: self.log.send_positions(tx, claims)
            )
            is_well = outcome == OK
        return (yield from self._ending(process, tx, is_well and rng.random() < 0.75))

    def _producing(
        self,
        key: Partition,
        values: tuple[str, ...],
        tx: tuple[str, int, str] | None,
        is_idempotent: bool = True,
    ) -> Callable[[], Any]:
        return lambda: self.log.produce(key, values, tx, is_idempotent)

    def _ending(self, process: str, tx: tuple[str, int, str], is_commit: bool) -> Step:
        kind = Commit if is_commit else Abort
        effect = self._ends(tx, is_commit)
        name = "commit" if is_commit else "abort"
        outcome, _ = yield from self.call(name, kind(process, 0, 0, INFO, tx[2]), effect)
        return tx[1] + 1 if outcome == OK else None

    def _ends(self, tx: tuple[str, int, str], is_commit: bool) -> Callable[[], Any]:
        return lambda: self.log.end(tx[0], tx[1], is_commit)

    def _copier(self, txid: str, source: Partition) -> Step:
        while True:
            yield from self.rest()
            process = self.life(txid)
            epoch = yield from self._taken_over(process, txid)
            position = None if epoch is None else (yield from self._position(process, source))
            if position is None:
                continue
            self.add(Assign(process, self.now, self.now, OK, *source, position))
            count = 0
            while epoch is not None:
                count += 1
                name = self._begin(process, txid, count)
                started = self.now
                yield
                found, until = self.log.read(source, position, "read_committed", self.rng.randint(1, 4))
                yield
                self.add(
                    Poll(
                        process,
                        started,
                        self.now,
                        OK,
                        *source,
                        tuple(found),
                        transaction=name,
                        position=until,
                    )
                )
                claims = (Claim(*source, position, until),) if found else ()
                epoch = yield from self._transaction(process, (txid, epoch, name), claims)
                if self.log.outcomes.get(name) and epoch is not None:
                    position = until
                elif epoch is not None:
                    self.add(Assign(process, self.now, self.now, OK, *source, position))

    def _position(self, process: str, source: Partition) -> Step:
        started = self.now
        yield
        if self.log.is_pending(GROUP, source):
            error = UNSTABLE
            self.add(OffsetFetch(process, started, self.now, FAIL, GROUP, *source, None, error=error))
            return None
        position = self.log.positions.get((GROUP, source))
        yield
        self.add(OffsetFetch(process, started, self.now, OK, GROUP, *source, position))
        return position or 0

    def _plain_writer(self, is_idempotent: bool) -> Step:
        while True:
            process = self.life("plain")
            for _ in range(self.rng.randint(1, 10)):
                key = self.rng.choice([*INPUTS, *INPUTS, *OUTPUTS, TRIMMED])
                values = (self.value("plain"),)
                made = Produce(process, 0, 0, INFO, *key, values, is_idempotent=is_idempotent)
                yield from self.call("produce", made, self._producing(key, values, None, is_idempotent))
                yield from self.pause()

    def _reader(self, isolation: str) -> Step:
        while True:
            process, key = self.life("reader"), self.rng.choice(list(self.log.logs))
            position = self.rng.randint(self.log.logs[key].start, self.log.logs[key].flushed)
            position = self.log.logs[key].start if self.rng.random() < 0.7 else position
            self.add(Assign(process, self.now, self.now, OK, *key, position))
            for _ in range(self.rng.randint(1, 8)):
                started = self.now
                yield
                if position < self.log.logs[key].start:
                    position = self.log.logs[key].start
                    self.add(Assign(process, started, self.now, OK, *key, position))
                    started = self.now
                found, position = self.log.read(key, position, isolation, self.rng.randint(1, 6))
                if isolation == "commit_order" and key[0] not in JOURNALS:
                    self.rng.shuffle(found)
                shown = position if self.rng.random() < 0.5 else None
                stable = self.log.stable(key) if isolation == "read_committed" else None
                yield
                records = tuple(found)
                times = (started, self.now)
                self.add(Poll(process, *times, OK, *key, records, isolation, None, shown, stable))  # type: ignore[arg-type]
                yield from self.pause()

    def _plain_group(self) -> Step:
        """Run a group that commits outside transactions, forwards and backwards."""
        place, key = ("plain", ("out", 0)), ("out", 0)
        while True:
            process = self.life("group")
            for _ in range(self.rng.randint(1, 6)):
                position = self.rng.randint(0, 30)
                made = OffsetCommit(process, 0, 0, INFO, "plain", *key, position)
                yield from self.call(
                    "offset_commit", made, partial(self.log.positions.update, {place: position})
                )
                started = self.now
                yield
                told = self.log.positions.get(place)
                yield
                self.add(OffsetFetch(process, started, self.now, OK, "plain", *key, told))

    def _watcher(self) -> Step:
        process = self.life("watcher")
        while True:
            key = self.rng.choice(list(self.log.logs))
            started = self.now
            yield
            log = self.log.logs[key]
            ends = (log.start, self.log.stable(key), log.flushed)
            yield
            self.add(Ends(process, started, self.now, OK, *key, *ends))
            if self.rng.random() < 0.1:
                log = self.log.logs[TRIMMED]
                log.start = self.rng.randint(log.start, log.flushed)
                self.add(Trim(process, self.now, self.now, OK, *TRIMMED, log.start))


def correct_history(seed: int, ticks: int = 250) -> list[Operation]:
    """Return what clients of a log that does everything right did and saw."""
    return World(seed, ticks).operations
