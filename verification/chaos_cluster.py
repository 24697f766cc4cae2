"""Injects faults into a real cluster: three brokers, PostgreSQL, a directory or an S3 server, real clients.

The workloads and the checker are those of `chaos`. A broker that ends by itself, because it was replaced or
lost its store, is restarted, as a supervisor would.
"""

import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.brokers.cluster import LEASE_SECONDS, Cluster, Member, running, s3_environment
from support.faults.faulty_s3 import Fault as S3Fault
from support.faults.faulty_s3 import FaultyS3
from support.faults.tcp_proxy import TcpProxy
from support.servers.failover import END_HALF, Pair, execute, pair
from support.servers.s3 import s3_server
from support.workloads.chaos_run import ChaosResult, Run
from support.workloads.copying import Copy
from support.workloads.edges import Edges
from support.workloads.money import Money

from verification.chaos import WRITERS, runs, workloads

KILLS_PER_RUN = 20
FAULTS_PER_RUN = 10
FAILOVERS_PER_RUN = 5
SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 200,
}
EVERYONE_EVERY = 5


def kills(count: int) -> ChaosResult:
    """Kill one broker with SIGKILL, sometimes two or all."""
    return runs("kill -9 of brokers", count, KILLS_PER_RUN, partial(_episodes, fault=_kill))


def postgres(count: int) -> ChaosResult:
    """Kill a session of PostgreSQL with SIGKILL, or crash or restart the server."""
    return runs("PostgreSQL failures", count, FAULTS_PER_RUN, partial(_episodes, fault=_fail_postgres))


def pauses(count: int) -> ChaosResult:
    """Stop a broker (SIGSTOP) for longer than its lease."""
    return runs("broker pauses", count, FAULTS_PER_RUN, partial(_episodes, fault=_pause))


def partitions(count: int) -> ChaosResult:
    """Cut a broker off from PostgreSQL, from the other brokers, or from both."""
    return runs("network partitions", count, FAULTS_PER_RUN, partial(_episodes, fault=_part))


def restarts(count: int) -> ChaosResult:
    """Stop and start each broker in turn."""
    return runs("rolling restarts", count, FAULTS_PER_RUN, partial(_episodes, fault=_roll))


def s3_faults(count: int) -> ChaosResult:
    """Make S3 unavailable for a while, or let it break off, shorten or lose its responses."""

    def go(run: Run, count: int, deadline: float) -> None:
        with s3_server() as server, FaultyS3(server) as s3:
            place: dict[str, Any] = {"chunks": s3.address, "environment": s3_environment(s3.options)}
            _episodes(run, count, deadline, lambda cluster, chance: _spoil(s3, chance), **place)

    return runs("S3 faults", count, FAULTS_PER_RUN, go)


def failovers(count: int) -> ChaosResult:
    """Kill PostgreSQL's primary, promote its synchronous standby, and bring the old primary back."""

    def go(run: Run, count: int, deadline: float) -> None:
        with pair() as servers:
            begin = partial(_episodes, run, count, deadline, dsn=servers.address(), begins=_transactions)
            begin(lambda cluster, chance: _fail_over(run, servers, chance))

    return runs("PostgreSQL failovers", count, FAILOVERS_PER_RUN, go)


Disturb = Callable[[Cluster, random.Random], None]


def _transactions(run: Run, bootstrap: str) -> None:
    """Start transfers, exactly-once copies, and a watcher of offsets, which must never go back."""
    place, chance = run.place(bootstrap, tells_timeouts=False), run.chance
    tellers = chance.sample(WRITERS, 2)
    run.create(Money(place, "money", tellers, chance, chance.choice(["marker", "journal"])))
    members = chance.choice([["own", "own"], ["own", "librdkafka"]])
    visibility = chance.choice(["marker", "journal"])
    run.create(Copy(place, "copy", members, chance, visibility, chance.choice(WRITERS)))
    run.create(Edges(place, tuple(run.workloads)))


def _episodes(
    run: Run,
    count: int,
    deadline: float,
    fault: Disturb,
    *,
    dsn: str | None = None,
    begins: Callable[[Run, str], None] | None = None,
    **place: Any,
) -> None:
    chance = run.chance
    # With an object store: many commits go there directly, and the others are moved there soon.
    settings = {
        **SETTINGS,
        **({"semel.inline.bytes.max": 200, "semel.roll.interval.ms": 500} if place else {}),
    }
    made = Cluster(run.directory / "cluster", proxied=fault is _part, settings=settings, **place)
    with running(made, dsn) as cluster:
        # After a crash of PostgreSQL a new term fences open transactions: early aborts are legitimate.
        if begins is None:
            workloads(run, cluster.bootstrap, tells_timeouts=fault is not _fail_postgres)
        else:
            begins(run, cluster.bootstrap)
        run.mend = cluster.mend
        try:
            with run.running():
                for number in range(count):
                    run.progress(chance.randrange(1, 30), of_everyone=number % EVERYONE_EVERY == 0)
                    fault(cluster, chance)
                    run.outcome.episodes += 1
                    run.progress(1)
                    if time.monotonic() > deadline:
                        break
                run.progress(10, of_everyone=True)
            cluster.mend()
            for each in cluster.brokers:
                if each.process is not None:
                    each.kill()
                each.start()
            cluster.settle()
            run.judge(cluster.bootstrap)
        finally:
            if not run.outcome.is_clean:
                run.outcome.kept.append(cluster.logs()[-8_000:])


def _kill(cluster: Cluster, chance: random.Random) -> None:
    victims = chance.sample(cluster.brokers, chance.choice([1, 1, 1, 1, 2, 3]))
    for each in victims:
        each.kill()
    # Sometimes the lease is over before the broker comes back, sometimes not.
    time.sleep(chance.choice([0, 0, LEASE_SECONDS + 1]))
    for each in victims:
        each.launch()
    for each in victims:
        each.wait_until_ready()


def _fail_postgres(cluster: Cluster, chance: random.Random) -> None:
    how = chance.choice(["backend", "backend", "crash", "restart"])
    if how == "backend":
        cluster.kill_backend()
    elif how == "crash":
        cluster.crash_postgres(chance.choice([0, 0, 1, LEASE_SECONDS + 1]))
    else:
        cluster.postgres.stop()
        cluster.postgres.start()


def _fail_over(run: Run, servers: Pair, chance: random.Random) -> None:
    """Let the old primary return beside the new one. Brokers open new sessions, and must not use it."""
    servers.primary.kill()
    servers.promote()
    if chance.random() < 0.5:
        run.progress(5)
    # As a service manager would.
    servers.return_alone()
    for _ in range(2):
        execute(servers.standby.dsn, END_HALF)
        run.progress(10)
    servers.rejoin()


def _pause(cluster: Cluster, chance: random.Random) -> None:
    member = chance.choice(cluster.brokers)
    member.pause()
    time.sleep(LEASE_SECONDS + chance.uniform(1.0, 3.0))
    member.resume()


def _part(cluster: Cluster, chance: random.Random) -> None:
    cut = _cut_off(chance.choice(cluster.brokers), chance)
    time.sleep(chance.choice([0.5, 2.0, LEASE_SECONDS + 2]))
    for proxy in cut:
        proxy.mend()


def _cut_off(member: Member, chance: random.Random) -> list[TcpProxy]:
    ways = chance.choice(
        [[member.to_postgres], [member.from_brokers], [member.to_postgres, member.from_brokers]]
    )
    for each in ways:
        (each.silence if chance.random() < 0.5 else each.cut)()
    return ways


def _spoil(s3: FaultyS3, chance: random.Random) -> None:
    for method in chance.sample(["PUT", "GET", "HEAD"], 2):
        kinds = [S3Fault.UNAVAILABLE, S3Fault.CUT, S3Fault.LOST_ANSWER]
        # SHORT: a response that is too short and says so is noticed. Only reads have a body.
        kinds += [S3Fault.SHORT] if method == "GET" else []
        s3.spoil(method, chance.choice(kinds), times=chance.randrange(1, 40))
    time.sleep(chance.uniform(0.5, 3.0))
    s3.heal()


def _roll(cluster: Cluster, chance: random.Random) -> None:
    for each in chance.sample(cluster.brokers, len(cluster.brokers)):
        if not each.has_ended:
            code = each.stop()
            assert code == 0, f"broker {each.node_id} ended with {code}: {each.log.read_text()[-2000:]}"
        each.start()
