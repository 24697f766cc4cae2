"""docs/transactions.md, word for word: what it shows is run as it stands."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.clients.raw import RawClient, batch
from support.clients.raw_transactions import RawProducer
from support.pages import blocks, sessions
from support.waiting import until

import semel
from semel.client import Admin, Client
from semel.config import Settings

PAGE = Path(__file__).parents[2] / "docs/transactions.md"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[semel.Embedded]:
    """A broker with what the page talks about: payments-7 left a transaction open in orders and refunds."""
    settings = {"auto.create.topics.enable": False}
    with semel.embedded(tmp_path, settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("orders", 2)
        client.create_topic("refunds")
        client.produce("orders", batch(count=4))
        with Client(broker.bootstrap_servers) as admin:
            Admin(admin).groups.set_offsets("audit", {("orders", 0): 1})
        producer = RawProducer(client, "payments-7", generation=2)
        producer.write("orders", b"three apples")
        producer.write("refunds", b"one pear")
        producer.write_offset("billing", "orders", 4)
        # Outside of a transaction, so all that came before is flushed with it.
        client.produce("orders", batch(count=2))
        yield broker


def like(text: str) -> list[list[str]]:
    """The words of a text line by line, without the times and numbers that differ from run to run."""
    without_spans = re.sub(r"\d+ (ms|s|min)\b( \d+ s\b)?", "SPAN", text.strip())
    return [re.sub(r"\d+", "0", line).split() for line in without_spans.splitlines()]


@pytest.mark.parametrize("example", blocks(PAGE, "python"))
def test_python_examples(example: str) -> None:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_sessions(cli: Any) -> None:
    (session,) = sessions(PAGE)
    for command, printed in session:
        name, *arguments = command.split()
        assert name == "semel"
        ran = cli(*arguments)
        assert like(ran.out + ran.err) == like(printed), ran


def test_queries(broker: semel.Embedded, tmp_path: Path) -> None:
    with closing(sqlite3.connect(f"file:{tmp_path / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        for query in blocks(PAGE, "sql"):
            for each in query.strip().split(";\n"):
                # The ledger is a moment behind the WAL.
                until(lambda each=each: ledger.execute(each).fetchall(), what=each)  # type: ignore[misc]  # a default: mypy infers no such lambda


def test_settings_have_the_default_that_the_page_says() -> None:
    names, settings = Settings.names(), Settings()
    rows = re.findall(r"^\| `([\w.]+)` \| (\S+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 9
    for name, default in rows:
        value = getattr(settings, names[name])
        assert default == (str(value).lower() if isinstance(value, bool) else str(value)), name
