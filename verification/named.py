"""Runs the hand-written scenarios on Spark, which are tests, and counts them by what happens in them.

It also runs the long ones, so that the verification page can list all of them. Scenarios that follow from a
seed are in `pipeline_kills` and `world`.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree

from verification import tests

#: What happens in a scenario, and a pattern for the names of its tests; the first match counts.
KINDS: Final = {
    "a driver killed at a point of a batch": (
        r"test_scenarios::.*driver_is_killed|test_delta::.*is_killed|test_decision_points::test_\w+_driver_"
    ),
    "a broker killed at a point of a batch": r"test_broker_kills::|test_decision_points::test_the_broker_",
    "a Python worker killed": (
        r"::test_a_task_.*dies|process_that_commits_dies|::test_a_driver_that_dies|::test_a_worker_is_killed"
    ),
    "an executor killed on a cluster": r"::test_an_executor",
    "speculation on a cluster": r"speculation",
    "a zombie that wakes": r"zombie_driver|test_a_task_of_an_older_run",
    "two copies at once": r"another_copy",
    "a transactional or compacted input": r"no_gap_is_a_loss|compacted_input",
    "a stateful query": r"test_stateful::",
    "a query by Spark Connect": r"test_connect::",
    "a Delta table": r"test_delta::|test_world::.*\[table",
    "a change between two runs": r"test_world::",
    "a pipeline with several sinks": r"test_declared_world::|test_decision_points::",
    "a failed commit or a lost checkpoint": r"test_scenarios::|test_recovery::",
}
FILES: Final = (
    "scenarios", "broker_kills", "recovery", "zombies", "stateful", "connect", "delta", "world",
    "decision_points", "declared_world",
)  # fmt: skip
OTHERS: Final = ("test_source.py::test_only_what_was_committed_is_read_and_no_gap_is_a_loss",)


@dataclass
class Shown:
    """The number of scenarios of each kind, and the failed ones."""

    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def run() -> Shown:
    """Run the scenarios, in a shared Spark or in one of their own."""
    places = [f"test_{name}.py" for name in FILES]
    return shown(tests.run("-m", "spark", *(f"tests/spark/{place}" for place in (*places, *OTHERS))))


def shown(cases: Iterable[ElementTree.Element]) -> Shown:
    """Count the test cases of a report by kind. A case without a kind is a failure."""
    found = Shown()
    for case in cases:
        name = f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"
        kind = next((kind for kind, words in KINDS.items() if re.search(words, name)), "")
        if not kind or len(case):
            found.failures.append(name)
        found.kinds[kind] += 1
    return found
