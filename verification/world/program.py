"""Plays a scenario: a random sequence of steps.

A single change seldom makes a pipeline fail. So a round usually has a change of what records the pipeline's
position (checkpoint, group, a copy of the query) and a change of what there is to read and to write (topics,
records, the broker). Then a job runs, and at the end all jobs do. If a job refuses, the program follows the
advice in its message.
"""

import random
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from verification.world.job import Job
from verification.world.truth import Partition
from verification.world.verdict import Broken, End, RunResult
from verification.world.world import TABLE_FAULTS, TOPIC_FAULTS, World, now_ms

PATTERN: Final = "in-.*"
HELP_MAX: Final = 2
"""How often the advice is followed before a pipeline with a new id and a new output replaces the job."""
JOBS_MAX: Final = 4
_IN_OUTPUT: Final = re.compile("where the (output|table) ends|pipeline.id of its own|new pipeline.id")
_AGAIN: Final = re.compile("[Ss]tart (the query )?again|has taken over|has written to the table")
DAY_HOURS: Final = 24


class Situation(NamedTuple):
    """What a change works with."""

    world: World
    chance: random.Random
    job: Job

    def other(self) -> Job | None:
        """Choose another job, if there is one."""
        others = [each for each in self.world.jobs if each is not self.job]
        return self.chance.choice(others) if others else None

    def topic(self) -> str:
        """Choose a topic that the job reads, or any topic if it reads none."""
        topics = self.world.inputs()
        return self.chance.choice([each for each in topics if self.job.matches(each)] or topics)

    def partition(self) -> Partition:
        """Choose a partition of such a topic."""
        topic = self.topic()
        return topic, self.chance.randrange(self.world.partitions(topic))


Change = Callable[[Situation], object]


# ---- changes of what records the position


def lose_checkpoint(situation: Situation) -> None:
    """Delete the checkpoint."""
    situation.world.lose_checkpoint(situation.job)


def restore_checkpoint(situation: Situation) -> None:
    """Put an older copy of the checkpoint in its place."""
    copies = len(situation.job.copies)
    if copies:
        # The newest copy often equals the checkpoint, so it is chosen seldom.
        situation.world.restore_checkpoint(
            situation.job, min(situation.chance.choice([0, 1, 1, 1, 2]), copies - 1)
        )


def _swap_checkpoints(situation: Situation) -> None:
    other = situation.other()
    if other is not None and other.checkpoint.exists() and situation.job.checkpoint.exists():
        situation.world.swap_checkpoints(situation.job, other)


def _copy_checkpoint(situation: Situation) -> None:
    other = situation.other()
    if other is not None and situation.job.checkpoint.exists():
        situation.world.copy_checkpoint(situation.job, other)


def uncommit(situation: Situation) -> None:
    """Take the last batch out of the commits log."""
    situation.world.uncommit(situation.job)


def _uncommit_and_delete_group(situation: Situation) -> None:
    situation.world.uncommit(situation.job)
    situation.world.delete_group(situation.job)


def delete_group(situation: Situation) -> None:
    """Delete the consumer group, and perhaps the checkpoint."""
    situation.world.delete_group(situation.job)
    if situation.chance.random() < 0.5:
        situation.world.lose_checkpoint(situation.job)


def reset_offsets(situation: Situation) -> None:
    """Reset some offsets of the group, and perhaps lose the checkpoint."""
    offsets = situation.world.group_offsets(situation.job)
    keys = situation.chance.sample(sorted(offsets), situation.chance.randint(0, len(offsets)))
    if keys:
        situation.world.reset_offsets(
            situation.job, {key: _reset(situation, key, offsets[key]) for key in keys}
        )
    if situation.chance.random() < 0.6:
        situation.world.lose_checkpoint(situation.job)


def _reset(situation: Situation, key: Partition, now: int) -> int:
    log = situation.world.truth.logs.get(key, [])
    end = log[-1].offset + 1 if log else 0
    return situation.chance.choice([0, end, situation.chance.randint(0, max(now, 1))])


def delete_offsets(situation: Situation) -> None:
    """Delete an offset of the group, and perhaps the checkpoint."""
    there = {key for key in situation.world.group_offsets(situation.job) if key in situation.world.truth.logs}
    if there:
        situation.world.delete_offsets(situation.job, [situation.chance.choice(sorted(there))])
    if situation.chance.random() < 0.6:
        situation.world.lose_checkpoint(situation.job)


def _crash(situation: Situation) -> None:
    write_some(situation)
    fault = situation.chance.choice(TABLE_FAULTS if situation.job.writes_table else TOPIC_FAULTS)
    situation.world.run(situation.job, fault=fault)


def _stop(situation: Situation) -> None:
    write_some(situation)
    if not situation.job.in_function:
        situation.world.stop_in_batch(situation.job)


def _zombie(situation: Situation) -> None:
    write_some(situation)
    if not situation.job.in_function:
        situation.world.run_as_zombie(situation.job)


def change_id(situation: Situation) -> None:
    """Rename a sink, as in a declaration; the group of the old name may be gone by then."""
    if situation.job.in_function:
        return
    if situation.chance.random() < 0.2:
        situation.world.delete_group(situation.job)
    situation.world.change_id(situation.job)


def _name_source(situation: Situation) -> None:
    if situation.job.in_function:
        return
    situation.world.name_source(situation.job, f"{situation.job.pipeline_id}-source")


def _reuse_id(situation: Situation) -> None:
    """Let another query use the pipeline.id, with the same input and output or with others."""
    world, job = situation.world, situation.job
    if len(world.jobs) >= JOBS_MAX:
        return
    same: dict[str, Any] = {
        "pipeline_id": job.pipeline_id,
        "batch_max": job.batch_max,
        "writes_table": job.writes_table,
        "in_function": job.in_function,
    }
    how = situation.chance.choice(
        ["all the same", "another output", "another input", "another kind of output"]
    )
    if how == "another kind of output":
        same["writes_table"] = not job.writes_table
    if how == "another input":
        topic = f"other-{len(world.log)}"
        world.create(topic)
        world.write(topic)
        other = world.job(topic, output=job.output, **same)
    else:
        output = job.output if how == "all the same" else None
        other = world.job(job.reads, is_pattern=job.is_pattern, output=output, **same)
    world.run(other)


# ---- changes of what there is to read and to write


def grow(situation: Situation) -> None:
    """Add a partition."""
    topic, number = situation.world.grow(situation.topic())
    if situation.chance.random() < 0.7:
        situation.world.write(topic, situation.chance.randint(1, 6), to=[number])


def recreate_input(situation: Situation) -> None:
    """Delete an input topic and create it again."""
    world, topic = situation.world, situation.topic()
    count = sum(len(log) for key, log in world.truth.logs.items() if key[0] == topic)
    partitions = world.partitions(topic) + situation.chance.choice([0, 0, 0, 1, -1])
    world.recreate(topic, max(1, partitions))
    if new := situation.chance.choice([0, count // 2, count, count * 2 + 1]):
        world.write(topic, new)


def _recreate_output(situation: Situation) -> None:
    situation.world.recreate_output(situation.job)


def _new_topic(situation: Situation) -> None:
    topic = f"in-new-{len(situation.world.log)}"
    situation.world.create(
        topic, situation.chance.randint(1, 2), is_compacted=situation.chance.random() < 0.2
    )
    situation.world.write(topic, situation.chance.randint(1, 6))


def delete_records(situation: Situation) -> None:
    """Delete the first records of a partition."""
    if situation.chance.random() < 0.5:
        write_some(situation)
    situation.world.delete_records(situation.partition(), situation.chance.randint(1, 20))


def transactions(situation: Situation) -> None:
    """Write in transactions, some of which are aborted."""
    for _ in range(situation.chance.randint(1, 3)):
        situation.world.transact(
            situation.topic(), situation.chance.randint(1, 6), commits=situation.chance.random() < 0.5
        )


def open_transaction(situation: Situation) -> None:
    """Leave a transaction open, and write behind it."""
    situation.world.open_transaction(situation.topic())
    write_some(situation)


def finish_transaction(situation: Situation) -> None:
    """End the open transaction."""
    situation.world.finish_transaction(commits=situation.chance.random() < 0.5)


def _odd_timestamps(situation: Situation) -> None:
    odd = [0, 1, now_ms() - 400 * DAY_HOURS * 3_600_000, now_ms() + 1_800_000]
    situation.world.write(situation.topic(), 5, timestamp_ms=situation.chance.choice(odd))


def move_clock(situation: Situation) -> None:
    """Restart the broker with another time of day."""
    situation.world.restart(hours=situation.chance.choice([-48, -6, -1, 1, 6, 48, 10 * DAY_HOURS]))


def switch_extensions(situation: Situation) -> None:
    """Restart the broker with or without Semel's extensions."""
    situation.world.restart(has_extensions=not situation.world.broker.has_extensions)


def backup(situation: Situation) -> None:
    """Back up the broker, or restore the backup."""
    if situation.world.has_backup:
        situation.world.restore()
    else:
        situation.world.back_up()


def write_some(situation: Situation) -> None:
    """Write to some partitions of some topics, or to none."""
    for topic in situation.world.inputs():
        if situation.chance.random() < 0.6:
            partitions = range(situation.world.partitions(topic))
            to = situation.chance.sample(partitions, situation.chance.randint(1, len(partitions)))
            situation.world.write(topic, situation.chance.randint(1, 12), to=sorted(to))


POSITIONS: Final[tuple[Change, ...]] = (
    lose_checkpoint, *[restore_checkpoint] * 4, _swap_checkpoints, _copy_checkpoint,
    uncommit, _uncommit_and_delete_group, delete_group, reset_offsets, delete_offsets, _crash, _crash,
    _stop, _zombie, _reuse_id, change_id, change_id, _name_source,
)  # fmt: skip
LOGS: Final[tuple[Change, ...]] = (
    *[grow] * 3, recreate_input, recreate_input, _recreate_output, _new_topic, _new_topic, delete_records,
    transactions, open_transaction, finish_transaction, _odd_timestamps, move_clock, switch_extensions,
    backup,
)  # fmt: skip


# ---- a scenario


def play(world: World, chance: random.Random) -> None:
    """Play a random scenario to its end. Broken if a run ends in a way that `verdict` does not allow."""
    _declare(world, chance)
    for job in list(world.jobs):
        if chance.random() < 0.15:
            # Its very first batch is decided, and the driver dies before it writes the commits log.
            world.run(job, fault="before_follow" if job.writes_table else "after_decision")
        else:
            world.run(job)
    if chance.random() < 0.4:
        world.back_up()
    write_some(Situation(world, chance, world.jobs[0]))
    world.run(world.jobs[0])
    for _ in range(2):
        situation = Situation(world, chance, chance.choice(world.jobs))
        changes = [chance.choice(each) for each in (POSITIONS, LOGS) if chance.random() < 0.85]
        chance.shuffle(changes)
        for change in changes:
            change(situation)
        if chance.random() < 0.7:
            write_some(situation)
        run_with_help(world, chance, situation.job)
    world.finish_transaction(commits=chance.random() < 0.5)
    for topic in world.inputs():
        world.write(topic, 6)
    for job in list(world.jobs):
        run_with_help(world, chance, job)


def _declare(world: World, chance: random.Random) -> None:
    topics = ["in-a", "in-b"][: chance.choice([1, 1, 2])]
    for topic in topics:
        world.create(topic, chance.randint(1, 3), is_compacted=chance.random() < 0.1)
    for _ in range(chance.choice([1, 1, 2])):
        is_pattern = chance.random() < 0.4
        world.job(
            PATTERN if is_pattern else ",".join(topics),
            is_pattern=is_pattern,
            writes_table=chance.random() < 0.35,
            in_function=chance.random() < 0.25,
            batch_max=chance.choice([None, None, 7]),
        )
    for topic in topics:
        world.write(topic, chance.randint(1, 15))


def run_with_help(world: World, chance: random.Random, job: Job) -> None:
    """Run a job; if it refuses, follow the advice in its message, and finally replace it by another job."""
    outcome = world.run(job)
    for _ in range(HELP_MAX):
        if outcome.end is End.WELL:
            return
        if (helped := _helped(world, chance, job, outcome.words)) is None:
            break
        outcome = helped
    if outcome.end is not End.WELL:
        _replace(world, job)


def _helped(world: World, chance: random.Random, job: Job, words: str) -> RunResult | None:
    """Follow the advice in a refusal, and run the job again. Return None if there is no advice."""
    if "failOnDataLoss=false" in words and chance.random() < 0.7:
        return world.run(job, fails_on_loss=False)
    if "Give the source pipeline.id" in words and job.source_id is not None:
        world.name_source(job, None)
        return world.run(job)
    if job.former_id is not None and f"let it keep its id: pipeline.id={job.former_id}," in words:
        world.keep_id(job)
        return world.run(job)
    if "pipeline.new=true" in words and job.starting_offsets is not None:
        world.tell_new(job)
        return world.run(job)
    if _IN_OUTPUT.search(words) and chance.random() < 0.7 and world.rename(job):
        return world.run(job)
    if "checkpointLocation" in words and chance.random() < 0.9:
        world.new_checkpoint(job)
        return world.run(job)
    # Start the job again unchanged: the message may say so, and an operator may ignore other advice.
    return world.run(job) if _AGAIN.search(words) or chance.random() < 0.2 else None


def _replace(world: World, job: Job) -> None:
    """Replace a job by one with a new id and a new output, which must not refuse."""
    new = world.successor(job)
    world.jobs.remove(job)
    outcome = world.run(new)
    if outcome.end is not End.WELL and "there is no topic" not in outcome.words:
        raise Broken(f"{new.name} is new in all, and refuses: {outcome.words}")
