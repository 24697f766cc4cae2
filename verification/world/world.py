"""Implements the steps of a scenario on a broker, its topics, and the pipelines that run on it.

Every step is a method and writes a line to the log. Steps act as an operator would: by requests of any
Kafka client, by files of a checkpoint, by the options of a query. Tests of single scenarios use the same
steps.
"""

import copy
import itertools
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from support.faults.delta_faults import FaultyDelta
from support.faults.spark_faults import WAITING
from support.waiting import until

from semel.client import (
    Admin,
    Client,
    Consumer,
    Delivery,
    KafkaError,
    NewTopic,
    Producer,
    TransactionalProducer,
)
from verification.world.broker import HOUR_MS, Broker, Host
from verification.world.job import RUN_SECONDS, Job, wait
from verification.world.truth import Entry, Fate, Partition, Truth
from verification.world.verdict import Broken, End, RunResult, compare, result_of

#: The broker accepts records with any timestamp, and keeps them until a step deletes them.
KEPT: Final = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
COMPACTED: Final = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"}
KEYS: Final = 3
TRANSACTION_MS: Final = 600_000
STOP_SECONDS: Final = 0.3
"""How long after the request to stop a query its held batch goes on."""
#: Where a run can be stopped in the middle of a batch, by the sink that it writes with.
TOPIC_FAULTS: Final = ("task", "before_decision", "after_decision", "raise_after")
TABLE_FAULTS: Final = ("task", "before_commit", "before_follow", "after_follow", "raise_after")


class World:
    """A scenario in progress, to be used in a `with` statement. `seed` is only reported with failures."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        *,
        seed: int | None = None,
        has_extensions: bool = True,
        broker: Host | None = None,
    ) -> None:
        spark.dataSource.register(FaultyDelta)
        self.spark = spark
        self.seed = seed
        self.directory = directory
        self.broker = broker or Broker(directory, has_extensions=has_extensions)
        self.truth = Truth()
        self.jobs: list[Job] = []
        self.log: list[str] = []
        self.ends: Counter[End] = Counter()
        self.refusals: list[str] = []
        self._numbers = itertools.count()
        self._names = itertools.count(1)
        self._job_numbers = itertools.count(1)
        self._transaction: tuple[Client, TransactionalProducer, list[Entry]] | None = None
        self._backup: tuple[Path, Truth] | None = None
        self.step(f"a broker {'with' if has_extensions else 'without'} Semel's extensions{self.broker.kind}")

    def __enter__(self) -> Self:
        self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for query in self.spark.streams.active:
            query.stop()
        told = len(self.log)
        self.finish_transaction()
        del self.log[told:]  # This is not a step of the scenario.
        self.broker.stop()

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.broker.bootstrap

    def step(self, text: str) -> None:
        """Log a step."""
        self.log.append(text)

    def told(self) -> str:
        """Return the log of the scenario as text."""
        head = "" if self.seed is None else f"seed {self.seed}\n"
        return head + "\n".join(f"  {number}. {text}" for number, text in enumerate(self.log, 1))

    # ---- topics

    def create(
        self, topic: str, partitions: int = 2, *, is_input: bool = True, is_compacted: bool = False
    ) -> None:
        """Create a topic. The truth records what is written to an input."""
        configs = KEPT | (COMPACTED if is_compacted else {})
        with Client(self.bootstrap) as client:
            Admin(client).topics.create(NewTopic(topic, partitions=partitions, configs=configs))
        if is_input:
            self.truth.create(topic, partitions, is_compacted=is_compacted)
        self.step(f"create {'compacted ' * is_compacted}topic {topic} with {partitions} partitions")

    def await_compaction(self, topic: str) -> None:
        """Wait until fewer than half of a compacted topic's records are left."""
        written = sum(len(log) for key, log in self.truth.logs.items() if key[0] == topic)

        def left() -> int:
            with Client(self.bootstrap) as client, Consumer(client, topic) as consumer:
                return sum(1 for _ in consumer.read_to_end())

        until(lambda: left() < written // 2, RUN_SECONDS, f"the compaction of {topic}")
        self.step(f"wait until {topic} is compacted")

    def grow(self, topic: str) -> Partition:
        """Add a partition."""
        number = self.partitions(topic)
        with Client(self.bootstrap) as client:
            Admin(client).topics.add_partitions(topic, number + 1)
        self.truth.create(topic, number + 1, first=number)
        self.step(f"add partition {topic}/{number}")
        return topic, number

    def recreate(self, topic: str, partitions: int | None = None) -> None:
        """Delete an input topic and create it again."""
        self.finish_transaction()
        count = partitions or self.partitions(topic)
        is_compacted = topic in self.truth.compacted
        with Client(self.bootstrap) as client:
            Admin(client).topics.delete(topic)
        self.truth.delete(topic)
        self.step(f"delete topic {topic}")
        self.create(topic, count, is_compacted=is_compacted)

    def recreate_output(self, job: Job) -> None:
        """Delete the output of a job; create it again, empty, if it is a topic."""
        for each in self.jobs:
            if each.output == job.output:
                each.destroyed.update(job.found(self.bootstrap))
        if job.writes_table:
            shutil.rmtree(job.output, ignore_errors=True)
            if job.in_function:
                # Only the table recorded what it held, so the job need not refuse an empty one.
                job.forgiven |= job.destroyed
            self.step(f"delete the table of {job.name}")
            return
        with Client(self.bootstrap) as client:
            Admin(client).topics.delete(job.output)
        self.step(f"delete topic {job.output}")
        self.create(job.output, is_input=False)

    def delete_records(self, key: Partition, count: int) -> None:
        """Delete the first `count` records that are left in a partition."""
        left = [each for each in self.truth.logs[key] if not each.is_deleted][:count]
        if not left:
            return
        with Client(self.bootstrap) as client:
            Admin(client).topics.delete_records({key: left[-1].offset + 1})
        for each in left:
            each.is_deleted = True
        self.step(f"delete the records of {key[0]}/{key[1]} before offset {left[-1].offset + 1}")

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of an input topic."""
        return sum(name == topic for name, _ in self.truth.logs)

    def inputs(self) -> list[str]:
        """Return the names of the input topics."""
        return sorted({topic for topic, _ in self.truth.logs})

    # ---- records

    def write(
        self, topic: str, count: int = 10, *, to: Iterable[int] | None = None, timestamp_ms: int | None = None
    ) -> None:
        """Write records round-robin to all partitions, or to the given ones."""
        with Client(self.bootstrap) as client, Producer(client) as producer:
            self._send(producer, topic, count, to, Fate.COMMITTED, timestamp_ms)
        odd = "" if timestamp_ms is None else f" with timestamp {timestamp_ms}"
        self.step(f"write {count} records to {_where(topic, to)}{odd}")

    def transact(
        self, topic: str, count: int = 10, *, to: Iterable[int] | None = None, commits: bool = True
    ) -> None:
        """Write records in a transaction, and end it."""
        with Client(self.bootstrap) as client, self._producer(client) as producer:
            producer.begin()
            self._send(producer, topic, count, to, Fate.COMMITTED if commits else Fate.ABORTED, None)
            if commits:
                producer.commit()
            else:
                producer.abort()
        end = "committed" if commits else "aborted"
        self.step(f"write {count} records to {_where(topic, to)} in a transaction that is {end}")

    def open_transaction(self, topic: str, count: int = 3, *, to: Iterable[int] | None = None) -> None:
        """Write records in a transaction that stays open until `finish_transaction`."""
        self.finish_transaction()
        client = Client(self.bootstrap)
        producer = self._producer(client)
        producer.begin()
        entries = self._send(producer, topic, count, to, Fate.OPEN, None)
        self._transaction = client, producer, entries
        self.step(f"write {count} records to {_where(topic, to)} in a transaction that stays open")

    def finish_transaction(self, *, commits: bool = True) -> None:
        """End the open transaction, if there is one."""
        if self._transaction is None:
            return
        (client, producer, entries), self._transaction = self._transaction, None
        if commits:
            producer.commit()
        else:
            producer.abort()
        for each in entries:
            each.fate = Fate.COMMITTED if commits else Fate.ABORTED
        producer.close()
        client.close()
        self.step(f"{'commit' if commits else 'abort'} the open transaction")

    def _producer(self, client: Client) -> TransactionalProducer:
        name = f"world-{next(self._names)}"
        return TransactionalProducer(client, name, transaction_timeout_ms=TRANSACTION_MS)

    def value(self, number: int) -> bytes:
        """Return the value of a record."""
        return b"%d" % number

    def _send(
        self,
        producer: Producer | TransactionalProducer,
        topic: str,
        count: int,
        to: Iterable[int] | None,
        fate: Fate,
        timestamp_ms: int | None,
    ) -> list[Entry]:
        where = itertools.cycle(range(self.partitions(topic)) if to is None else to)
        sent: list[tuple[int, bytes, Delivery]] = []
        for number in itertools.islice(self._numbers, count):
            key = b"%d" % (number % KEYS)
            value = self.value(number)
            delivery = producer.send(topic, value, key=key, partition=next(where), timestamp_ms=timestamp_ms)
            sent.append((number, key, delivery))
        producer.flush()
        entries = []
        for number, key, delivery in sent:
            done = delivery.result()
            entries.append(Entry(number, done.offset, fate, key))
            self.truth.logs[topic, done.partition].append(entries[-1])
        return entries

    # ---- jobs

    def job(
        self,
        reads: str = "in",
        *,
        pipeline_id: str | None = None,
        is_pattern: bool = False,
        writes_table: bool = False,
        in_function: bool = False,
        output: str | None = None,
        batch_max: int | None = None,
    ) -> Job:
        """Declare a pipeline, with an output of its own unless one is given."""
        number = next(self._job_numbers)
        name = f"job {number}"
        directory = self.directory / f"job-{number}"
        place = output or (str(directory / "table") if writes_table else f"out-{number}")
        job = Job(
            name, pipeline_id or f"pipeline-{number}", reads, place, directory,
            is_pattern=is_pattern, writes_table=writes_table, in_function=in_function, batch_max=batch_max,
        )  # fmt: skip
        kind = "the table" if writes_table else "topic"
        self.step(
            f"declare {name}: pipeline.id {job.pipeline_id}, reads "
            f"{'what matches ' if is_pattern else ''}{reads}, writes to {kind} "
            f"{Path(place).name}{' with foreachBatch' * in_function}"
            f"{'' if batch_max is None else f', maxOffsetsPerTrigger {batch_max}'}"
        )
        if output is None and not writes_table:
            self.create(place, is_input=False)
        self.jobs.append(job)
        return job

    def successor(self, job: Job) -> Job:
        """Declare a pipeline that replaces another one, with a new id and a new output."""
        return self.job(
            job.reads, is_pattern=job.is_pattern, in_function=job.in_function, batch_max=job.batch_max
        )

    def run(self, job: Job, *, fault: str = "", fails_on_loss: bool = True) -> RunResult:
        """Run a job to its end, or to a fault, and judge it."""
        options = {} if fails_on_loss else {"failOnDataLoss": False}
        if job.is_fresh:
            # Only the group is left of the job, so it starts at offsets that were set by hand.
            job.forgiven |= self.truth.before(job.resets)
        step = f"run {job.name}" + (f" with the fault {fault!r}" if fault else "")
        self.step(step + ("" if fails_on_loss else " with failOnDataLoss=false"))
        return self._judged(job, job.run(self.spark, self.bootstrap, options, fault=fault), fails_on_loss)

    def _judged(self, job: Job, outcome: RunResult, fails_on_loss: bool = True) -> RunResult:
        self.ends[outcome.end] += 1
        self.log[-1] += f": {outcome.end.value}" + (f": {outcome.words}" if outcome.words else "")
        if outcome.end is End.REFUSED:
            self.refusals.append(outcome.words)
        # Without a batch, Spark does not call the function, so a wrong checkpoint remains unnoticed.
        if outcome.end is End.WELL and (outcome.had_batch or not job.in_function):
            self.judge(job, had_batch=outcome.had_batch, fails_on_loss=fails_on_loss)
        return outcome

    def judge(self, job: Job, *, had_batch: bool = True, fails_on_loss: bool = True) -> None:
        """Compare the output of a job that has ended without error with the truth. Broken if they differ."""
        read = [key for key in self.truth.logs if job.matches(key[0])]
        counted = self.counted(job)
        found = job.judged(self.bootstrap, counted)
        if not fails_on_loss:
            # failOnDataLoss=false lets the job skip what it cannot read. It still must not double anything.
            expected = self.truth.expected(read, job.begun, set()).once | self.truth.deleted(self.truth.logs)
            job.forgiven |= expected - found.keys()
        # A query that has nothing to write does not check its output.
        excused = job.forgiven if had_batch else job.forgiven | job.destroyed
        if wrong := compare(self.truth.expected(read, job.begun, excused), found):
            raise Broken(f"{job.name} ended without error, but its output is wrong: {wrong}")
        if torn := job.torn(self.bootstrap, counted, had_batch=had_batch):
            raise Broken(f"{job.name} ended without error, but its outputs differ: {torn}")
        # The job can never read records that were deleted before it began.
        job.forgiven |= self.truth.deleted(set(read) - job.begun)
        job.begun.update(read)
        job.resets.clear()
        if not job.in_function:
            job.starting_offsets = None  # the group has the position now
        if job.checkpoint.exists():
            job.keep_copy()

    def run_as_zombie(self, job: Job) -> tuple[RunResult, RunResult]:
        """Hold a job before its decision, run a second copy of it to its end, then let the first continue."""
        self.step(f"run {job.name} and hold it before it decides")
        held = len(self.log) - 1
        other = copy.copy(job)
        other.new_checkpoint()
        other.fault = job.directory / "no-fault"
        successor = RunResult(End.REFUSED)
        try:
            query = self._hold(job)
            successor = self.run(other)
            job.fault.write_text("go on")
            outcome = wait(query)
        except PySparkException as error:
            outcome = result_of(error, fault_was_asked=False)
        finally:
            job.fault.write_text("go on")
        self.step(f"let {job.name} go on, which was held in step {held + 1}")
        self._judged(job, outcome)
        return outcome, successor

    def stop_in_batch(self, job: Job) -> None:
        """Stop a job before its decision by a request of the operator, not by a failure.

        The process that was about to decide continues while Spark stops the query.
        """
        self.step(f"run {job.name} and stop it before it decides")
        query = self._hold(job)
        release = threading.Timer(STOP_SECONDS, job.fault.write_text, ["go on"])
        release.start()
        try:
            query.stop()
        finally:
            release.join()

    def _hold(self, job: Job) -> StreamingQuery:
        """Start a job that waits before its decision, if it gets there, until its fault file changes."""
        job.fault.write_text("wait_before_commit" if job.writes_table else "wait_before_decision")
        query = job.start(self.spark, self.bootstrap)
        until(lambda: not query.isActive or job.fault.read_text() == WAITING, RUN_SECONDS, "the held batch")
        return query

    # ---- checkpoints

    def lose_checkpoint(self, job: Job) -> None:
        """Delete the checkpoint of a job."""
        shutil.rmtree(job.checkpoint, ignore_errors=True)
        self.step(f"delete the checkpoint of {job.name}")

    def new_checkpoint(self, job: Job) -> None:
        """Give a job an empty checkpoint in another directory."""
        job.new_checkpoint()
        self.step(f"give {job.name} a new checkpointLocation")

    def uncommit(self, job: Job) -> bool:
        """Delete the newest file of the commits log, as if the driver had died before it was written."""
        batches = job.logged("commits")
        if not batches or batches[-1] != job.logged("offsets")[-1]:
            return False
        for name in (f"{batches[-1]}", f".{batches[-1]}.crc"):
            (job.logs / "commits" / name).unlink(missing_ok=True)
        self.step(f"delete commits/{batches[-1]} of the checkpoint of {job.name}")
        return True

    def restore_checkpoint(self, job: Job, age: int = 1) -> None:
        """Replace a checkpoint by an older copy; the newest copy has age 0."""
        shutil.rmtree(job.checkpoint, ignore_errors=True)
        shutil.copytree(job.copies[-1 - age], job.checkpoint)
        self.step(f"restore the checkpoint of {job.name} as it was {age} runs before its last")

    def swap_checkpoints(self, one: Job, other: Job) -> None:
        """Exchange the checkpoints of two jobs."""
        between = one.directory / "swapped"
        one.checkpoint.rename(between)
        other.checkpoint.rename(one.checkpoint)
        between.rename(other.checkpoint)
        self.step(f"swap the checkpoints of {one.name} and {other.name}")

    def copy_checkpoint(self, one: Job, other: Job) -> None:
        """Give the second job a copy of the first one's checkpoint."""
        shutil.rmtree(other.checkpoint, ignore_errors=True)
        shutil.copytree(one.checkpoint, other.checkpoint)
        self.step(f"give {other.name} a copy of the checkpoint of {one.name}")

    def change_id(self, job: Job) -> None:
        """Give a job another pipeline.id and checkpoint, as when its name in a declaration changes."""
        job.former_id = job.former_id or job.pipeline_id
        job.pipeline_id += "-other"
        job.new_checkpoint()
        self.step(f"give {job.name} the pipeline.id {job.pipeline_id} and a new checkpointLocation")

    def keep_id(self, job: Job) -> None:
        """Give a job its former pipeline.id back."""
        assert job.former_id is not None, "it had one"
        job.pipeline_id, job.former_id = job.former_id, None
        job.new_checkpoint()
        self.step(f"give {job.name} its pipeline.id {job.pipeline_id} back, and a new checkpointLocation")

    def tell_new(self, job: Job) -> None:
        """Set pipeline.new: the job begins, whatever other pipelines have written to its output."""
        job.is_new = True
        self.step(f"set pipeline.new of {job.name}")

    def name_source(self, job: Job, name: str | None) -> None:
        """Give the source of a job another pipeline.id than the sink; None for the same."""
        job.source_id = name
        job.new_checkpoint()
        self.step(f"give the source of {job.name} the pipeline.id {name or job.pipeline_id}")

    def rename(self, job: Job) -> bool:
        """Give a job a new pipeline.id, a new checkpoint, and startingOffsets where its output ends.

        Return False if there are no such offsets: in every partition, the output must hold all records up to
        some offset, and none after it.
        """
        found = job.found(self.bootstrap)
        starts: dict[str, dict[str, int]] = {}
        for (topic, number), log in self.truth.logs.items():
            if not job.matches(topic):
                continue
            # Open transactions may commit later, and no record after them is in the output.
            counts = [each for each in log if each.fate is not Fate.ABORTED]
            left = list(itertools.dropwhile(lambda each: each.number in found, counts))
            if any(each.number in found for each in left):
                return False
            end = log[-1].offset + 1 if log else 0
            starts.setdefault(topic, {})[str(number)] = left[0].offset if left else end
        job.pipeline_id = f"{job.pipeline_id}-renamed"
        job.starting_offsets = json.dumps(starts)
        job.new_checkpoint()
        self.step(
            f"give {job.name} the pipeline.id {job.pipeline_id}, a new checkpointLocation and "
            f"startingOffsets {job.starting_offsets}, where its output ends"
        )
        return True

    # ---- groups

    def group_offsets(self, job: Job) -> dict[Partition, int]:
        """Return the committed offsets of a job's group."""
        with Client(self.bootstrap) as client:
            return {key: each.offset for key, each in Admin(client).groups.offsets(job.pipeline_id).items()}

    def counted(self, job: Job) -> set[int]:
        """Return the committed records below the position of a job."""
        return self.truth.before(self.group_offsets(job)) & self.truth.numbers()

    def delete_group(self, job: Job) -> None:
        """Delete the group of a job, if there is one."""
        with Client(self.bootstrap) as client:
            try:
                Admin(client).groups.delete(job.pipeline_id)
            except KafkaError as error:
                self.step(f"the group {job.pipeline_id} cannot be deleted: {error}")
                return
        self.step(f"delete the group {job.pipeline_id}")

    def reset_offsets(self, job: Job, offsets: Mapping[Partition, int]) -> None:
        """Set offsets of the group, as kafka-consumer-groups --reset-offsets does."""
        with Client(self.bootstrap) as client:
            Admin(client).groups.set_offsets(job.pipeline_id, offsets)
        job.resets.update(offsets)
        told = ", ".join(f"{key[0]}/{key[1]} to {offset}" for key, offset in sorted(offsets.items()))
        self.step(f"reset offsets of the group {job.pipeline_id}: {told}")

    def delete_offsets(self, job: Job, keys: Iterable[Partition]) -> None:
        """Delete offsets of the group, as kafka-consumer-groups --delete-offsets does."""
        wanted = sorted(keys)
        with Client(self.bootstrap) as client:
            Admin(client).groups.delete_offsets(job.pipeline_id, wanted)
        told = ", ".join(f"{key[0]}/{key[1]}" for key in wanted)
        self.step(f"delete the offsets of the group {job.pipeline_id} on {told}")

    # ---- the broker

    def restart(self, *, hours: int | None = None, has_extensions: bool | None = None) -> None:
        """Restart the broker, with another time of day or other extensions if given."""
        self.finish_transaction()
        self.broker.stop()
        self.step("restart the broker")
        if hours is not None:
            self.broker.shift_ms = hours * HOUR_MS
            self.log[-1] += f" with its clock {hours:+} hours from now"
        if has_extensions is not None:
            self.broker.has_extensions = has_extensions
            self.log[-1] += f" {'with' if has_extensions else 'without'} extensions"
        self.broker.start()

    def back_up(self) -> None:
        """Copy the broker's data while it is stopped."""
        self.finish_transaction()
        place = self.directory / f"backup-{next(self._names)}"
        self.broker.back_up(place)
        self._backup = place, copy.deepcopy(self.truth)
        self.step("back up the broker")

    @property
    def has_backup(self) -> bool:
        """Whether there is a backup to restore."""
        return self._backup is not None

    def restore(self) -> None:
        """Restore the backup. Later records are gone; checkpoints and tables stay as they are."""
        assert self._backup is not None, "there is a backup"
        self.finish_transaction()
        place, truth = self._backup
        written = self.truth.numbers()
        self.broker.restore(place)
        self.truth = copy.deepcopy(truth)
        self.truth.forget(written)
        self.step("restore the broker from its backup")


def now_ms() -> int:
    """Return the time of day, for timestamps of records."""
    return int(time.time() * 1000)


def _where(topic: str, to: Iterable[int] | None) -> str:
    return topic if to is None else f"{topic}/{','.join(map(str, to))}"
