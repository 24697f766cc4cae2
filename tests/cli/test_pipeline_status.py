"""`semel pipeline list`, `status` and `lag`, of pipelines that are made here by hand: no Spark is needed."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.spark.jobs import create, fill

import semel
from semel.client import Admin, Client, TransactionalProducer
from semel.spark.delta.group import LastCommit, TableName, follow
from semel.spark.partition_offsets import Span
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import BatchDecision
from semel.spark.sink.summary import Ended, Summary


@pytest.fixture(scope="module")
def client(broker: semel.Embedded) -> Iterator[Client]:
    """A cluster with a pipeline in the middle of a batch, one to a table, and a group that is none."""
    create(broker.bootstrap_servers, ("orders", 2), ("invoices", 1))
    fill(broker.bootstrap_servers, "orders", range(50))
    with Client(broker.bootstrap_servers) as client:
        Admin(client).groups.set_offsets("audit", {("orders", 0): 1})
        run = decisions.take_over(client, "billing")
        winner = TransactionalProducer(client, f"billing/{run.producer_id}.{run.epoch}/0.1")
        winner.begin()
        winner.send("invoices", b"decided, and not ended")
        prepared = winner.prepare()
        assert prepared is not None
        spans = {("orders", 0): Span(1, 3), ("orders", 1): Span(1, 4)}
        summary = Summary({"invoices": 4, "/tables/all": 1000}, 1, Ended(5, 1200, 2, 40, 4096))
        made = BatchDecision(7, run, "query", 6, (prepared,), spans, summary=summary)
        decisions.make(client, "billing", made)
        later = decisions.take_over(client, "billing")
        task = TransactionalProducer(client, f"billing/{later.producer_id}.{later.epoch}/0.2")
        task.begin()
        task.send("invoices", b"of the batch that is under way")
        task.flush()
        old = TransactionalProducer(client, "billing/0.0/0.3")
        old.begin()
        old.send("invoices", b"of a run that is gone")
        old.flush()
        follow(client, "lake", {}, TableName("some-id", "/tables/invoices"), {("orders", 0): 5})
        last = LastCommit(3, 2, "abc", 50)
        follow(client, "archive", {}, TableName("other", "/tables/all"), {("orders", 0): 3, ("orders", 1): 3})
        follow(client, "archive", {}, TableName("other", "/tables/all", last), {("orders", 1): 5})
        yield client


def test_list(cli: Any, client: Client) -> None:
    rows = cli("pipeline", "list", "--json").json
    assert [(row["pipeline"], row["writes_to"], row["batch"], row["decision"]) for row in rows] == [
        ("archive", "/tables/all", 2, 3),
        ("billing", "topics", 6, 7),
        ("lake", "/tables/invoices", None, None),
    ]
    assert rows[1]["lag"] == 50 - 7
    assert rows[1]["open_transactions"] == 3
    printed = cli("pipeline", "list").out.splitlines()
    assert (
        " ".join(printed[0].split())
        == "PIPELINE WRITES TO BATCH DECISION RUN LAG OPEN TRANSACTIONS BATCH AGE"
    )
    assert [line.split()[0] for line in printed[1:]] == ["archive", "billing", "lake"]


def test_status(cli: Any, client: Client) -> None:
    found = cli("pipeline", "status", "billing", "--json").json
    decision = decisions.read_committed(client, "billing").decision
    assert decision is not None
    assert found["run"] == f"{decision.run.producer_id}.{decision.run.epoch}"
    assert found["still_to_end"] == [each.transactional_id for each in decision.winners]
    doing = {each["transactional_id"].rpartition("/")[2]: each["doing"] for each in found["transactions"]}
    assert doing == {"0.1": "decided", "0.2": "writing", "0.3": "left over"}
    assert all(each["age_ms"] >= 0 for each in found["transactions"])
    assert found["batch_age_ms"] >= 0
    assert sum(each["lag"] for each in found["input"]) == found["lag"] == 43
    printed = cli("pipeline", "status", "billing").out
    assert "\nInput\n" in printed
    assert (found["read"], found["written"], found["dead"]) == (5, {"invoices": 4, "/tables/all": 1000}, 1)
    assert found["batch_before"] == {
        "batch_id": 5,
        "duration_ms": 1200,
        "late": 2,
        "state_rows": 40,
        "state_bytes": 4096,
    }
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "written invoices 4, /tables/all 1,000" in lines
    assert "batch before 5: 1 s, 2 late, 40 rows of state" in lines
    assert "\nTransactions\n" in printed


def test_status_of_a_table(cli: Any, client: Client) -> None:
    found = cli("pipeline", "status", "lake", "--json").json
    assert found["writes_to"] == "/tables/invoices"
    assert [(each["topic"], each["partition"], each["offset"]) for each in found["input"]] == [
        ("orders", 0, 5)
    ]
    assert "It has no open transactions." in cli("pipeline", "status", "lake").err


def test_lag(cli: Any, client: Client) -> None:
    rows = cli("pipeline", "lag", "billing", "--json").json
    assert [
        (row["partition"], row["offset"], row["latest"] - row["offset"] == row["lag"]) for row in rows
    ] == [
        (0, 3, True),
        (1, 4, True),
    ]
    header = cli("pipeline", "lag", "billing").out.splitlines()[0]
    assert " ".join(header.split()) == "TOPIC PARTITION OFFSET LATEST LAG"


@pytest.mark.parametrize("name", ["audit", "nobody"])
def test_what_is_no_pipeline(cli: Any, client: Client, name: str) -> None:
    ran = cli("pipeline", "status", name, code=1)
    assert ran.err == (f"Error: There is no pipeline '{name}'. 'semel pipeline list' shows all pipelines.\n")
