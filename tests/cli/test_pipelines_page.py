"""docs/pipelines.md, word for word: its file is run, and its commands print what it says."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.pages import blocks, sessions
from support.spark.jobs import create

import semel
from semel.client import Client, Consumer, Producer

PAGE = Path(__file__).parents[2] / "docs/pipelines.md"


def like(text: str) -> list[list[str]]:
    """The words of a text line by line, without the numbers that differ from run to run."""
    without_spans = re.sub(r"\d+ (ms|s|min)\b( \d+ s\b)?", "SPAN", text.strip())
    return [re.sub(r"[\d,.]*\d", "0", line).split() for line in without_spans.splitlines()]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page(broker: semel.Embedded, tmp_path: Path) -> None:
    create(broker.bootstrap_servers, ("orders", 2), ("customers", 1), ("orders-dead", 1))
    create(broker.bootstrap_servers, ("invoices", 2), ("large-orders", 1))
    with Client(broker.bootstrap_servers) as client, Producer(client) as producer:
        for country in ("CH", "FR"):
            for customer in ("a", "b"):
                row = {"customer": customer, "country": country}
                producer.send("customers", json.dumps(row).encode(), key=customer.encode())
        producer.send("customers", None, key=b"b")
        for number in range(100):
            order = {"order": number, "customer": "ab"[number % 2], "amount": number * 2}
            producer.send("orders", json.dumps(order).encode(), key=b"%d" % number)
        bad = {"order": 100, "customer": "a", "amount": "12"}
        producer.send("orders", json.dumps(bad).encode(), key=b"100")
    file, *_ = blocks(PAGE, "python")
    (tmp_path / "billing.py").write_text(file)
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {
        "SEMEL_BOOTSTRAP": broker.bootstrap_servers,
        "PATH": f"{scripts}:{os.environ['PATH']}",
    }
    commands = [pair for session in sessions(PAGE) for pair in session]
    large = re.search(r'(--expect ".+?")`', PAGE.read_text())
    assert large is not None
    identity = commands[-1][0].partition("--input-identity")[2]
    commands.append(
        (
            "semel pipeline verify billing --output large-orders --json --input-identity"
            f"{identity} {large[1]}",
            "",
        )
    )
    for command, printed in commands:
        ran = subprocess.run(
            shlex.split(command), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400
        )
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        if printed:
            assert sorted(like(ran.stdout)) == sorted(like(printed)), command
        else:
            answer = json.loads(ran.stdout)
            assert (answer["inputs"], answer["found"], answer["is_right"]) == (101, 50, True)

    with Client(broker.bootstrap_servers) as client, Consumer(client, "invoices") as consumer:
        invoices = [json.loads(record.value or b"") for record in consumer.read_to_end()]
    # The customers were updated, and one of them deleted: an order has one invoice all the same.
    countries = Counter((each["customer"], each.get("country")) for each in invoices)
    assert countries == {("a", "FR"): 50, ("b", None): 50}


@pytest.mark.parametrize("word", ["Topic", "Lookup", "Delta"])
def test_its_words_are_those_of_the_module(word: str) -> None:
    import semel.pipeline

    assert f"`{word}(" in PAGE.read_text()
    assert hasattr(semel.pipeline, word)
