"""`semel topics` and `semel offsets`, and how errors read."""

import socket
from typing import Any

import pytest


def test_the_life_of_a_topic(cli: Any) -> None:
    assert (
        "Created topic life." in cli("topics", "create", "life", "-p", "3", "-c", "retention.ms=3600000").err
    )
    assert {"topic": "life", "partitions": 3} in cli("topics", "list", "--json").json

    (described,) = cli("topics", "describe", "life", "--json").json
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert {"config": "retention.ms", "value": "3600000", "source": "topic"} in described["configs"]

    cli(
        "topics",
        "alter",
        "life",
        "--partitions",
        "4",
        "-c",
        "retention.ms=1000",
        "--delete-config",
        "segment.bytes",
    )
    (described,) = cli("topics", "describe", "life", "--json").json
    assert len(described["partitions"]) == 4
    assert {"config": "retention.ms", "value": "1000", "source": "topic"} in described["configs"]

    assert "Deleted topic life." in cli("topics", "delete", "life").err
    assert "life" not in cli("topics", "list").out


def test_tables_in_a_pipe_are_plain_columns(cli: Any) -> None:
    cli("topics", "create", "plain", "-p", "2")
    lines = cli("topics", "list").out.splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITIONS"]
    assert ["plain", "2"] in [line.split() for line in lines]
    out = cli("topics", "describe", "plain").out
    assert "PARTITION  LEADER  REPLICAS  EARLIEST  LATEST" in out


def test_create_twice(cli: Any) -> None:
    cli("topics", "create", "twice")
    again = cli("topics", "create", "twice", code=1)
    assert again.err.startswith("Error: TOPIC_ALREADY_EXISTS")
    assert "semel topics alter" in again.err
    assert cli("topics", "create", "twice", "new-one", "--if-not-exists", "--json").json == [
        {"topic": "new-one", "partitions": 1}
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("topics", "describe", "no-such"), "there is no topic 'no-such'"),
        (("topics", "delete", "no-such"), "topic 'no-such' was not deleted"),
        (("topics", "create", "bad name"), "topic 'bad name' was not created"),
        (("topics", "create", "t", "-c", "retention.mss=1"), "retention.mss"),
        (("topics", "alter", "no-such", "-p", "3"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("offsets", "no-such"), "there is no topic 'no-such'"),
        (("groups", "describe", "no-such"), "there is no group 'no-such'"),
        (("consume", "no-such", "--from-beginning"), "there is no topic 'no-such'"),
    ],
)
def test_refusals_are_sentences(cli: Any, arguments: tuple[str, ...], sentence: str) -> None:
    error = cli(*arguments, code=1).err
    assert error.startswith("Error: ")
    assert sentence in error
    assert len(error.splitlines()) == 1


def test_no_broker(cli: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    error = cli("topics", "list", bootstrap=address, code=1).err
    assert error.startswith(f"Error: No broker answers at {address}")
    assert "Is a broker running there?" in error


def test_usage_errors_are_exit_code_2_and_name_the_right_option(cli: Any) -> None:
    assert "--partitions" in cli("topics", "create", "t", "--partition", "3", code=2).err
    assert "NAME=VALUE" in cli("topics", "create", "t", "-c", "oops", code=2).err
    assert "at least one of" in cli("topics", "alter", "t", code=2).err
    assert "HOST:PORT" in cli("topics", "list", "--bootstrap", "host:port", code=2).err
    assert "No such command" in cli("topics", "creat", code=2).err


def test_offsets_at_the_ends_and_at_a_time(cli: Any) -> None:
    cli("topics", "create", "times", "-p", "2")
    lines = b"".join(b'{"value": "v", "partition": 0, "timestamp": %d}\n' % at for at in (1000, 2000, 3000))
    cli("produce", "times", "--format", "json", stdin=lines)
    found = cli("offsets", "times", "--at", "1970-01-01T00:00:01.500Z", "--json").json
    assert found == {
        "topic": "times",
        "partitions": [
            {"partition": 0, "earliest": 0, "latest": 3, "at": 1, "at_time": "1970-01-01T00:00:02.000Z"},
            {"partition": 1, "earliest": 0, "latest": 0, "at": None, "at_time": None},
        ],
    }
    assert cli("offsets", "times", "--at", "2500", "--json").json["partitions"][0]["at"] == 2
    assert cli("offsets", "times").out.splitlines()[1].split() == ["0", "0", "3"]
    assert "not a time" in cli("offsets", "times", "--at", "yesterday", code=2).err


def test_help_is_a_manual(cli: Any) -> None:
    for command in (
        (),
        ("serve",),
        ("topics",),
        ("topics", "create"),
        ("groups",),
        ("groups", "reset"),
        ("transactions",),
        ("transactions", "explain"),
        ("produce",),
        ("consume",),
        ("offsets",),
    ):
        text = cli(*command, "--help").out
        assert text.startswith("Usage: semel")
        assert "Options:" in text
    assert cli("--version").out.startswith("semel 0.")


def test_shells_can_complete(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SEMEL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "semel topics de")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert cli().out.split() == ["describe", "delete"]
