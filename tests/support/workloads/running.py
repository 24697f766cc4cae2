"""Workers under faults that record their own history.

A ``Worker`` is a thread. Its operations go to a ``Recorder`` as they happen, and `semel.check` judges them at
the end. After an error, the worker does what the client's library requires; an unknown outcome is recorded as
unknown, and only what readers see can settle it.
"""

import random
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from semel.check import Claim, Process, Recorder
from semel.client import Client, ClientError, Consumer, Isolation, KafkaError, Partition
from support.waiting import LIMIT_SECONDS
from support.workloads.clients import KINDS, Sent, Then, Writing

PATIENCE_SECONDS = LIMIT_SECONDS
"""The limit for a commit with an unknown outcome, and for a broker that is away."""
TIMEOUT_MS = 60_000


class Place(NamedTuple):
    """The cluster that a workload uses, and its recorder."""

    bootstrap: str
    recorder: Recorder
    timeout_ms: int = TIMEOUT_MS
    tells_timeouts: bool = True
    """Whether a producer that is fenced before its timeout was fenced without a reason.

    Not after a broken disk, where a new term fences everything that was open."""
    tells_offsets: bool = True
    """Whether the offsets that a library reports are worth recording.

    A record of an open transaction has no offset in a journal topic. The broker returns -1 then, and
    libraries count on from there for the rest of a batch."""

    @property
    def is_cluster(self) -> bool:
        """Whether there is more than one broker."""
        return "," in self.bootstrap


class Worker(threading.Thread):
    """A thread that keeps its failure and reports its progress."""

    has_always_work = True

    def __init__(self, name: str, place: Place) -> None:
        super().__init__(name=name, daemon=True)
        self.place = place
        self.stopping = threading.Event()
        self.failure = ""
        self.steps = 0
        """How many transactions have ended, or polls were answered."""

    def run(self) -> None:
        try:
            self.work()
        except BaseException:  # noqa: BLE001 - reported by `failures`, in the thread that waits
            self.failure = traceback.format_exc()

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Stop the worker, and wait until it ends."""
        self.stopping.set()
        self.join(2 * PATIENCE_SECONDS)
        if self.is_alive():
            self.failure = self.failure or f"{self.name} does not end"


class Producing:
    """A transactional id in one client after another, each recorded as its own process."""

    def __init__(self, place: Place, kind: str, transactional_id: str) -> None:
        self.place = place
        self.kind = kind
        self.transactional_id = transactional_id
        self.committed = 0
        self.troubles: list[str] = []
        """Errors that the library has reported to the application."""
        self._client: Writing | None = None
        self._process: Process | None = None

    @property
    def client(self) -> Writing:
        assert self._client is not None
        return self._client

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    def transaction(
        self,
        records: Sequence[Sent],
        *,
        is_commit: bool,
        group: tuple[str, Any, Sequence[Claim]] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """Run one transaction; return whether it was acknowledged as committed."""
        if self._client is None:
            self._open()
        name = self.process.begin(self.transactional_id)
        try:
            self.client.begin()
            self._write(name, records)
            if group is not None:
                self._send_offsets(name, *group)
        except self.client.errors as error:
            self._note(error)
            self._give_up(name, self.client.after(error))
            return False
        meanwhile()
        done = self._commit(name) if is_commit else self._abort(name)
        self.committed += done and is_commit
        return done and is_commit

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _open(self) -> None:
        """Take over the id. While the broker is away, try again, each time as another process."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._client = KINDS[self.kind](
                self.place.bootstrap, self.transactional_id, self.place.timeout_ms
            )
            self._process = self.place.recorder.process(self.kind)
            timeout = self.place.timeout_ms * 1_000_000 if self.place.tells_timeouts else None
            try:
                with self.process.init(self.transactional_id, timeout=timeout) as told:
                    told.pair = self.client.open()
                return
            except self.client.errors as error:
                self._note(error)
                self.close()
                if time.monotonic() > deadline:
                    raise

    def _write(self, name: str, records: Sequence[Sent]) -> None:
        with ExitStack() as blocks:
            told = [
                blocks.enter_context(self.process.produce(each.topic, each.partition, [each.value], name))
                for each in records
            ]
            for each, offset in zip(told, self.client.write(records), strict=True):
                each.offset = offset if self.place.tells_offsets else None

    def _send_offsets(self, name: str, group: str, metadata: Any, claims: Sequence[Claim]) -> None:
        positions = {(each.topic, each.partition): each.until for each in claims}
        with self.process.send_offsets(name, group, claims):
            self.client.send_offsets(positions, metadata)

    def _commit(self, name: str) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self.process.commit(name) as told:
                    try:
                        self.client.commit()
                    except self.client.errors as error:
                        if self.client.after(error) is Then.NOTHING:
                            # The library guarantees that the transaction was aborted.
                            told.outcome = "fail"
                        raise
                return True
            except self.client.errors as error:
                self._note(error)
                then = self.client.after(error)
                if then is Then.AGAIN and time.monotonic() < deadline:
                    continue
                self._give_up(name, then)
                return False

    def _abort(self, name: str) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self.process.abort(name):
                    self.client.abort()
                return True
            except self.client.errors as error:
                self._note(error)
                if self.client.after(error) is not Then.AGAIN or time.monotonic() > deadline:
                    self._replace()
                    return False

    def _note(self, error: Exception) -> None:
        self.troubles.append(f"{self.kind}: {error!r}")

    def _give_up(self, name: str, then: Then) -> None:
        if then is Then.ABORT:
            self._abort(name)
        elif then is not Then.NOTHING:
            self._replace()

    def _replace(self) -> None:
        """Close this instance; the next transaction starts another one, which fences it."""
        self.close()


class Writer(Worker):
    """Writes one transaction after another, as `plan` says, until it is stopped."""

    ABORTS = 0.25

    def __init__(
        self, place: Place, kind: str, name: str, plan: Callable[[random.Random], list[Sent]], seed: int
    ) -> None:
        super().__init__(f"{kind} {name}", place)
        self.producing = Producing(place, kind, name)
        self.plan = plan
        self.slowest_seconds = 0.0
        """The duration of the slowest transaction, retries included."""
        self._chance = random.Random(seed)

    def work(self) -> None:
        try:
            while not self.stopping.is_set():
                is_commit = self._chance.random() >= self.ABORTS
                begun = time.monotonic()
                self.producing.transaction(self.plan(self._chance), is_commit=is_commit)
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - begun)
                self.steps += 1
        finally:
            self.producing.close()


class Reader(Worker):
    """Reads partitions from the beginning with Semel's client, in one isolation level."""

    def __init__(self, place: Place, partitions: Sequence[Partition], isolation: Isolation) -> None:
        super().__init__(f"reader {isolation.name.lower()}", place)
        self.partitions = partitions
        self.isolation = isolation

    def work(self) -> None:
        process = self.place.recorder.process("reader")
        with Client(self.place.bootstrap, timeout_s=PATIENCE_SECONDS) as client:
            consumer = Consumer(client, isolation=self.isolation)
            consumer.assign(self.partitions)
            process.assign(dict.fromkeys(self.partitions, 0))
            while not self.stopping.is_set():
                poll(process, consumer, self.isolation, 0.1)
                self.steps += 1


def poll(process: Process, consumer: Consumer, isolation: Isolation, seconds: float) -> list[str]:
    """Poll Semel's consumer once and record the poll; return the values."""
    started = process.recorder.clock()
    found = consumer.poll(seconds)
    values = [(each.value or b"").decode() for each in found]
    process.poll(
        started,
        [(each.topic, each.partition, each.offset, value) for each, value in zip(found, values, strict=True)],
        isolation="read_committed" if isolation is Isolation.READ_COMMITTED else "read_uncommitted",
        positions=consumer.positions(),
    )
    return values


class Workload:
    """Workers on some topics, and conditions that must hold at the end besides the history."""

    def __init__(self, place: Place, topics: dict[str, int], visibility: str) -> None:
        self.place = place._replace(tells_offsets=visibility == "marker")
        self.topics = topics
        """Number of partitions by topic."""
        self.visibility = visibility
        self.workers: list[Worker] = []

    @property
    def partitions(self) -> list[Partition]:
        return [(name, index) for name, count in self.topics.items() for index in range(count)]

    @property
    def writers(self) -> list[Worker]:
        """The workers whose progress a fault waits for."""
        return [each for each in self.workers if not isinstance(each, Reader)]

    def configs(self, topic: str) -> dict[str, str]:
        """Return the configs of a topic."""
        return {"semel.visibility": self.visibility}

    @property
    def transactional_ids(self) -> list[str]:
        raise NotImplementedError

    @property
    def groups(self) -> dict[str, list[Partition]]:
        """Groups whose offsets are part of transactions, and the partitions they read."""
        return {}

    def problems(self) -> list[str]:
        """Return errors that the history does not show; called after the final read."""
        return []

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        """Stop all workers; each ends what it has begun."""
        for worker in self.workers:
            worker.stopping.set()
        for worker in self.workers:
            if worker.ident is not None:
                worker.finish()

    def failures(self) -> list[str]:
        return [f"{each.name}: {each.failure}" for each in self.workers if each.failure]


QUIET = (KafkaError, ClientError, OSError, AssertionError)
"""The errors that clients get while a broker is away."""
