"""What a table knows of a pipeline while the world around it changes. The protocol without Spark."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType
from support.spark.jobs import create, fill

from semel.client import Admin, Client
from semel.embedded import Embedded
from semel.spark import PipelineMismatch
from semel.spark.checkpoint import Checkpoint
from semel.spark.delta import batch_commit
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.delta.position import RECENT, Note, TablePlan, read_position
from semel.spark.delta.schema import delta_schema
from semel.spark.delta.table import Table, open_for
from semel.spark.partition_offsets import topic_ids

ROWS = StructType([StructField("id", LongType()), StructField("word", StringType())])
NAME = "archive"


@pytest.fixture
def servers(semel_broker: Embedded) -> str:
    create(semel_broker.bootstrap_servers, ("a", 1), ("b", 1))
    for topic in ("a", "b"):
        fill(semel_broker.bootstrap_servers, topic, range(100))
    return semel_broker.bootstrap_servers


@pytest.fixture
def client(servers: str) -> Iterator[Client]:
    with Client(servers, timeout_s=5) as client:
        yield client


class Query:
    """A query as its checkpoint shows it, which writes to `table`."""

    def __init__(self, directory: Path, servers: str, query_id: str = "q", **options: str) -> None:
        self.directory = directory / query_id
        self.table = str(directory / "table")
        given = {
            "path": self.table,
            "pipeline.id": NAME,
            "kafka.bootstrap.servers": servers,
            "checkpointLocation": str(self.directory),
            **options,
        }
        self.options = DeltaOptions.of(given, is_stream=True)
        (self.directory / "offsets").mkdir(parents=True)
        (self.directory / "metadata").write_text(json.dumps({"id": query_id}))

    def plan(self, number: int, ends: dict[str, int], **more: Any) -> TablePlan:
        """Plan a batch with these ends of the one partition of each topic."""
        entries = {f"{name}:": value for name, value in more.items()}
        offsets = {topic: {"0": end} for topic, end in ends.items()}
        text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps({**offsets, **entries})])
        (self.directory / "offsets" / str(number)).write_text(text)
        return batch_commit.plan_stream(self.options, ROWS, Checkpoint(str(self.directory)))

    def run(self, number: int, ends: dict[str, int], **more: Any) -> None:
        """Plan a batch without rows, and commit it."""
        batch_commit.commit(self.options, ROWS, self.plan(number, ends, **more), [], [])


def others_commit(table: str, number: int = RECENT + 1) -> None:
    for _ in range(number):
        write_deltalake(table, pa.table({"id": [1], "word": ["other"]}), mode="append")


def test_a_topic_that_comes_back_goes_on_where_it_was(servers: str, client: Client, tmp_path: Path) -> None:
    """Also if the commits of others have hidden the last note of the pipeline, more than once."""
    query = Query(tmp_path, servers)
    query.run(0, {"a": 10, "b": 10}, began={"a": {"0": 0}, "b": {"0": 0}})
    for number in (1, 2):
        others_commit(query.table)
        if number == 2:
            Admin(client).groups.delete(NAME)
        query.run(number, {"b": 10 + 10 * number})
    with pytest.raises(PipelineMismatch, match=r"offsets 0 to 40 of a/0, but .* up to 10"):
        query.plan(3, {"a": 40, "b": 40})
    plan = Query(tmp_path, servers, "new").plan(0, {"a": 40, "b": 40}, began={"a": {"0": 10}, "b": {"0": 30}})
    assert plan.begin == {("a", 0): 10, ("b", 0): 30}


def table_at(path: Path) -> Table:
    return open_for(str(path), delta_schema(ROWS, ()), (), merges=False)


def test_what_a_note_lacks_is_found_in_the_identifiers(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    first = {("a", 0): 7, ("b", 0): 9}
    table.commit([], Note(NAME, 1, "run", "q", 0, first, (), ids={"a": "id of a", "b": "id of b"}))
    table.commit([], Note(NAME, 2, "run", "q", 1, {("b", 0): 12}, (), ids={"b": "id of b"}))
    found = read_position(table, NAME, "q", [("a", 0), ("c", 0)])
    assert found.offsets == {("a", 0): 7, ("b", 0): 12}
    assert found.topics.keys() == {"a", "b"}


def test_the_partitions_of_a_topic_that_was_created_again_are_new(servers: str, tmp_path: Path) -> None:
    query = Query(tmp_path, servers)
    query.run(0, {"a": 10}, began={"a": {"0": 0}}, ids={"a": "one"})
    table = table_at(tmp_path / "table")
    table.commit([], Note(NAME, 2, "run", "q", 1, {("a", 0): 20, ("a", 1): 5}, (), ids={"a": "one"}))
    (query.directory / "offsets" / "1").write_text(
        "\n".join(["v1", "{}", '{"a":{"0":20,"1":5},"ids:":{"a":"one"}}'])
    )
    query.run(2, {"a": 3}, ids={"a": "two"})
    assert read_position(table_at(tmp_path / "table"), NAME).offsets == {("a", 0): 3, ("a", 1): 0}


# ---- RESTORE


@pytest.mark.parametrize("others", [0, RECENT + 1])
def test_a_table_that_was_restored_to_before_the_last_commit_is_refused(
    servers: str, tmp_path: Path, others: int
) -> None:
    query = Query(tmp_path, servers)
    query.run(0, {"a": 10}, began={"a": {"0": 0}})
    query.run(1, {"a": 20})
    version = DeltaTable(query.table).version()
    others_commit(query.table, 1)
    planned = query.plan(2, {"a": 30})
    DeltaTable(query.table).restore(version)
    query.plan(2, {"a": 30})  # which took nothing of the pipeline back
    DeltaTable(query.table).restore(version - 1)
    restored = DeltaTable(query.table).version()
    others_commit(query.table, others)
    for _ in range(2):
        with pytest.raises(PipelineMismatch, match=f"restored .* commit {restored}, "):
            query.plan(2, {"a": 30})
    with pytest.raises(PipelineMismatch, match="restored"):
        batch_commit.commit(query.options, ROWS, planned, [], [])
    DeltaTable(query.table).restore(restored - 1)
    query.run(2, {"a": 30})


def test_versions_of_a_table_that_was_restored_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "table")

    def write(version: int) -> None:
        given = {"path": path, "txnAppId": "app", "txnVersion": str(version)}
        options = DeltaOptions.of(given, is_stream=False)
        batch_commit.commit(options, ROWS, batch_commit.plan_batch(options, ROWS), [], [])

    write(1)
    write(2)
    before = DeltaTable(path).version() - 1
    DeltaTable(path).restore(before)
    with pytest.raises(PipelineMismatch, match=r"after txnAppId 'app' had written .* choose a new txnAppId"):
        write(2)


# ---- a table that is gone


def test_no_empty_table_takes_the_place_of_one_that_is_gone(
    servers: str, client: Client, tmp_path: Path
) -> None:
    query = Query(tmp_path, servers)
    query.run(0, {"a": 10}, began={"a": {"0": 0}})
    shutil.rmtree(query.table)
    with pytest.raises(PipelineMismatch, match=r"and there is no table in .*/table any more\. Put it back"):
        query.plan(1, {"a": 20})
    Admin(client).groups.delete(NAME)
    with pytest.raises(PipelineMismatch, match="batch 1"):
        query.plan(1, {"a": 20})
    assert not Path(query.table).exists()


# ---- another id


def ids_of(client: Client, topic: str) -> dict[str, str]:
    return topic_ids(client.describe([topic]).topics)


def test_another_id_does_not_write_the_same_input_to_the_same_table(
    servers: str, client: Client, tmp_path: Path
) -> None:
    """Whether the history of the table has it, or the group alone, or the table alone."""
    old = Query(tmp_path, servers, **{"pipeline.id": "old"})
    old.run(0, {"a": 10}, began={"a": {"0": 0}}, ids=ids_of(client, "a"))
    refused = pytest.raises(PipelineMismatch, match=r"'old' has read a/0 up to offset 10 .* the table")
    began = {"a": {"0": 0}}
    with refused:
        Query(tmp_path, servers, "r").plan(0, {"a": 20}, began=began, ids=ids_of(client, "a"))
    Admin(client).groups.delete("old")
    with refused:
        Query(tmp_path, servers, "s").plan(0, {"a": 20}, began=began, ids=ids_of(client, "a"))
    for number, more in enumerate(({"pipeline.new": "true"}, {"pipeline.beside": "old, new-0"})):
        new = Query(tmp_path, servers, f"t{number}", **{"pipeline.id": f"new-{number}"}, **more)
        new.run(0, {"a": 20}, began=began, ids=ids_of(client, "a"))
        assert read_position(table_at(tmp_path / "table"), f"new-{number}").number == 1


def test_a_table_without_history_may_have_the_rows_already(
    servers: str, client: Client, tmp_path: Path
) -> None:
    """History and group of the old pipeline are gone, as after a month."""
    old = Query(tmp_path, servers, **{"pipeline.id": "old"})
    old.run(0, {"a": 10}, began={"a": {"0": 0}}, ids=ids_of(client, "a"))
    others_commit(old.table, 1)
    Admin(client).groups.delete("old")
    table = DeltaTable(old.table)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.create_checkpoint()
    table.cleanup_metadata()
    began, ids = {"a": {"0": 0}}, ids_of(client, "a")
    with pytest.raises(PipelineMismatch, match="rows from before its history begins"):
        Query(tmp_path, servers, "r").plan(0, {"a": 20}, began=began, ids=ids)
    Query(tmp_path, servers, "s", **{"pipeline.new": "true"}).run(0, {"a": 20}, began=began, ids=ids)
    assert read_position(table_at(tmp_path / "table"), NAME).number == 1


@pytest.mark.parametrize("change", ["another input", "where it ends", "the input is created again"])
def test_other_pipelines_may_write_to_the_same_table(
    servers: str, client: Client, tmp_path: Path, change: str
) -> None:
    old = Query(tmp_path, servers, **{"pipeline.id": "old"})
    old.run(0, {"a": 10}, began={"a": {"0": 0}}, ids=ids_of(client, "a"))
    if change == "the input is created again":
        Admin(client).topics.delete("a")
        create(servers, ("a", 1))
    topic = "b" if change == "another input" else "a"
    start = 10 if change == "where it ends" else 0
    new = Query(tmp_path, servers, "r")
    new.run(0, {topic: 20}, began={topic: {"0": start}}, ids=ids_of(client, topic))
    assert read_position(table_at(tmp_path / "table"), NAME).number == 1


def test_source_and_sink_with_different_ids_are_refused(servers: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineMismatch, match=f"'source'.*'{NAME}'"):
        Query(tmp_path, servers).plan(0, {"a": 10}, began={"a": {"0": 0}}, pipeline="source")
    assert not (tmp_path / "table").exists()
