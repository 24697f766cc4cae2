"""The steps of scenarios with declared pipelines: their sinks change, and a batch is interrupted anywhere."""

import copy
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.errors import PySparkException
from support.faults.decision_points import catching, die
from support.waiting import until

from semel.client import Admin, Client
from verification.world.declared import WORKER, Declared
from verification.world.job import RUN_SECONDS, Job, wait
from verification.world.sinks import Kind, WorldSink, value_of
from verification.world.verdict import End, RunResult, result_of
from verification.world.world import World

NEW_COLUMN: Final = Field("extra", PrimitiveType("string"))


class DeclaredWorld(World):
    """A scenario in progress, with declared pipelines."""

    def value(self, number: int) -> bytes:
        """Return the value of a record, which may be bad."""
        return value_of(number)

    # ---- declarations

    def declare(
        self,
        reads: str,
        kinds: list[Kind],
        *,
        by_hand: bool = False,
        output_mode: str = "append",
        batch_max: int | None = None,
    ) -> Declared:
        """Declare a pipeline with sinks of these kinds."""
        number = next(self._job_numbers)
        job = Declared(
            f"job {number}", f"pipeline-{number}", reads, "", self.directory / f"job-{number}",
            by_hand=by_hand, output_mode=output_mode, batch_max=batch_max,
        )  # fmt: skip
        how = "foreachBatch by hand" if by_hand else f"a declaration, output_mode {output_mode}"
        self.step(
            f"{job.name}: {how}, pipeline.id {job.pipeline_id}, reads {reads}, "
            f"maxOffsetsPerTrigger {batch_max}"
        )
        for kind in kinds:
            self.add_sink(job, kind)
        self.jobs.append(job)
        return job

    def successor(self, job: Job) -> Job:
        """Declare a pipeline with a new id and new sinks of the same kinds."""
        assert isinstance(job, Declared)
        kinds = [each.kind for each in job.wired]
        return self.declare(
            job.reads, kinds, by_hand=job.by_hand, output_mode=job.output_mode, batch_max=job.batch_max
        )

    def add_sink(self, job: Declared, kind: Kind, name: str | None = None) -> WorldSink:
        """Add a sink. It begins with what is not counted yet."""
        number = job.next_sink_number()
        name = name or f"sink-{number}"
        place = f"{job.directory.name}-{name}-{number}"
        if kind.is_table:
            place = str(job.directory / f"table-{number}")
        sink = WorldSink(name, kind, place, skipped=self._counted(job), since=len(job.epochs) - 1)
        if not kind.is_table:
            self.create(place, 1, is_input=False)
        job.sinks.append(sink)
        self.step(f"{job.name} gets the {kind.value} {name} ({Path(place).name})")
        return sink

    def remove_sink(self, job: Declared, sink: WorldSink) -> None:
        """Remove a sink from the declaration."""
        sink.is_wired = False
        sink.known = self._counted(job)
        if sink.kind is Kind.DEAD:
            job.forgiven |= self._bad()
        self.step(f"{job.name} loses the {sink.kind.value} {sink.name}")

    def put_back_sink(self, job: Declared, sink: WorldSink) -> None:
        """Add a sink that was removed."""
        sink.is_wired = True
        sink.skipped |= self._counted(job) - sink.known
        self.step(f"{job.name} gets the {sink.kind.value} {sink.name} back")

    def rename_sink(self, job: Declared, sink: WorldSink) -> None:
        """Give a sink another name in the declaration."""
        sink.name = f"{sink.name}-renamed"
        self.step(f"a sink of {job.name} is {sink.name} now")

    def _counted(self, job: Declared) -> set[int]:
        """Return what counts: what is in any sink, and what a position covers that was not set by hand."""
        found = set(job.found(self.bootstrap))
        return found if job.resets else found | self.counted(job)

    def _bad(self) -> set[int]:
        return {each for each in self.truth.numbers() if not value_of(each).startswith(b"{")}

    # ---- runs

    def run(
        self,
        job: Job,
        *,
        fault: str = "",
        fails_on_loss: bool = True,
        act: Callable[[], None] | None = None,
        what: str = "",
    ) -> RunResult:
        """Run a job to its end, or to a point at which the driver dies, or something else happens."""
        assert isinstance(job, Declared)
        if not any(each.kind is Kind.DEAD for each in job.wired) and job.parses:
            job.forgiven |= self._bad()
        before = {each.place: set(each.found(self.bootstrap)) for each in job.sinks}
        told = f", and {what}" if what else ""
        self.step(
            f"run {job.name}"
            + (f" to {fault!r}{told or ', where it dies'}" if fault else "")
            + ("" if fails_on_loss else " with failOnDataLoss=false")
        )
        options = {} if fails_on_loss else {"failOnDataLoss": False}
        if fault and fault != WORKER:
            outcome = job.run_to(self.spark, self.bootstrap, fault, act or die, options)
        else:
            outcome = job.run(self.spark, self.bootstrap, options, fault=fault)
        if outcome.end is not End.WELL:
            self._check_premature(job, before)
        return self._judged(job, outcome, fails_on_loss)

    def _check_premature(self, job: Declared, before: dict[str, set[int]]) -> None:
        """After a run that did not end well: no sink has more than what is decided."""
        if job.resets:
            return
        decided = self.counted(job)
        for each in job.sinks:
            if more := set(each.found(self.bootstrap)) - before[each.place] - decided:
                raise Premature(
                    f"{job.name}: the {each.kind.value} {each.name} has {sorted(more)[:8]}, undecided"
                )

    def run_as_zombie(self, job: Job) -> tuple[RunResult, RunResult]:
        """Hold a job before its decision, run a second copy of it to its end, then let the first continue."""
        assert isinstance(job, Declared)
        self.step(f"run {job.name} and hold it before it decides")
        at_point, released = threading.Event(), threading.Event()

        def hold() -> None:
            at_point.set()
            released.wait(RUN_SECONDS)

        other = copy.copy(job)
        other.new_checkpoint()
        successor = RunResult(End.REFUSED)
        with catching(job.points(self.bootstrap)["before the decision"], hold):
            try:
                query = job.start(self.spark, self.bootstrap)
                until(lambda: at_point.is_set() or not query.isActive, RUN_SECONDS, "the held batch")
                if not at_point.is_set():
                    released.set()  # There was nothing to read, or it was refused.
                successor = self.run(other)
                released.set()
                outcome = wait(query)
            except PySparkException as error:
                outcome = result_of(error, fault_was_asked=False)
            finally:
                released.set()
        self.step(f"let {job.name} go on, which was held")
        self._judged(job, outcome)
        return outcome, successor

    # ---- the state

    def lose_checkpoint(self, job: Job) -> None:
        """Delete the checkpoint of a job, and with it the state."""
        self._lose_state(job)
        super().lose_checkpoint(job)

    def new_checkpoint(self, job: Job) -> None:
        """Give a job an empty checkpoint in another directory."""
        self._lose_state(job)
        super().new_checkpoint(job)

    def change_id(self, job: Job) -> None:
        """Give a job another pipeline.id and checkpoint."""
        self._lose_state(job)
        super().change_id(job)

    def keep_id(self, job: Job) -> None:
        """Give a job its former pipeline.id back."""
        self._lose_state(job)
        super().keep_id(job)

    def rename(self, job: Job) -> bool:
        """Give a job a new pipeline.id, and startingOffsets where its output ends, if all sinks end there."""
        assert isinstance(job, Declared)
        if job.torn(self.bootstrap, self.counted(job), had_batch=True):
            return False
        self._lose_state(job)
        return super().rename(job)

    def _lose_state(self, job: Job) -> None:
        assert isinstance(job, Declared)
        job.epochs.append(self._counted(job))

    # ---- outputs

    def recreate_sink(self, job: Declared, sink: WorldSink) -> None:
        """Delete the topic or the table of a sink; create it again, empty, if it is a topic."""
        sink.destroyed.setdefault(job.pipeline_id, set()).update(sink.found(self.bootstrap))
        if sink.kind.is_table:
            shutil.rmtree(sink.place, ignore_errors=True)
            self.step(f"delete the table {sink.name} of {job.name}")
            return
        with Client(self.bootstrap) as client:
            Admin(client).topics.delete(sink.place)
        self.step(f"delete topic {sink.place}")
        self.create(sink.place, 1, is_input=False)

    def take_away(self, job: Declared, sink: WorldSink) -> Callable[[], None]:
        """Move a table elsewhere, which the next batch must notice; return what puts it back."""
        away, before = f"{sink.place}-away", dict(sink.destroyed)
        sink.destroyed[job.pipeline_id] = set(sink.found(self.bootstrap))
        shutil.move(sink.place, away)
        self.step(f"move the table {sink.name} away")

        def put_back() -> None:
            shutil.rmtree(sink.place, ignore_errors=True)
            shutil.move(away, sink.place)
            sink.destroyed = before
            self.step(f"put the table {sink.name} back")

        return put_back

    def compact(self, sink: WorldSink) -> None:
        """OPTIMIZE a table."""
        DeltaTable(sink.place).optimize.compact()

    def vacuum(self, sink: WorldSink) -> None:
        """VACUUM a table with its usual retention."""
        DeltaTable(sink.place).vacuum(dry_run=False)

    def add_column(self, sink: WorldSink) -> None:
        """Add a column to a table, once."""
        table = DeltaTable(sink.place)
        if NEW_COLUMN.name not in {each.name for each in table.schema().fields}:
            table.alter.add_columns([NEW_COLUMN])

    # ---- the broker

    def restore(self) -> None:
        """Restore the backup. Topics lose what tables keep."""
        kept = {
            job.name: {each.place: set(each.found(self.bootstrap)) for each in job.sinks}
            for job in self.jobs
            if isinstance(job, Declared)
        }
        super().restore()
        for job in self.jobs:
            if isinstance(job, Declared):
                gone = [
                    numbers - set(sink.found(self.bootstrap))
                    for sink in job.sinks
                    for numbers in [kept[job.name].get(sink.place, set())]
                ]
                job.excused |= set().union(*gone)


class Premature(AssertionError):
    """A sink has records of a batch that is not decided."""
