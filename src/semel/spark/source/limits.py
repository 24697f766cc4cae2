"""Limits on reading: offsets per batch, and records per task.

Both have the meaning of Spark's own Kafka source. `Admission` decides how far the next batch of a stream goes
(`maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxTriggerDelay`); `split` divides ranges into more tasks
than there are partitions (`minPartitions`, `maxRecordsPerPartition`).
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from semel.client import Partition
from semel.spark.options import Portions
from semel.spark.partition_offsets import PartitionOffsets, admit
from semel.spark.source.reading import Range


class Admission:
    """Decides for each batch how much of the waiting input it reads."""

    def __init__(self, portions: Portions) -> None:
        self._portions = portions
        self._last_at: float | None = None  # when a batch was last admitted

    def end(
        self, start: Mapping[Partition, int], end: Mapping[Partition, int], *, may_wait: bool, now: float
    ) -> PartitionOffsets:
        """Return the end of the next batch; its start if it is better to wait for more."""
        least, most = self._portions.least, self._portions.most
        if may_wait and least is not None:
            waiting = sum(max(0, offset - start.get(key, 0)) for key, offset in end.items())
            # The first batch does not wait: it is unknown when the last one was.
            is_due = self._last_at is None or now - self._last_at >= self._portions.delay_s
            if waiting < least and not is_due:
                return dict(start)
            self._last_at = now
        return dict(end) if most is None else admit(start, end, most)


def now_s() -> float:
    """The clock of `Admission`, monotonic."""
    return time.monotonic()


def split(ranges: Sequence[Range], min_partitions: int | None, max_records: int | None) -> list[Range]:
    """Split ranges to at most `max_records` offsets each, and to about `min_partitions` in total.

    Splits for the latter go to the large ranges, in proportion to their size; small ones stay whole.
    """
    found = [each for each in ranges if each.end > each.start]
    if max_records is not None:
        found = [
            piece for each in found for piece in _cut(each, math.ceil((each.end - each.start) / max_records))
        ]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(each.end - each.start for each in found)
    small = [each for each in found if _parts(each, total, min_partitions) == 1]
    left = total - sum(each.end - each.start for each in small)
    wanted = min_partitions - len(small)
    return [
        piece
        for each in found
        for piece in ([each] if each in small else _cut(each, _parts(each, left, wanted)))
    ]


def _parts(wanted: Range, total: int, parts: int) -> int:
    """Return how many parts a range gets, by its share of the total; halves are rounded up."""
    return max(1, math.floor((wanted.end - wanted.start) / total * parts + 0.5))


def _cut(wanted: Range, parts: int) -> list[Range]:
    """Divide a range into equal pieces; the remainder goes to the later ones."""
    size = wanted.end - wanted.start
    parts = min(parts, size)
    bounds = [wanted.start + size * number // parts for number in range(parts + 1)]
    return [replace(wanted, start=start, end=end) for start, end in pairwise(bounds)]
