"""kill -9 of the broker under queue workers: every job has exactly one result.

Workers take jobs from a share group, write a result for each, and acknowledge the jobs in the same
transaction. Some transactions are aborted on purpose, and some workers die in the middle of one and are
replaced.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess
from support.chance import fresh_seed
from support.waiting import until
from support.workloads.transactional_workers import Worker

from semel.client import (
    Admin,
    Client,
    ClientError,
    Consumer,
    KafkaError,
    NewTopic,
    OutcomeUnknown,
    Producer,
    ShareConsumer,
    TransactionalProducer,
    TransactionError,
)
from semel.client.produce.transactional_producer import State

from .conftest import FEW, MANY

WORKERS = 3
JOBS_PER_KILL = 150
BATCH = 10
GROUP = "workers"
WAIT_SECONDS = 60.0
CONFIGS = {
    "share.auto.offset.reset": "earliest",
    # Every abort counts as a delivery.
    "share.delivery.count.limit": "10",
    # A worker that died has partitions until then.
    "share.session.timeout.ms": "2000",
    "share.heartbeat.interval.ms": "500",
}


class OnPurpose(Exception):
    """The work of a transaction failed."""


class ShareWorker(Worker):
    """One transactional id after another life of the same worker."""

    def __init__(self, number: int, bootstrap: str, progress: threading.Semaphore, seed: int) -> None:
        super().__init__(f"worker {number}", progress)
        self.bootstrap = bootstrap
        self.transactional_id = f"worker-{number}"
        self.chance = random.Random(seed + number)
        self.outcomes: Counter[str] = Counter()

    def work(self) -> None:
        while not self.stopping.is_set():
            with Client(self.bootstrap, timeout_s=5, patience_s=WAIT_SECONDS) as client:
                self._live(client)

    def _live(self, client: Client) -> None:
        """Work until the worker dies, which leaves a transaction open and records held."""
        producer = TransactionalProducer(client, self.transactional_id, timeout_s=WAIT_SECONDS)
        stubbornly(producer.init)
        consumer = ShareConsumer(client, GROUP, "jobs")
        while not self.stopping.is_set():
            try:
                jobs = consumer.poll(0.2, BATCH)
                if not jobs:
                    continue
                producer.begin()
                self.progress.release()
                for job in jobs:
                    producer.send("results", job.value)
                    producer.send("journal", job.value)
                producer.acknowledge(consumer, *jobs)
                self.progress.release()
                if self.chance.random() < 0.05:
                    self.outcomes["died"] += 1
                    return
                if self.chance.random() < 0.1:
                    raise OnPurpose
                producer.commit()
                self.outcomes["committed"] += 1
            except (OnPurpose, KafkaError, ClientError) as error:
                self.outcomes[type(error).__name__] += 1
                self._settle(producer)
        with suppress(KafkaError, ClientError):
            consumer.close()

    def _settle(self, producer: TransactionalProducer) -> None:
        """End the transaction, whatever has happened to it."""
        deadline = time.monotonic() + WAIT_SECONDS
        while producer.state is not State.READY:
            assert time.monotonic() < deadline
            try:
                if producer.state is State.COMMITTING:
                    producer.commit()
                    self.outcomes["committed in the end"] += 1
                else:
                    producer.abort()
            except OutcomeUnknown:
                continue
            except TransactionError:
                if producer.state is not State.READY:
                    raise
            except ClientError:
                continue


def stubbornly(call: Callable[[], None]) -> None:
    """Try until it works."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return call()
        except (KafkaError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.timeout(180 + 30 * MANY)
@FEW
def test_every_job_has_one_result(
    tmp_path: Path, kills: int, record_property: Callable[[str, object], None]
) -> None:
    seed = fresh_seed()
    chance = random.Random(seed)
    progress = threading.Semaphore(0)
    with (
        BrokerProcess(tmp_path / "data") as broker,
        Client(broker.bootstrap, timeout_s=5, patience_s=WAIT_SECONDS) as client,
    ):
        admin = Admin(client)
        journal = NewTopic("journal", configs={"semel.visibility": "journal"})
        admin.topics.create(NewTopic("jobs", partitions=2), NewTopic("results", partitions=2), journal)
        admin.configs.alter_group(GROUP, values=CONFIGS)
        workers = [ShareWorker(number, broker.bootstrap, progress, seed) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        jobs: list[bytes] = []
        try:
            for kill in range(kills):
                fresh = [b"%d of %d" % (number, kill) for number in range(JOBS_PER_KILL)]
                with Producer(client) as producer:
                    for job in fresh:
                        producer.send("jobs", job)
                jobs += fresh
                for _ in range(chance.randint(4, 15)):
                    assert progress.acquire(timeout=WAIT_SECONDS), [each.failure for each in workers]
                time.sleep(chance.choice((0.0, 0.001, 0.005)))
                broker.kill()
                broker.start()
            expected = sorted(jobs)
            with suppress(AssertionError):
                until(
                    lambda: (
                        any(each.failure for each in workers)
                        or len(_results(client, "results")) >= len(expected)
                    ),
                    2 * WAIT_SECONDS,
                )
        finally:
            for worker in workers:
                worker.stopping.set()
            for worker in workers:
                worker.join(WAIT_SECONDS)
        assert [each.failure for each in workers] == [""] * WORKERS
        record_property("outcomes", dict(sum((each.outcomes for each in workers), Counter())))
        for topic in ("results", "journal"):
            assert sorted(_results(client, topic)) == expected, f"{topic}, seed {seed}"


def _results(client: Client, topic: str) -> list[bytes]:
    with Consumer(client, topic) as consumer:
        return [record.value or b"" for record in consumer.read_to_end()]
