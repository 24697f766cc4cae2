"""Injects faults into real processes, clients and files, and gives the histories to the checker.

Each function causes a number of faults, in several runs one after another, and reports the results. A run
that is not clean keeps its history and names its seed. Every function ends after SECONDS_MAX, or soon after:
faults that it did not cause by then are missing from `episodes`.

The workloads are transfers of money between accounts, one writer with one reader, a group that subscribes and
copies, and tables under constant compaction, with confluent-kafka, aiokafka and Semel's client
(`tests/support/workloads*.py`).
"""

import contextlib
import errno
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.brokers.chaos_broker import RARE, RUNNING, STARTING, ChaosBroker
from support.brokers.process import BrokerProcess
from support.chance import fresh_seed
from support.clients.raw import RawClient
from support.workloads.chaos_run import ChaosResult, Run, run_of
from support.workloads.copying import Copy
from support.workloads.ends import Ends
from support.workloads.money import Money
from support.workloads.pauses import Pause, Pauses
from support.workloads.running import QUIET, Place, Workload
from support.workloads.single import Single
from support.workloads.table import Table

from semel.server.run import EXIT_BROKEN

Chaos = ChaosResult
OPTIONS = (
    *("--set", "group.initial.rebalance.delay.ms=0"),
    *("--set", "group.consumer.heartbeat.interval.ms=300"),
    *("--set", "log.cleaner.backoff.ms=100"),
    *("--set", "log.retention.check.interval.ms=200"),
)
# A chunk is allocated in one step, so small chunks reach a full disk soon.
SMALL = ("--set", "semel.chunk.bytes.max=65536")
FAILURES_MAX = 3
"""After this many failures of the run itself, give up."""
SECONDS_MAX = 3_600
MIB = 1024 * 1024
KILLS_PER_RUN = 25
FAULTS_PER_RUN = 1_000
PAUSES_PER_RUN = 20
DISK_FAULTS_PER_RUN = 20
EVERYONE_EVERY = 5
"""One in this many kills waits until each writer has ended a transaction: some clients pause for long."""
WRITERS = ("own", "own-1", "librdkafka", "aiokafka")


def kills(count: int) -> Chaos:
    """Kill the broker at random times and at named points, also during recovery from the previous kill."""
    return runs("kill -9", count, KILLS_PER_RUN, _killed)


def runs(name: str, count: int, per_run: int, go: Callable[[Run, int, float], None]) -> ChaosResult:
    """Start one run after another, until there were this many faults or time is up."""
    seed = fresh_seed()
    deadline = time.monotonic() + SECONDS_MAX
    total = ChaosResult(name)
    while total.episodes < count and time.monotonic() < deadline and len(total.failures) < FAILURES_MAX:
        print(f"{name}: seed {seed}", flush=True)  # noqa: T201 - for repeating the run
        try:
            with run_of(name, seed) as run:
                try:
                    go(run, min(per_run, count - total.episodes), deadline)
                finally:
                    total.add(run.outcome)
        except QUIET as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{error!r} in {where.name} ({where.filename}:{where.lineno})"
            total.failures.append(f"{told} {' '.join(error.__notes__)}")
        seed += 1
    return total


def workloads(run: Run, bootstrap: str, kinds: Sequence[str] = WRITERS, **options: int | bool) -> None:
    """Start the money workload and two others, with random clients and visibilities."""
    place = run.place(bootstrap, **options)
    chance = run.chance
    visibility = chance.choice(["marker", "journal"])
    run.create(Money(place, "money", chance.sample(kinds, min(3, len(kinds))), chance, visibility))
    for another in chance.sample([_single, _copy, _table], 2):
        run.create(another(place, kinds, chance, chance.choice(["marker", "journal"])))


def _single(place: Place, kinds: Sequence[str], chance: random.Random, visibility: str) -> Workload:
    return Single(place, "single", chance.choice(kinds), chance, visibility)


def _copy(place: Place, kinds: Sequence[str], chance: random.Random, visibility: str) -> Workload:
    members = chance.choice([["own", "own"], ["own", "librdkafka"], ["classic", "classic"]])
    return Copy(place, "copy", members, chance, visibility, chance.choice(kinds))


def _table(place: Place, kinds: Sequence[str], chance: random.Random, visibility: str) -> Workload:
    return Table(place, "table", chance.sample(kinds, min(2, len(kinds))), chance, visibility)


def _killed(run: Run, count: int, deadline: float) -> None:
    chance = run.chance
    with ChaosBroker(run.directory / "data", *OPTIONS) as broker:
        workloads(run, broker.bootstrap)

        def episode(number: int) -> None:
            run.progress(chance.randrange(1, 30), of_everyone=number % EVERYONE_EVERY == 0)
            _kill(broker, chance)
            run.outcome.episodes += 1
            if chance.random() < 0.3:
                broker.arm(chance.choice(STARTING), chance.choice([1, 1, 2, 3]))
            run.outcome.episodes += _revive(broker)

        _episodes(run, broker, episode, count, deadline)


def _episodes(
    run: Run, broker: ChaosBroker, episode: Callable[[int], None], count: int, deadline: float
) -> None:
    """Cause faults until there were this many or time is up, and judge the data on disk."""
    with run.running():
        for number in range(count):
            episode(number)
            run.look_for_hangs(broker.bootstrap)
            if time.monotonic() > deadline:
                break
        run.progress(10, of_everyone=True)
    _restart(broker)
    run.judge(broker.bootstrap)


def _revive(broker: ChaosBroker) -> int:
    """Start the broker until it stays up. Return how often it ended: a kill point may still be armed."""
    killed = broker.revive()
    broker.repair()
    while broker.has_ended():
        assert broker.wait() == -signal.SIGKILL, broker.log.read_text()
        killed += 1 + broker.revive()
    return killed


def _kill(broker: ChaosBroker, chance: random.Random) -> None:
    """Kill the broker at once, or at a named point."""
    if chance.random() < 0.5:
        point = chance.choice(RUNNING)
        broker.arm(point, 1 if point in RARE else chance.randrange(1, 20))
        # If the broker does not reach the point in time, kill it anyway.
        until_ended(broker, 3.0)
    if not broker.has_ended():
        broker.kill()
    broker.repair()


def _restart(broker: ChaosBroker) -> None:
    """Restart the broker, so that the verdict is about the data on disk."""
    broker.repair()
    if not broker.has_ended():
        broker.kill()
    broker.revive()


def until_ended(broker: ChaosBroker, seconds: float) -> bool:
    """Whether the process has ended by itself in this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not broker.has_ended():
        time.sleep(0.01)
    return broker.has_ended()


# ---- the ends of transactions


def end_faults(count: int) -> Chaos:
    """Deliver EndTxn late, twice or never, in both transaction versions."""
    return runs("EndTxn faults", count, FAULTS_PER_RUN, _disturbed)


def _disturbed(run: Run, count: int, deadline: float) -> None:
    with BrokerProcess(run.directory / "data") as broker:
        visibility = run.chance.choice(["marker", "journal"])
        ends = Ends(run.place(broker.bootstrap), "ends", run.chance, visibility)
        run.create(ends)
        with run.running():
            while ends.faults < count and time.monotonic() < deadline:
                ends.lives()
                run.look_for_hangs(broker.bootstrap)
        run.outcome.episodes += ends.faults
        run.judge(broker.bootstrap)


# ---- pauses


def pauses(count: int) -> Chaos:
    """Stop (SIGSTOP) the broker under load, and producers inside their transactions."""
    return runs("pauses", count, PAUSES_PER_RUN, _paused)


def _paused(run: Run, count: int, deadline: float) -> None:
    chance = run.chance
    with BrokerProcess(run.directory / "data", *OPTIONS) as broker:
        place = run.place(broker.bootstrap)
        visibility = chance.choice(["marker", "journal"])
        stopped = Pauses(place, "pauses", chance, visibility)
        run.create(stopped)
        run.create(Money(place, "money", chance.sample(WRITERS, 2), chance, visibility))
        with run.running():
            for number in range(count):
                if number % 3 == 0:
                    _stop(broker, chance.uniform(0.1, 2.0))
                else:
                    stopped.pause(chance.choice(list(Pause)), run.history)
                run.outcome.episodes += 1
                run.progress(1)
                if time.monotonic() > deadline:
                    break
        run.judge(broker.bootstrap)


def _stop(broker: BrokerProcess, seconds: float) -> None:
    """Stop the broker for a while with SIGSTOP, as on a suspended machine."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


# ---- disks and other limits


def disk_faults(episodes: int) -> Chaos:
    """Make the disk fail, slow or full, or take descriptors or memory from the broker."""
    return runs("disk faults", episodes, DISK_FAULTS_PER_RUN, _on_a_bad_disk)


def _on_a_bad_disk(run: Run, count: int, deadline: float) -> None:
    chance = run.chance
    with ChaosBroker(run.directory / "data", *OPTIONS, *SMALL) as broker:
        # After a disk failure a new term begins, which fences open transactions: early aborts are legitimate.
        workloads(run, broker.bootstrap, tells_timeouts=False)
        run.mend = lambda: _start_again(broker)

        def episode(_: int) -> None:
            run.progress(chance.randrange(1, 20))
            DISK_FAULTS[chance.choice(list(DISK_FAULTS))](broker, chance)
            broker.repair()
            run.progress(1)
            run.outcome.episodes += 1

        _episodes(run, broker, episode, count, deadline)


def _start_again(broker: ChaosBroker) -> None:
    """Restart a broker that has ended. If it ended by itself, its exit code must be EXIT_BROKEN."""
    if broker.has_ended():
        if broker.process is not None:
            code = broker.wait()
            assert code == EXIT_BROKEN, f"the broker ended with {code}: {broker.log.read_text()[-2000:]}"
        broker.start()


def _fails(broker: ChaosBroker, chance: random.Random) -> None:
    """Fail the next write or flush: the process ends by itself, without answering any more requests."""
    broker.fail(chance.choice(["write", "flush"]), chance.choice([errno.EIO, errno.ENOSPC]))
    code = broker.wait()
    assert code == EXIT_BROKEN, f"the broker ended with {code}: {broker.log.read_text()[-2000:]}"


def _is_slow(broker: ChaosBroker, chance: random.Random) -> None:
    broker.slow_down(chance.randrange(50, 1_000))
    time.sleep(chance.uniform(0.5, 2.0))


def _is_full(broker: ChaosBroker, chance: random.Random) -> None:
    broker.fill()
    time.sleep(chance.uniform(0.5, 2.0))
    assert not broker.has_ended(), f"a full disk ended the broker: {broker.log.read_text()[-2000:]}"


def _has_no_descriptors(broker: ChaosBroker, chance: random.Random) -> None:
    """Allow no more descriptors than in use, or a few more."""
    used = max(int(each.name) for each in Path(f"/proc/{broker.pid}/fd").iterdir())
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + chance.randrange(1, 4), before[1]))
    # The broker may or may not survive this, but it must keep what it has acknowledged.
    if not until_ended(broker, chance.uniform(0.5, 1.5)):
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)


def _has_no_memory(broker: ChaosBroker, chance: random.Random) -> None:
    """Allow no more memory than in use, or a few megabytes more, and send a large frame."""
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + chance.randrange(8) * MIB
    sending = threading.Thread(target=_send_much, args=(broker.bootstrap, 16 * MIB))
    before = resource.prlimit(broker.pid, resource.RLIMIT_AS)
    resource.prlimit(broker.pid, resource.RLIMIT_AS, (limit, before[1]))
    sending.start()
    if not until_ended(broker, chance.uniform(0.5, 1.5)):
        resource.prlimit(broker.pid, resource.RLIMIT_AS, before)
    sending.join()


def _send_much(bootstrap: str, length: int) -> None:
    with contextlib.suppress(OSError, AssertionError), RawClient(bootstrap, timeout_seconds=5) as client:
        client.send_frame(bytes(length))
        client.receive_frame()


DISK_FAULTS: dict[str, Callable[[ChaosBroker, random.Random], None]] = {
    "fails": _fails,
    "fails again": _fails,
    "is slow": _is_slow,
    "is full": _is_full,
    "no descriptors": _has_no_descriptors,
    "no memory": _has_no_memory,
}
