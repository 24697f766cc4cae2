"""Rolling upgrades between the group protocols with Apache Kafka's own consumers, on Semel and on Kafka.

The scenarios are in java/MigrationPeer.java.
"""

from pathlib import Path

import pytest

from peers.brokers import Broker
from peers.programs import HERE, CannotBuild, Program, build_java


@pytest.fixture(scope="session")
def migration_command(kafka_jars: str) -> list[str]:
    try:
        return build_java(kafka_jars, HERE / "java" / "MigrationPeer.java")
    except CannotBuild as error:
        pytest.skip(f"the Java client: {error}")


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
@pytest.mark.parametrize("scenario", ["dynamic", "static"])
def test_a_rolling_upgrade_and_downgrade(
    migration_command: list[str], broker: Broker, tmp_path: Path, scenario: str, assignor: str
) -> None:
    with Program([*migration_command, broker.bootstrap], tmp_path / "log") as program:
        answer = program.ask(f"{scenario} {assignor}")
    words = answer.split()
    assert words[0] == "ok", f"{answer}\n{(tmp_path / 'log').read_text()[-4_000:]}"
    if broker.is_semel:
        # A member can commit everything it has read before the partition is reassigned. In Kafka, a group
        # that becomes classic again refuses its members' commits.
        assert words[1] == "0"
