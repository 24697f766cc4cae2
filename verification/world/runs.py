"""Plays many scenarios on one Spark, and collects the results."""

import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from support.spark.jobs import start_spark

from verification.world.program import play
from verification.world.verdict import End
from verification.world.world import World

#: How long Spark waits for a query to stop. After that a hanging query is abandoned.
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


def run(seeds: Iterable[int]) -> Ran:
    """Play the scenarios of these seeds, each on a broker of its own, all on one Spark."""
    ran = Ran()
    spark = start_spark(settings=SETTINGS)
    try:
        for seed in seeds:
            ran.scenarios.append(one(spark, seed))
    finally:
        spark.stop()
    return ran


def one(spark: SparkSession, seed: int) -> Played:
    """Play the scenario of a seed; print its steps if it fails."""
    chance = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="semel-world-"))
    world = World(spark, directory, seed=seed, has_extensions=chance.random() < 0.6)
    failure = ""
    began = time.monotonic()
    try:
        with world:
            play(world, chance)
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
