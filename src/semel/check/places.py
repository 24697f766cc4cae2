"""Checks of offsets: one record per offset, one offset per record, in the order of sending.

Log start and ends never decrease, are in order, and the ends meet when all is settled.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import OK, Ends, Name, Operation, Produce
from semel.check.partitions import PartitionHistory, Read

FIELDS: dict[str, Callable[[Ends], int | None]] = {
    "log start": lambda ends: ends.log_start,
    "last stable offset": lambda ends: ends.last_stable,
    "high watermark": lambda ends: ends.high_watermark,
}


def watermark_regresses(partition: PartitionHistory) -> Iterator[Anomaly]:
    """A later value is smaller than an earlier one."""
    for name, get in FIELDS.items():
        known = [(each.ended, get(each), each) for each in partition.ends]
        done: list[tuple[int, int, Operation]] = [
            (ended, value, each) for ended, value, each in known if ended is not None and value is not None
        ]
        if name == "high watermark":
            done += [
                (each.ended, each.offset + len(each.values), each)
                for each in partition.acknowledged
                if each.transaction is None and each.ended is not None and each.offset is not None
            ]
        yield from _regresses(partition, name, get, sorted(done, key=lambda each: each[0]))


def _regresses(
    partition: PartitionHistory,
    name: str,
    get: Callable[[Ends], int | None],
    done: list[tuple[int, int, Operation]],
) -> Iterator[Anomaly]:
    next_done, highest = 0, None
    for ends in sorted(partition.ends, key=lambda each: each.started):
        while next_done < len(done) and done[next_done][0] < ends.started:
            if highest is None or done[next_done][1] > highest[1]:
                highest = done[next_done]
            next_done += 1
        value = get(ends)
        if value is not None and highest is not None and value < highest[1]:
            says = f"the {name} is {value}, after it was {highest[1]} or more"
            yield anomaly("watermark-regress", partition.where, says, highest[2], ends)


def watermark_orders(partition: PartitionHistory) -> Iterator[Anomaly]:
    """The values in one response are not in order."""
    for ends in partition.ends:
        stated = [(name, get(ends)) for name, get in FIELDS.items()]
        bounds = [0, *(value for _, value in stated if value is not None)]
        if bounds != sorted(bounds):
            says = ", ".join(f"{name} {value}" for name, value in stated if value is not None)
            yield anomaly("watermark-order", partition.where, says, ends)


def hanging_transactions(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Readers are blocked although no transaction can be open any more."""
    for ends in partition.ends:
        if not ends.is_settled or ends.last_stable is None or ends.high_watermark is None:
            continue
        if ends.last_stable < ends.high_watermark:
            says = (
                f"every transaction must have ended, and the last stable offset is {ends.last_stable}, "
                f"before the high watermark, {ends.high_watermark}"
            )
            yield anomaly("hanging-transaction", partition.where, says, ends)
            return


def inconsistent_offsets(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Two records at one offset, according to what readers received or what was acknowledged."""
    first: dict[int, Read] = {}
    reported: set[int] = set()
    for poll in partition.polls:
        for offset, value in poll.records:
            known = first.get(offset)
            if known is None:
                first[offset] = Read(offset, value, poll)
            elif known.value != value and offset not in reported:
                reported.add(offset)
                says = f"offset {offset} is {known.value!r} for one reader and {value!r} for another"
                both = (known.proof, Read(offset, value, poll).proof)
                yield anomaly("inconsistent-offset", partition.where, says, *both)
    acknowledged: dict[int, tuple[Name, Produce]] = {}
    for produce in partition.acknowledged:
        assert produce.offset is not None
        for offset, value in enumerate(produce.values, produce.offset):
            if offset in first:
                continue  # `wrong_acknowledgements` compares what readers received here.
            before = acknowledged.setdefault(offset, (value, produce))
            if before[0] != value:
                says = f"{before[0]!r} and {value!r} were both acknowledged with offset {offset}"
                yield anomaly("inconsistent-offset", partition.where, says, before[1], produce)


def duplicates(partition: PartitionHistory) -> Iterator[Anomaly]:
    """One record at two offsets, though its producer is idempotent."""
    first: dict[Name, Read] = {}
    reported: set[Name] = set()
    for poll in partition.polls:
        for offset, value in poll.records:
            known = first.get(value)
            if known is None:
                first[value] = Read(offset, value, poll)
                continue
            if known.offset == offset or value in reported:
                continue
            writer = partition.writers.get(value)
            if writer is None or not writer.is_idempotent:
                continue
            reported.add(value)
            says = f"{value!r} is at offsets {known.offset} and {offset}"
            both = (known.proof, Read(offset, value, poll).proof)
            yield anomaly("duplicate", partition.where, says, writer, *both)


def wrong_acknowledgements(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Records acknowledged with an offset at which readers find another record, or that are elsewhere."""
    for produce in partition.acknowledged:
        assert produce.offset is not None
        for offset, value in enumerate(produce.values, produce.offset):
            for view in partition.views:
                there, elsewhere = view.places.get(offset, value), view.found.get(value)
                if there != value:
                    read = view.found[there]
                    says = f"{value!r} was acknowledged with offset {offset}, where {there!r} is"
                elif elsewhere is not None and offset not in view.places and produce.is_idempotent:
                    read = elsewhere
                    says = f"{value!r} was acknowledged with offset {offset}, and is at {read.offset}"
                else:
                    continue
                yield anomaly("wrong-acknowledgement", partition.where, says, produce, read.proof)
                break


def nonmonotonic_sends(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Records of one producer that are not in the order in which it sent them.

    On a journal topic transactions are ordered by their commits, so the order is checked within each.
    """
    last: dict[tuple[Name, Name | None], tuple[int, Name, Produce]] = {}
    for produce in partition.produces:
        if not produce.is_idempotent or produce.outcome != OK or not partition.counts(produce):
            continue
        key = (produce.process, produce.transaction if partition.is_journal else None)
        for index, value in enumerate(produce.values):
            offset = _place(partition, produce, index)
            if offset is None:
                continue
            known = last.get(key)
            if known is not None and offset < known[0]:
                says = f"{known[1]!r} was sent before {value!r}, and is behind it: {known[0]}, {offset}"
                yield anomaly("nonmonotonic-send", partition.where, says, known[2], produce)
            last[key] = (offset, value, produce)


def _place(partition: PartitionHistory, produce: Produce, index: int) -> int | None:
    if produce.offset is not None:
        return produce.offset + index
    for view in partition.views:
        if found := view.found.get(produce.values[index]):
            return found.offset
    return None


class _Placed(NamedTuple):
    """Records that got their offsets at some moment between two times."""

    started: int
    ended: int | None
    low: int
    high: int
    operation: Operation
    what: str


def offset_inversions(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Records that were acknowledged before others were requested, and are behind them in the log."""
    placed = sorted(_placed(partition), key=lambda each: each.started)
    done = sorted((each for each in placed if each.ended is not None), key=lambda each: each.ended or 0)
    next_done, highest = 0, None
    for each in placed:
        while next_done < len(done) and (done[next_done].ended or 0) < each.started:
            if highest is None or done[next_done].high > highest.high:
                highest = done[next_done]
            next_done += 1
        if highest is not None and each.low <= highest.high:
            before = f"{highest.what} had offset {highest.high}"
            says = f"{before} before {each.what} was asked for, which has {each.low}"
            yield anomaly("offset-inversion", partition.where, says, highest.operation, each.operation)


def _placed(partition: PartitionHistory) -> Iterator[_Placed]:
    for produce in partition.acknowledged:
        if produce.offset is None or (partition.is_journal and produce.transaction is not None):
            continue
        high = produce.offset + len(produce.values) - 1
        what = ", ".join(map(repr, produce.values))
        yield _Placed(produce.started, produce.ended, produce.offset, high, produce, what)
    if partition.is_journal:
        yield from _placed_transactions(partition)


def _placed_transactions(partition: PartitionHistory) -> Iterator[_Placed]:
    bounds: dict[Name, tuple[int, int]] = {}
    for value, read in partition.committed.found.items():
        writer = partition.writers.get(value)
        if writer is not None and writer.transaction is not None:
            low, high = bounds.get(writer.transaction, (read.offset, read.offset))
            bounds[writer.transaction] = (min(low, read.offset), max(high, read.offset))
    for transaction, (low, high) in bounds.items():
        fate = partition.fates[transaction]
        if fate.asked is not None and fate.end is not None:
            yield _Placed(fate.asked, fate.answered, low, high, fate.end, fate.where)


def split_transactions(partition: PartitionHistory) -> Iterator[Anomaly]:
    """Foreign records between those of one transaction, in a journal topic."""
    if not partition.is_journal:
        return
    view = partition.committed
    last_of: dict[Name, int] = {}
    for index, offset in enumerate(view.offsets):
        writer = partition.writers.get(view.places[offset])
        if writer is None or writer.transaction is None:
            continue
        before = last_of.get(writer.transaction)
        if before is not None and before != index - 1:
            ours, between = view.places[view.offsets[before]], view.places[view.offsets[before + 1]]
            says = (
                f"{between!r} at offset {view.offsets[before + 1]} is between the records "
                f"of transaction {writer.transaction}"
            )
            reads = (view.found[each].proof for each in (ours, between, view.places[offset]))
            yield anomaly("split-transaction", partition.where, says, *reads)
        last_of[writer.transaction] = index
