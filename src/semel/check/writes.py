"""Finds missing records: acknowledged records that readers passed without receiving them.

If a record was acknowledged with an offset, its position is known: readers passed it if a session covers that
offset. Otherwise time decides: if a reader started at the start of the log and reached its end as of some
moment, it should have seen what was committed before that moment. In a journal topic the neighbours decide
too: a transaction is contiguous there.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import OK, Name, Operation, Produce
from semel.check.partitions import PartitionHistory, View
from semel.check.transactions import ABORTED, Trace

#: For `Trace.missing_since`: it is missing whenever the transaction was committed.
ALWAYS = 2**63 - 1
NEVER = -1


class Missing(NamedTuple):
    """A value that no reader received: it should have been received if committed before `since`."""

    value: Name
    produce: Produce
    since: int
    witness: Operation | None


def lost_writes(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Records outside of transactions that were acknowledged, and that readers passed."""
    for missing in _missing(partition, _blocks(partition)):
        produce = missing.produce
        if produce.transaction is None and produce.ended is not None and produce.ended < missing.since:
            says = f"{missing.value!r} was acknowledged; readers passed it, and none received it"
            yield anomaly("lost-write", partition.where, says, produce, missing.witness)


def traces(partition: PartitionHistory) -> Iterator[Trace]:
    """What readers saw of each transaction, and what they should have seen of it too."""
    blocks = _blocks(partition)
    absent: dict[Name, Missing] = {}
    for missing in _missing(partition, blocks):
        name = missing.produce.transaction
        if name is not None and (name not in absent or missing.since > absent[name].since):
            absent[name] = missing
    for name in {**blocks, **absent}:
        block, missed = blocks.get(name), absent.get(name)
        yield Trace(
            transaction=name,
            partition=partition.key,
            seen_at=block.seen_at if block else None,
            seen=partition.committed.found[block.value].proof if block else None,
            missing=missed.produce._replace(values=(missed.value,), offset=None) if missed else None,
            missing_since=missed.since if missed else NEVER,
            witness=missed.witness if missed else None,
        )


class _Block(NamedTuple):
    """Where readers of committed records found a transaction."""

    low: int
    high: int
    seen_at: int
    value: Name


def _blocks(partition: PartitionHistory) -> dict[Name, _Block]:
    found: dict[Name, _Block] = {}
    for value, read in partition.committed.found.items():
        writer = partition.writers.get(value)
        if writer is None or writer.transaction is None:
            continue
        offset, ended = read.offset, read.poll.ended
        block = found.get(writer.transaction)
        if block is None:
            found[writer.transaction] = _Block(offset, offset, ended, value)
        else:
            first = (block.seen_at, block.value) if block.seen_at <= ended else (ended, value)
            found[writer.transaction] = _Block(min(block.low, offset), max(block.high, offset), *first)
    return found


def _missing(partition: PartitionHistory, blocks: dict[Name, _Block]) -> Iterator[Missing]:
    if partition.topic.is_compacted or not partition.views:
        return
    reached = {view.is_committed: _reached(partition, view) for view in partition.views}
    for value, produce in partition.writers.items():
        fate = partition.fate(produce)
        if produce.outcome != OK or (fate is not None and fate.outcome == ABORTED):
            continue
        found = [
            _by_view(partition, view, value, produce, reached[view.is_committed]) for view in partition.views
        ]
        block = blocks.get(produce.transaction) if produce.transaction is not None else None
        if partition.is_journal and block is not None and produce.offset is None:
            found.append(_by_neighbours(partition, value, produce, block))
        worst = max((each for each in found if each is not None), key=lambda each: each.since, default=None)
        if worst is not None:
            yield worst


def _by_view(
    partition: PartitionHistory,
    view: View,
    value: Name,
    produce: Produce,
    reached: tuple[int, Operation | None],
) -> Missing | None:
    if value in view.found:
        return None
    if produce.offset is not None:
        offset = produce.offset + produce.values.index(value)
        if offset >= partition.trimmed and view.covers(offset):
            return Missing(value, produce, ALWAYS, view.witness(offset))
        return None
    # Its offset is unknown, so it may have been trimmed.
    return Missing(value, produce, *reached) if reached[0] != NEVER and not partition.trimmed else None


def _reached(partition: PartitionHistory, view: View) -> tuple[int, Operation | None]:
    """The last moment as of which a reader from the start saw everything, and the end of the log then."""
    log_start = min((each.log_start for each in partition.ends if each.log_start is not None), default=0)
    whole = [each.end for each in view.sessions if each.start is not None and each.start <= log_start]
    best: tuple[int, Operation | None] = (NEVER, None)
    for ends in partition.ends:
        bound = ends.high_watermark
        if view.is_committed and not partition.is_journal and ends.last_stable is not None:
            bound = ends.last_stable
        if bound is not None and bound <= max(whole, default=NEVER) and ends.started > best[0]:
            best = (ends.started, ends)
    return best


def _by_neighbours(
    partition: PartitionHistory, value: Name, produce: Produce, block: _Block
) -> Missing | None:
    """A value missing from a journal transaction, although a session covers what surrounds its records."""
    view = partition.committed
    if value in view.found:
        return None
    for session in view.sessions:
        start = math.inf if session.start is None else session.start
        is_whole_before = start < block.low or (start == block.low == 0)
        if is_whole_before and session.end > block.high + 1 and block.low >= partition.trimmed:
            return Missing(value, produce, ALWAYS, view.witness(block.high))
    return None
