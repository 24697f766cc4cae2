"""Kills a broker and Java clients in a consume-transform-produce loop: every input counts once.

Two static members of a group copy a topic in transactions, with Apache Kafka's own client (`java/Loop.java`).
Their consumers are woken at random times, and sometimes take longer than `max.poll.interval.ms` in the middle
of a transaction. A feeder writes numbers. One of the processes gets SIGKILL when a member is in a phase of
its transaction that a seed chooses, and is started again. The check needs Java and Maven.
"""

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.chance import fresh_seed
from support.spark.jobs import committed, create, values
from support.waiting import until

from peers.programs import build_java, fetch_kafka
from semel.client import Admin, Client, ClientError, KafkaError
from verification.pipeline_brokers import Brokers, alone
from verification.pipeline_kills import Feeder

MEMBERS: Final = ("one", "two")
PHASES: Final = ("begun", "sent", "offsets", "committed")
VICTIMS: Final = ("broker", "client")
PROGRESS_SECONDS: Final = 90.0
"""How long the group may make no progress, including starts of a broker and clients."""
PHASE_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
GROUP: Final = "loop"
BROKER_OPTIONS: Final = (
    *("--set", "group.initial.rebalance.delay.ms=0"),
    *("--set", "group.min.session.timeout.ms=500"),
)
JAVA_OPTIONS: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Member:
    """A Java process, and the last phase that it has printed."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self.phase = ""
        self.told: Counter[str] = Counter()
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, seed: int) -> None:
        """Start the process, or restart it."""
        self._end()
        self.starts += 1
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._command, str(seed)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._end()

    def stop(self) -> bool:
        """Ask the process to stop. Return whether it did in time."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self._process.kill()
            self._end()
        return True

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            words = line.strip().split(" ")
            self.phase = words[0]
            # Count an error by its type, without its message.
            self.told[" ".join(words[:2]).partition(":")[0]] += 1

    def _end(self) -> None:
        if self._process is not None:
            self._process.wait()
            assert self._reader is not None
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
            self.phase = ""


@dataclass
class Killed:
    """The result of a loop."""

    seed: int
    victims: Counter[str] = field(default_factory=Counter)
    """What was killed, and in which phase of a transaction."""
    starts: int = 0
    records: int = 0
    told: Counter[str] = field(default_factory=Counter)
    lost: list[bytes] = field(default_factory=list)
    doubled: list[bytes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """The total number of kills."""
        return sum(self.victims.values())

    def __str__(self) -> str:
        victims = ", ".join(f"{number} × {name}" for name, number in sorted(self.victims.items()))
        told = ", ".join(f"{number} × {name}" for name, number in self.told.most_common())
        return (
            f"SEMEL_SEED={self.seed}; killed: {victims}; clients were started {self.starts} times; "
            f"{self.records} records, {len(self.lost)} lost, {len(self.doubled)} doubled; "
            f"{'; '.join(self.problems) or 'nothing else is wrong'}; told: {told}"
        )


class Loop:
    """The members, their brokers, and the kills so far."""

    def __init__(self, brokers: Brokers, command: list[str], directory: Path, killed: Killed) -> None:
        self.brokers = brokers
        self.killed = killed
        self.chance = random.Random(killed.seed)
        self.members = [
            Member([*command, brokers.bootstrap, name], directory / f"{name}.log") for name in MEMBERS
        ]

    def supervise(self) -> None:
        """Restart processes that have ended."""
        self.brokers.supervise(self.chance)
        for member in self.members:
            if not member.is_alive:
                member.start(self.chance.randrange(1 << 31))

    def committed(self) -> int:
        """Return how many committed transactions the members have reported."""
        return sum(member.told["committed"] for member in self.members)

    def reached(self) -> int:
        """Return the sum of the group's offsets; 0 if the broker does not answer."""
        try:
            with Client(self.brokers.bootstrap, timeout_s=5) as client:
                return sum(each.offset for each in Admin(client).groups.offsets(GROUP).values())
        except (ClientError, KafkaError):
            return 0

    def await_progress(self, what: str) -> None:
        """Wait until a member has committed another transaction; none of them is empty."""
        before = self.committed()

        def is_further() -> bool:
            self.supervise()
            return self.committed() > before

        until(is_further, PROGRESS_SECONDS, f"progress after {what}")

    def kill_somebody(self) -> str:
        """Choose a phase, wait until a client is in it, and send SIGKILL to that client or the broker."""
        phase, victim = self.chance.choice(PHASES), self.chance.choice(VICTIMS)
        delay = self.chance.choice([0.0, 0.0, 0.002, 0.02])
        deadline = time.monotonic() + PHASE_SECONDS
        while True:
            self.supervise()
            found = [each for each in self.members if each.phase == phase and each.is_alive]
            if found:
                break
            assert time.monotonic() < deadline, f"nobody was in the phase {phase} for {PHASE_SECONDS} seconds"
            time.sleep(0.0005)
        time.sleep(delay)  # the time of the kill is random
        if victim == "broker":
            self.brokers.kill(self.chance)
        else:
            self.chance.choice(found).kill()
        self.killed.victims[f"{victim} ({phase})"] += 1
        return victim

    def finish(self, count: int) -> None:
        """Wait until the members have consumed the rest, for as long as they make progress, and stop them."""
        reached, since = 0, time.monotonic()
        while reached < count:
            self.supervise()
            if (now := self.reached()) > reached:
                reached, since = now, time.monotonic()
            assert time.monotonic() - since < PROGRESS_SECONDS, f"no progress at {reached} of {count} inputs"
            time.sleep(0.1)
        for member in self.members:
            if not member.stop():
                self.killed.problems.append("a client did not stop in time")

    def end_all(self) -> None:
        """Kill the members that still run, and add up the results."""
        for member in self.members:
            if member.is_alive:
                member.kill()
            self.killed.starts += member.starts
            self.killed.told.update(member.told)


def run(kills: int, seconds: float = float("inf")) -> Killed:
    """Kill this often, or until time is up, and compare the output with the input."""
    killed = Killed(fresh_seed())
    deadline = time.monotonic() + seconds
    java, *rest = build_java(fetch_kafka(), Path(__file__).parent / "java" / "Loop.java")
    with (
        tempfile.TemporaryDirectory(prefix="semel-loop-") as name,
        alone(Path(name), *BROKER_OPTIONS) as these,
    ):
        create(these.bootstrap, ("in", 4), ("out", 3))
        loop = Loop(these, [java, *JAVA_OPTIONS, *rest], Path(name), killed)
        feeder = Feeder(these.bootstrap)
        feeder.start()
        try:
            what = "the start"
            while killed.kills < kills and time.monotonic() < deadline:
                loop.await_progress(what)
                what = f"the kill of a {loop.kill_somebody()}"
            loop.await_progress(what)
            feeder.stop()
            loop.finish(feeder.count)
        except AssertionError as error:
            killed.problems.append(f"hung: {error}")
        finally:
            these.supervise(loop.chance)  # The feeder needs the broker to deliver its last records.
            feeder.stop()
            loop.end_all()
        _judge(these.bootstrap, feeder, killed)
    return killed


def _judge(bootstrap: str, feeder: Feeder, killed: Killed) -> None:
    killed.records = feeder.count
    expected, found = values(range(feeder.count)), committed(bootstrap, "out")
    killed.lost, killed.doubled = sorted((expected - found).elements()), sorted((found - expected).elements())
    if feeder.failed or feeder.acknowledged != feeder.count:
        killed.problems.append(
            f"of {feeder.count} inputs {feeder.acknowledged} were taken: {feeder.failed[:3]}"
        )
    with Client(bootstrap) as client:
        left = [each.transactional_id for each in Admin(client).transactions.all(states=["Ongoing"])]
    if left:
        killed.problems.append(f"open transactions: {left}")
