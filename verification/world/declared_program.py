"""Plays a scenario with a declared pipeline: a random sequence of steps.

A round changes several things between two runs: the sinks of the declaration, what records the position, what
there is to read and to write, and a run that is interrupted at a point of the decision. Then the pipeline
runs, and after a refusal the program follows the advice.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from support.faults.decision_points import AFTER

from verification.world import program
from verification.world.declared import WORKER, Declared
from verification.world.declared_world import DeclaredWorld
from verification.world.program import Situation, run_with_help, write_some
from verification.world.sinks import Kind, WorldSink
from verification.world.verdict import Broken, End

#: The sinks of each output mode. The first always has one of these, so that lost records are noticed.
PLAIN: Final = (Kind.TOPIC, Kind.TABLE, Kind.MERGED)
MORE: Final = {
    "append": (*PLAIN, Kind.TOPIC, Kind.DISTINCT),
    "update": (*PLAIN, Kind.TOTALS, Kind.TOTALS, Kind.TOTALS_TOPIC),
}
SINKS_MAX: Final = 4

Change = Callable[["Play"], object]


class Play(Situation):
    """What a change works with."""

    @property
    def here(self) -> DeclaredWorld:
        """The scenario."""
        assert isinstance(self.world, DeclaredWorld)
        return self.world

    @property
    def pipeline(self) -> Declared:
        """The pipeline."""
        assert isinstance(self.job, Declared)
        return self.job

    def sink(self, *, is_table: bool = False) -> WorldSink | None:
        """Choose a sink of the declaration."""
        found = [each for each in self.pipeline.wired if each.kind.is_table or not is_table]
        return self.chance.choice(found) if found else None

    def tables(self) -> list[WorldSink]:
        """Return the tables that exist."""
        return [
            each
            for each in self.pipeline.wired
            if DeltaTable.is_deltatable(each.place) and each.kind.is_table
        ]


# ---- interruptions


def crash(play: Play) -> None:
    """The driver dies at a point of the next batch."""
    write_some(play)
    points = sorted(play.pipeline.points(play.here.bootstrap))
    play.here.run(play.pipeline, fault=play.chance.choice([*points, WORKER]))


def crash_twice(play: Play) -> None:
    """The driver dies after the decision, and the next one while it completes the batch."""
    write_some(play)
    first, second = (play.chance.choice(sorted(AFTER)) for _ in range(2))
    play.here.run(play.pipeline, fault=first)
    play.here.run(play.pipeline, fault=second)


def crash_and_lose_checkpoint(play: Play) -> None:
    """The driver dies, and the checkpoint with it."""
    crash(play)
    play.here.lose_checkpoint(play.pipeline)


def crash_and_rewire(play: Play) -> None:
    """The driver dies, and the declaration is changed before it is started again."""
    crash(play)
    play.chance.choice(WIRING)(play)


def broker_restarts(play: Play) -> None:
    """A broker is killed at a point of the next batch, and started again."""
    write_some(play)
    points = sorted(play.pipeline.points(play.here.bootstrap))
    play.here.finish_transaction()
    play.here.run(
        play.pipeline,
        fault=play.chance.choice(points),
        act=play.here.broker.interrupt,
        what="the broker restarts",
    )


def table_changes(play: Play) -> None:
    """Another program changes a table at a point of the next batch, or between a crash and the next start."""
    write_some(play)
    tables = play.tables()
    if not tables:
        return
    sink = play.chance.choice(tables)
    here = play.here
    name, act = play.chance.choice(
        [("OPTIMIZE", here.compact), ("VACUUM", here.vacuum), ("ALTER TABLE ADD COLUMN", here.add_column)]
    )
    points = sorted(play.pipeline.points(here.bootstrap))
    if play.chance.random() < 0.6:
        here.run(
            play.pipeline,
            fault=play.chance.choice(points),
            act=lambda: act(sink),
            what=f"another program does {name} of {Path(sink.place).name}",
        )
        return
    here.run(play.pipeline, fault=play.chance.choice(points))
    act(sink)
    here.step(f"{name} of {Path(sink.place).name}")


def table_goes_away(play: Play) -> None:
    """A table is deleted between the decision and its commit. When it is back, the batch is completed."""
    tables = play.tables()
    if not tables:
        return
    write_some(play)
    sink = play.chance.choice(tables)
    play.here.run(play.pipeline, fault=play.chance.choice(["when it is decided", "before the tables"]))
    put_back = play.here.take_away(play.pipeline, sink)
    play.here.run(play.pipeline)
    put_back()


def zombie(play: Play) -> None:
    """A second copy of the pipeline takes over while the first is about to decide."""
    if not play.pipeline.has_totals:  # Which of the two checkpoints has the state is not modelled.
        write_some(play)
        play.here.run_as_zombie(play.pipeline)


# ---- the declaration


def add_sink(play: Play) -> None:
    """Add a sink; one whose result keeps state with a new checkpoint, as the docs say."""
    if len(play.pipeline.wired) >= SINKS_MAX or play.pipeline.output_mode == "complete":
        return
    kinds = PLAIN if play.pipeline.by_hand else MORE[play.pipeline.output_mode]
    kind = play.chance.choice(kinds)
    if kind.has_state:
        play.here.new_checkpoint(play.pipeline)
    play.here.add_sink(play.pipeline, kind)


def remove_sink(play: Play) -> None:
    """Remove a sink, but not the last that shows every record."""
    sink = play.sink()
    wired = play.pipeline.wired
    if sink is None or (sink.kind in PLAIN and sum(each.kind in PLAIN for each in wired) == 1):
        return
    if sink.kind.has_totals:
        return  # Such a table has no use when it is back: it lacks what was counted meanwhile.
    if sink.kind.has_state:
        play.here.new_checkpoint(play.pipeline)
    play.here.remove_sink(play.pipeline, sink)


def put_back_sink(play: Play) -> None:
    """Add a sink that was removed before."""
    away = [each for each in play.pipeline.sinks if not each.is_wired]
    has_dead = any(each.kind is Kind.DEAD for each in play.pipeline.wired)
    away = [each for each in away if not (each.kind is Kind.DEAD and has_dead)]
    if not away:
        return
    sink = play.chance.choice(away)
    if sink.kind.has_state:
        play.here.new_checkpoint(play.pipeline)
    play.here.put_back_sink(play.pipeline, sink)


def rename_sink(play: Play) -> None:
    """Give a sink another name."""
    sink = play.sink()
    if sink is not None:
        play.here.rename_sink(play.pipeline, sink)


def move_sink(play: Play) -> None:
    """Give a sink another topic or table under the same name."""
    sink = play.sink()
    if sink is None or sink.kind.has_state or play.pipeline.output_mode == "complete":
        return
    play.here.remove_sink(play.pipeline, sink)
    play.here.add_sink(play.pipeline, sink.kind, sink.name)


def recreate_sink(play: Play) -> None:
    """Delete the topic or the table of a sink, which may have been removed before."""
    sinks = [each for each in play.pipeline.sinks if not each.kind.has_totals]
    if sinks:
        sink = play.chance.choice(sinks)
        play.here.recreate_sink(play.pipeline, sink)


WIRING: Final[tuple[Change, ...]] = (
    add_sink, add_sink, remove_sink, remove_sink, put_back_sink, put_back_sink, rename_sink, move_sink,
)  # fmt: skip
INTERRUPTIONS: Final[tuple[Change, ...]] = (
    *[crash] * 4, crash_twice, crash_twice, crash_and_lose_checkpoint, crash_and_rewire, crash_and_rewire,
    broker_restarts, broker_restarts, table_changes, table_changes, table_goes_away, zombie,
)  # fmt: skip
POSITIONS: Final[tuple[Change, ...]] = (
    program.lose_checkpoint, *[program.restore_checkpoint] * 3, program.uncommit, program.delete_group,
    program.reset_offsets, program.delete_offsets, program.change_id,
)  # fmt: skip
LOGS: Final[tuple[Change, ...]] = (
    program.grow, program.grow, program.recreate_input, recreate_sink, program.delete_records,
    program.transactions, program.open_transaction, program.finish_transaction,
)  # fmt: skip
#: Changes of a broker that runs in this process.
EMBEDDED: Final[tuple[Change, ...]] = (program.move_clock, program.switch_extensions, program.backup)


def play(world: DeclaredWorld, chance: random.Random) -> None:
    """Play a random scenario to its end. Broken if a run ends in a way that `verdict` does not allow."""
    job = declare(world, chance)
    first = Play(world, chance, job)
    if chance.random() < 0.25:
        crash(first)
    run_with_help(world, chance, job)
    for _ in range(3):
        (now,) = world.jobs
        situation = Play(world, chance, now)
        logs = (*LOGS, *EMBEDDED) if not world.broker.kind else LOGS
        groups = ((INTERRUPTIONS, 0.85), (WIRING, 0.4), (POSITIONS, 0.3), (logs, 0.35))
        changes = [chance.choice(changes) for changes, share in groups if chance.random() < share]
        chance.shuffle(changes)
        for change in changes:
            change(situation)
        if chance.random() < 0.6:
            write_some(situation)
        run_with_help(world, chance, now)
    world.finish_transaction(commits=chance.random() < 0.5)
    for topic in world.inputs():
        world.write(topic, 6)
    (now,) = world.jobs
    run_with_help(world, chance, now)
    if world.ends[End.WELL] < 2:
        raise Broken("hardly any run ended without error, so nothing was shown")


def declare(world: DeclaredWorld, chance: random.Random) -> Declared:
    """Declare a pipeline, and write its first records."""
    topics = ["in-a", "in-b"][: chance.choice([1, 1, 2])]
    for topic in topics:
        world.create(topic, chance.randint(1, 3))
    by_hand = chance.random() < 0.25
    mode = "append" if by_hand else chance.choice(["append", "append", "update", "update", "complete"])
    if mode == "complete":
        kinds = [Kind.TOTALS, Kind.TOTALS_TOPIC]
    else:
        kinds = [chance.choice(PLAIN)]
        more = PLAIN if by_hand else MORE[mode]
        kinds += [chance.choice(more) for _ in range(chance.randint(1, SINKS_MAX - 2))]
    if not by_hand and chance.random() < 0.8:
        kinds.append(Kind.DEAD)
    for topic in topics:
        world.write(topic, chance.randint(1, 15))
    return world.declare(
        ",".join(topics), kinds, by_hand=by_hand, output_mode=mode, batch_max=chance.choice([None, None, 7])
    )
