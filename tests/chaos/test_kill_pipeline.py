"""A pipeline outlives kills of broker, driver, JVM and Python workers; ``make verify`` takes a hundred."""

import os

import pytest

from verification import pipeline_kills

pytestmark = [pytest.mark.spark, pytest.mark.long]

KILLS = int(os.environ.get("SEMEL_KILLS", "4"))


@pytest.mark.timeout(300 + 60 * KILLS)
def test_kill_over_a_long_pipeline() -> None:
    seed = os.environ.get("SEMEL_SEED")
    killed = pipeline_kills.run(KILLS, None if seed is None else int(seed))
    assert killed.kills == KILLS
    assert (killed.lost, killed.doubled, killed.problems) == ([], [], []), str(killed)
