"""A decision: the durable commit of a batch, with the transactions that wrote it.

It is stored in the committed offsets of the pipeline's group. The offsets are the end of the batch, and the
metadata of each offset (a *note*) says where the batch started in that partition, which batch it is, and
which transactions are to be committed. So the position of the pipeline and the decision change atomically,
lag tools read the offsets, and a reader that requires stable offsets learns for certain whether a decision
was made.

    semel2 <number of the decision> <index>/<count> <start>-<end> <piece>

The rest of a decision is one JSON document. A note has room for a few thousand bytes, so the document is
split into pieces. Each piece is stored in several partitions, because deleting a topic deletes its notes. The
number distinguishes the notes of one decision from older ones in partitions that the batch did not read.

The document lists the input topics with their ids and how many of their partitions have a note. So offsets
that another program has reset, moved or deleted are detected: the pipeline stops rather than count records
twice or never.

It also has a summary of the batch for people, if a note has room for it: see `summary`.

On Semel, one request makes the decision and ends the transactions. No transaction is left to commit, so the
document names none.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from semel.client import Client, CommittedOffset, Partition, PreparedTransaction, ProducerIdAndEpoch
from semel.client.admin.group_offsets import GroupMetadata, fetch_offsets
from semel.client.produce.commit_transactions import DriverEpoch, commit_transactions
from semel.client.produce.transaction_coordinator import NOBODY_YET, Coordinator
from semel.spark.errors import PipelineError
from semel.spark.partition_offsets import PartitionOffsets, Span, Spans, TopicIds, id_text
from semel.spark.sink.summary import Summary

#: The number of a pipeline's initial decision: nothing is committed yet, and this is where the pipeline
#: starts.
BEGINNING = 0
#: The start of a note. The groups of pipelines that write to tables have notes of their own.
MARK, TABLE_MARK = "semel2", "semel-delta"
_NOTE = re.compile(rf"{MARK} (\d+) (\d+)/(\d+) (\d+)-(\d+) (.*)", re.DOTALL)
#: Brokers accept 4096 bytes (offset.metadata.max.bytes), of which the header of a note needs some.
PIECE_BYTES = 4000
#: In how many partitions a piece is stored, if there are enough.
COPIES = 8
#: The limit for what a decision remembers besides its own batch, so that it always fits in one note.
REMEMBERED_BYTES = 1500
#: The limit for the topics of dead letters that it remembers.
DEAD_BYTES = 500
#: Ending a decision keeps the producer id and epoch, so that a run has one name.
VERSION = 1
#: The timeout of the transaction that makes a decision, which takes three requests.
TIMEOUT_MS = 60_000


class Input(NamedTuple):
    """A topic that a pipeline reads."""

    topic_id: str  # empty if the broker has no topic ids
    partitions: int  # how many of its partitions have a note


class TableState(NamedTuple):
    """A table that a pipeline writes to, after a decision."""

    table_id: str
    number: int  # of the pipeline's last commit there
    prepared: str  # the file of that commit, if this decision made it count; else empty


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """A batch, its input, and the transactions that wrote it."""

    number: int
    run: ProducerIdAndEpoch  # the run that made it
    query_id: str
    batch_id: int
    winners: tuple[PreparedTransaction, ...]  # to be committed, by the first process that can
    spans: Spans = field(default_factory=dict)
    inputs: Mapping[str, Input] = field(default_factory=dict)
    topic: str | None = None  # the option of the sink; None if rows name their topic
    outputs: TopicIds = field(default_factory=dict)
    tables: Mapping[str, TableState] = field(default_factory=dict)  # by location
    summary: Summary | None = None  # for people; None if there was no room for it
    dead: TopicIds = field(default_factory=dict)  # topics that dead letters were written to


class Committed(NamedTuple):
    """The position of a pipeline, and its last decision."""

    offsets: PartitionOffsets  # of the partitions that have a note
    decision: BatchDecision | None
    foreign: PartitionOffsets = {}  # noqa: RUF012 - never changed: offsets without a note, of other programs
    is_of_table: bool = False  # the notes belong to a pipeline that writes to a table


def read_committed(client: Client, pipeline_id: str, *, require_stable: bool = True) -> Committed:
    """Read the position of a pipeline. Waits for a decision in progress if `require_stable` is set.

    PipelineError if another program has changed offsets of the group.
    """
    found = fetch_offsets(client, pipeline_id, require_stable=require_stable)
    notes = {key: each for key, each in found.items() if each.metadata.startswith(f"{MARK} ")}
    foreign = {key: each.offset for key, each in found.items() if key not in notes}
    if not notes:
        is_of_table = any(each.metadata.startswith(f"{TABLE_MARK} ") for each in found.values())
        return Committed({}, None, foreign, is_of_table)
    decision = _assemble(pipeline_id, notes)
    noted = Counter(topic for topic, _ in notes)
    missing = {topic for topic, each in decision.inputs.items() if noted[topic] < each.partitions}
    # Deleting a topic deletes its offsets; the source reports that if it matters.
    present = client.describe(sorted(missing)).topics if missing else ()
    for topic, topic_id in sorted((each.name, id_text(each.topic_id)) for each in present):
        if "" in (known := {topic_id, decision.inputs[topic].topic_id}) or len(known) == 1:
            raise PipelineError(_changed_text(pipeline_id, f"offsets of topic {topic} are missing"))
    return Committed({key: each.offset for key, each in notes.items()}, decision, foreign)


def last_known(client: Client, pipeline_id: str) -> Committed:
    """Return the last decision of another pipeline and its position, even if its offsets were changed since.

    The notes themselves say how far it has read. PipelineError if they do not hold a complete decision.
    """
    found = fetch_offsets(client, pipeline_id, require_stable=False)
    notes = {}
    for key, each in found.items():
        if note := _NOTE.fullmatch(each.metadata):
            notes[key] = each._replace(offset=int(note[5]))
    if not notes:
        return Committed({}, None)
    return Committed({key: each.offset for key, each in notes.items()}, _assemble(pipeline_id, notes))


def check_untouched(committed: Committed, pipeline_id: str) -> None:
    """PipelineError if another program has overwritten notes, perhaps those of the newest decision."""
    if committed.decision is not None and committed.foreign:
        topic, number = min(committed.foreign)
        raise PipelineError(_changed_text(pipeline_id, f"the offset of {topic}/{number} has no decision"))


def _changed_text(pipeline_id: str, what: str) -> str:
    return (
        f"the position of pipeline {pipeline_id!r} cannot be trusted: {what}. Another program has reset, "
        "changed or deleted offsets of the consumer group of that name. Choose a new pipeline.id, and "
        "startingOffsets where the output ends; for batch writes a new txnAppId, and the first version that "
        "is not in the output"
    )


def make(client: Client, pipeline_id: str, decision: BatchDecision) -> None:
    """Make a decision as the run that it names. After any error, the outcome is unknown."""
    run = decision.run
    coordinator = Coordinator(client, driver_id(pipeline_id), client.patience_s)
    coordinator.add_group(run, pipeline_id)
    notes = _notes(pipeline_id, decision)
    coordinator.commit_offsets(run, VERSION, GroupMetadata(pipeline_id), notes)
    coordinator.end(run, VERSION, commit=True)


def make_together(client: Client, pipeline_id: str, decision: BatchDecision) -> None:
    """Make a decision and commit its transactions atomically. Only on brokers with CommitTransactions.

    If the response is lost, the outcome is unknown. A refusal means that the decision was not made, unless an
    earlier request made it.
    """
    run = DriverEpoch(driver_id(pipeline_id), decision.run)
    notes = _notes(pipeline_id, replace(decision, winners=()))
    commit_transactions(client, run, decision.winners, pipeline_id, notes)


def take_over(
    client: Client, pipeline_id: str, last_run: ProducerIdAndEpoch = NOBODY_YET
) -> ProducerIdAndEpoch:
    """Start a run: older runs can no longer decide, and their unfinished decisions are aborted.

    With `last_run`, this succeeds only if no other run was started since.
    """
    return Coordinator(client, driver_id(pipeline_id), client.patience_s).init(TIMEOUT_MS, last_run).identity


def driver_id(pipeline_id: str) -> str:
    """Return the transactional id under which decisions are made."""
    return f"{pipeline_id}/driver"


def remembered(known: Mapping[str, Any], room: int = REMEMBERED_BYTES) -> dict[str, Any]:
    """Return as many entries by topic as a decision has room for. The oldest are kept."""
    found: dict[str, Any] = {}
    for topic, each in known.items():
        room -= len(json.dumps([topic, each]))
        if room < 0:
            break
        found[topic] = each
    return found


def _notes(pipeline_id: str, decision: BatchDecision) -> dict[Partition, CommittedOffset]:
    prefix = len(pipeline_id) + 1
    content: dict[str, Any] = {
        "run": decision.run,
        "query": decision.query_id,
        "batch": decision.batch_id,
        "inputs": decision.inputs,
        "topic": decision.topic,
        "outputs": decision.outputs,
        "winners": [
            f"{each.producer_id}:{each.epoch}:{each.transactional_id[prefix:]}" for each in decision.winners
        ],
    }
    if decision.tables:
        content["tables"] = decision.tables
    if decision.dead:
        content["dead"] = decision.dead
    pieces = _pieces(content)
    if decision.summary is not None:
        # It may take up what is left of a note, but no other note.
        more = _pieces({**content, "summary": decision.summary.to_json()})
        pieces = more if len(more) == len(pieces) else pieces
    spans, count = decision.spans, len(pieces)
    if count > len(spans):
        raise PipelineError(
            f"{len(decision.winners)} tasks have written, and the list of their transactions does not fit "
            f"beside the offsets of {len(spans)} input partitions. Write with fewer tasks (coalesce)"
        )
    notes = {}
    # The first partition of every topic comes before the second of any, so that copies are in many topics.
    for place, key in enumerate(sorted(spans, key=lambda key: (key[1], key[0]))):
        index = place % count
        piece = pieces[index] if place < count * COPIES else ""
        (start, end) = spans[key]
        notes[key] = CommittedOffset(end, f"{MARK} {decision.number} {index}/{count} {start}-{end} {piece}")
    return notes


def _pieces(content: Mapping[str, Any]) -> list[str]:
    text = json.dumps(content, separators=(",", ":"))
    return [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]


def _assemble(pipeline_id: str, notes: Mapping[Partition, CommittedOffset]) -> BatchDecision:
    """Return the newest decision in these notes. PipelineError if they do not hold a complete one."""
    try:
        return _read(pipeline_id, notes)
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        raise PipelineError(_changed_text(pipeline_id, "the last decision is incomplete")) from None


def _read(pipeline_id: str, notes: Mapping[Partition, CommittedOffset]) -> BatchDecision:
    pieces: dict[int, dict[int, str]] = {}
    counts: dict[int, int] = {}
    spans: dict[int, Spans] = {}
    for key, each in notes.items():
        found = _NOTE.fullmatch(each.metadata)
        if found is None:
            raise ValueError("a note has an unknown format")
        number, index, count, start, end = map(int, found.groups()[:5])
        if end != each.offset:
            raise PipelineError(
                _changed_text(pipeline_id, f"{key[0]}/{key[1]} was decided to be at {end}, not {each.offset}")
            )
        counts[number] = count
        spans.setdefault(number, {})[key] = Span(start, end)
        if found[6]:
            pieces.setdefault(number, {})[index] = found[6]
    newest = max(counts)
    content = json.loads("".join(pieces[newest][index] for index in range(counts[newest])))
    producer_id, epoch, batch_id = map(_whole, (*content["run"], content["batch"]))
    return BatchDecision(
        newest,
        ProducerIdAndEpoch(producer_id, epoch),
        str(content["query"]),
        batch_id,
        tuple(_winner(pipeline_id, each) for each in content["winners"]),
        spans[newest],
        {str(topic): Input(str(each[0]), _whole(each[1])) for topic, each in content["inputs"].items()},
        None if content["topic"] is None else str(content["topic"]),
        {str(topic): str(each) for topic, each in content["outputs"].items()},
        {
            str(location): TableState(str(each[0]), _whole(each[1]), str(each[2]))
            for location, each in content.get("tables", {}).items()
        },
        Summary.of_json(content.get("summary")),
        {str(topic): str(each) for topic, each in content.get("dead", {}).items()},
    )


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def _winner(pipeline_id: str, text: str) -> PreparedTransaction:
    short = PreparedTransaction.parse(text)
    return PreparedTransaction(f"{pipeline_id}/{short.transactional_id}", short.producer_id, short.epoch)


def is_winner(decision: BatchDecision | None, prepared: PreparedTransaction) -> bool:
    """Whether a transaction is to be committed."""
    return decision is not None and prepared in decision.winners
