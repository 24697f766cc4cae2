"""`semel configs`."""

from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_configs_of_brokers_are_changed_and_shown(cli: Cli) -> None:
    assert "Nothing was set for all brokers." in cli("configs", "describe", "--all-brokers").err
    assert "Altered all brokers." in cli("configs", "alter", "--all-brokers", "num.partitions=3").err
    cli("configs", "alter", "--broker", "0", "num.partitions=4", "log.retention.ms=5")
    assert cli("configs", "describe", "--all-brokers", "--json").json == [
        {"config": "num.partitions", "value": "3", "source": "broker default", "read_only": False}
    ]
    assert cli("configs", "describe", "--broker", "0", "--json").json == [
        {"config": "log.retention.ms", "value": "5", "source": "broker", "read_only": False},
        {"config": "num.partitions", "value": "4", "source": "broker", "read_only": False},
    ]
    everything = cli("configs", "describe", "--broker", "0", "--all", "--json").json
    assert {"config": "node.id", "value": "0", "source": "default", "read_only": True} in everything
    deleted = ("--delete", "num.partitions", "--delete", "log.retention.ms")
    cli("configs", "alter", "--broker", "0", *deleted)
    cli("configs", "alter", "--all-brokers", "--delete", "num.partitions")
    assert cli("configs", "describe", "--broker", "0", "--json").json == []


def test_configs_of_groups_and_topics(cli: Cli) -> None:
    cli("configs", "alter", "--group", "g", "consumer.session.timeout.ms=50000")
    assert cli("configs", "describe", "--group", "g", "--json").json == [
        {"config": "consumer.session.timeout.ms", "value": "50000", "source": "group", "read_only": False}
    ]
    assert "50000" in cli("configs", "describe", "--group", "g").out
    cli("topics", "create", "with-configs")
    cli("configs", "alter", "--topic", "with-configs", "retention.ms=7")
    assert [
        each["value"] for each in cli("configs", "describe", "--topic", "with-configs", "--json").json
    ] == ["7"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("alter", "--all-brokers", "node.id=7"), 1, "it is the identity of the broker"),
        (("alter", "--all-brokers", "num.partition=7"), 1, "did you mean num.partitions?"),
        (("alter", "--group", "g", "consumer.session.timeout.ms=1"), 1, "at least 45000"),
        (("alter", "num.partitions=7"), 2, "give one of --broker"),
        (("alter", "--all-brokers", "--group", "g", "num.partitions=7"), 2, "give one of --broker"),
        (("alter", "--all-brokers"), 2, "at least one NAME=VALUE"),
        (("alter", "--all-brokers", "num.partitions"), 2, "NAME=VALUE"),
        (("describe",), 2, "give one of --broker"),
    ],
)
def test_what_is_wrong_is_said(cli: Cli, arguments: tuple[str, ...], exit_code: int, message: str) -> None:
    assert message in " ".join(cli("configs", *arguments, code=exit_code).err.split())
