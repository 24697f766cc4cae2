"""What others chose (ids, names, keys, values) never reaches a terminal as anything but text.

Every command is run with ids that hold control sequences, into a pipe and, for those that look at whether
someone is watching, at a pseudo-terminal.
"""

import io
import json
import os
import pty
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.spark.jobs import create

import semel
from semel.cli.main import app, run
from semel.cli.pipeline import Lines, Screen
from semel.client import Admin, Client, Consumer, Producer, TransactionalProducer
from semel.printable import as_json, printable, printable_lines
from semel.spark.partition_offsets import Span
from semel.spark.pipeline.running import Progress, Restarted
from semel.spark.pipeline.totals import RunTotals
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import BatchDecision

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b1m\x90q\x9c\u202egnp\u2066\x7f\r\x08"
"""Window title, clear, colour, the same in C1, text from right to left, and what wipes what is on a line."""
TOPIC = "hostile"
PIPELINE = f"{EVIL}pipeline"
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
WITH_MARKUP = f"[bold red]{EVIL}[/]"


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of `semel`."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


RUNS: dict[tuple[str, ...], list[tuple[str, ...]]] = {
    ("topics", "create"): [
        (EVIL,),
        (TOPIC,),
        ("new", "-c", f"{EVIL}=1"),
        ("new", "-c", f"retention.ms={EVIL}"),
    ],
    ("topics", "list"): [(), ("--json",)],
    ("topics", "describe"): [(TOPIC,), (TOPIC, "--json"), (EVIL,)],
    ("topics", "alter"): [(EVIL, "-p", "3"), (TOPIC, "-c", f"cleanup.policy={EVIL}"), (TOPIC, EVIL)],
    ("configs", "describe"): [
        ("--group", EVIL),
        ("--topic", EVIL, "--json"),
        ("--all-brokers", "--all"),
        ("--broker", EVIL),
    ],
    ("configs", "alter"): [
        (f"{EVIL}=1", "--all-brokers"),
        (f"log.retention.ms={EVIL}", "--all-brokers"),
        (EVIL, "--group", EVIL),
        ("--delete", EVIL, "--topic", TOPIC),
    ],
    ("topics", "delete"): [(EVIL,), (EVIL, f"--{EVIL}")],
    ("groups", "list"): [(), ("--json",)],
    ("groups", "describe"): [(EVIL,), (EVIL, "--json"), (EVIL + "2",)],
    ("groups", "delete"): [(EVIL + "2",)],
    ("groups", "reset"): [
        (EVIL, "--to-latest", "--dry-run"),
        (EVIL, "--to-latest", "--dry-run", "--json"),
        (EVIL, "--to-latest", "--topic", EVIL),
        (EVIL, "--to", EVIL),
    ],
    ("transactions", "list"): [(), ("--json",), ("--state", EVIL), ("--pattern", EVIL)],
    ("transactions", "describe"): [(EVIL,), (EVIL, "--json"), (EVIL + "2",)],
    ("transactions", "abort"): [
        (EVIL + "2", "--yes"),
        ("--topic", EVIL, "--partition", "0", "--start-offset", "0"),
    ],
    ("transactions", "find-hanging"): [(), ("--json",), ("--topic", EVIL)],
    ("transactions", "explain"): [(TOPIC, "0"), (TOPIC, "0", "--json"), (EVIL, "0"), (f"{TOPIC}/0",)],
    ("produce",): [(EVIL,), (TOPIC, "-f", "json"), (TOPIC, "--header", EVIL), (TOPIC, "-f", "hex")],
    ("consume",): [
        (TOPIC, "--from-beginning", "-f", form, "--isolation", "read_uncommitted")
        for form in ("full", "json", "hex", "base64")
    ]
    + [(EVIL, "--from-beginning"), (TOPIC, "--group", EVIL, "-f", "full"), (TOPIC, "-f", EVIL)],
    ("offsets",): [(TOPIC,), (TOPIC, "--json"), (EVIL,), (TOPIC, "--at", EVIL)],
    ("pipeline", "list"): [(), ("--json",)],
    ("pipeline", "status"): [(PIPELINE,), (PIPELINE, "--json"), (EVIL + "2",)],
    ("pipeline", "lag"): [(PIPELINE,), (PIPELINE, "--json"), (EVIL + "2",)],
    ("pipeline", "verify"): [(EVIL,)],
    ("pipeline", "dead"): [(PIPELINE,), (PIPELINE, "--topic", EVIL), (EVIL, "--retry")],
    ("pipeline", "run"): [(EVIL,)],
    ("pipeline", "plan"): [(EVIL,)],
    ("check",): [(EVIL,), ("HISTORY",), ("HISTORY", "--json")],
    ("backup",): [(EVIL, EVIL), ("DATA", "DATA"), ("DATA", f"/nonexistent{EVIL}/backup")],
    ("check-storage",): [(EVIL,), ("DATA",), ("DATA", "--json")],
    ("repair",): [(EVIL,), ("DATA",), ("DATA", "--apply"), ("DATA", "--salvage", "--apply")],
    ("cluster", "status"): [("--ledger", EVIL), ("--ledger", NOWHERE), ("--ledger", NOWHERE, "--json")],
    ("cluster", "check"): [
        ("--ledger", EVIL),
        ("--ledger", NOWHERE),
        ("--ledger", NOWHERE, "--chunks", EVIL),
    ],
    ("cluster", "drain"): [(EVIL, "--ledger", NOWHERE), ("1", "--ledger", EVIL)],
    ("cluster", "undrain"): [(EVIL, "--ledger", NOWHERE), ("1", "--ledger", EVIL)],
    ("migrate",): [
        (EVIL, "--ledger", NOWHERE, "--chunks", EVIL),
        ("DATA", "--ledger", EVIL, "--chunks", EVIL),
    ],
    ("users", "list"): [(), ("--json",)],
    ("users", "add"): [
        (EVIL, "--password-stdin"),
        (EVIL, "--password-stdin", "--data", "DATA"),
        (EVIL, "--password-stdin", "--ledger", NOWHERE),
        (EVIL, "--mechanism", EVIL),
    ],
    ("users", "remove"): [(EVIL + "2", "--yes")],
    ("acls", "list"): [(), ("--principal", EVIL, "--json"), ("--topic", EVIL)],
    ("acls", "allow"): [(f"User:{EVIL}", "Read", "--topic", EVIL), (EVIL, EVIL, "--cluster")],
    ("acls", "deny"): [(f"User:{EVIL}", "Read", "--group", EVIL, "--host", EVIL)],
    ("acls", "remove"): [(f"User:{EVIL}", "All", "--transactional-id", EVIL, "--yes")],
    ("quotas", "list"): [(), ("--user", EVIL, "--json")],
    ("quotas", "set"): [("--user", EVIL, "producer_byte_rate=1"), ("--user", EVIL, f"{EVIL}=1")],
    ("quotas", "remove"): [("--user", EVIL, "producer_byte_rate"), ("--ip", EVIL, EVIL)],
    ("console",): [("--listen", EVIL), ("--listen", "0.0.0.0:0", "--allow-host", EVIL), ("--storage", EVIL)],
    ("serve",): [
        ("--memory", "--listen", EVIL),
        ("--memory", "--set", f"{EVIL}=1"),
        ("--data", "/dev/null", "--config", EVIL),
    ],
}
HANDS_OVER = {("spark-submit",)}
"""Becomes another program, and prints nothing itself."""


@pytest.fixture(scope="module")
def client(broker: semel.Embedded) -> Iterator[Client]:
    """A cluster whose clients chose the worst names."""
    create(broker.bootstrap_servers, (TOPIC, 1))
    # A broker of this process has a client whose own name is hostile too.
    with Client(broker.bootstrap_servers, client_id=EVIL) as client:
        with Producer(client) as producer:
            producer.send(TOPIC, EVIL.encode(), key=EVIL.encode(), headers=[(EVIL, EVIL.encode())])
            producer.send(TOPIC, b"\xff\x1b[2J", key=None)
        Admin(client).groups.set_offsets(EVIL, {(TOPIC, 0): 1})
        transactional = TransactionalProducer(client, EVIL)
        transactional.begin()
        transactional.send(TOPIC, b"open")
        transactional.flush()
        run = decisions.take_over(client, PIPELINE)
        spans = {(TOPIC, 0): Span(0, 1)}
        decisions.make(client, PIPELINE, BatchDecision(7, run, EVIL, 6, (), spans))
        with Consumer(client, TOPIC, group_id=EVIL + "members") as member:
            member.poll(1.0)
            yield client


def assert_harmless(printed: str) -> None:
    """Only text, and the ends of lines."""
    for sign in printed:
        assert sign == "\n" or unicodedata.category(sign) not in ("Cc", "Cf"), (hex(ord(sign)), printed)


def test_every_command_is_walked() -> None:
    assert set(commands()) == RUNS.keys() | HANDS_OVER


@pytest.mark.parametrize(
    "arguments", [(*command, *more) for command, runs in RUNS.items() for more in runs], ids=ascii
)
def test_into_a_pipe(
    broker: semel.Embedded,
    client: Client,
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: Any,
) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text(json.dumps({"type": EVIL, "process": EVIL}) + "\n")
    damaged = tmp_path / EVIL
    damaged.mkdir()
    for name in ("ledger.db", EVIL):
        (damaged / name).write_text(EVIL)
    stands_for = {"HISTORY": str(history), "DATA": str(damaged)}
    given = [stands_for.get(each, each) for each in arguments]
    line = json.dumps({"value": "v", EVIL: 1}).encode() if "json" in arguments else EVIL.encode()
    monkeypatch.setenv("SEMEL_BOOTSTRAP", broker.bootstrap_servers)
    monkeypatch.setattr(sys, "argv", ["semel", *given])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line + b"\n")))
    if "serve" in arguments:  # it keeps its own log, so it gets a process of its own
        subprocess.run([sys.executable, "-m", *sys.argv], timeout=60, check=False)
    else:
        with pytest.raises(SystemExit):
            run()
    printed = b"".join(capfdbinary.readouterr())
    assert b"Traceback" not in printed
    assert_harmless(printed.decode())


def at_terminal(broker: semel.Embedded, *arguments: str) -> str:
    """What a command prints where someone is looking, without colours."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "semel", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "SEMEL_BOOTSTRAP": broker.bootstrap_servers, "TERM": "dumb", "COLUMNS": "300"},
    ) as process:
        os.close(follower)
        printed = b""
        while True:
            try:
                piece = os.read(leader, 65_536)
            except OSError:  # how Linux says that nobody has the other end any more
                break
            if not piece:
                break
            printed += piece
    os.close(leader)
    assert process.returncode is not None
    return printed.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "describe", TOPIC),
        ("topics", "delete", EVIL),
        ("consume", TOPIC, "--from-beginning", "--isolation", "read_uncommitted", "-k", ":"),
        *(
            pytest.param(each, marks=pytest.mark.slow, id=ascii(each))
            for each in (
                ("groups", "list"),
                ("groups", "describe", EVIL),
                ("transactions", "list"),
                ("transactions", "explain", TOPIC, "0"),
                ("pipeline", "list"),
                ("consume", TOPIC, "--from-beginning", "--isolation", "read_uncommitted"),
            )
        ),
    ],
    ids=ascii,
)
def test_at_a_terminal(broker: semel.Embedded, client: Client, arguments: tuple[str, ...]) -> None:
    printed = at_terminal(broker, *arguments)
    assert "Traceback" not in printed
    assert_harmless(printed)


def test_consume_is_exact_in_a_pipe_and_where_it_is_asked_for(broker: semel.Embedded, client: Client) -> None:
    arguments = ("consume", TOPIC, "--from-beginning", "-n", "1", "--isolation", "read_uncommitted")
    environment = {**os.environ, "SEMEL_BOOTSTRAP": broker.bootstrap_servers}
    piped = subprocess.run(
        [sys.executable, "-m", "semel", *arguments],
        capture_output=True,
        env=environment,
        timeout=60,
        check=True,
    )
    assert piped.stdout == EVIL.encode() + b"\n"
    assert at_terminal(broker, *arguments, "--raw") == EVIL + "\n"
    assert at_terminal(broker, *arguments) == printable(EVIL) + "\n"


def test_a_name_with_lines_is_shown_in_one(broker: semel.Embedded, client: Client) -> None:
    Admin(client).groups.set_offsets("two\nlines", {(TOPIC, 0): 1})
    described = at_terminal(broker, "groups", "describe", "two\nlines")
    assert "two\\nlines  (" in described
    assert "Deleted group two\\nlines." in at_terminal(broker, "groups", "delete", "-y", "two\nlines")


def test_the_screens_of_a_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    batch = Progress(
        pipeline=WITH_MARKUP,
        batch=1,
        at="2026-11-15T12:00:00Z",
        rows=1,
        rows_per_second=1.0,
        lag=0,
        duration_ms=1,
    )
    restarted = Restarted(pipeline=WITH_MARKUP, why=WITH_MARKUP)
    totals = RunTotals(WITH_MARKUP)
    totals.add(batch)
    for as_json_lines in (False, True):
        with Lines(totals, as_json=as_json_lines) as lines:
            lines.show(batch)
            lines.show(restarted)
    screen = Screen(totals)
    screen.show(batch)
    screen.show(restarted)
    console = Console(width=300, no_color=True, force_terminal=False)
    console.print(screen.table())
    out, err = capsys.readouterr()
    assert_harmless(out + err)
    assert "[bold red]" in out, "markup is shown, not obeyed"


def test_the_escapes() -> None:
    assert printable("caf\u00e9 \u4f60\u597d \U0001f600") == "caf\u00e9 \u4f60\u597d \U0001f600"
    assert printable("a\nb\t\x1b\x9b\u202e\udc80") == "a\\nb\\t\\x1b\\x9b\\u202e\\udc80"
    assert printable_lines("a\nb\tc\rd") == "a\nb\tc\\rd"
    for value in (EVIL, {"\x7f": [1, EVIL]}, "\U000e0001 caf\u00e9"):
        text = as_json(value)
        assert_harmless(text)
        assert json.loads(text) == value
    assert as_json("caf\u00e9") == '"caf\u00e9"'
