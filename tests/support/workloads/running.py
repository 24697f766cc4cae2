"""Work under faults that writes its own history: whoever writes, whoever reads, and how each of them goes on.

A ``Worker`` is a thread. What it does goes to a ``Recorder`` as it happens, and `semel.check` judges it when
all is over. Whatever a client is told, the worker does what the client's library asks for; what stays unknown
is written down as unknown, and only what readers see can settle it.
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
"""For a commit whose outcome is not known, and for a broker that is away."""
TIMEOUT_MS = 60_000


class Place(NamedTuple):
    """Where a workload runs."""

    bootstrap: str
    recorder: Recorder
    timeout_ms: int = TIMEOUT_MS
    tells_timeouts: bool = True
    """Whether whoever is fenced before its timeout was fenced without a reason. Not after a broken disk,
    where a new term fences all that was open."""
    tells_offsets: bool = True
    """Whether what a library says of offsets is worth writing down. A record of an open transaction has none
    in a journal topic. The broker says -1 then, and libraries count on from there for the rest of a batch."""

    @property
    def is_cluster(self) -> bool:
        """Whether there are several brokers."""
        return "," in self.bootstrap


class Worker(threading.Thread):
    """A thread whose failure is kept, and which tells of its progress."""

    has_always_work = True

    def __init__(self, name: str, place: Place) -> None:
        super().__init__(name=name, daemon=True)
        self.place = place
        self.stopping = threading.Event()
        self.failure = ""
        self.steps = 0
        """What it has done: transactions that ended, or polls that were answered."""

    def run(self) -> None:
        try:
            self.work()
        except BaseException:  # noqa: BLE001 - whoever waits for the thread has to hear of it
            self.failure = traceback.format_exc()

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Ask it to end, and wait."""
        self.stopping.set()
        self.join(2 * PATIENCE_SECONDS)
        if self.is_alive():
            self.failure = self.failure or f"{self.name} does not end"


class Producing:
    """A transactional id in one client after another, each of them recorded as a process of its own."""

    def __init__(self, place: Place, kind: str, transactional_id: str) -> None:
        self.place = place
        self.kind = kind
        self.transactional_id = transactional_id
        self.committed = 0
        self.troubles: list[str] = []
        """Errors that the library has told the application."""
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
        """One transaction from beginning to end; whether it was acknowledged as committed."""
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
        """Take the id over. While the broker is away that is tried again, each time by another process."""
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
                            # The library promises that nothing of it counts.
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
        """The next transaction is that of another instance, which fences this one."""
        self.close()


class Writer(Worker):
    """Writes one transaction after another, as `plan` says, until it is told to stop."""

    ABORTS = 0.25

    def __init__(
        self, place: Place, kind: str, name: str, plan: Callable[[random.Random], list[Sent]], seed: int
    ) -> None:
        super().__init__(f"{kind} {name}", place)
        self.producing = Producing(place, kind, name)
        self.plan = plan
        self.slowest_seconds = 0.0
        """How long its slowest transaction took, with all that was tried again."""
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
    """Reads partitions from the beginning on, by Semel's client, in one isolation."""

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
    """One poll of Semel's consumer, written down; the values."""
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
    """Some workers on some topics, and what must be true of them when all is over beside the history."""

    def __init__(self, place: Place, topics: dict[str, int], visibility: str) -> None:
        self.place = place._replace(tells_offsets=visibility == "marker")
        self.topics = topics
        """Partitions by name."""
        self.visibility = visibility
        self.workers: list[Worker] = []

    @property
    def partitions(self) -> list[Partition]:
        return [(name, index) for name, count in self.topics.items() for index in range(count)]

    @property
    def writers(self) -> list[Worker]:
        """Those whose progress a fault waits for."""
        return [each for each in self.workers if not isinstance(each, Reader)]

    def configs(self, topic: str) -> dict[str, str]:
        """How a topic is made."""
        return {"semel.visibility": self.visibility}

    @property
    def transactional_ids(self) -> list[str]:
        raise NotImplementedError

    @property
    def groups(self) -> dict[str, list[Partition]]:
        """Groups whose positions are a part of transactions, and the partitions they read."""
        return {}

    def problems(self) -> list[str]:
        """What is wrong and does not show in the history; asked after the final read."""
        return []

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        """Everyone ends what is begun."""
        for worker in self.workers:
            worker.stopping.set()
        for worker in self.workers:
            if worker.ident is not None:
                worker.finish()

    def failures(self) -> list[str]:
        return [f"{each.name}: {each.failure}" for each in self.workers if each.failure]


QUIET = (KafkaError, ClientError, OSError, AssertionError)
"""What a broker that is away does to those who ask it."""
