"""`semel produce`, `semel consume` and `semel groups`: records through pipes and files, and back."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from semel.client import Client, Consumer, ShareConsumer
from semel.embedded import Embedded


def test_lines_become_records_and_records_lines(cli: Any) -> None:
    cli("topics", "create", "lines")
    said = cli("produce", "lines", stdin=b"one\ntwo\r\nthree").err
    assert said.startswith("Produced 3 records")
    assert cli("consume", "lines", "--from-beginning").out == "one\ntwo\nthree\n"
    assert cli("consume", "lines", "--from-beginning", "--max", "2").out == "one\ntwo\n"
    assert cli("consume", "lines", "--offset", "-1").out == "three\n"
    assert cli("consume", "lines", "--offset", "1", "--partition", "0").out == "two\nthree\n"


def test_keys_headers_and_files(cli: Any, tmp_path: Path) -> None:
    cli("topics", "create", "keys", "-p", "4")
    (tmp_path / "a.txt").write_text("k1:one\nk2:two:2\n")
    (tmp_path / "b.txt").write_text("k1:three\n")
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    done = cli("produce", "keys", *files, "-k", ":", "-H", "source=shop", "-H", "n=1", "--json").json
    assert done["records"] == 3
    assert sum(done["partitions"].values()) == 3
    records = cli("consume", "keys", "--from-beginning", "--json").json_lines
    by_key: dict[str, list[str]] = {}
    for record in records:
        by_key.setdefault(record["key"], []).append(record["value"])
        assert record["headers"] == [["source", "shop"], ["n", "1"]]
    assert by_key == {"k1": ["one", "three"], "k2": ["two:2"]}
    lines = cli("consume", "keys", "--from-beginning", "-k", "=").out.splitlines()
    assert sorted(lines) == ["k1=one", "k1=three", "k2=two:2"]


def test_json_goes_round(cli: Any) -> None:
    cli("topics", "create", "json-in")
    cli("topics", "create", "json-out")
    given = [
        {"value": "text", "key": "k", "timestamp": 1234, "headers": {"h": "x", "none": None}},
        {"value": None, "key": "deleted"},
        {"value": {"base64": "/wA="}},
        {"value": {"nested": [1, 2]}, "headers": [["twice", "1"], ["twice", "2"]]},
    ]
    cli("produce", "json-in", "-f", "json", stdin="\n".join(map(json.dumps, given)).encode())
    printed = cli("consume", "json-in", "--from-beginning", "--json")
    cli("produce", "json-out", "-f", "json", stdin=printed.out.encode())
    again = cli("consume", "json-out", "--from-beginning", "--format", "json").json_lines
    assert [{**record, "topic": "json-in"} for record in again] == printed.json_lines
    values = [(record["key"], record["value"], record["headers"]) for record in again]
    assert values == [
        ("k", "text", [["h", "x"], ["none", None]]),
        ("deleted", None, []),
        (None, {"base64": "/wA="}, []),
        (None, '{"nested":[1,2]}', [["twice", "1"], ["twice", "2"]]),
    ]
    assert again[0]["timestamp"] == 1234
    assert again[0]["time"] == "1970-01-01T00:00:01.234Z"


@pytest.mark.parametrize(("form", "line"), [("hex", b"00ff"), ("base64", b"AP8=")])
def test_bytes_that_are_no_text(cli: Any, form: str, line: bytes) -> None:
    topic = f"bytes-{form}"
    cli("topics", "create", topic)
    cli("produce", topic, "-f", form, stdin=line + b"\n")
    assert cli("consume", topic, "--from-beginning", "-f", form).out.encode() == line + b"\n"
    full = cli("consume", topic, "--from-beginning", "-f", "full").out
    assert full.startswith(f"{topic}/0@0  20")
    assert "\x00" not in full


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs_and_acks(cli: Any, codec: str) -> None:
    cli("topics", "create", f"codec-{codec}")
    acks = {"none": "0", "gzip": "1"}.get(codec, "all")
    cli("produce", f"codec-{codec}", "--codec", codec, "--acks", acks, stdin=b"x" * 1000 + b"\n")
    if acks == "0":
        # Nobody was told that it was written: a reader on another connection may come before it.
        until(lambda: cli("consume", f"codec-{codec}", "--from-beginning").out, what="a record without acks")
    assert cli("consume", f"codec-{codec}", "--from-beginning").out == "x" * 1000 + "\n"


def test_a_bad_line_is_told_with_its_place(cli: Any) -> None:
    cli("topics", "create", "bad-lines")
    error = cli("produce", "bad-lines", "-f", "json", stdin=b'{"value": "ok"}\n{"val": 1}\n', code=1).err
    assert error.startswith("Error: Line 2 of standard input is not a record")
    assert "Records written before it: 1." in error
    assert cli("consume", "bad-lines", "--from-beginning").out == "ok\n"
    assert "--key-separator" in cli("produce", "bad-lines", "-k", ":", stdin=b"no key\n", code=1).err
    assert "not hex" in cli("produce", "bad-lines", "-f", "hex", stdin=b"xyz\n", code=1).err
    assert "No such file" in cli("produce", "bad-lines", "/no/such/file", code=1).err
    assert "only 0 to 0" in cli("produce", "bad-lines", "-p", "7", stdin=b"x\n", code=1).err
    assert "only 0 to 0" in cli("consume", "bad-lines", "-p", "7", code=2).err


def test_follow_prints_records_as_they_come_and_stops_at_ctrl_c(cli: Any, broker: Embedded) -> None:
    cli("topics", "create", "followed")
    command = [sys.executable, "-m", "semel", "consume", "followed", "--from-beginning", "--follow"]
    environment = {**os.environ, "SEMEL_BOOTSTRAP": broker.bootstrap_servers}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        for line in (b"one\n", b"two\n"):
            cli("produce", "followed", stdin=line)
            assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, b"Traceback" in err) == (b"", False)


def test_ctrl_c_commits_what_was_printed(cli: Any, broker: Embedded) -> None:
    cli("topics", "create", "interrupted")
    cli("produce", "interrupted", stdin=b"one\ntwo\n")
    arguments = ["consume", "interrupted", "-g", "watcher", "--from-beginning", "--follow"]
    command = [sys.executable, "-m", "semel", *arguments, "-b", broker.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    offsets = cli("groups", "describe", "watcher", "--json").json["offsets"]
    assert [row["offset"] for row in offsets] == [2]


def test_a_reader_that_had_enough(cli: Any, broker: Embedded) -> None:
    cli("topics", "create", "pipe")
    cli("produce", "pipe", stdin=b"line\n" * 50_000)
    semel = f"{sys.executable} -m semel consume pipe --from-beginning -b {broker.bootstrap_servers}"
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {semel} | head -n 1"], capture_output=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"line\n", b"")


def test_a_group_goes_on_where_it_was(cli: Any) -> None:
    cli("topics", "create", "grouped", "-p", "2")
    cli("produce", "grouped", stdin=b"one\ntwo\n")
    first = cli("consume", "grouped", "--group", "g1", "--from-beginning").out
    assert sorted(first.splitlines()) == ["one", "two"]
    assert cli("consume", "grouped", "--group", "g1").out == ""
    cli("produce", "grouped", stdin=b"three\n")
    assert cli("consume", "grouped", "--group", "g1").out == "three\n"
    assert {"group": "g1", "kind": "consumer", "state": "Empty"} in cli("groups", "list", "--json").json
    described = cli("groups", "describe", "g1", "--json").json
    assert sum(row["offset"] for row in described["offsets"]) == 3
    assert [row["lag"] for row in described["offsets"]] == [0] * len(described["offsets"])
    assert "It has no members." in cli("groups", "describe", "g1").err
    assert "Deleted group g1." in cli("groups", "delete", "g1").err
    assert "there is no group 'g1'" in cli("groups", "describe", "g1", code=1).err
    assert "a group chooses" in cli("consume", "grouped", "--group", "g1", "--offset", "3", code=2).err


def test_share_groups_are_described(cli: Any, broker: Embedded) -> None:
    cli("topics", "create", "jobs")
    cli("produce", "jobs", stdin=b"one\ntwo\n")
    cli("configs", "alter", "--group", "workers", "share.auto.offset.reset=earliest")
    with Client(broker.bootstrap_servers) as client, ShareConsumer(client, "workers", "jobs") as consumer:
        first, *_ = consumer.poll(10.0)
        consumer.acknowledge(first)
        consumer.commit()
        described = cli("groups", "describe", "workers", "--json").json
        assert (described["kind"], described["state"], len(described["members"])) == ("share", "Stable", 1)
        (row,) = described["offsets"]
        assert (row["topic"], row["offset"], row["latest"]) == ("jobs", 1, 2)
    assert "Deleted group workers." in cli("groups", "delete", "workers").err


def test_reset_moves_a_group(cli: Any) -> None:
    cli("topics", "create", "reset", "-p", "2")
    rows = [{"value": str(at), "partition": at % 2, "timestamp": at * 1000} for at in range(10)]
    cli("produce", "reset", "-f", "json", stdin="\n".join(map(json.dumps, rows)).encode())

    def reset(*options: str) -> list[int]:
        return [row["after"] for row in cli("groups", "reset", "mover", *options, "--json").json["offsets"]]

    assert reset("--to-latest") == []  # it has read nothing yet, so its topics have to be named
    assert reset("--to-latest", "--topic", "reset", "--dry-run") == [5, 5]
    assert cli("groups", "list", "--json").json == [
        row for row in cli("groups", "list", "--json").json if row["group"] != "mover"
    ]
    assert reset("--to-latest", "--topic", "reset") == [5, 5]
    assert reset("--shift-by", "-2") == [3, 3]
    assert reset("--shift-by", "-100") == [0, 0]
    assert reset("--to-offset", "99") == [5, 5]
    assert reset("--to-offset", "1", "--topic", "reset:1") == [1]
    assert reset("--to-datetime", "1970-01-01T00:00:04Z") == [2, 2]
    assert reset("--to-datetime", "2999-01-01") == [5, 5]
    assert reset("--to-earliest") == [0, 0]
    assert "Nothing was changed" in cli("groups", "reset", "mover", "--to-latest", "--dry-run").err
    assert "exactly one of" in cli("groups", "reset", "mover", code=2).err
    assert "exactly one of" in cli("groups", "reset", "mover", "--to-latest", "--to-earliest", code=2).err
    assert "no partition '9'" in cli("groups", "reset", "mover", "--to-latest", "-t", "reset:9", code=2).err


def test_a_group_with_members_is_neither_reset_nor_deleted(cli: Any, broker: Embedded) -> None:
    cli("topics", "create", "busy")
    with (
        Client(broker.bootstrap_servers) as client,
        Consumer(client, "busy", group_id="busy-group") as consumer,
    ):
        until(lambda: consumer.poll(0.1) == [] and consumer.assignment, what="an assignment")
        assert "stop them" in cli("groups", "reset", "busy-group", "-t", "busy", "--to-latest", code=1).err
        assert "Stop the members" in cli("groups", "delete", "busy-group", code=1).err
        (member,) = cli("groups", "describe", "busy-group", "--json").json["members"]
        assert member["partitions"] == ["busy/0"]
