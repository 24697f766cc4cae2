"""Kills broker, driver, JVM and Python workers at random during one long pipeline: 0 lost, 0 duplicated.

A feeder writes numbers, a pipeline copies them, and one of the processes gets SIGKILL at a random time within
a batch: after Spark has written the batch to the offsets log of the checkpoint, and before the commits log. A
supervisor restarts stopped processes, as in production. A killed broker restarts with or without Semel's
protocol extensions. A seed determines the victim, the delay after the last progress and the delay after the
beginning of the batch, but not what the victim was doing.

It does the same with a cluster of three: one or several brokers are killed at once. Between the kills, a
reader checks that no batch is visible in part.
"""

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import psutil
from confluent_kafka import KafkaError, Message, Producer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.chance import fresh_seed
from support.spark.driver import DriverProcess
from support.spark.jobs import Pipeline, committed, create, open_transactions, values
from support.waiting import until

from semel.client import Admin, Client, ClientError, Consumer
from semel.client import KafkaError as Refused
from verification.pipeline_brokers import Brokers, alone

T = TypeVar("T")

MOMENT_SECONDS: Final = 1.5
"""The longest delay between progress of the pipeline and a kill: a few batches."""
PROGRESS_SECONDS: Final = 120.0
"""How long the pipeline may make no progress, including a start of Spark and a broker."""
IN_BATCH_SECONDS: Final = 0.4
"""The longest delay between the beginning of a batch and a kill: less than most batches take."""
RECORDS_EACH_SECOND: Final = 500
LOOK_SECONDS: Final = 30.0
"""How long a reader waits for brokers that are away."""


class Feeder(threading.Thread):
    """An idempotent producer that writes numbers from 0 on until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="feeder")
        self.acknowledged = 0
        self.failed: list[str] = []
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self.count = 0

    def run(self) -> None:
        """Write until stopped."""
        portion = RECORDS_EACH_SECOND // 20
        while not self._stopping.wait(0.05):
            for _ in range(portion):
                value, key = b"value %d" % self.count, b"key %d" % self.count
                self._producer.produce("in", value, key, on_delivery=self._delivered)
                self.count += 1
            self._producer.poll(0)
        assert self._producer.flush(120) == 0

    def stop(self) -> None:
        """Stop writing, and wait for deliveries."""
        self._stopping.set()
        self.join()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(str(error))


class Look(NamedTuple):
    """What a reader saw of the output, and the pipeline's input offsets before and after."""

    before: Mapping[int, int]
    seen: Counter[bytes]
    after: Mapping[int, int]

    def problems(self, inputs: Mapping[int, list[bytes]]) -> list[str]:
        """Return what was visible in part: a committed batch must be seen completely, others not at all."""
        least, most = (_first(inputs, reached) for reached in (self.before, self.after))
        missing, early = sorted(least - self.seen), sorted(self.seen - most)
        told = (
            [f"{len(missing)} records of batches that count were not seen: {missing[:3]}"] if missing else []
        )
        return [*told, *([f"{len(early)} of batches that do not were: {early[:3]}"] if early else [])]


def _first(inputs: Mapping[int, list[bytes]], reached: Mapping[int, int]) -> Counter[bytes]:
    """Return the records of each partition up to an offset."""
    return Counter(value for number, offset in reached.items() for value in inputs[number][:offset])


class Chaos:
    """The pipeline, its supervisor, and the kills so far."""

    def __init__(self, brokers: Brokers, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.brokers = brokers
        self.pipeline = Pipeline(None, brokers.bootstrap, directory)
        # More than the input rate, so that batches are small and the pipeline catches up after a pause.
        self.pipeline.source_options["maxOffsetsPerTrigger"] = 20 * RECORDS_EACH_SECOND
        self.driver = DriverProcess(self.pipeline, is_endless=True)
        self.killed: Counter[str] = Counter()
        self.in_batch = 0
        """The number of kills within a batch: in the offsets log, but not in the commits log."""
        self.starts = 0
        self.looks: list[Look] = []
        self._seen: set[psutil.Process] = set()

    def supervise(self) -> None:
        """Restart stopped processes."""
        self.brokers.supervise(self.chance)
        if not self.driver.is_alive:
            self.driver.start()
            self.starts += 1

    def reached(self) -> int:
        """Return the sum of the pipeline's input offsets."""
        with Client(self.brokers.bootstrap, timeout_s=5) as client:
            return sum(self._offsets(client).values())

    def _offsets(self, client: Client) -> dict[int, int]:
        """Return the pipeline's offset in each partition of its input."""
        found = Admin(client).groups.offsets(self.pipeline.name)
        return {number: each.offset for (_, number), each in found.items()}

    def look(self) -> None:
        """Read the output while the pipeline runs."""
        with Client(self.brokers.bootstrap, timeout_s=LOOK_SECONDS) as client:
            before = self._offsets(client)
            seen = Counter(value for part in _by_partition(client, "out").values() for value in part)
            self.looks.append(Look(before, seen, self._offsets(client)))

    def await_progress(self, what: str) -> None:
        """Wait for progress of the pipeline, restarting stopped processes."""
        before = _or(self.reached, 0)

        def is_further() -> bool:
            self.supervise()
            return _or(self.reached, 0) > before

        until(is_further, PROGRESS_SECONDS, f"progress after {what}")
        self._seen.update(self.driver.processes())

    def kill_somebody(self) -> str:
        """Send SIGKILL to one of the processes, at a random time within a batch."""
        time.sleep(self.chance.uniform(0, MOMENT_SECONDS))  # the time of the kill is random
        victim = self.chance.choice(self.brokers.victims)
        self._await_batch()
        self._seen.update(self.driver.processes())
        if victim == "broker":
            self.brokers.kill(self.chance)
        elif victim == "driver":
            self.driver.kill()
        else:
            found = [each for each in self.driver.processes()[1:] if _is_java(each) == (victim == "JVM")]
            if not found:
                return self.kill_somebody()  # the process has just stopped by itself, or has not started
            _kill(self.chance.choice(found))
        self.killed[victim] += 1
        self.in_batch += self._batch() is not None
        return victim

    def _await_batch(self) -> None:
        """Wait until some time after the beginning of a batch that has not ended."""
        deadline = time.monotonic() + PROGRESS_SECONDS
        while True:
            self.supervise()
            if self._batch() is not None:
                time.sleep(self.chance.uniform(0, IN_BATCH_SECONDS))
                if self._batch() is not None:
                    return
            assert time.monotonic() < deadline, f"no batch within {PROGRESS_SECONDS} seconds"
            time.sleep(0.001)

    def _batch(self) -> int | None:
        """Return the batch that is in the offsets log of the checkpoint, but not in the commits log."""
        begun, ended = (_newest(self.pipeline.checkpoint / name) for name in ("offsets", "commits"))
        return begun if begun > ended else None

    def finish(self) -> None:
        """Let the pipeline process the rest, and stop it."""
        self.supervise()
        if self.driver.is_alive:
            self.driver.kill()
        with DriverProcess(self.pipeline) as last:
            assert last.wait() == 0, last.log.read_text()[-4_000:]

    def end_all(self) -> None:
        """End processes that have outlived their driver."""
        if self.driver.is_alive:
            self.driver.kill()
        for each in self._seen:
            _kill(each)


def _or(ask: Callable[[], T], otherwise: T) -> T:
    """Query the broker; return ``otherwise`` if it is down."""
    try:
        return ask()
    except (ClientError, Refused):
        return otherwise


def _newest(log: Path) -> int:
    """Return the newest batch in a log of the checkpoint; -1 if it is empty."""
    return max((int(each.name) for each in log.glob("*") if each.name.isdigit()), default=-1)


def _is_java(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


@dataclass
class Killed:
    """The result of a pipeline."""

    seed: int
    victims: Counter[str]
    in_batch: int
    """The number of kills within a batch."""
    starts: int
    """Starts of the driver."""
    records: int
    lost: list[bytes] = field(default_factory=list)
    doubled: list[bytes] = field(default_factory=list)
    looks: int = 0
    """How often a reader looked at the output in between."""
    torn: list[str] = field(default_factory=list)
    """What the reader saw of batches in part."""
    problems: list[str] = field(default_factory=list)
    """Other problems."""

    @property
    def kills(self) -> int:
        """The total number of kills."""
        return sum(self.victims.values())

    def __str__(self) -> str:
        victims = ", ".join(f"{number} × {name}" for name, number in sorted(self.victims.items()))
        return (
            f"SEMEL_SEED={self.seed}; killed: {victims}, {self.in_batch} in the middle of a batch; "
            f"the driver was started {self.starts} times; "
            f"{self.records} records, {len(self.lost)} lost, {len(self.doubled)} doubled; "
            f"in {self.looks} looks, {len(self.torn)} torn; "
            f"{'; '.join(self.problems) or 'nothing else is wrong'}"
        )


def run(kills: int, brokers: Callable[[Path], AbstractContextManager[Brokers]] = alone) -> Killed:
    """Kill this often within a batch, then let the pipeline finish, and compare."""
    seed = fresh_seed()
    with tempfile.TemporaryDirectory(prefix="semel-kills-") as name:
        directory = Path(name)
        with brokers(directory) as these:
            create(these.bootstrap, ("in", 2), ("out", 3))
            chaos = Chaos(these, directory / "pipeline", seed)
            feeder = Feeder(these.bootstrap)
            feeder.start()
            try:
                what = "the start"
                # A kill whose batch ended just before does not count, and is repeated.
                while chaos.in_batch < kills:
                    chaos.await_progress(what)
                    if these.commits_once:
                        chaos.look()
                    what = f"the kill of a {chaos.kill_somebody()}"
                chaos.await_progress(what)
                feeder.stop()
                chaos.finish()
            finally:
                feeder.stop()
                chaos.end_all()
            return _judged(chaos, feeder, seed)


def _judged(chaos: Chaos, feeder: Feeder, seed: int) -> Killed:
    bootstrap = chaos.brokers.bootstrap
    expected = values(range(feeder.count))
    found = committed(bootstrap, "out")
    killed = Killed(seed, chaos.killed, chaos.in_batch, chaos.starts, feeder.count)
    killed.lost, killed.doubled = sorted(expected - found), sorted(found - expected)
    killed.looks, killed.torn = len(chaos.looks), _torn(chaos)
    if feeder.failed or feeder.acknowledged != feeder.count:
        killed.problems.append(
            f"of {feeder.count} inputs {feeder.acknowledged} were taken: {feeder.failed[:3]}"
        )
    if committed(bootstrap, "in") != expected:
        killed.problems.append("the input is not what was fed")
    if left := open_transactions(bootstrap):
        killed.problems.append(f"open transactions: {left}")
    return killed


def _torn(chaos: Chaos) -> list[str]:
    """Return what any look saw of batches in part."""
    if not chaos.looks:
        return []
    with Client(chaos.brokers.bootstrap, timeout_s=LOOK_SECONDS) as client:
        inputs = _by_partition(client, "in")
    return [problem for look in chaos.looks for problem in look.problems(inputs)]


def _by_partition(client: Client, topic: str) -> dict[int, list[bytes]]:
    """Return the committed values of a topic, by partition."""
    found: dict[int, list[bytes]] = {}
    with Consumer(client, topic) as consumer:
        for record in consumer.read_to_end():
            found.setdefault(record.partition, []).append(record.value or b"")
    return found
