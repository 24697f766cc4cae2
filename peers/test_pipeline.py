"""An exactly-once pipeline on Spark over a cluster of three, whose brokers are killed within batches.

Nothing is lost, doubled or torn. ``SEMEL_KILLS`` sets the number of kills; the default is 20.
"""

import os

import pytest
from support.servers.postgres import why_not

from verification import pipeline_kills
from verification.pipeline_brokers import three

KILLS = int(os.environ.get("SEMEL_KILLS", "20"))
SECONDS_EACH = 60


@pytest.mark.spark
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.timeout(300 + SECONDS_EACH * KILLS)
def test_brokers_of_a_cluster_are_killed_in_the_middle_of_batches() -> None:
    killed = pipeline_kills.run(KILLS, three)
    print(killed)  # noqa: T201 - shown with -s, and when the test fails
    assert killed.in_batch >= KILLS
    assert killed.looks >= KILLS
    assert (killed.lost, killed.doubled, killed.torn, killed.problems) == ([], [], [], []), str(killed)
