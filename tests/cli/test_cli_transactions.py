"""`semel transactions`: what is open, who blocks whom, and how to end it.

With SEMEL_PEER set, the same against another broker, as far as it has what ours has.
"""

import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from support.brokers.peer import PEER
from support.clients.raw import RawClient
from support.clients.raw_transactions import Log, RawProducer, make_topic, new_name, ours, soon

import semel
from semel.client.net import cluster
from semel.store.embedded import ledger_opening
from semel.wire.errors import ErrorCode


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    if PEER:
        yield SimpleNamespace(bootstrap_servers=PEER)
        return
    settings = {"auto.create.topics.enable": False, "transaction.two.phase.commit.enable": True}
    with semel.embedded(settings=settings) as broker:
        yield broker


@pytest.fixture
def raw(broker: semel.Embedded) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture(params=[1, 2], ids=["version1", "version2"])
def producer(raw: RawClient, request: pytest.FixtureRequest) -> RawProducer:
    """A producer of each generation. What it leaves open is no other test's business."""
    return RawProducer(raw, generation=request.param)


def test_list_shows_what_each_id_is_doing(cli: Any, raw: RawClient, producer: RawProducer) -> None:
    topic = make_topic(raw, 2)
    idle = RawProducer(raw, f"{producer.transactional_id}-idle")
    producer.write(topic, b"a", partition=1)
    producer.write(topic, b"b")
    rows = cli("transactions", "list", "--pattern", f"{producer.transactional_id}.*", "--json").json
    assert [(row["transactional_id"], row["state"]) for row in rows] == [
        (producer.transactional_id, "Ongoing"),
        (idle.transactional_id, "Empty"),
    ]
    first, second = rows
    assert (first["producer"], first["epoch"]) == producer.pair
    assert first["partitions"] == [f"{topic}/0", f"{topic}/1"]
    assert (first["timeout_ms"], first["two_phase"]) == (60_000, False)
    assert first["age_ms"] >= 0
    assert (second["partitions"], second["since"], second["age_ms"]) == ([], None, None)


def test_list_in_a_table(cli: Any, raw: RawClient, producer: RawProducer) -> None:
    producer.write(make_topic(raw))
    lines = cli("transactions", "list", "--pattern", producer.transactional_id).out.splitlines()
    assert re.split(r"\s\s+", lines[0]) == [
        "TRANSACTIONAL ID",
        "STATE",
        "PRODUCER",
        "EPOCH",
        "SINCE",
        "AGE",
        "TIMEOUT MS",
        "TWO PHASE",
        "PARTITIONS",
    ]
    assert len(lines) == 2
    assert lines[1].split()[:3] == [producer.transactional_id, "Ongoing", str(producer.producer_id)]
    assert lines[1].split()[-2:] == ["no", "1"]


def test_list_filters(cli: Any, raw: RawClient) -> None:
    topic = make_topic(raw)
    busy, idle = RawProducer(raw), RawProducer(raw)
    busy.write(topic)

    def listed(*arguments: str) -> set[str]:
        rows = cli("transactions", "list", "--json", *arguments).json
        return {row["transactional_id"] for row in rows} & {busy.transactional_id, idle.transactional_id}

    assert listed() == {busy.transactional_id, idle.transactional_id}
    assert listed("--state", "ongoing") == {busy.transactional_id}
    assert listed("-s", "Empty", "-s", "Ongoing") == {busy.transactional_id, idle.transactional_id}
    assert listed("--producer", str(idle.producer_id)) == {idle.transactional_id}
    assert listed("--older-than", "0ms", "--producer", str(idle.producer_id)) == set()
    assert listed("--older-than", "1h") == set()
    soon(lambda: listed("--older-than", "0ms") in ({busy.transactional_id}, set()))
    assert "no such transactional ids" in cli("transactions", "list", "--producer", "999999999").err


@ours
def test_two_phase_is_shown(cli: Any, raw: RawClient) -> None:
    producer = RawProducer(raw)
    producer.take(producer.init(version=6, enable2_pc=True))
    producer.write(make_topic(raw))
    (row,) = cli("transactions", "list", "--pattern", producer.transactional_id, "--json").json
    assert (row["two_phase"], row["timeout_ms"]) == (True, None)
    described = cli("transactions", "describe", producer.transactional_id, "--json").json
    assert (described["two_phase"], described["ends"]) == (True, None)


def test_describe(cli: Any, raw: RawClient, producer: RawProducer) -> None:
    topic = make_topic(raw)
    producer.write(topic)
    found = cli("transactions", "describe", producer.transactional_id, "--json").json
    assert (found["state"], found["partitions"]) == ("Ongoing", [f"{topic}/0"])
    assert found["ends"] > found["since"]
    out = cli("transactions", "describe", producer.transactional_id).out
    assert re.search(rf"^partitions +{topic}/0$", out, re.MULTILINE)
    producer.commit()
    soon(lambda: "CompleteCommit" in cli("transactions", "describe", producer.transactional_id).out)


def test_abort_ends_it_and_fences_the_producer(cli: Any, raw: RawClient, producer: RawProducer) -> None:
    topic = make_topic(raw)
    log = Log(raw, topic)
    producer.write(topic, b"never")
    assert f"Aborted the transaction of {producer.transactional_id}." in (
        cli("transactions", "abort", producer.transactional_id).err
    )
    soon(lambda: log.is_settled)
    assert log.values() == []
    assert producer.send(topic, b"late").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    again = cli("transactions", "abort", producer.transactional_id, code=1).err
    assert "has no open transaction" in again


def test_abort_makes_no_id(cli: Any) -> None:
    name = new_name("nobody")
    assert f"no transactional id '{name}'" in cli("transactions", "abort", name, code=1).err
    assert f"no transactional id '{name}'" in cli("transactions", "describe", name, code=1).err


def test_abort_asks_at_a_terminal(broker: semel.Embedded, raw: RawClient) -> None:
    producer = RawProducer(raw)
    topic = make_topic(raw)
    producer.write(topic)
    command = [sys.executable, "-m", "semel", "transactions", "abort", producer.transactional_id]
    environment = os.environ | {"SEMEL_BOOTSTRAP": broker.bootstrap_servers}
    ours_, theirs = pty.openpty()
    try:
        os.write(ours_, b"n\n")
        ran = subprocess.run(
            command, stdin=theirs, capture_output=True, text=True, env=environment, timeout=60, check=False
        )
    finally:
        os.close(ours_)
        os.close(theirs)
    assert ran.returncode == 1
    assert f"Abort the transaction of {producer.transactional_id} ({topic}/0)?" in ran.stdout
    producer.commit()


def test_a_transaction_that_somebody_owns_is_not_torn(
    cli: Any, raw: RawClient, producer: RawProducer
) -> None:
    topic = make_topic(raw)
    producer.write(topic)
    place = ("transactions", "abort", "--topic", topic, "--partition", "0", "--start-offset")
    refused = cli(*place, "0", code=1).err
    assert f"semel transactions abort {producer.transactional_id}" in refused
    assert "open ones begin at 0" in cli(*place, "5", code=1).err
    producer.commit()
    soon(lambda: "none is open there" in cli(*place, "0", code=1).err)


def test_explain_says_who_blocks(cli: Any, raw: RawClient, producer: RawProducer) -> None:
    topic = make_topic(raw, 2)
    assert f"Nothing blocks {topic}/0" in cli("transactions", "explain", topic, "0").out
    behind = RawProducer(raw)
    producer.write(topic, b"a", b"b")
    producer.write(topic, b"c", partition=1)
    behind.write(topic, b"d")

    found = cli("transactions", "explain", topic, "0", "--json").json
    assert (found["last_stable_offset"], found["high_watermark"], found["waiting"]) == (0, 3, 3)
    blocker = found["blocked_by"]
    assert blocker["transactional_id"] == producer.transactional_id
    assert (blocker["producer"], blocker["epoch"]) == producer.pair
    assert (blocker["first_offset"], blocker["also_in"]) == (0, [f"{topic}/1"])
    assert blocker["ends"] > blocker["since"]
    assert [each["transactional_id"] for each in found["also_open"]] == [behind.transactional_id]

    out = cli("transactions", "explain", topic, "0").out
    assert f"{topic}/0 is blocked at offset 0, its last stable offset: 3 offsets wait up to 3." in out
    assert "the broker aborts it then" in out
    (command,) = re.findall(r"^end it now +semel (.*)$", out, re.MULTILINE)
    cli(*command.split())
    soon(lambda: behind.transactional_id in cli("transactions", "explain", topic, "0").out)
    behind.commit()
    soon(lambda: "Nothing blocks" in cli("transactions", "explain", topic, "0").out)


@ours
def test_explain_of_a_two_phase_transaction(cli: Any, raw: RawClient) -> None:
    topic = make_topic(raw)
    producer = RawProducer(raw)
    producer.take(producer.init(version=6, enable2_pc=True))
    producer.write(topic)
    assert cli("transactions", "explain", topic, "0", "--json").json["blocked_by"]["ends"] is None
    assert "never by itself: it is two-phase" in cli("transactions", "explain", topic, "0").out


@ours
def test_explain_knows_the_limit_of_a_topic(cli: Any, raw: RawClient, producer: RawProducer) -> None:
    topic = make_topic(raw)
    limited = make_topic(raw, semel_transaction_block_max_ms="30000")
    producer.write(topic)
    before = cli("transactions", "explain", topic, "0", "--json").json["blocked_by"]["ends"]
    producer.write(limited)
    after = cli("transactions", "explain", topic, "0", "--json").json["blocked_by"]["ends"]
    assert after < before


@ours
def test_explain_of_a_journal_topic(cli: Any, raw: RawClient, producer: RawProducer) -> None:
    topic = make_topic(raw, semel_visibility="journal")
    producer.write(topic)
    out = cli("transactions", "explain", topic, "0").out
    assert f"Nothing can block {topic}/0" in out
    found = cli("transactions", "explain", topic, "0", "--json").json
    assert (found["visibility"], found["blocked_by"], found["waiting"]) == ("journal", None, 0)
    assert f"{topic}/0" in cli("transactions", "describe", producer.transactional_id).out


def test_nothing_hangs(cli: Any, raw: RawClient, producer: RawProducer) -> None:
    topic = make_topic(raw, 2)
    producer.write(topic, partition=1)
    assert cli("transactions", "find-hanging", "--topic", topic, "--json").json == []
    assert "No transaction hangs." in cli("transactions", "find-hanging").err
    producer.abort()


@ours
def test_a_transaction_that_hangs_is_found_and_ended(cli: Any, tmp_path: Path) -> None:
    with semel.embedded(tmp_path) as before, RawClient(before.bootstrap_servers) as client:
        topic = make_topic(client, 2)
        left, kept = RawProducer(client), RawProducer(client)
        left.write(topic, b"a", partition=1)
        kept.write(topic, b"b", partition=1)
    # No request can bring it about, so the ledger is made to forget the owner.
    vfs = ledger_opening.available()
    with closing(apsw.Connection(str(tmp_path / "ledger.db"), vfs=vfs)) as ledger, ledger:
        ledger.execute("DELETE FROM transactions WHERE transactional_id = ?", [left.transactional_id])

    with semel.embedded(tmp_path) as after, RawClient(after.bootstrap_servers) as client:
        servers = after.bootstrap_servers
        find = ("transactions", "find-hanging", "--json")
        (found,) = cli(*find, bootstrap=servers).json
        assert (found["topic"], found["partition"], found["first_offset"]) == (topic, 1, 0)
        assert (found["producer"], found["epoch"]) == left.pair
        assert cli(*find, "--topic", topic, "--partition", "0", bootstrap=servers).json == []
        assert cli(*find, "--older-than", "0ms", bootstrap=servers).json == [found]
        assert "no coordinator knows it" in cli("transactions", "explain", topic, "1", bootstrap=servers).out

        cli(*found["command"].split()[1:], bootstrap=servers)
        assert cli(*find, bootstrap=servers).json == []
        explained = cli("transactions", "explain", topic, "1", "--json", bootstrap=servers).json
        assert explained["blocked_by"]["transactional_id"] == kept.transactional_id


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("list", "--state", "Lost"), "'Lost'"),
        (("list", "--older-than", "5"), "'5' is not a time span"),
        (("list", "--older-than", "soon"), "as in 90s"),
        (("list", "--pattern", "("), "not a regular expression"),
        (("abort",), "give a transactional id, or all of --topic"),
        (("abort", "id", "--topic", "t"), "give a transactional id, or all of --topic"),
        (("abort", "--topic", "t", "--partition", "0"), "give a transactional id, or all of --topic"),
        (("find-hanging", "--partition", "0"), "--partition needs --topic"),
        (("explain", "t"), "Missing argument"),
    ],
)
def test_usage_errors(cli: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in " ".join(cli("transactions", *arguments, code=2).err.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "no-such", "0"),
        ("find-hanging", "--topic", "no-such"),
        ("abort", "--topic", "no-such", "--partition", "0", "--start-offset", "0"),
    ],
)
def test_no_such_topic(cli: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setattr(cluster, "UNKNOWN_TOPIC_WAIT_S", 0.0)
    error = cli("transactions", *arguments, code=1).err
    assert error.startswith("Error: UNKNOWN_TOPIC_OR_PARTITION: ")
    assert "'no-such'" in error
    assert len(error.splitlines()) == 1


def test_no_such_partition(cli: Any, raw: RawClient) -> None:
    topic = make_topic(raw)
    assert "has no partition 7" in cli("transactions", "explain", topic, "7", code=1).err


def test_no_broker(cli: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for arguments in (("list",), ("describe", "x"), ("explain", "t", "0"), ("find-hanging",), ("abort", "x")):
        error = cli("transactions", *arguments, bootstrap=address, code=1).err
        assert error.startswith("Error: ")
        assert address in error
