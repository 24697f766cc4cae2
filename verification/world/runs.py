"""Plays many scenarios on one Spark, and collects the results."""

import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession
from support.spark.jobs import start_spark

from verification.world import declared_program
from verification.world.broker import Host
from verification.world.declared_world import DeclaredWorld
from verification.world.program import play
from verification.world.verdict import End
from verification.world.world import World

#: How long Spark waits for a query to stop. After that a hanging query is abandoned.
#: How the broker of a scenario is made.
HostOf = Callable[[Path, random.Random], Host]
SETTINGS = {"spark.sql.streaming.stopTimeout": "20s"}


@dataclass
class Played:
    """The result of one scenario."""

    seed: int
    ends: Counter[End]
    refusals: list[str]
    steps: str
    seconds: float
    failure: str = ""


@dataclass
class Ran:
    """The results of many scenarios."""

    scenarios: list[Played] = field(default_factory=list)

    @property
    def failures(self) -> list[Played]:
        """The scenarios in which exactly-once was broken."""
        return [each for each in self.scenarios if each.failure]

    def count(self, end: End) -> int:
        """Return how many runs ended in this way."""
        return sum(each.ends[end] for each in self.scenarios)


Scenario = Callable[[SparkSession, int], Played]


def run(seeds: Iterable[int], scenario: "Scenario | None" = None) -> Ran:
    """Play the scenarios of these seeds, each on a broker of its own, all on one Spark."""
    ran = Ran()
    spark = start_spark(settings=SETTINGS)
    try:
        for seed in seeds:
            ran.scenarios.append((scenario or one)(spark, seed))
    finally:
        spark.stop()
    return ran


def one(spark: SparkSession, seed: int) -> Played:
    """Play the scenario of a seed; print its steps if it fails."""
    chance = random.Random(seed)
    has_extensions = chance.random() < 0.6
    return _played(
        seed,
        lambda directory: World(spark, directory, seed=seed, has_extensions=has_extensions),
        lambda world: play(world, chance),
    )


def declared(spark: SparkSession, seed: int, host: HostOf | None = None) -> Played:
    """Play the scenario of a seed with a declared pipeline, on an embedded broker or another one."""
    chance = random.Random(seed)
    has_extensions = chance.random() < 0.6

    def begin(directory: Path) -> DeclaredWorld:
        broker = None if host is None else host(directory, chance)
        has = has_extensions if broker is None else broker.has_extensions
        return DeclaredWorld(spark, directory, seed=seed, has_extensions=has, broker=broker)

    return _played(seed, begin, lambda world: declared_program.play(world, chance))


W = TypeVar("W", bound=World)


def _played(seed: int, begin: Callable[[Path], W], play: Callable[[W], None]) -> Played:
    directory = Path(tempfile.mkdtemp(prefix="semel-world-"))
    world = begin(directory)
    failure = ""
    began = time.monotonic()
    try:
        with world:
            play(world)
    except AssertionError as error:
        failure = str(error)
    except Exception:  # noqa: BLE001 - whatever else goes wrong is told with the steps that led to it
        failure = traceback.format_exc()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - began
    played = Played(seed, world.ends, world.refusals, world.told(), seconds, failure)
    if failure:
        print(f"{played.steps}\n  FAILED: {failure}", flush=True)  # noqa: T201 - to be seen again by its seed
    return played
