"""A decision: this batch counts, by these transactions. It is made in one small transaction, and stays.

It is kept where the pipeline's group keeps its offsets: the offsets are the end of the batch, and the notes
beside them say which batch that is and which transactions are to be committed. So "how far the pipeline is"
and "what counts" change together, lag tools read the offsets, and a reader that wants stable offsets learns
for certain whether a decision was made.

A note has room for a few thousand bytes, so a decision is cut in pieces, one for every partition that is
needed. The number of the decision tells those pieces from older ones that were left in other partitions.

A broker that is Semel ends the transactions in the same step in which the decision is made. Then there is
nothing left to do for anybody, and the note names none.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from semel.client import Client, CommittedOffset, Identity, Partition, PreparedTransaction
from semel.client.group_commit import Run, group_commit
from semel.client.group_offsets import GroupMetadata, fetch_offsets
from semel.client.transaction_coordinator import NOBODY_YET, Coordinator
from semel.spark.errors import PipelineError
from semel.spark.vectors import Vector

#: What a note begins with.
MARK = "semel"
#: Brokers take 4096 bytes (offset.metadata.max.bytes), of which the beginning of a note needs some.
PIECE_BYTES = 4000
#: The end of a decision leaves the pair of producer id and epoch as it is, so that a run has one name.
VERSION = 1
#: Of the transaction that makes a decision, which is three requests long.
TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Decision:
    """Which batch counts, and by which transactions."""

    number: int
    run: Identity  # who made it
    query_id: str
    batch_id: int
    winners: tuple[PreparedTransaction, ...]  # those that are still to be ended, by whoever comes first


class Committed(NamedTuple):
    """How far a pipeline is, and its last decision."""

    offsets: Vector
    decision: Decision | None


def read_committed(client: Client, pipeline_id: str, *, require_stable: bool = True) -> Committed:
    """How far the pipeline is. A decision that is being made is waited for, unless any answer will do."""
    found = fetch_offsets(client, pipeline_id, require_stable=require_stable)
    offsets = {key: each.offset for key, each in found.items()}
    return Committed(offsets, _assemble(pipeline_id, found))


def make(client: Client, pipeline_id: str, offsets: Mapping[Partition, int], decision: Decision) -> None:
    """Make a decision as the run that it names. Whatever is raised, it may have been made."""
    run = decision.run
    coordinator = Coordinator(client, driver_id(pipeline_id), client.timeout_s)
    coordinator.add_group(run, pipeline_id)
    notes = _notes(pipeline_id, offsets, decision)
    coordinator.commit_offsets(run, VERSION, GroupMetadata(pipeline_id), notes)
    coordinator.end(run, VERSION, commit=True)


def make_together(
    client: Client, pipeline_id: str, offsets: Mapping[Partition, int], decision: Decision
) -> None:
    """Make a decision and commit its transactions in one step. Only where the broker has group commit.

    Whatever is raised for want of an answer, it may have been made; a refusal means that it was not, unless
    it had been asked for before.
    """
    run = Run(driver_id(pipeline_id), decision.run)
    notes = _notes(pipeline_id, offsets, replace(decision, winners=()))
    group_commit(client, run, decision.winners, pipeline_id, notes)


def take_over(client: Client, pipeline_id: str, last_run: Identity = NOBODY_YET) -> Identity:
    """Begin a run: older ones cannot decide any more, and what they left half decided is not decided.

    With the last run it is only begun if nobody else has begun one since.
    """
    return Coordinator(client, driver_id(pipeline_id), client.timeout_s).init(TIMEOUT_MS, last_run).identity


def driver_id(pipeline_id: str) -> str:
    """The transactional id under which decisions are made."""
    return f"{pipeline_id}/driver"


def _notes(
    pipeline_id: str, offsets: Mapping[Partition, int], decision: Decision
) -> dict[Partition, CommittedOffset]:
    prefix = len(pipeline_id) + 1
    winners = [
        f"{each.producer_id}:{each.epoch}:{each.transactional_id[prefix:]}" for each in decision.winners
    ]
    content = {
        "run": decision.run,
        "query": decision.query_id,
        "batch": decision.batch_id,
        "winners": winners,
    }
    text = json.dumps(content, separators=(",", ":"))
    pieces = [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]
    if len(pieces) > len(offsets):
        raise PipelineError(
            f"{len(winners)} tasks have written, and the list of their transactions does not fit beside "
            f"the offsets of {len(offsets)} input partitions. Write with fewer tasks (coalesce)"
        )
    notes = {}
    for index, key in enumerate(sorted(offsets)):
        piece = pieces[index] if index < len(pieces) else ""
        notes[key] = CommittedOffset(offsets[key], f"{MARK} {decision.number} {index} {len(pieces)} {piece}")
    return notes


def _assemble(pipeline_id: str, found: Mapping[Partition, CommittedOffset]) -> Decision | None:
    notes = [each.metadata for each in found.values() if each.metadata.startswith(f"{MARK} ")]
    if not notes:
        return None
    try:
        return _read(pipeline_id, notes)
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        raise PipelineError(
            f"the last decision of pipeline {pipeline_id!r} is not whole: somebody else has changed "
            "offsets of the group of that name. Choose a new pipeline.id, and begin where the output ends"
        ) from None


def _read(pipeline_id: str, notes: Sequence[str]) -> Decision:
    """The newest decision in these notes. Whatever is raised, they do not hold a whole one."""
    decisions: dict[int, dict[int, str]] = {}
    counts: dict[int, int] = {}
    for note in notes:
        _, number, index, count, piece = note.split(" ", 4)
        decisions.setdefault(int(number), {})[int(index)] = piece
        counts[int(number)] = int(count)
    newest = max(decisions)
    content = json.loads("".join(decisions[newest][index] for index in range(counts[newest])))
    winners = tuple(_winner(pipeline_id, each) for each in content["winners"])
    producer_id, epoch, batch_id = map(_whole, (*content["run"], content["batch"]))
    return Decision(newest, Identity(producer_id, epoch), str(content["query"]), batch_id, winners)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _winner(pipeline_id: str, text: str) -> PreparedTransaction:
    short = PreparedTransaction.parse(text)
    return PreparedTransaction(f"{pipeline_id}/{short.transactional_id}", short.producer_id, short.epoch)


def is_winner(decision: Decision | None, prepared: PreparedTransaction) -> bool:
    """Whether a transaction is to be committed."""
    return decision is not None and prepared in decision.winners
