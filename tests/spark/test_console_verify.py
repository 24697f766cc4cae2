"""The console compares a pipeline's input and output: a Spark job in a process of its own, with progress."""

import json
from collections.abc import Iterator

import pytest
from support.browser.console import Browsing, console
from support.spark.jobs import OF_PROGRAMS

import semel
from semel.client import Admin, Client, NewTopic, Producer
from semel.spark.partition_offsets import Span
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import BatchDecision, Input

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture
def browsing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Browsing]:
    """A console over a pipeline that has lost one record and doubled another, made by hand."""
    for name, value in OF_PROGRAMS.items():
        monkeypatch.setenv(name, value)
    with semel.embedded() as broker, Client(broker.bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic("orders", 2), NewTopic("invoices", 1))
        with Producer(client) as producer:
            for number in range(20):
                producer.send("orders", b"x", key=b"%d" % number, partition=number % 2)
            for number in (*range(19), 3):
                producer.send("invoices", b"x", key=b"%d" % number)
        run = decisions.take_over(client, "billing")
        spans = {("orders", 0): Span(0, 10), ("orders", 1): Span(0, 10)}
        inputs = {"orders": Input("", 2)}
        decisions.make(client, "billing", BatchDecision(1, run, "query", 0, (), spans, inputs, "invoices"))
        with console(broker.bootstrap_servers) as made:
            yield made


def test_differences_are_found_and_the_page_hears_of_the_progress(browsing: Browsing) -> None:
    text = browsing.post("/checks/verify", {"pipeline": "billing", "outputs": "invoices"}).text
    assert "event: progress" in text
    result = text.partition("event: result\ndata: ")[2].partition("\n")[0]
    found = json.loads(result)
    assert not found["good"]
    assert (found["details"]["lost"], found["details"]["doubled"]) == (1, 1)
