"""Applications with Apache Kafka's own client and with franz-go, both with version 2 of transactions.

The scenarios are in the programs (java/Peer.java and go/main.go). When Semel answers a commit, readers see
it, so the programs need not wait there; Apache Kafka answers earlier and gets some time.
"""

from collections import Counter

import pytest

from peers.brokers import Broker
from peers.programs import Program
from peers.tools import Tools
from semel.wire.messages import APIS

COMMON = [
    "commit",
    "abort",
    "five-partitions",
    "back-to-back",
    "isolation",
    "fencing",
    "timeout",
    "pipeline-classic",
    "pipeline-consumer",
]
SCENARIOS = {
    "java": [*COMMON, "zombie-member", "invalid-records"],
    # franz-go's sessions abort by themselves when their member was replaced, so the broker refuses nothing.
    "go": COMMON,
}
PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 24, 25, 26, 28
FIRST_IMPLICIT = {PRODUCE: 12, END: 5, COMMIT_OFFSETS: 5}
"""The versions from which a request adds to the transaction itself, or ends it with a new epoch."""


def play(program: Program, broker: Broker, scenario: str, visibility: str) -> None:
    program.play(scenario, visibility, 0.0 if broker.is_semel else 20.0)


@pytest.mark.parametrize(
    ("broker", "visibility"),
    [
        ("semel", "marker"),
        ("semel", "journal"),
        ("cluster", "marker"),
        ("cluster", "journal"),
        ("kafka", "marker"),
    ],
    indirect=["broker"],
    scope="session",
)
@pytest.mark.parametrize(
    ("client", "scenario"),
    [(client, scenario) for client, names in SCENARIOS.items() for scenario in names],
    indirect=["client"],
)
def test_an_application(program: Program, broker: Broker, scenario: str, visibility: str) -> None:
    play(program, broker, scenario, visibility)


def asked_since(broker: Broker, client: str, before: Counter[tuple[int, int]]) -> dict[int, set[int]]:
    """Return the versions of each API that the client has sent since."""
    versions: dict[int, set[int]] = {}
    for (api_key, version), count in broker.asked_by(f"peer-{client}").items():
        if count > before[api_key, version]:
            versions.setdefault(api_key, set()).add(version)
    return versions


def test_behaviour_46_the_second_form_adds_nothing_explicitly(
    program: Program, broker: Broker, client: str
) -> None:
    before = broker.asked_by(f"peer-{client}")
    for scenario in ("commit", "five-partitions", "pipeline-classic"):
        play(program, broker, scenario, "marker")
    asked = asked_since(broker, client, before)
    assert ADD_PARTITIONS not in asked
    assert ADD_OFFSETS not in asked
    for api_key, first in FIRST_IMPLICIT.items():
        assert min(asked[api_key]) >= first, APIS[api_key].name


def test_behaviour_47_the_first_form_where_the_feature_says_so(
    program: Program, broker: Broker, client: str, tools: Tools
) -> None:
    before = broker.asked_by(f"peer-{client}")
    tools.set_transaction_version(1)
    try:
        for scenario in SCENARIOS[client]:
            play(program, broker, scenario, "marker")
    finally:
        tools.set_transaction_version(2)
    asked = asked_since(broker, client, before)
    assert ADD_PARTITIONS in asked
    assert ADD_OFFSETS in asked
    assert max(asked[END]) < FIRST_IMPLICIT[END]
    assert max(asked[COMMIT_OFFSETS]) < FIRST_IMPLICIT[COMMIT_OFFSETS]
