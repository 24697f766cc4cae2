"""Stores the position of a pipeline in a table: number of commits, last batch, offsets.

The position is stored in Delta's transaction identifiers. They are made for this, are written in the same
commit as the files, and survive when old commits are removed: one for the number of the commit (`billing`),
one for the batch of a query (`billing/batch/<query>`), two for the start and end of every input partition
(`billing/start/orders/0`, `billing/offset/orders/0`), and one for every input topic, made from its id
(`billing/topic/orders`). Two commits that change the same identifier cannot both succeed, so a number is used
once.

A batch write with `txnAppId` and `txnVersion` sets the identifier of that name, as Delta's own writers do. It
also sets `<app>/versions`, which distinguishes the name from that of a streaming pipeline. If it is a batch
of a stream, `<app>/versions/query` and `<app>/versions/input` say what it has read. They are valid only for
the version in `<app>/versions/number`: another writer may set the next version without them.

Looking up identifiers one by one takes time, so a commit also has them as a note (`userMetadata`, which every
tool shows in a table's history). The note of the last commit is searched as far back as the history goes. A
note may lack partitions that the pipeline no longer reads, because the note before it was not found. The
identifiers are complete, so what the note lacks is looked up there.

A table that is restored to an older version loses rows and keeps its identifiers. So the history is also
searched for a RESTORE that has undone the last commit of the pipeline.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from semel.client import Partition
from semel.spark.partition_offsets import MARK as LOG_MARK
from semel.spark.partition_offsets import PartitionOffsets, TopicIds, ids_of, of_json, to_json
from semel.spark.sink.versions import NO_BATCH, NO_QUERY, BatchRead, Version, fingerprint
from semel.spark.source.log_marks import Mark


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The driver's plan for a batch, made before its tasks start. The tasks receive it and return it."""

    app: str  # the name under which the table numbers commits
    number: int
    table_id: str
    partition_by: tuple[str, ...]
    required: tuple[str, ...]
    query_id: str = NO_QUERY
    batch_id: int = NO_BATCH
    begin: PartitionOffsets = field(default_factory=dict)  # the position of the pipeline
    end: PartitionOffsets = field(default_factory=dict)  # the position after this batch
    starts: PartitionOffsets = field(default_factory=dict)  # where this batch starts
    ids: TopicIds = field(default_factory=dict)
    is_done: bool = False  # the table contains the batch, so nothing is written again
    version: Version | None = None  # of a batch write that has one
    mark: Mark | None = None  # of the log that was read
    done_in: str | None = None  # the run of a streaming query that has written the version
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


T = TypeVar("T")

MARK = "semel"
#: How many of the newest commits are searched for a pipeline's last one, and the factor for each next search.
RECENT, FURTHER = 16, 8
#: Stands for the version of a RESTORE to a point in time, which is not recorded.
UNKNOWN = -1
#: The identifiers that say what a version has read.
_READ = ("number", "query", "input")


class Commit(NamedTuple):
    """A commit of a table, as its history has it."""

    version: int
    note: str | None = None
    restored_to: int | None = None  # the version, if the commit is a RESTORE


class KnowsTransactions(Protocol):
    """The part of a table that is used here."""

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of an identifier."""
        ...

    def history(self, limit: int | None) -> list[Commit]:
        """Return the newest commits, or all that are kept, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class Note:
    """The note of a commit."""

    app: str
    number: int
    run: str
    query_id: str
    batch_id: int
    offsets: PartitionOffsets  # where the pipeline is after it, in every partition that is known
    winners: tuple[str, ...]
    starts: PartitionOffsets = field(default_factory=dict)  # where the batch started
    ids: TopicIds = field(default_factory=dict)
    version: Version | None = None  # of a versioned batch write
    stream_run: str | None = None  # of the query whose foreachBatch made it
    mark: Mark | None = None  # of the log that was read

    def to_text(self) -> str:
        """Format the note for the commit."""
        content: dict[str, Any] = {
            MARK: self.app,
            "number": self.number,
            "run": self.run,
            "query": self.query_id,
            "batch": self.batch_id,
            "offsets": to_json(self.offsets, ids=self.ids, mark=self.mark),
            "starts": to_json(self.starts),
            "winners": self.winners,
        }
        if self.version is not None:
            content["version"] = [self.version.app, self.version.number, self.stream_run]
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> "Note | None":
        """Parse a note; None if another program wrote it."""
        return _parse(text)

    def identifiers(self) -> dict[str, int]:
        """Return the transaction identifiers of the commit."""
        found = {self.app: self.number}
        if self.query_id:
            found[_batch(self.app, self.query_id)] = self.batch_id
        if self.version is not None:
            found |= _of_version(self.version)
        found |= {_offset(self.app, key): offset for key, offset in self.offsets.items()}
        found |= {_start(self.app, key): offset for key, offset in self.starts.items()}
        return found | {_topic(self.app, topic): fingerprint(each) for topic, each in self.ids.items()}


class Position(NamedTuple):
    """The position of a pipeline, as stored in the table."""

    number: int
    batch_id: int  # the last one of the given query; -1 if there is none
    offsets: PartitionOffsets
    recent: Mapping[int, Note]
    starts: PartitionOffsets = {}  # noqa: RUF012 - never changed: where the last batch started
    topics: Mapping[str, int] = {}
    lost_by: int | None = (
        None  # the commit that has restored the table to before the last one of the pipeline
    )


NOWHERE = Position(0, -1, {}, {})


def read_position(
    table: KnowsTransactions, app: str, query_id: str = "", keys: Iterable[Partition] = ()
) -> Position:
    """Return the position of a pipeline, with the offsets and topics of at least these partitions."""
    number = table.transaction_version(app)
    if number is None:
        return NOWHERE
    commits = _search(table, app, number)
    noted = {commit.version: note for commit in commits if (note := _note_of(commit, app)) is not None}
    recent = {note.number: note for note in noted.values()}
    batch_id = table.transaction_version(_batch(app, query_id)) if query_id else None
    note, keys = recent.get(number), set(keys)
    offsets: PartitionOffsets = {} if note is None else dict(note.offsets)
    topics = {} if note is None else {topic: fingerprint(each) for topic, each in note.ids.items()}
    starts = _known(table, {key: _start(app, key) for key in keys}) if note is None else note.starts
    offsets |= _known(table, {key: _offset(app, key) for key in keys - offsets.keys()})
    topics |= _known(table, {topic: _topic(app, topic) for topic in {key[0] for key in keys} - topics.keys()})
    oldest = commits[-1].version if commits else UNKNOWN
    last = next((version for version, each in noted.items() if each.number == number), oldest)
    batch_id = -1 if batch_id is None else batch_id
    return Position(number, batch_id, offsets, recent, starts, topics, _lost_by(commits, last))


def streams_of(table: KnowsTransactions) -> set[str]:
    """Return the pipelines whose commits the table's history has. This reads all notes."""
    notes = (_parse(each.note) for each in table.history(None) if each.note is not None)
    return {each.app for each in notes if each is not None and each.query_id}


def _search(table: KnowsTransactions, app: str, number: int) -> list[Commit]:
    """Return the newest commits, at least back to this one of the pipeline, or all that are kept."""
    limit = RECENT
    while True:
        found = table.history(limit)
        notes = [_note_of(each, app) for each in found]
        if len(found) < limit or any(each is not None and each.number == number for each in notes):
            return found
        limit *= FURTHER


def _lost_by(commits: Iterable[Commit], last: int) -> int | None:
    """Return the version of the RESTORE that undid the table's version `last`, if there is one."""
    at: int | None = None  # a later RESTORE has undone all commits after this version
    for each in commits:
        if each.version > last and each.restored_to is not None and (at is None or each.version <= at):
            if each.restored_to < last:
                return each.version
            at = each.restored_to
    return None


def _note_of(commit: Commit, app: str) -> Note | None:
    note = None if commit.note is None else _parse(commit.note)
    return note if note is not None and note.app == app else None


def _known(table: KnowsTransactions, names: Mapping[T, str]) -> dict[T, int]:
    found = {key: table.transaction_version(name) for key, name in names.items()}
    return {key: version for key, version in found.items() if version is not None}


def is_of_versions(table: KnowsTransactions, app: str) -> bool:
    """Whether the identifier of this name holds the versions of batch writes."""
    return table.transaction_version(_versions(app)) is not None


def is_of_stream(table: KnowsTransactions, app: str) -> bool:
    """Whether the identifier of this name has the commits of a streaming pipeline. This reads all notes."""
    return any(_note_of(each, app) is not None for each in table.history(None))


def read_of_version(table: KnowsTransactions, app: str, number: int) -> BatchRead | None:
    """Return what the last version of an application has read; None if it is not known."""
    of, query, entry = (table.transaction_version(f"{_versions(app)}/{name}") for name in _READ)
    return None if query is None or entry is None or of != number else BatchRead(query, entry)


def _of_version(version: Version) -> dict[str, int]:
    name = _versions(version.app)
    found = {version.app: version.number, name: 1}
    if version.read is None:
        return found
    values = (version.number, *version.read)
    return found | {f"{name}/{part}": value for part, value in zip(_READ, values, strict=True)}


def _versions(app: str) -> str:
    return f"{app}/versions"


def _batch(app: str, query_id: str) -> str:
    return f"{app}/batch/{query_id}"


def _offset(app: str, key: Partition) -> str:
    return f"{app}/offset/{key[0]}/{key[1]}"


def _start(app: str, key: Partition) -> str:
    return f"{app}/start/{key[0]}/{key[1]}"


def _topic(app: str, topic: str) -> str:
    return f"{app}/topic/{topic}"


def _parse(text: str) -> Note | None:
    """Parse the note of a commit; None if another program wrote it."""
    try:
        content: Any = json.loads(text)
        *version, stream_run = content.get("version", [None])
        return Note(
            content[MARK],
            content["number"],
            content["run"],
            content["query"],
            content["batch"],
            of_json(content["offsets"]),
            tuple(content["winners"]),
            of_json(content["starts"]),
            ids_of(content["offsets"]),
            Version(*version) if version else None,
            stream_run,
            Mark.of_json(content["offsets"].get(LOG_MARK)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
