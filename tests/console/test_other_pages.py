"""Pipelines, the cluster, security with the audit trail, and checks with their progress."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser.console import Browsing, Reply, console
from support.waiting import until

import semel
from semel.client import Admin, Client, NewTopic, Producer, TransactionalProducer
from semel.console.pages import security
from semel.console.sampling import PipelineSample
from semel.spark.partition_offsets import Span
from semel.spark.pipeline.status import Kind, LastBatch, Status
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import BatchDecision
from semel.spark.sink.summary import Ended, Summary


@pytest.fixture(scope="module")
def pipeline(bootstrap: str) -> Iterator[str]:
    """A pipeline that has decided a batch and writes the next, made by hand: no Spark is needed."""
    with Client(bootstrap) as client:
        Admin(client).topics.create(NewTopic("orders", 2), NewTopic("invoices", 1))
        with Producer(client) as producer:
            for number in range(20):
                producer.send("orders", b"%d" % number, partition=number % 2)
        run = decisions.take_over(client, "billing")
        spans = {("orders", 0): Span(1, 3), ("orders", 1): Span(1, 4)}
        summary = Summary({"invoices": 4}, 1, Ended(5, 1200, 2, 40, 4096))
        decisions.make(client, "billing", BatchDecision(7, run, "query", 6, (), spans, summary=summary))
        later = decisions.take_over(client, "billing")
        task = TransactionalProducer(client, f"billing/{later.producer_id}.{later.epoch}/0.2")
        task.begin()
        task.send("invoices", b"of the batch that is under way")
        task.flush()
        yield "billing"
        task.abort()


def _written(browsing: Browsing, pipeline: str) -> Any:
    """The pipeline, once it is shown with its batch and with the one that it writes."""
    found = browsing.get(f"/pipelines/{pipeline}.json").json
    doing = [each["doing"] for each in found.get("transactions", [])]
    return found if (found.get("batch"), doing) == (6, ["writing"]) else None


def test_a_pipeline_is_shown_by_its_decisions(browsing: Browsing, pipeline: str) -> None:
    # A sample may have been taken while the pipeline was being made.
    found = until(lambda: _written(browsing, pipeline))
    (row,) = browsing.get("/pipelines.json").json["pipelines"]
    assert (row["pipeline"], row["batch"], row["decision"], row["rows"]) == ("billing", 6, 7, 5)
    assert row["lag"] == 20 - 7
    assert (row["written"], row["dead"], row["before"]["late"]) == ({"invoices": 4}, 1, 2)
    (task,) = found["transactions"]
    assert (task["doing"], task["purpose"]) == ("writing", "a task writes the current batch")
    assert {(each["partition"], each["offset"]) for each in found["input"]} == {(0, 3), (1, 4)}
    text = browsing.get("/pipelines/billing").text
    assert "writes the current batch" in text
    assert "2 late, 40 rows of state" in text
    page = browsing.get(f"/transactions/{task['transactional_id'].replace('/', '%2F')}.json").json
    assert page["pipeline"]["id"] == "billing"
    assert browsing.get("/groups/billing.json").json["is_pipeline"]
    assert browsing.get("/pipelines/none.json").status == 404


def test_a_decision_says_what_the_batch_before_has_ended_with() -> None:
    """Unless the console has missed a decision."""
    sample = PipelineSample()
    for number in (0, 1, 3):
        last = LastBatch(number + 1, number, "1.0", before=Ended(number - 1, 10, number, 0, 0))
        sample.note(Status("billing", Kind.TOPICS, None, None, last, (), ()))
    assert [each.ended and each.ended.late for each in sample.decisions] == [1, None, None]


def test_the_console_needs_no_spark() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import semel.console.app; print('fine')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "fine\n"


def test_the_cluster_and_the_settings_of_a_broker(browsing: Browsing, bootstrap: str) -> None:
    found = browsing.get("/cluster.json").json
    (broker,) = found["brokers"]
    assert broker["address"] == bootstrap
    assert broker["is_controller"]
    assert found["features"]["transaction.version"] == 2
    rows = browsing.get("/cluster/brokers/0.json?q=transaction").json["configs"]
    assert all("transaction" in row["name"] for row in rows)
    assert any(row["help"] for row in rows)
    assert browsing.get("/cluster/brokers/7.json").status == 400


def test_what_a_ledger_knows_is_on_the_page_of_the_cluster(bootstrap: str) -> None:
    status = {"overview": {"shards": "256"}, "columns": ["node"], "brokers": [{"node": 3}]}
    with console(bootstrap, cluster_status=lambda: status) as browsing:
        assert browsing.get("/cluster.json").json["shared"] == status
        assert "Shards and leases" in browsing.get("/cluster").text

    def refuse() -> dict[str, object]:
        raise RuntimeError("PostgreSQL is away")

    with console(bootstrap, cluster_status=refuse) as browsing:
        assert "PostgreSQL is away" in browsing.get("/cluster").text


TEXT_LINES = """2026-11-18T01:00:00.000Z info semel.server Semel serves
2026-11-18T01:00:01.000Z warning semel.audit denied principal=User:billing client=10.0.0.7 api=Produce
2026-11-18T01:00:02.000Z info semel.audit changed what="created topic \\"a b\\"" principal=User:admin
"""


def test_the_audit_trail_of_a_text_log(tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    file.write_text(TEXT_LINES)
    newest, older = security.newest(file, "", 10)
    assert (newest["event"], newest["principal"]) == ("changed", "User:admin")
    assert newest["fields"]["what"] == 'created topic "a b"'
    assert (older["event"], older["client"]) == ("denied", "10.0.0.7")
    assert [each["event"] for each in security.newest(file, "billing", 10)] == ["denied"]
    assert len(security.newest(file, "", 1)) == 1


def test_the_audit_trail_of_a_json_log_is_on_the_page(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    line = {"time": "2026-11-18T01:00:01.000Z", "level": "info", "logger": "semel.audit", "event": "denied"}
    file.write_text(json.dumps(line | {"principal": "User:<b>eve</b>"}) + "\nbroken {\n")
    with console(bootstrap, audit_file=file) as browsing:
        (entry,) = browsing.get("/security.json").json["audit"]
        assert entry["principal"] == "User:<b>eve</b>"
        assert "User:&lt;b&gt;eve" in browsing.get("/security").text
        file.unlink()
        assert "cannot be read" in browsing.get("/security").text


def _events(reply: Reply) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for part in reply.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if lines.get("event"):
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def test_checks_report_progress_and_a_result(browsing: Browsing, pipeline: str) -> None:
    found = _events(browsing.post("/checks/hanging"))
    assert found[0][0] == "progress"
    name, result = found[-2]
    assert (name, result["good"]) == ("result", True)
    name, result = _events(browsing.post("/checks/records", {"topic": "orders"}))[-2]
    assert (name, result["good"], result["total"]) == ("result", True, 20)
    assert browsing.post("/checks/records.json", {"topic": "none"}).status == 404
    assert browsing.post("/checks/records.json", {}).status == 400
    assert browsing.post("/checks/verify.json", {"pipeline": "--help"}).status == 400


def test_a_directory_is_checked_if_it_is_named(browsing: Browsing, bootstrap: str, tmp_path: Path) -> None:
    assert browsing.post("/checks/storage.json").status == 400
    with (
        semel.embedded(tmp_path / "data") as broker,
        Client(broker.bootstrap_servers) as client,
        Producer(client) as producer,
    ):
        producer.send("kept", b"x")
    with console(bootstrap, storage=tmp_path / "data", read_only=True) as other:
        name, result = _events(other.post("/checks/storage"))[-2]
        assert (name, result["good"]) == ("result", True)
        assert result["details"]["batches"] == 1
