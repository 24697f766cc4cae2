"""One run of chaos: topics, workers and faults; then the end of all transactions, a final read, a verdict.

A run that is not clean keeps its history, and reports where.
"""

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.check import Recorder, Verdict, check, read_history
from semel.check.history import Topic
from semel.client import Admin, Client, Consumer, Isolation, NewTopic, Partition, TransactionalProducer
from semel.client.admin.group_offsets import fetch_offsets
from semel.client.admin.transactions import TransactionAdmin, list_transactions
from support.clients.raw_log import READ_UNCOMMITTED, Log
from support.clients.routed import raw_client
from support.waiting import until
from support.workloads.copying import Copy
from support.workloads.running import PATIENCE_SECONDS, QUIET, Place, Workload, poll

LOST = ("lost-write", "lost-offset", "skipped-input", "skipped-poll", "gap")
DOUBLED = ("duplicate", "double-claim", "nonmonotonic-poll")
TORN = ("torn-transaction", "split-transaction")
ABORTED = ("aborted-read", "early-read", "precommitted-read", "aborted-offset", "early-offset")
HANGING = ("hanging-transaction",)


@dataclass
class ChaosResult:
    """The result of one run, or of many."""

    name: str
    seeds: list[int] = field(default_factory=list)
    episodes: int = 0
    """Faults that happened."""
    operations: int = 0
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    anomalies: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Errors beside the history: sums that are not zero, copies that are not equal."""
    failures: list[str] = field(default_factory=list)
    """Clients that could not continue, and reads that did not reach the end."""
    hangs_explained: int = 0
    """Partitions with a transaction that is unexpectedly open, which its coordinator knows and will end."""
    hangs_unexplained: int = 0
    kept: list[str] = field(default_factory=list)
    """Histories that are not clean."""

    @property
    def is_clean(self) -> bool:
        return not (self.anomalies or self.problems or self.failures or self.hangs_unexplained)

    def count(self, names: Sequence[str]) -> int:
        return sum(self.anomalies[name] for name in names)

    @property
    def lost(self) -> int:
        return self.count(LOST)

    @property
    def doubled(self) -> int:
        return self.count(DOUBLED)

    @property
    def torn(self) -> int:
        """Torn transactions, and also money made or lost, and copies that are not equal."""
        return self.count(TORN) + len(self.problems)

    @property
    def aborted_reads(self) -> int:
        return self.count(ABORTED)

    @property
    def other(self) -> int:
        known = self.count((*LOST, *DOUBLED, *TORN, *ABORTED, *HANGING))
        return self.anomalies.total() - known + len(self.failures)

    def add(self, other: "ChaosResult") -> None:
        """Merge another result into this one."""
        self.seeds += other.seeds
        self.problems += other.problems
        self.failures += other.failures
        self.kept += other.kept
        self.anomalies += other.anomalies
        for name in (
            "episodes",
            "operations",
            "committed",
            "aborted",
            "unknown",
            "hangs_explained",
            "hangs_unexplained",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def take(self, verdict: Verdict) -> None:
        self.operations += sum(sum(each.values()) for each in verdict.operations.values())
        self.committed += verdict.transactions.get("committed", 0)
        self.aborted += verdict.transactions.get("aborted", 0)
        self.unknown += verdict.transactions.get("unknown", 0)
        self.anomalies += Counter(verdict.anomalies)

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.episodes} faults, {self.operations} operations",
            f"transactions: {self.committed} committed, {self.aborted} aborted, {self.unknown} unknown",
            f"lost {self.lost}, doubled {self.doubled}, torn {self.torn}, aborted reads {self.aborted_reads}",
            f"other {self.other}; hangs: {self.hangs_explained} explained, {self.hangs_unexplained} not",
            f"seeds {self.seeds}",
        ]
        return "\n  ".join([*lines, *self.problems, *self.failures, *self.kept])


class Stalled(Exception):
    """A client cannot continue, or no client makes progress."""


class Run:
    """A directory, a history, and the findings; made by `run_of`."""

    def __init__(self, name: str, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.history = directory / "history.jsonl"
        self.recorder = Recorder(self.history)
        self.outcome = ChaosResult(name, [seed])
        self.workloads: list[Workload] = []
        self.mend: Callable[[], None] = lambda: None
        """Called while the run waits for progress: restarts brokers that have exited by themselves."""

    def place(self, bootstrap: str, **options: Any) -> Place:
        return Place(bootstrap, self.recorder, **options)

    def create(self, workload: Workload) -> None:
        """Create the topics, and register the workload."""
        with Client(workload.place.bootstrap) as client:
            for name, partitions in workload.topics.items():
                configs = workload.configs(name)
                Admin(client).topics.create(NewTopic(name, partitions, configs=configs))
                is_compacted = configs.get("cleanup.policy") == "compact"
                self.recorder.write(Topic(name, workload.visibility, is_compacted))  # type: ignore[arg-type]
        self.workloads.append(workload)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all workloads until the end of the block, then copy the rest.

        A client that stalls ends the block, but the history is judged nevertheless: it may show why.
        """
        for workload in self.workloads:
            workload.start()
        try:
            yield
            for workload in self.workloads:
                if isinstance(workload, Copy):
                    workload.drain()
        except Stalled as error:
            self.outcome.failures.append(str(error))
        finally:
            for workload in self.workloads:
                workload.stop()

    def progress(self, steps: int, *, of_everyone: bool = False) -> None:
        """Wait until `steps` more transactions have ended, with `of_everyone` one of each busy writer."""
        writers = [worker for workload in self.workloads for worker in workload.writers]
        before = {each: each.steps for each in writers}

        def waiting() -> list[str]:
            return [each.name for each in writers if each.has_always_work and each.steps == before[each]]

        def is_enough() -> bool:
            done = sum(each.steps - before[each] for each in writers)
            return done >= steps and not (of_everyone and waiting())

        def is_over() -> bool:
            self.mend()
            return is_enough() or bool(self.failures())

        with suppress(AssertionError):
            until(is_over, PATIENCE_SECONDS)
        if self.failures():
            raise Stalled("somebody failed")
        if not is_enough():
            raise Stalled(f"in {PATIENCE_SECONDS} seconds these did nothing: {waiting()}")

    def failures(self) -> list[str]:
        return [each for workload in self.workloads for each in workload.failures()]

    def look_for_hangs(self, bootstrap: str) -> None:
        """After a recovery, check that every open transaction is known to its coordinator."""
        with Client(bootstrap) as client:
            for workload in self.workloads:
                for key in workload.partitions:
                    self.outcome.hangs_unexplained += hanging(client, bootstrap, key)[1]

    # ---- after it is over

    def judge(self, bootstrap: str) -> ChaosResult:
        """End open transactions, read everything once more, and have the checker judge the history."""
        for workload in self.workloads:
            self.outcome.failures += workload.failures()
        with Client(bootstrap) as client:
            self._end_everything(client)
            partitions = [key for workload in self.workloads for key in workload.partitions]
            self._wait_until_settled(client, bootstrap, partitions)
            self._final_read(client, bootstrap, partitions)
            self._final_positions(client)
        for workload in self.workloads:
            self.outcome.problems += workload.problems()
        self.recorder.close()
        verdict = check(read_history([self.history]))
        self.outcome.take(verdict)
        if not self.outcome.is_clean:
            self._keep(verdict)
        return self.outcome

    def _end_everything(self, client: Client) -> None:
        """Take over every transactional id, which aborts the transactions its owner left open."""
        process = self.recorder.process("heir")
        for workload in self.workloads:
            for each in workload.transactional_ids:
                with process.init(each) as told:
                    producer = TransactionalProducer(client, each)
                    producer.init()
                    told.pair = (producer.identity[0], producer.identity[1])

    def _wait_until_settled(self, client: Client, bootstrap: str, partitions: Sequence[Partition]) -> None:
        with raw_client(bootstrap) as raw, suppress(AssertionError):
            until(lambda: all(Log(raw, *key).is_settled for key in partitions))
            return
        for key in partitions:
            explained, unexplained = hanging(client, bootstrap, key)
            self.outcome.hangs_explained += explained
            self.outcome.hangs_unexplained += unexplained

    def _final_read(self, client: Client, bootstrap: str, partitions: Sequence[Partition]) -> None:
        process = self.recorder.process("auditor")
        ends: dict[Partition, int] = {}
        with raw_client(bootstrap) as raw:
            for key in partitions:
                started = self.recorder.clock()
                part = Log(raw, *key).fetch(isolation=READ_UNCOMMITTED)
                ends[key] = part.high_watermark
                process.ends(
                    started,
                    key,
                    log_start=part.log_start_offset,
                    last_stable=part.last_stable_offset,
                    high_watermark=part.high_watermark,
                    is_settled=True,
                )
        for isolation in Isolation:
            process = self.recorder.process(f"last {isolation.name.lower()}")
            consumer = Consumer(client, isolation=isolation)
            consumer.assign(partitions)
            process.assign(dict.fromkeys(partitions, 0))

            def has_all(consumer: Consumer = consumer) -> bool:
                found = consumer.positions()
                return all(found.get(key, 0) >= end for key, end in ends.items())

            with suppress(AssertionError):
                until(lambda: poll(process, consumer, isolation, 0.05) is None or has_all())  # noqa: B023
            if not has_all():
                self.outcome.failures.append(f"{isolation.name}: the end was not reached")

    def _final_positions(self, client: Client) -> None:
        process = self.recorder.process("auditor")
        for workload in self.workloads:
            for group, partitions in workload.groups.items():
                started = self.recorder.clock()
                found = fetch_offsets(client, group, partitions)
                for key in partitions:
                    position = found[key].offset if key in found else None
                    process.offset_fetch(started, group, key, position)

    def _keep(self, verdict: Verdict) -> None:
        kept = Path(tempfile.mkdtemp(prefix="semel-chaos-")) / "history.jsonl"
        shutil.copy(self.history, kept)
        self.outcome.kept.append(f"{kept} (semel check shows it again): {verdict}")


def hanging(client: Client, bootstrap: str, key: Partition) -> tuple[int, int]:
    """Return (1, 0) if a partition waits for a transaction that its coordinator knows, (0, 1) for another.

    It is (0, 0) if the partition waits for none. Under load, transactions begin and end between two requests,
    so only transactions that were open before and after count.
    """
    topic, partition = key
    before = _open_in(client, topic, partition)
    with raw_client(bootstrap) as raw:
        if not before or Log(raw, topic, partition).is_settled:
            return 0, 0
    ongoing = {each.producer_id for each in list_transactions(client, ["Ongoing"])}
    still = before & _open_in(client, topic, partition)
    if not still:
        return 0, 0
    return (1, 0) if all(producer_id in ongoing for producer_id, _ in still) else (0, 1)


def _open_in(client: Client, topic: str, partition: int) -> set[tuple[int, int]]:
    """Return the producers with an open transaction in a partition, and where it began."""
    (writers,) = TransactionAdmin(client).producers(topic, [partition]).values()
    return {
        (each.producer_id, each.transaction_start_offset)
        for each in writers
        if each.transaction_start_offset >= 0
    }


@contextmanager
def run_of(name: str, seed: int) -> Iterator[Run]:
    """Make a run in its own directory, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="semel-chaos-run-") as directory:
        run = Run(name, seed, Path(directory))
        try:
            yield run
        except QUIET as error:
            kept = Path(tempfile.mkdtemp(prefix="semel-chaos-")) / "history.jsonl"
            shutil.copy(run.history, kept)
            error.add_note(f"seed {seed}; the history is in {kept}")
            raise
        finally:
            run.recorder.close()
