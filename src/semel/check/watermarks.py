"""Checks of log start and ends: they never decrease, are in order, and the ends meet when all is settled."""

from collections.abc import Callable, Iterator

from semel.check.catalogue import Anomaly, anomaly
from semel.check.history import Ends, Operation
from semel.check.partitions import PartitionHistory

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
