"""The position of a pipeline in a table: number of commits, last batch, offsets.

It is stored in Delta's transaction identifiers. They are made for this, are written in the same commit as the
files, and survive when old commits are removed: one for the number of the commit (`billing`), one for the
batch of a query (`billing/batch/<query>`), two for the start and end of every input partition
(`billing/start/orders/0`, `billing/offset/orders/0`), and one for every input topic, made from its id
(`billing/topic/orders`). Two commits that change the same identifier cannot both succeed, so a number is used
once.

A batch write with `txnAppId` and `txnVersion` sets the identifier of that name, as Delta's own writers do. It
also sets `<app>/versions`, which distinguishes the name from that of a streaming pipeline.

Looking up identifiers one by one is slow, so a commit also holds all of it as a note (`userMetadata`, which
every tool shows in a table's history). A note of a recent commit is read instead.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from semel.client import Partition
from semel.spark.partition_offsets import PartitionOffsets, TopicIds, ids_of, of_json, to_json
from semel.spark.versions import Version

T = TypeVar("T")

MARK = "semel"
#: How many of the newest commits are searched for notes.
RECENT = 16


class KnowsTransactions(Protocol):
    """The part of a table that is used here."""

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of an identifier."""
        ...

    def notes(self, limit: int | None) -> list[str]:
        """Return the notes of the newest commits, or of all that are kept."""
        ...


@dataclass(frozen=True, slots=True)
class Note:
    """The note of a commit."""

    app: str
    number: int
    run: str
    query_id: str
    batch_id: int
    offsets: PartitionOffsets  # the position after it, in every partition that the pipeline ever read
    winners: tuple[str, ...]
    starts: PartitionOffsets = field(default_factory=dict)  # where the batch started
    ids: TopicIds = field(default_factory=dict)
    version: Version | None = None  # of a versioned batch write
    stream_run: str | None = None  # of the query whose foreachBatch made it

    def to_text(self) -> str:
        """Format the note for the commit."""
        content: dict[str, Any] = {
            MARK: self.app,
            "number": self.number,
            "run": self.run,
            "query": self.query_id,
            "batch": self.batch_id,
            "offsets": to_json(self.offsets, ids=self.ids),
            "starts": to_json(self.starts),
            "winners": self.winners,
        }
        if self.version is not None:
            content["version"] = [self.version.app, self.version.number, self.stream_run]
        return json.dumps(content, separators=(",", ":"))

    def identifiers(self) -> dict[str, int]:
        """Return the transaction identifiers of the commit."""
        found = {self.app: self.number}
        if self.query_id:
            found[_batch(self.app, self.query_id)] = self.batch_id
        if self.version is not None:
            found |= {self.version.app: self.version.number, _versions(self.version.app): 1}
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


NOWHERE = Position(0, -1, {}, {})


def read_position(
    table: KnowsTransactions, app: str, query_id: str = "", keys: Iterable[Partition] = ()
) -> Position:
    """Read the position of a pipeline. Offsets are those of these partitions, or more."""
    number = table.transaction_version(app)
    if number is None:
        return NOWHERE
    recent = {each.number: each for each in map(_parse, table.notes(RECENT)) if each and each.app == app}
    batch_id = table.transaction_version(_batch(app, query_id)) if query_id else None
    if number in recent:
        note = recent[number]
        offsets, starts = note.offsets, note.starts
        topics = {topic: fingerprint(each) for topic, each in note.ids.items()}
    else:
        keys = list(keys)
        offsets = _known(table, {key: _offset(app, key) for key in keys})
        starts = _known(table, {key: _start(app, key) for key in keys})
        topics = _known(table, {topic: _topic(app, topic) for topic, _ in keys})
    return Position(number, -1 if batch_id is None else batch_id, offsets, recent, starts, topics)


def fingerprint(topic_id: str) -> int:
    """Return a topic id as a version of an identifier, which has 63 bits."""
    return int.from_bytes(hashlib.sha256(topic_id.encode()).digest()[:8], "big") >> 1


def _known(table: KnowsTransactions, names: Mapping[T, str]) -> dict[T, int]:
    found = {key: table.transaction_version(name) for key, name in names.items()}
    return {key: version for key, version in found.items() if version is not None}


def is_of_versions(table: KnowsTransactions, app: str) -> bool:
    """Whether the identifier of this name holds the versions of batch writes."""
    return table.transaction_version(_versions(app)) is not None


def is_of_stream(table: KnowsTransactions, app: str) -> bool:
    """Whether the identifier of this name holds the commits of a streaming pipeline. Reads all notes."""
    return any(each is not None and each.app == app for each in map(_parse, table.notes(None)))


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
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
