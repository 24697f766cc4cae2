"""The parts of the sink for Delta tables, without Spark: files, statistics, leftovers, schemas, protocol."""

import datetime as dt
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from support.spark.jobs import create, fill
from support.spark.lake import content, unnamed_files
from support.spark.table_writes import ROWS, Query, attempt, batch_of, write

from semel.client import Admin, Client, CommittedOffset
from semel.client.admin.group_offsets import commit_offsets
from semel.embedded import Embedded
from semel.spark import OptionError, PipelineFenced, PipelineMismatch
from semel.spark.delta import files, leftovers, table
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.delta.files import TaskFiles, directory_of, lower_bound, text_of, upper_bound
from semel.spark.delta.group import read_group
from semel.spark.delta.leftovers import Attempt
from semel.spark.delta.position import RECENT, Note, read_position
from semel.spark.delta.resume import ResumingReader
from semel.spark.delta.schema import delta_schema, in_utc, new_columns
from semel.spark.delta.storage import Storage, location_of
from semel.spark.errors import PipelineError, TableUnreachable
from semel.spark.options import SourceOptions
from semel.spark.partition_offsets import of_json

UTC = dt.UTC


# ---- partitions and statistics


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", None),
        ("a/b", "a/b"),
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        (math.inf, "Infinity"),
        (Decimal("1E+2"), "100"),
        (dt.date(2026, 11, 15), "2026-11-15"),
        (dt.datetime.fromisoformat("2026-11-15T07:00"), "2026-11-15 07:00:00.000000"),
        (
            dt.datetime(2026, 11, 15, 7, tzinfo=dt.timezone(dt.timedelta(hours=1))),
            "2026-11-15T06:00:00.000000Z",
        ),
    ],
)
def test_values_of_partitions_are_written_as_delta_has_them(value: Any, text: str | None) -> None:
    assert text_of(value) == text


def test_directories_have_names_that_every_file_system_takes() -> None:
    assert directory_of(["a", "b"], ("x/y ü", None)) == "a=x%2Fy %C3%BC/b=__HIVE_DEFAULT_PARTITION__/"
    assert len(directory_of(["a"], ("long " * 1000,))) < 255


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, "", "a/b", "ü?#%", "a b", "..", "x" * 500]),
        pa.array([1, 2, None, -5]),
        pa.array([True, False, None]),
        pa.array([dt.date(2026, 1, 1), None]),
        pa.array([dt.datetime(2026, 1, 1, 12, 30, tzinfo=UTC), None], pa.timestamp("us", tz="Europe/Berlin")),
        pa.array([dt.datetime.fromisoformat("2026-01-01T12:30"), None], pa.timestamp("us")),
        pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        pa.array([0.5, -2.0, None]),
    ],
    ids=lambda values: str(values.type),
)
def test_every_row_is_in_its_partition(tmp_path: Path, values: pa.Array) -> None:
    numbers = pa.array(range(len(values)))
    schema = Schema.from_arrow(pa.schema([("id", pa.int64()), ("part", in_utc(_one(values))[0].type)]))
    DeltaTable.create(tmp_path / "t", schema, partition_by=["part"])
    opened = table.open_table(str(tmp_path / "t"))
    assert opened is not None
    added = write(tmp_path / "t", batch_of(id=numbers, part=values), "part")
    opened.commit(added, Note("archive", 1, "abc", "q", 0, {}, ("abc-0.0",)))
    found = content(tmp_path / "t")
    expected = [None if value == "" else value for value in values.to_pylist()]
    assert dict(zip(found["id"], found["part"], strict=True)) == dict(enumerate(expected))


def _one(values: pa.Array) -> pa.Schema:
    return pa.schema([("part", values.type)])


def test_not_a_number_is_a_partition_too(tmp_path: Path) -> None:
    added = write(tmp_path, batch_of(id=[1, 2, 3], part=[math.nan, 1.0, math.nan]), "part")
    rows = {each.values: json.loads(each.stats)["numRecords"] for each in added}
    assert rows == {("NaN",): 2, ("1.0",): 1}


def test_more_partitions_than_files_may_be_open(tmp_path: Path) -> None:
    count = files.OPEN_MAX * 2 + 3
    task = TaskFiles(Storage(str(tmp_path)), attempt(), ["part"], ())
    for _ in range(2):
        task.write(batch_of(id=list(range(count)), part=list(range(count))))
    added = task.close()
    assert len({each.path for each in added}) == len(added)
    assert sum(json.loads(each.stats)["numRecords"] for each in added) == 2 * count
    assert all(json.loads(each.stats)["numRecords"] for each in added), "no file is empty"


def test_bounds_are_exact_or_not_there(tmp_path: Path) -> None:
    long = "z" * 40
    (added,) = write(
        tmp_path,
        batch_of(
            n=[3, None],
            word=[long, "a" * 40],
            clean=[0.5, -1.0],
            dirty=[math.nan, 1.0],
            endless=[math.inf, 1.0],
            small=pa.array([Decimal("1.25"), Decimal("2.50")], pa.decimal128(10, 2)),
            huge=pa.array([Decimal(10**30), Decimal(1)], pa.decimal128(38, 0)),
            when=pa.array([dt.datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)] * 2, pa.timestamp("us", tz="UTC")),
            raw=[b"a", b"b"],
            flag=[True, False],
            nested=[[1], [2]],
            nothing=pa.array([None, None], pa.int64()),
        ),
    )
    stats = json.loads(added.stats)
    assert stats["numRecords"] == 2
    assert stats["minValues"] == {
        "n": 3,
        "word": "a" * 32,
        "clean": -1.0,
        "endless": 1.0,
        "small": 1.25,
        "when": "2026-01-01T00:00:00.123456Z",
    }
    assert stats["maxValues"] == {
        "n": 3,
        "word": "z" * 32 + "\U0010ffff",
        "clean": 0.5,
        "small": 2.5,
        "when": "2026-01-01T00:00:00.123456Z",
    }
    assert (stats["nullCount"]["n"], stats["nullCount"]["nothing"], stats["nullCount"]["flag"]) == (1, 2, 0)


@pytest.mark.parametrize("text", ["", "a" * 32, "a" * 33, "a" * 32 + "\U0010ffff\U0010ffff", "ü" * 40])
def test_texts_lie_between_their_bounds(text: str) -> None:
    low, high = lower_bound(text), upper_bound(text)
    assert low.encode() <= text.encode()
    assert high is None or text.encode() <= high.encode()


# ---- leftovers


def test_only_what_can_never_be_committed_is_deleted(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    rows = batch_of(id=[1])
    winner, loser = attempt(task=0), attempt(task=1)
    kept = write(tmp_path, rows, who=winner)[0].path
    lost = write(tmp_path, rows, who=loser)[0].path
    later = write(tmp_path, rows, who=attempt(number=2))[0].path
    forgotten = write(tmp_path, rows, who=attempt(number=0))[0].path
    other = write(tmp_path, rows, who=Attempt("archive/write", 1, "abc", 9, 9))[0].path
    announcements = tmp_path / "_semel/archive/stream"
    (announcements / "1-abc-7.7-0.json").write_text('["torn')
    (announcements / "1-abc-8.8-0.json").write_text(
        json.dumps([kept, f"../{tmp_path.name}/{kept}", "/etc/no"])
    )
    leftovers.clear(storage, "archive", 1, {1: [winner.key]})
    assert {path: (tmp_path / path).exists() for path in (kept, lost, later, forgotten, other)} == {
        kept: True,
        lost: False,
        later: True,
        forgotten: True,
        other: True,
    }
    assert storage.names("_semel/archive/stream") == ["2-abc-0.0-0.json"]


def test_a_task_that_fails_takes_its_files_with_it(tmp_path: Path) -> None:
    task = TaskFiles(Storage(str(tmp_path)), attempt(), (), ["id"])
    task.write(batch_of(id=[1]))
    with pytest.raises(PipelineError, match=r"'id' .*nullable"):
        task.write(batch_of(id=pa.array([None], pa.int64())))
    task.discard()
    assert list(tmp_path.glob("*.parquet")) == []


# ---- schemas and tables


@pytest.mark.parametrize(
    ("schema", "partition_by", "message"),
    [
        (StructType([*ROWS.fields, StructField("ID", LongType())]), [], "'id' appears twice"),
        (StructType([StructField("a,b", LongType())]), [], "cannot contain ',': 'a,b'"),
        (StructType([StructField("age", DayTimeIntervalType())]), [], "no type for 'age'"),
        (
            StructType([StructField("s", StructType([StructField("age", DayTimeIntervalType())]))]),
            [],
            "no type for 's.age'",
        ),
        (ROWS, ["day"], "partitionBy names 'day'; there are id, word"),
        (ROWS, ["id", "word"], "by all of its columns"),
        (StructType([*ROWS.fields, StructField("b", BinaryType())]), ["b"], "cannot be partitioned by 'b'"),
    ],
)
def test_rows_that_no_table_can_hold_are_refused(
    schema: StructType, partition_by: list[str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        delta_schema(schema, partition_by)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([StructField("id", IntegerType())], "'id' is integer, and long in the table"),
        ([StructField("Id", LongType())], "the table has a column 'id', not 'Id'"),
        ([StructField("word", StringType())], "a column 'id', which cannot be left out"),
        ([StructField("day", DateType())], "only columns by which the table is partitioned"),
    ],
)
def test_rows_that_do_not_fit_the_table_are_refused(fields: list[StructField], message: str) -> None:
    known = delta_schema(StructType([*ROWS.fields, StructField("day", DateType())]), [])
    known["fields"][0]["nullable"] = False
    with pytest.raises(OptionError, match=message):
        new_columns(delta_schema(StructType(fields), []), known, ["day"])


def test_nullability_of_what_is_nested_does_not_matter() -> None:
    def nested(*, is_nullable: bool) -> StructType:
        inner = StructType([StructField("x", ArrayType(LongType(), is_nullable), is_nullable)])
        return StructType([StructField("m", MapType(StringType(), inner, is_nullable), is_nullable)])

    one, two = (delta_schema(nested(is_nullable=each), []) for each in (True, False))
    assert one == two
    assert new_columns(one, two, []) == []


def open_for(at: Path, schema: StructType, *partition_by: str, merges: bool = False) -> table.Table:
    return table.open_for(str(at), delta_schema(schema, partition_by), partition_by, merges=merges)


def test_a_table_grows_only_if_it_is_told_to(tmp_path: Path) -> None:
    more = StructType([*ROWS.fields, StructField("day", DateType()), StructField("at", TimestampType())])
    open_for(tmp_path / "t", ROWS, "word")
    with pytest.raises(OptionError, match=r"'day', 'at'.*mergeSchema=true"):
        open_for(tmp_path / "t", more)
    grown = open_for(tmp_path / "t", more, merges=True)
    assert [each["name"] for each in grown.schema["fields"]] == ["id", "word", "day", "at"]
    assert open_for(tmp_path / "t", ROWS).partition_by == ("word",)
    with pytest.raises(OptionError, match=r"word.* day"):
        open_for(tmp_path / "t", more, "day")


def test_tables_with_rules_for_their_rows_are_refused(tmp_path: Path) -> None:
    opened = open_for(tmp_path / "t", ROWS)
    DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(OptionError, match=r"delta\.constraints\.positive"):
        open_for(tmp_path / "t", ROWS)
    assert opened.storage.names("")


def test_another_table_in_the_same_place_is_noticed(tmp_path: Path) -> None:
    at = tmp_path / "t"
    first = open_for(at, ROWS)
    first.commit([], Note("archive", 1, "abc", "q", 0, {}, ()))
    at.rename(tmp_path / "gone")
    DeltaTable.create(at, Schema([Field("id", PrimitiveType("long"))]))
    second = table.open_table(str(at))
    assert second is not None
    assert (second.table_id != first.table_id, second.transaction_version("archive")) == (True, None)


def test_places_are_named_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert location_of("t") == str(tmp_path / "t")
    assert location_of("file:/a%20b/c") == location_of("file:///a%20b/c") == "/a b/c"
    assert location_of("file://localhost/a") == location_of("file:///a") == "/a"
    assert location_of("file:///a://b") == "/a:/b"
    assert location_of("s3://bucket/t/") == "s3://bucket/t"
    assert location_of("s3://bucket/a%20b") == "s3://bucket/a%20b"


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        " a ",
        "ü日本",
        "[a]",
        "{a}",
        "a*",
        "50% off",
        "a%",
        "a:b",
        "a;b&c=d+e,f@g",
        "a'b\"c",
        "~a",
        "...",
        "_a",
    ],
)
def test_a_table_may_have_an_odd_name(tmp_path: Path, name: str) -> None:
    at = tmp_path / "lake" / name
    for number in (1, 2, 3):
        opened = open_for(Path(location_of(at.as_uri() if number == 1 else str(at))), ROWS)
        assert read_position(opened, "archive").number == number - 1
        added = write(at, batch_of(id=[number], word=["w"]), who=attempt(number))
        opened.commit(added, Note("archive", number, "abc", "q", number, {}, ()))
        table._opened.clear()
        if number == 2:
            DeltaTable(at).create_checkpoint()
    DeltaTable(at).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert sorted(content(at)["id"]) == [1, 2, 3]
    assert [each.name for each in (tmp_path / "lake").iterdir()] == [name]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a#b", "cannot contain '#', which deltalake reads as something else: '.*a#b'. Choose another path"),
        ("a?b", r"cannot contain '\?'"),
        ("a%20b", "cannot contain '%20'"),
        ("a\\b", r"cannot contain '\\\\'"),
        ("a\nb", r"cannot contain '\\n'"),
        ("lake#1/table", "cannot contain '#'"),
        ("file:///a%23b", "cannot contain '#'"),
        ("s3://bucket/a%23b", "cannot contain '#'"),
        ("s3://bucket/a?b", r"cannot contain '\?'"),
        ("s3://bucket/a b", "cannot contain ' '"),
        ("s3:/bucket/t", "is neither a path nor a URL; did you mean s3://bucket/t"),
        ("file://server/t", "is a file on the machine 'server'"),
    ],
)
def test_a_path_that_deltalake_takes_for_another_is_refused(path: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DeltaOptions.of({"path": path, "pipeline.id": "archive"}, is_stream=False)


def test_a_working_directory_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a#b").mkdir()
    monkeypatch.chdir(tmp_path / "a#b")
    with pytest.raises(OptionError, match="'#'"):
        location_of("table")


def test_what_cannot_be_reached_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TableUnreachable, match="file/t "):
        open_for(tmp_path / "file/t", ROWS)


# ---- what the table knows


def test_a_position_is_found_also_if_its_commit_is_long_ago(tmp_path: Path) -> None:
    opened = open_for(tmp_path / "t", ROWS)
    offsets = {("in", 0): 7, ("in", 1): 9}
    opened.commit([], Note("archive", 1, "abc", "q", 4, offsets, ("abc-0.0",)))
    for number in range(RECENT + 1):
        opened.commit([], Note("other", number + 1, "abc", "r", number, {("in", 0): number}, ()))
        if number == 0:
            assert read_position(opened, "archive", "q").recent[1].winners == ("abc-0.0",)
    found = read_position(opened, "archive", "q", [*offsets, ("in", 2)])
    assert (found.number, found.batch_id, found.offsets) == (1, 4, offsets)
    assert found.recent[1].winners == ("abc-0.0",)
    assert read_position(opened, "archive", "another query").batch_id == -1


def test_a_position_is_found_in_a_table_without_history(tmp_path: Path) -> None:
    """As a copy is that was made from a checkpoint of the log."""
    opened = open_for(tmp_path / "t", ROWS)
    opened.commit([], Note("archive", 1, "abc", "q", 4, {("in", 0): 7}, ("abc-0.0",)))
    DeltaTable(tmp_path / "t").create_checkpoint()
    for each in (tmp_path / "t/_delta_log").glob("*.json"):
        each.unlink()
    table._opened.clear()
    found = read_position(open_for(tmp_path / "t", ROWS), "archive", "q", [("in", 0)])
    assert (found.number, found.batch_id, found.offsets, found.lost_by) == (1, 4, {("in", 0): 7}, None)


def test_of_two_commits_with_one_number_one_is_refused(tmp_path: Path) -> None:
    open_for(tmp_path / "t", ROWS)
    copies = [table.Table(str(tmp_path / "t"), DeltaTable(tmp_path / "t")) for _ in range(3)]
    copies[0].commit([], Note("archive", 1, "abc", "q", 0, {}, ()))
    with pytest.raises(CommitFailedError):
        copies[1].commit([], Note("archive", 1, "def", "r", 0, {}, ()))
    copies[2].commit([], Note("other", 1, "fed", "s", 0, {}, ()))


# ---- the protocol


@pytest.fixture
def client(semel_broker: Embedded) -> Iterator[Client]:
    create(semel_broker.bootstrap_servers, ("in", 2))
    fill(semel_broker.bootstrap_servers, "in", range(200))
    with Client(semel_broker.bootstrap_servers, timeout_s=5) as client:
        yield client


@pytest.fixture
def bootstrap(semel_broker: Embedded, client: Client) -> str:
    return semel_broker.bootstrap_servers


def reached(client: Client) -> set[int]:
    return {each.offset for each in Admin(client).groups.offsets("archive").values()}


def test_batches_follow_each_other_and_one_that_the_table_has_is_not_written_again(
    client: Client, bootstrap: str, tmp_path: Path
) -> None:
    query = Query(tmp_path, bootstrap, "q")
    for number in range(3):
        plan = query.plan(number, 10 * number + 10, began=0 if number == 0 else None)
        assert not plan.is_done
        assert reached(client) == {10 * number}, "also before the first commit"
        query.commit(plan, query.write(plan, number))
    assert query.plan(2, 30).is_done
    assert content(tmp_path / "table")["id"] == [2, 1, 0]
    assert reached(client) == {30}
    (query.directory / "offsets/2").unlink()
    with pytest.raises(PipelineMismatch, match=r"batch 1 .* 10 to 35 of in/0"):
        query.plan(1, 35)
    assert unnamed_files(tmp_path / "table") == []


def test_two_copies_on_one_checkpoint_are_told_so(client: Client, bootstrap: str, tmp_path: Path) -> None:
    query = Query(tmp_path, bootstrap, "q")
    first, second = query.plan(0, 10, began=0), query.plan(0, 10, began=0)
    query.commit(second, query.write(second, 1))
    with pytest.raises(PipelineFenced, match="same checkpoint"):
        query.commit(first, query.write(first, 2))


def test_of_two_copies_one_goes_on(client: Client, bootstrap: str, tmp_path: Path) -> None:
    first, second = Query(tmp_path, bootstrap, "first"), Query(tmp_path, bootstrap, "second")
    plans = [each.plan(0, 10, began=0) for each in (first, second)]
    added = [
        each.write(plan, number)
        for number, (each, plan) in enumerate(zip((first, second), plans, strict=True))
    ]
    second.commit(plans[1], added[1])
    with pytest.raises(PipelineFenced, match=f"commit 1 .* run {plans[1].run}"):
        first.commit(plans[0], added[0])
    with pytest.raises(PipelineMismatch, match="'archive' up to 10"):
        first.plan(0, 10, began=0)
    assert content(tmp_path / "table")["id"] == [1]
    assert unnamed_files(tmp_path / "table") == [], "what the first one wrote is gone"


def test_checkpoints_and_groups_of_others_are_refused(client: Client, bootstrap: str, tmp_path: Path) -> None:
    query = Query(tmp_path, bootstrap, "q")
    query.commit(query.plan(0, 10, began=0), [])
    other = Query(tmp_path / "elsewhere", bootstrap, "r")
    with pytest.raises(
        PipelineMismatch, match=r"is another one\. Give this pipeline a pipeline.id of its own"
    ):
        other.plan(0, 20, began=10)
    commit_offsets(client, "archive", {("in", 0): CommittedOffset(5, "semel2 1 0/1 0-5 {}")})
    with pytest.raises(PipelineMismatch, match="belongs to a pipeline that writes to topics"):
        query.plan(1, 20)
    Admin(client).groups.delete("archive")
    fresh = Query(tmp_path / "fresh", bootstrap, "s")
    fresh.plan(0, 10, began=0)
    with pytest.raises(PipelineMismatch, match="none of pipeline 'archive'"):
        fresh.plan(1, 20)


def test_a_group_that_is_forgotten_is_put_right_by_the_batch_that_is_refused(
    client: Client, bootstrap: str, tmp_path: Path
) -> None:
    query = Query(tmp_path, bootstrap, "q")
    query.commit(query.plan(0, 10, began=0), [])
    Admin(client).groups.delete("archive")
    with pytest.raises(PipelineMismatch, match="'archive' up to 10"):
        Query(tmp_path, bootstrap, "from the beginning").plan(0, 20, began=0)
    assert reached(client) == {10}


def test_the_group_is_put_right_before_anything_is_read(
    client: Client, bootstrap: str, tmp_path: Path
) -> None:
    query = Query(tmp_path, bootstrap, "q")
    query.commit(query.plan(0, 40, began=0), [])
    note = read_group(client, "archive").table
    assert note is not None
    behind = dict.fromkeys((("in", 0), ("in", 1)), CommittedOffset(0, note.to_note()))
    commit_offsets(client, "archive", behind)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "in", "pipeline.id": "archive"}
    reader = ResumingReader(SourceOptions.of(options, is_stream=True), ["value"])
    assert of_json(reader.initialOffset()) == {("in", 0): 40, ("in", 1): 40}
    assert reached(client) == {40}
    (tmp_path / "table").rename(tmp_path / "moved")
    commit_offsets(client, "archive", behind)
    assert of_json(reader.initialOffset()) == {("in", 0): 0, ("in", 1): 0}, "and then the sink decides"


# ---- options


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": ""}, "the option path is missing"),
        ({"pipeline.id": ""}, "the option pipeline.id is missing"),
        ({"pipeline.id": "a/b"}, "letters, digits"),
        ({"partitionby": "a, a"}, "names a column twice: a, a"),
        ({"mergeschema": "yes"}, "mergeSchema must be true or false"),
        ({"mode": "overwrite"}, "mode must be append, not 'overwrite'"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"checkpointlocation": ""}, "checkpointLocation on this query"),
        ({"partionby": "a"}, "did you mean 'partitionBy'"),
    ],
)
def test_bad_options_are_refused(change: dict[str, str], message: str) -> None:
    good = {
        "path": "/t",
        "pipeline.id": "archive",
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "checkpointlocation": "/c",
    }
    assert DeltaOptions.of(good, is_stream=True).location == "/t"
    with pytest.raises(OptionError, match=message):
        DeltaOptions.of(good | change, is_stream=True)
