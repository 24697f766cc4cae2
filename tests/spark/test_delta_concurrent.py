"""Tables that other programs change while a batch is written: what fits is committed, all else is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from support.spark.lake import content
from support.spark.table_writes import ROWS, batch_of, write

from semel.spark.delta import batch_commit, table
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.delta.leftovers import Attempt
from semel.spark.delta.position import TablePlan
from semel.spark.delta.storage import Storage
from semel.spark.errors import PipelineFenced, PipelineMismatch, TableChanged, TableUnreachable
from semel.spark.pipeline.running import is_passing

Change = Callable[[Path], Any]


class Load:
    """A batch write of one row, from its plan to its commit."""

    def __init__(self, at: Path, number: int, **options: str) -> None:
        given = {"path": str(at), "pipeline.id": "load", **options}
        self.options = DeltaOptions.of(given, is_stream=False)
        self.plan: TablePlan = batch_commit.plan_batch(self.options, ROWS)
        who = Attempt(self.plan.app, self.plan.number, self.plan.run, 0, 0)
        self.added = write(at, batch_of(id=[number], word=["w"]), *self.plan.partition_by, who=who)

    def commit(self) -> None:
        batch_commit.commit(self.options, ROWS, self.plan, [f"{self.plan.run}-0.0"], self.added)


@pytest.fixture
def at(tmp_path: Path) -> Path:
    """A table with the rows 1, 2 and 3, each in a file of its own."""
    for number in (1, 2, 3):
        Load(tmp_path / "table", number).commit()
    return tmp_path / "table"


@pytest.fixture(params=["before it opens the table", "while it commits"])
def change_at(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path, Change], None]:
    """Change the table once, at one of the two moments of a commit."""

    def change(at: Path, change: Change) -> None:
        if request.param == "before it opens the table":
            change(at)
            return
        original, changes = table.Table.commit, [change]

        def commit(self: table.Table, *args: Any) -> None:
            if changes:
                table._opened.clear()  # the change is that of another process
                changes.pop()(at)
            original(self, *args)

        monkeypatch.setattr(table.Table, "commit", commit)

    return change


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "word": pa.array(["w"] * len(numbers))})


def overwrite(at: Path) -> None:
    write_deltalake(at, rows(8), mode="overwrite")


def overwrite_partly(at: Path) -> None:
    write_deltalake(at, rows(1), mode="overwrite", predicate="id = 1")


def merge(at: Path) -> None:
    merger = DeltaTable(at).merge(rows(1, 9), "s.id = t.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def vacuum(at: Path) -> None:
    DeltaTable(at).optimize.compact()
    DeltaTable(at).vacuum(0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda at: DeltaTable(at).delete(), []),
        (lambda at: DeltaTable(at).delete("id < 3"), [3]),
        (overwrite, [8]),
        (overwrite_partly, [1, 2, 3]),
        (merge, [1, 2, 3, 9]),
        (lambda at: DeltaTable(at).update(updates={"id": "id + 4"}, predicate="id = 2"), [1, 3, 6]),
        (lambda at: DeltaTable(at).optimize.compact(), [1, 2, 3]),
        (lambda at: DeltaTable(at).optimize.z_order(["id"]), [1, 2, 3]),
        (vacuum, [1, 2, 3]),
        (lambda at: DeltaTable(at).restore(2), [1, 2]),
        (lambda at: DeltaTable(at).alter.add_columns([Field("new", PrimitiveType("long"))]), [1, 2, 3]),
        (lambda at: DeltaTable(at).alter.set_table_properties({"delta.appendOnly": "true"}), [1, 2, 3]),
        (lambda at: Load(at, 9, **{"pipeline.id": "another"}).commit(), [1, 2, 3, 9]),
    ],
    ids=[
        *("delete", "delete some", "overwrite", "overwrite some", "merge", "update", "optimize", "z-order"),
        *("vacuum", "restore", "add a column", "set a property", "append"),
    ],
)
def test_an_append_that_still_fits_is_committed(
    at: Path, change_at: Callable[[Path, Change], None], change: Change, left: list[int]
) -> None:
    load = Load(at, 4)
    change_at(at, change)
    load.commit()
    assert sorted(content(at)["id"]) == sorted([*left, 4])
    assert DeltaTable(at).transaction_version("load/write") == load.plan.number
    assert not list((at / "_semel").rglob("*.json")), "no announcement is left"


def overwrite_with(at: Path, schema: pa.Schema, **options: Any) -> None:
    empty = schema.empty_table()
    write_deltalake(at, empty, mode="overwrite", schema_mode="overwrite", **options)


def require_words(at: Path) -> None:
    overwrite_with(at, pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("word", pa.string())]))


def recreate(at: Path) -> None:
    shutil.rmtree(at)
    write_deltalake(at, rows(1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda at: overwrite_with(at, pa.schema({"id": pa.int32(), "word": pa.string()})),
            "'id' is long, and",
        ),
        (lambda at: overwrite_with(at, pa.schema({"id": pa.int64()})), "given other columns or partitions"),
        (lambda at: overwrite_with(at, rows(1).schema, partition_by=["word"]), "given other columns or part"),
        (require_words, "given other columns or partitions"),
        (
            lambda at: DeltaTable(at).alter.add_constraint({"low": "id < 4"}),
            r"requires delta\.constraints\.low",
        ),
        (recreate, "replaced by another one"),
        (shutil.rmtree, "deleted or moved"),
    ],
    ids=[
        *("another type", "fewer columns", "partitions", "not null", "constraint", "created again", "gone"),
    ],
)
def test_an_append_that_does_not_fit_any_more_is_refused_and_tried_again(
    at: Path, change_at: Callable[[Path, Change], None], change: Change, words: str
) -> None:
    load = Load(at, 4)
    change_at(at, change)
    with pytest.raises(TableChanged, match=words) as caught:
        load.commit()
    assert not at.exists() or DeltaTable(at).transaction_version("load/write") in (3, None)
    assert is_passing(Exception(f"semel.spark.errors.TableChanged: {caught.value}"))


def test_files_that_are_gone_are_not_committed(at: Path) -> None:
    load = Load(at, 4)
    DeltaTable(at).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(TableChanged, match=r"load-4-.*\.parquet.*VACUUM"):
        load.commit()
    Load(at, 5).commit()
    assert sorted(content(at)["id"]) == [1, 2, 3, 5]


class Away:
    """Files of a store that does not answer."""

    def __getattr__(self, name: str) -> Any:
        raise OSError("AWS Error NETWORK_CONNECTION")


@pytest.mark.parametrize("what", ["missing", "names", "open", "read", "changed", "delete"])
def test_storage_that_is_away_is_a_passing_failure(
    at: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    storage = Storage(str(at))
    monkeypatch.setattr(storage, "_files", Away())
    with pytest.raises(TableUnreachable, match="cannot be reached: AWS Error") as caught:
        getattr(storage, what)(["a"] if what == "missing" else "a")
    assert is_passing(Exception(f"semel.spark.errors.TableUnreachable: {caught.value}"))


def test_a_commit_that_did_not_reach_its_storage_is_made_later(
    at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(at, 4)
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "_at", lambda self, path: Away().path)
        with pytest.raises(TableUnreachable):
            load.commit()
    load.commit()
    assert sorted(content(at)["id"]) == [1, 2, 3, 4]


@pytest.mark.parametrize("error", [DeltaError, OSError])
def test_a_commit_whose_answer_is_lost_is_found(
    at: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    original = table.Table.commit

    def commit(self: table.Table, *args: Any) -> None:
        original(self, *args)
        raise error("the answer was lost")

    load = Load(at, 4)
    monkeypatch.setattr(table.Table, "commit", commit)
    load.commit()
    load.commit()
    assert sorted(content(at)["id"]) == [1, 2, 3, 4]


def test_a_version_that_another_writer_has_put_in_meanwhile_is_not_written_again(
    at: Path, change_at: Callable[[Path, Change], None]
) -> None:
    """Under another pipeline.id, so that nothing but the version says that it is the same."""
    versioned = {"txnAppId": "app", "txnVersion": "7"}
    load, other = Load(at, 4, **versioned), Load(at, 5, **versioned, **{"pipeline.id": "another"})
    change_at(at, lambda _: other.commit())
    with pytest.raises(PipelineFenced, match="version 7 of txnAppId 'app'"):
        load.commit()
    assert sorted(content(at)["id"]) == [1, 2, 3, 5]


def test_versions_are_not_written_to_a_table_that_is_restored_meanwhile(
    at: Path, change_at: Callable[[Path, Change], None]
) -> None:
    Load(at, 4, txnAppId="app", txnVersion="1").commit()
    load = Load(at, 5, txnAppId="app", txnVersion="2")
    change_at(at, lambda at: DeltaTable(at).restore(3))
    with pytest.raises(PipelineMismatch, match="restored"):
        load.commit()
    assert sorted(content(at)["id"]) == [1, 2, 3]


def test_a_table_that_never_rests_is_given_up(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, load = table.Table.commit, Load(at, 4)

    def commit(self: table.Table, *args: Any) -> None:
        overwrite(at)
        original(self, *args)

    monkeypatch.setattr(table.Table, "commit", commit)
    with pytest.raises(TableChanged, match=r"deleted data this operation read\.\) Start again"):
        load.commit()
    assert content(at)["id"] == [8]
