"""Every anomaly is found in the smallest history that shows it, and not in its neighbour."""

import pytest
from support.models.anomalies import CASES
from support.models.histories import JOURNAL, JOURNAL_TOPIC, Steps

from semel.check import DEFINITIONS, check


def ids() -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for name, _, _ in CASES:
        seen[name] = seen.get(name, 0) + 1
        found.append(f"{name}-{seen[name]}")
    return found


@pytest.mark.parametrize(("name", "shows", "neighbour"), CASES, ids=ids())
def test_found_and_nothing_else(name: str, shows: Steps, neighbour: Steps) -> None:
    found = check(shows.operations)
    assert found.anomalies == {name: 1}, str(found)
    (example,) = found.examples
    assert example.proof, "an anomaly has a proof"
    near = check(neighbour.operations)
    assert near.is_clean, str(near)


def test_every_anomaly_of_the_catalogue_has_a_case() -> None:
    assert {name for name, _, _ in CASES} == set(DEFINITIONS)


def test_journals_are_in_the_order_of_commits_in_all_partitions() -> None:
    steps = Steps(JOURNAL_TOPIC, JOURNAL_TOPIC._replace(topic="k"))
    for name in ("T", "U"):
        steps.send(f"{name}1", tx=name, topic=JOURNAL, by=name).send(f"{name}2", tx=name, topic="k", by=name)
    steps.commit("T", at=10, to=20).commit("U", at=10, to=20)
    steps.poll((0, "T1"), (1, "U1"), topic=JOURNAL, at=30).poll((0, "U2"), (1, "T2"), topic="k", at=30)
    assert check(steps.operations).anomalies == {"cyclic-order": 1}


def test_a_history_may_be_in_any_order() -> None:
    for name, shows, _ in CASES:
        found = check(reversed(shows.operations))
        assert found.anomalies == {name: 1}, str(found)
