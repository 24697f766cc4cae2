"""`semel pipeline dead`: dead letters are listed, repaired, and sent through the pipeline again, once."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.faults.proxy import Act, Proxy
from support.faults.spark_points import await_caught
from support.spark.jobs import OF_PROGRAMS, committed, create
from support.waiting import until

from semel.client import Admin, Client, Consumer, Producer, TransactionalProducer
from semel.embedded import Embedded
from semel.pipeline import Delta, Json, Pipeline, Topic
from semel.spark import OptionError
from semel.spark.errors import PipelineError, PipelineFenced
from semel.spark.pipeline import dead
from semel.spark.pipeline.dead import Change, Found, Retried, find, letter_topics, retry
from semel.spark.pipeline.running import Run, RunSettings
from semel.spark.pipeline.status import Doing, status
from semel.spark.pipeline.verify import Question, check, verify
from semel.wire.messages import EndTxnRequest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

DEAD = "orders-dead"


@pytest.fixture
def bootstrap(semel_broker: Embedded) -> str:
    create(semel_broker.bootstrap_servers, ("orders", 2), ("copies", 1), (DEAD, 2))
    return semel_broker.bootstrap_servers


def order(bootstrap: str, *values: bytes) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for number, value in enumerate(values):
            producer.send("orders", value, key=b"%d" % number, headers=[("h", b"1")])


def copies(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("CAST(number AS STRING) AS key", "name AS value", "record")


def copying(**sinks: Topic | Delta) -> Pipeline:
    source = Topic(
        "orders", {"includeHeaders": "true"}, parse=Json("number INT, name STRING", record="record"), bad=DEAD
    )
    return Pipeline(
        "copies",
        lambda rows: dict.fromkeys(sinks or ("copies",), copies(rows)),
        source,
        sinks or {"copies": Topic("copies")},
    )


def run(spark: SparkSession, bootstrap: str, directory: Path, pipeline: Pipeline | None = None) -> None:
    place = RunSettings(bootstrap, str(directory), once=True)
    for _ in Run(spark, pipeline or copying(), place).watch(lambda: False):
        pass


def listed(bootstrap: str, spark: SparkSession | None = None, **change: str) -> Found:
    with Client(bootstrap) as client:
        return find(client, "copies", letter_topics(client, "copies"), Change(**change), 100, spark)


def retried(bootstrap: str, spark: SparkSession | None = None, **change: str) -> Retried:
    with Client(bootstrap) as client:
        return retry(client, "copies", letter_topics(client, "copies"), Change(**change), spark)


def records(bootstrap: str, topic: str) -> list[Any]:
    with Client(bootstrap) as client, Consumer(client, topic) as consumer:
        return list(consumer.read_to_end())


def test_letters_are_repaired_and_retried(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    order(
        bootstrap,
        b'{"number": 1, "name": "a"}',
        b'{"number": "2", "name": "b"}',
        b"nonsense",
        b'{"number": "x"}',
    )
    run(spark, bootstrap, tmp_path)
    assert listed(bootstrap).count == 3
    repair = {
        "where": "reason LIKE 'number is%' AND topic = 'orders' AND headers[0].key = 'h'",
        "value": "regexp_replace(CAST(value AS STRING), '\"(\\\\d)\"', '$1')",
    }
    preview = listed(bootstrap, spark, **repair)
    assert {each.value for each in preview.newest} == {b'{"number": 2, "name": "b"}', b'{"number": "x"}'}
    assert retried(bootstrap, spark, **repair).sent == {"orders": 2}
    assert retried(bootstrap, spark, **repair).sent == {}, "nothing is retried twice"
    again = [
        each for each in records(bootstrap, "orders") if any(h.key == "semel.retry" for h in each.headers)
    ]
    for each in again:
        first = next(one for one in records(bootstrap, "orders") if one.key == each.key)
        assert dict(each.headers) == {
            "h": b"1",
            "semel.retry": b"orders/%d/%d" % (first.partition, first.offset),
        }
        assert each.partition == first.partition
    run(spark, bootstrap, tmp_path)
    assert committed(bootstrap, "copies") == {b"a": 1, b"b": 1}
    answer = compared(spark, bootstrap, "copies", "CAST(value AS STRING)")
    assert answer == {
        "inputs": 6,
        "expected": 2,
        "found": 2,
        "dead": 2,
        "retried": 2,
        "lost": 0,
        "doubled": 0,
    }
    with Client(bootstrap) as client, Producer(client) as producer:
        (letter, *_) = (each.letter.record for each in listed(bootstrap).newest)
        producer.send(DEAD, letter.value, headers=letter.headers)
    answer = compared(spark, bootstrap, "copies", "CAST(value AS STRING)")
    assert (answer["dead"], answer["lost"], answer["doubled"]) == (2, 0, 1), "a letter is there twice"
    # One was not retried, and one is bad again, at another place.
    found = {each.value: each.letter for each in listed(bootstrap).newest}
    assert found.keys() == {b"nonsense", b'{"number": "x"}'}
    assert found[b'{"number": "x"}'].headers == [("h", b"1")]
    with pytest.raises(OptionError, match="the expression for the value is null for orders/"):
        retried(bootstrap, spark, value="get_json_object(CAST(value AS STRING), '$.gone')")
    assert retried(bootstrap).sent == {"orders": 3}
    assert listed(bootstrap).count == 0


def compared(spark: SparkSession, bootstrap: str, output: str, identity: str) -> dict[str, int]:
    """Compare by the name of an order, whether it could be parsed or not."""
    name = 'left(regexp_extract(CAST(value AS STRING), \'"name": "(.*)"\', 1), 450)'
    question = Question(bootstrap, "copies", (output,), name, identity)
    with Client(bootstrap) as client:
        check(client, question)
        found = asdict(verify(spark, client, question))
    assert found["foreign"] == 0
    return {
        name: found[name] for name in ("inputs", "expected", "found", "dead", "retried", "lost", "doubled")
    }


def test_rows_of_a_topic_are_retried_there(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, ("small", 1), **{"max.message.bytes": "300"})
    create(bootstrap, ("tiny-dead", 1), **{"max.message.bytes": "1400"})
    order(
        bootstrap, *(b'{"number": %d, "name": "%s"}' % (each, b"x" * 200 * each) for each in (1, 2, 9)), b"{}"
    )
    sinks: dict[str, Topic | Delta] = {
        "small": Topic("small", bad="tiny-dead"),
        "table": Delta(str(tmp_path / "table"), merge_on="key", bad=DEAD),
    }
    run(spark, bootstrap, tmp_path, copying(**sinks))
    assert {each.letter.sink for each in listed(bootstrap).newest} == {"small", str(tmp_path / "table")}
    for output, identity, count in (
        ("small", "CAST(value AS STRING)", 2),
        (str(tmp_path / "table"), "value", 1),
    ):
        answer = compared(spark, bootstrap, output, f"left(coalesce({identity}, ''), 450)")
        assert answer == {
            "inputs": 4,
            "expected": 4,
            "found": 4 - count,
            "dead": count,
            "retried": 0,
            "lost": 0,
            "doubled": 0,
        }
    done = retried(bootstrap)
    assert done.sent == {}
    assert sorted(why.partition(";")[0].partition(", and")[0] for why in done.kept) == [
        "a row of a table cannot be retried",
        "its value was cut",
        "the record takes 494 bytes",
    ]
    with Client(bootstrap) as client:
        Admin(client).configs.alter_topic("small", values={"max.message.bytes": "9000"})
    assert retried(bootstrap).sent == {"small": 1}
    assert committed(bootstrap, "small") == {b"x" * 200: 1, b"x" * 400: 1, b"": 1}
    assert listed(bootstrap).count == 2
    answer = compared(spark, bootstrap, "small", "left(coalesce(CAST(value AS STRING), ''), 450)")
    assert (answer["found"], answer["dead"], answer["retried"], answer["lost"]) == (3, 1, 1, 0)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_retry_is_killed_at_its_commit(
    spark: SparkSession, semel_broker: Embedded, bootstrap: str, tmp_path: Path, is_answered: bool
) -> None:
    order(bootstrap, *(b"bad %d" % number for number in range(30)))
    run(spark, bootstrap, tmp_path)
    with Proxy(bootstrap) as proxy:
        caught = proxy.on(
            EndTxnRequest.api_key,
            Act.DEAFEN if is_answered else Act.HOLD,
            where=lambda seen: seen.body.transactional_id == "copies/dead",
        )
        command = [sys.executable, "-m", "semel", "pipeline", "dead", "copies", "--retry"]
        process = subprocess.Popen(
            [*command, "--bootstrap", proxy.bootstrap], env={**os.environ, **OF_PROGRAMS}
        )
        try:
            await_caught(caught)
            if not is_answered:
                with Client(bootstrap) as client:
                    assert [each.doing for each in status(client, "copies").open] == [Doing.RETRYING]
        finally:
            process.kill()
            process.wait()
        again = subprocess.run(
            [*command, "--bootstrap", bootstrap, "--json"], capture_output=True, check=True, timeout=120
        )
        caught.release()
    assert json.loads(again.stdout) == {"sent": {} if is_answered else {"orders": 30}, "kept": {}}
    until(lambda: listed(bootstrap).count == 0, 10)
    assert committed(bootstrap, "orders") == Counter(
        b"bad %d" % number for number in range(30) for _ in range(2)
    )


def test_a_filter_leaves_the_others(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """More ranges of offsets than one mark holds."""
    order(bootstrap, *(b"bad %d" % number for number in range(60)))
    run(spark, bootstrap, tmp_path)
    assert retried(bootstrap, spark, where="offset % 2 = 0").sent == {"orders": 30}
    left = listed(bootstrap)
    assert left.count == 30
    assert {int(each.letter.about["semel.offset"]) % 2 for each in left.newest} == {1}
    assert retried(bootstrap).sent == {"orders": 30}
    assert committed(bootstrap, "orders") == Counter(
        b"bad %d" % number for number in range(60) for _ in range(2)
    )


def test_a_newer_retry_stops_an_older_one(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order(bootstrap, *(b"bad %d" % number for number in range(10)))
    run(spark, bootstrap, tmp_path)

    def mark_late(*arguments: Any) -> None:
        monkeypatch.undo()
        assert retried(bootstrap).sent == {"orders": 10}
        mark(*arguments)

    mark = dead._mark
    monkeypatch.setattr(dead, "_mark", mark_late)
    with pytest.raises(PipelineFenced, match="another retry of pipeline 'copies' has started"):
        retried(bootstrap)
    assert committed(bootstrap, "orders").total() == 20


def test_the_list(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    order(bootstrap, b"nonsense", b"nonsense", b'{"number": "x"}', b"{}")
    run(spark, bootstrap, tmp_path)
    with Client(bootstrap) as client, Producer(client) as producer:
        producer.send(DEAD, b"of another", headers=[("semel.pipeline", b"other"), ("semel.reason", b"bad")])

    def printed(*arguments: str) -> str:
        command = [sys.executable, "-m", "semel", "pipeline", "dead", "copies", "-b", bootstrap, *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout

    found = json.loads(printed("--json", "--max", "1"))
    assert found["dead_letters"] == 3
    assert found["reasons"]['number is "x", and should be int'] == 1
    (newest,) = found["newest"]
    assert newest["record"].startswith("orders/")
    text = printed()
    assert "The newest 3\nRECORD" in text
    assert "2        the value is not JSON: Expecting value" in text
    assert printed("--retry") == "Sent 3 to orders.\n"
    assert printed("--retry") == "There was nothing to send.\n"


def test_a_retry_does_not_begin_while_marks_may_be_hidden(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of another producer hides the mark behind it, and not the letter before it."""
    places = {"topic": b"orders", "partition": b"0", "offset": b"7", "timestamp": b"0"}
    headers = [("semel.reason", b"bad"), ("semel.pipeline", b"copies")]
    headers += [(f"semel.{name}", value) for name, value in places.items()]
    with (
        Client(bootstrap) as client,
        Producer(client) as producer,
        TransactionalProducer(client, "other") as other,
    ):
        producer.send(DEAD, b"letter", partition=0, headers=headers)
        producer.flush()
        other.begin()
        other.send(DEAD, b"of another pipeline", partition=0)
        other.flush()
        monkeypatch.setattr(dead, "DECIDED_S", 0.5)
        for _ in range(2):
            with pytest.raises(PipelineError, match=f"a transaction is open in {DEAD}/0 since offset 1"):
                retry(client, "copies", [DEAD], Change(), None)
        other.abort()
        for sent in ({"orders": 1}, {}):
            assert retry(client, "copies", [DEAD], Change(), None).sent == sent
    assert committed(bootstrap, "orders") == {b"letter": 1}
