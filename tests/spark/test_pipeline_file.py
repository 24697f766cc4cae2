"""Declared pipelines: what is wrong with a declaration is said, and what is right runs."""

import ast
import re
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from support.spark.jobs import committed, create, fill, values
from support.spark.lake import content

from semel.client import Client, Producer
from semel.client.admin.transactions import fence_producer, list_transactions
from semel.embedded import Embedded
from semel.pipeline import DeclarationError, Delta, Lookup, Pipeline, Topic, pipeline
from semel.spark import PipelineError, errors, start
from semel.spark.pipeline import running
from semel.spark.pipeline.file import load
from semel.spark.pipeline.running import Progress, Restarted, Run, RunSettings, explain, is_passing
from semel.spark.pipeline.status import status

HEAD = "from semel.pipeline import Delta, Lookup, Topic, pipeline\n"


def written(directory: Path, text: str, name: str = "billing.py") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_a_pipeline_is_data_and_still_a_function(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEAD + "@pipeline('billing', source=Topic('orders'), sink=Topic('invoices'))\n"
        "def billing(orders):\n    return orders + 1\n",
    )
    found = load(path)
    assert (found.id, found.sources, found.sinks) == (
        "billing",
        {"orders": Topic("orders")},
        {"billing": Topic("invoices")},
    )
    assert found(41) == 42
    assert found.results({"orders": 1}) == {"billing": 2}


def test_sources_and_sinks_by_name() -> None:
    @pipeline("p", source={"a": Topic("x"), "b": Lookup("y")}, sink={"c": Topic("z"), "d": Delta("t")})
    def found(a: int, b: int) -> dict[str, int]:
        return {"c": a, "d": b}

    assert set(found.sinks) == {"c", "d"}
    assert found.results({"a": 1, "b": 2}) == {"c": 1, "d": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "declares no pipeline"),
        ("def billing(orders): pass", "declares no pipeline"),
        ("import no_such_module", "line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\ny = x / 0", "line 2: ZeroDivisionError"),
        ("x = 1\ndef billing(:", "line 2: SyntaxError: invalid syntax"),
        (
            HEAD + "one = pipeline('one', source=Topic('a'), sink=Topic('b'))(lambda a: a)\n"
            "two = pipeline('two', source=Topic('a'), sink=Topic('b'))(lambda a: a)",
            "declares pipeline 'one', pipeline 'two'. Give each a file",
        ),
        (
            HEAD + "pipeline('a/b', source=Topic('a'), sink=Topic('b'))(lambda a: a)",
            "the id of a pipeline must be 1 to 200 letters",
        ),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as caught:
        load(written(tmp_path, text))
    assert str(tmp_path / "billing.py") in str(caught.value)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"its name has to end in \.py"):
        load(written(tmp_path, "", "billing.txt"))


def test_functions_that_do_not_fit() -> None:
    topic = Topic("a")
    with pytest.raises(DeclarationError, match="'a', 'b'"):
        Pipeline("p", lambda a, b: a, topic, topic)
    with pytest.raises(DeclarationError, match=r"'x'.*'a'"):
        Pipeline("p", lambda a: a, {"x": topic}, topic)
    with pytest.raises(DeclarationError, match="reads no stream"):
        Pipeline("p", lambda a: a, Lookup("a"), topic)
    with pytest.raises(DeclarationError, match=r"'p'.*'a' is 'orders'"):
        Pipeline("p", lambda a: a, "orders", topic)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="has no sink"):
        Pipeline("p", lambda a: a, topic, {})
    named = Pipeline("p", lambda a: a, topic, {"x": topic})
    with pytest.raises(DeclarationError, match=r"dict .*int"):
        named.results({"a": 1})
    with pytest.raises(DeclarationError, match=r"'y'.*'x'"):
        named.results({"a": {"y": 1}})


def test_a_pipeline_that_gets_another_name_keeps_its_position() -> None:
    found = Pipeline("new", lambda a: a, Topic("a"), Topic("b"), renamed_from="p")
    assert (found.id, found.pipeline_id) == ("new", "p")
    with pytest.raises(DeclarationError, match=r"renamed_from .*'new' .*200"):
        Pipeline("new", lambda a: a, Topic("a"), Topic("b"), renamed_from="a/b")


def test_all_sources_and_sinks_have_one_id() -> None:
    """Else the position would be stored where the source does not look for it."""
    other = {"Pipeline.ID": "other"}
    for source, sink in ((Topic("a", other), Topic("b")), (Topic("a"), Delta("/b", other))):
        with pytest.raises(DeclarationError, match=r"of pipeline 'p' has pipeline\.id 'other'"):
            Pipeline("p", lambda a: a, source, sink)
    Pipeline("other", lambda a: a, Topic("a", other), Topic("b", other))


def test_output_modes() -> None:
    assert Pipeline("p", lambda a: a, Topic("a"), Topic("b"), output_mode="update").output_mode == "update"
    with pytest.raises(DeclarationError, match="append or update or complete, not 'upsert'"):
        Pipeline("p", lambda a: a, Topic("a"), Topic("b"), output_mode="upsert")


FILE = """
from pyspark.sql.functions import broadcast, udf
from beside import shout
from semel.pipeline import Lookup, Topic, pipeline

def again(text):
    return shout(text) + "!"

@pipeline(
    "shouting",
    source={"words": Topic("in"), "table": Lookup("table")},
    sink={"loud": Topic("out"), "plain": Topic("plain")},
)
def shouting(words, table):
    known = broadcast(table.selectExpr("key", "CAST(value AS STRING) AS extra"))
    both = words.selectExpr("key", "CAST(value AS STRING) AS text").join(known, "key")
    loud = both.select("key", udf(again)("text").alias("value"))
    return {"loud": loud, "plain": both.selectExpr("key", "concat(text, ' ', extra) AS value")}
"""


@pytest.mark.spark
def test_a_file_runs_with_what_is_beside_it(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    """Functions of the file and of its neighbours get to the tasks, which could not import them."""
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 2), ("out", 2), ("plain", 1), ("table", 1))
    written(tmp_path, "def shout(text):\n    return text.upper()\n", "beside.py")
    found = load(written(tmp_path, FILE, "copy.py"))  # a name that Python itself uses
    fill(bootstrap, "in", range(20))
    with Client(bootstrap) as client, Producer(client) as producer:
        for number in range(20):
            producer.send("table", b"more", key=b"key %d" % number)
    for _ in range(2):
        query = start(spark, found, bootstrap_servers=bootstrap, checkpoint=str(tmp_path / "c"), once=True)
        query.awaitTermination()
    assert committed(bootstrap, "out") == Counter(b"VALUE %d!" % number for number in range(20))
    assert committed(bootstrap, "plain") == Counter(b"value %d more" % number for number in range(20))
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["shouting"]


def copied(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value")


def copying(**options: str) -> Pipeline:
    return Pipeline("copy", copied, Topic("in", options), Topic("out"))


def dividing(**sinks: Topic | Delta) -> Pipeline:
    """To every sink the rows of its own remainder."""

    def divide(rows: DataFrame) -> dict[str, DataFrame]:
        return {
            name: rows.where(f"offset % {len(sinks)} = {number}").select("key", "value")
            for number, name in enumerate(sinks)
        }

    return Pipeline("divide", divide, Topic("in"), sinks)


def run(spark: SparkSession, declared: Pipeline, place: RunSettings) -> list[Any]:
    return [each for each in Run(spark, declared, place).watch(lambda: False) if each is not None]


@pytest.mark.spark
def test_all_sinks_are_written_from_one_read(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 2), ("out", 1), ("dead", 1))
    place = RunSettings(bootstrap, str(tmp_path), once=True)
    fill(bootstrap, "in", range(10))
    (report,) = run(spark, dividing(one=Topic("out"), dead=Topic("dead")), place)
    assert (report.pipeline, report.rows) == ("divide", 10)
    assert committed(bootstrap, "out") + committed(bootstrap, "dead") == values(range(10))


@pytest.mark.spark
def test_sinks_are_renamed_added_and_removed(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    """The position is that of the pipeline, so nothing is written again."""
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 1), ("out", 1), ("dead", 1))
    place = RunSettings(bootstrap, str(tmp_path), once=True)
    fill(bootstrap, "in", range(10))
    run(spark, dividing(one=Topic("out"), dead=Topic("dead")), place)
    fill(bootstrap, "in", range(10, 20))
    run(spark, dividing(first=Topic("out"), deadletters=Topic("dead")), place)
    assert committed(bootstrap, "out") == values(range(0, 20, 2))
    fill(bootstrap, "in", range(20, 30))
    run(spark, dividing(first=Topic("out")), place)
    assert committed(bootstrap, "out") == values([*range(0, 20, 2), *range(20, 30)])
    fill(bootstrap, "in", range(30, 40))
    run(spark, dividing(first=Topic("out"), table=Delta(str(tmp_path / "table"))), place)
    assert committed(bootstrap, "out") == values([*range(0, 20, 2), *range(20, 30), *range(30, 40, 2)])
    assert Counter(bytes(each) for each in content(tmp_path / "table")["value"]) == values(range(31, 40, 2))


@pytest.mark.spark
def test_results_with_and_without_state(spark: SparkSession, semel_broker: Embedded, tmp_path: Path) -> None:
    """Counts of keys beside the records themselves: what has state stays in the streaming query."""
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 2), ("more", 1), ("out", 1), ("counts", 1), ("unique", 1))

    def count(rows: DataFrame, more: DataFrame) -> dict[str, DataFrame]:
        both = rows.select("key", "value").union(more.select("key", "value"))
        counts = rows.groupBy(functions.substring("key", 1, 5).alias("key")).count()
        return {
            "out": both.where("value != 'value 3'"),
            "counts": counts.selectExpr("key", "CAST(count AS STRING) AS value"),
            "unique": rows.dropDuplicates(["value"]).select("key", "value"),
        }

    counting = Pipeline(
        "counting",
        count,
        {"rows": Topic("in"), "more": Topic("more")},
        {name: Topic(name) for name in ("out", "counts", "unique")},
        output_mode="update",
    )
    place = RunSettings(bootstrap, str(tmp_path), once=True)
    fill(bootstrap, "in", range(10))
    fill(bootstrap, "more", range(3, 5))
    (report,) = run(spark, counting, place)
    assert report.rows == 12
    assert committed(bootstrap, "counts") == {b"1": 10}
    fill(bootstrap, "in", range(8, 12))
    run(spark, counting, place)
    assert committed(bootstrap, "counts") == {b"1": 10, b"2": 2, b"3": 1}
    assert committed(bootstrap, "unique") == values(range(12))
    assert committed(bootstrap, "out") == values([*range(3), *range(4, 10), 4, *range(8, 12)])


@pytest.mark.spark
def test_the_new_start_of_a_pipeline_is_meant(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 1), ("out", 1))
    fill(bootstrap, "in", range(10))
    place = RunSettings(bootstrap, str(tmp_path), once=True)
    run(spark, copying(), place)
    other = Pipeline("other", copied, Topic("in"), Topic("out"))
    with pytest.raises(
        PipelineError, match=r"renamed_from='copy'.*pipeline\.new=true.*semel pipeline run --new"
    ):
        run(spark, other, place)
    run(spark, Pipeline("other", copied, Topic("in"), Topic("out"), renamed_from="copy"), place)
    assert committed(bootstrap, "out") == values(range(10))
    run(spark, other, replace(place, is_new=True))
    assert committed(bootstrap, "out") == values([*range(10), *range(10)])


@pytest.mark.spark
def test_a_run_reports_its_batches(spark: SparkSession, semel_broker: Embedded, tmp_path: Path) -> None:
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 1), ("out", 1))
    fill(bootstrap, "in", range(50))
    place = RunSettings(bootstrap, str(tmp_path), once=True)
    reports = run(spark, copying(maxOffsetsPerTrigger="20"), place)
    rows = [(each.pipeline, each.batch, each.rows, each.lag) for each in reports if each.rows]
    assert rows == [("copy", 0, 20, 30), ("copy", 1, 20, 10), ("copy", 2, 10, 0)]
    assert committed(bootstrap, "out") == values(range(50))


@pytest.mark.spark
def test_late_rows_are_reported_and_the_next_decision_has_them(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 1), ("out", 1), **{"retention.ms": "-1"})
    with Client(bootstrap) as client, Producer(client) as producer:
        for second in (100, 200, 1, 300):
            producer.send("in", b"%d" % second, timestamp_ms=second * 1000)

    def unique(rows: DataFrame) -> DataFrame:
        return (
            rows.withWatermark("timestamp", "1 second").dropDuplicates(["value", "timestamp"]).select("value")
        )

    late = Pipeline("late", unique, Topic("in", {"maxOffsetsPerTrigger": "1"}), Topic("out"))
    setting = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(setting, "false")
    try:
        reports = run(spark, late, RunSettings(bootstrap, str(tmp_path), once=True))
    finally:
        spark.conf.unset(setting)
    assert [(each.batch, each.late, sum(each.written.values())) for each in reports] == [
        (0, 0, 1),
        (1, 0, 1),
        (2, 1, 0),
        (3, 0, 1),
    ]
    assert reports[2].state_bytes > 0
    with Client(bootstrap) as client:
        last = status(client, "late").last
    assert last is not None
    assert (last.batch_id, last.read, last.written, last.dead) == (3, 1, {"out": 1}, 0)
    assert last.before is not None
    assert (last.before.batch_id, last.before.late) == (2, 1)
    assert (last.before.state_rows, last.before.state_bytes) == (
        reports[2].state_rows,
        reports[2].state_bytes,
    )


@pytest.mark.spark
def test_a_broker_that_comes_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queries stop when it is away for too long, and are started again until it is there.

    On a busy machine a query may stop before that, because an answer takes too long.
    """
    monkeypatch.setattr(running, "RESTART_PAUSE_SECONDS", 0.1)
    first = Embedded(tmp_path / "log").start()
    bootstrap, port = first.bootstrap_servers, first.port
    create(bootstrap, ("in", 1), ("out", 1))
    fill(bootstrap, "in", range(10))
    stop, state = threading.Event(), "there"
    place = RunSettings(bootstrap, str(tmp_path / "checkpoint"), trigger="100 milliseconds")
    second = Embedded(tmp_path / "log", port=port)
    short = {f"kafka.{name}.timeout.ms": "1000" for name in ("request", "default.api")}
    for event in Run(spark, copying(**short), place).watch(stop.is_set):
        if isinstance(event, Restarted) and state == "away":
            second.start()
            fill(bootstrap, "in", range(10, 20))
            state = "back"
        elif isinstance(event, Progress) and event.rows and state == "there":
            first.close()
            state = "away"
        elif isinstance(event, Progress) and event.rows and state == "back":
            stop.set()
    assert state == "back"
    assert committed(bootstrap, "out") == values(range(20))
    second.close()


@pytest.mark.spark
def test_transactions_that_the_broker_has_aborted_are_written_again(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    """As after a crash of PostgreSQL: the queries go on in the same driver, and every record counts once."""
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 1), ("out", 1))
    fill(bootstrap, "in", range(10))
    stop = threading.Event()
    restarts: list[str] = []

    def abort() -> None:
        with Client(bootstrap) as client:
            while not restarts and not stop.is_set():
                for each in list_transactions(client, ["Ongoing"], pattern=r"copy/\d.*"):
                    fence_producer(client, each.transactional_id)

    aborting = threading.Thread(target=abort)
    aborting.start()
    try:
        place = RunSettings(bootstrap, str(tmp_path), trigger="100 milliseconds")
        count = 10
        for event in Run(spark, copying(), place).watch(stop.is_set):
            if isinstance(event, Restarted):
                restarts.append(event.why)
            elif isinstance(event, Progress) and event.rows and restarts:
                stop.set()
            elif isinstance(event, Progress) and event.rows:
                # It was faster than the thread.
                fill(bootstrap, "in", range(count, count := count + 10))
    finally:
        stop.set()
        aborting.join()
    assert restarts[0].startswith("nothing was decided, because the broker has ended copy/")
    assert committed(bootstrap, "out") == values(range(count))


@pytest.mark.spark
def test_what_is_wrong_for_good_is_not_tried_again(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    place = RunSettings(semel_broker.bootstrap_servers, str(tmp_path), once=True)
    with pytest.raises(PipelineError, match=r"'copy' .*topic gone"):
        run(spark, Pipeline("copy", lambda a: a, Topic("gone"), Topic("out")), place)
    with pytest.raises(PipelineError, match="'maxoffset'"):
        run(spark, copying(maxOffset="1"), place)
    with pytest.raises(DeclarationError, match=r"copy .*int"):
        start(
            spark,
            Pipeline("copy", lambda a: 1, Topic("in"), Topic("out")),
            bootstrap_servers=semel_broker.bootstrap_servers,
            checkpoint=str(tmp_path),
        )


def test_explanations() -> None:
    """What is at the bottom of the pages that Spark writes."""
    frame = '  File "/x/y.py", line 7, in f\n    raise it\n'
    pages = (
        "[STREAM_FAILED] Query terminated: Traceback (most recent call last):\n"
        f"{frame}semel.spark.errors.OptionError: there is no topic x. Check the name\n SQLSTATE: 38000\n"
        "=== Streaming Query ===\nIdentifier: x"
    )
    assert explain(PySparkException(pages)) == "there is no topic x. Check the name"
    deep = (
        "Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        f"{frame}ValueError: two\nlines\n\n\tat org.apache.spark.X\n\nDriver stacktrace:"
    )
    assert explain(PySparkException(deep)) == "ValueError: two\nlines"
    plain = "[UNRESOLVED_COLUMN] There is no `vale`. SQLSTATE: 42703; line 1 pos 0;\n'Project ['vale]"
    assert explain(PySparkException(plain)) == "[UNRESOLVED_COLUMN] There is no `vale`."
    headed = (
        "[STREAM_FAILED] Query [id = x] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed to "
        "initialize Python data source writer: semel.spark.errors.PipelineError: the table is gone:\nall "
        "of it\n\nThe above exception was the direct cause of the following exception:\n\n"
        f"Traceback (most recent call last):\n{frame}_pickle.PicklingError: Could not serialize object"
    )
    assert explain(PySparkException(headed)) == "the table is gone:\nall of it"
    assert not is_passing(PySparkException(headed))
    away = headed.replace("spark.errors.PipelineError", "client.errors.ConnectionLost")
    assert is_passing(PySparkException(away))
    assert is_passing(PySparkException(headed.replace("PipelineError", "AttemptsLost")))
    assert not is_passing(PySparkException(pages))
    assert is_passing(PySparkException(f"{frame}semel.client.errors.BrokerUnreachable: no broker answers"))
    # A cluster whose PostgreSQL is away.
    assert is_passing(
        PySparkException(f"{frame}semel.wire.errors.KafkaError: NOT_COORDINATOR: nobody owns it")
    )
    assert not is_passing(
        PySparkException(f"{frame}semel.wire.errors.KafkaError: INVALID_TXN_STATE: it ended")
    )


AGAIN = re.compile(r"[Ss]tart( the query)? again")


def strings(node: ast.AST) -> str:
    """All text in a piece of code."""
    return "".join(
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_every_message_that_says_to_start_again_is_of_a_passing_failure() -> None:
    """`semel pipeline run` does itself what it tells others to do."""
    found = 0
    for path in Path(errors.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        texts = {
            each.name
            for each in nodes
            if isinstance(each, ast.FunctionDef)
            and any(isinstance(part, ast.Return) and AGAIN.search(strings(part)) for part in ast.walk(each))
        }
        for error in nodes:
            if not isinstance(error, ast.Call) or not isinstance(error.func, (ast.Name, ast.Attribute)):
                continue
            kind = error.func.id if isinstance(error.func, ast.Name) else error.func.attr
            if hasattr(errors, kind) and (AGAIN.search(strings(error)) or names(error) & texts):
                assert is_passing(Exception(f"semel.spark.errors.{kind}: it")), f"{path}:{error.lineno}"
                found += 1
                texts -= names(error)
        assert not texts, f"{path}: nobody raises these"
    assert found >= 10
