"""Computes the offsets of a group after a reset, to preview the reset before it is made."""

from collections.abc import Iterable, Mapping

from semel.client.admin.admin import Admin
from semel.client.consume.offsets import EARLIEST, LATEST, Partition
from semel.client.net.cluster import Client


def reset_targets(
    client: Client,
    partitions: Iterable[Partition],
    before: Mapping[Partition, int],
    *,
    to_earliest: bool = False,
    to_offset: int | None = None,
    time_ms: int | None = None,
    shift_by: int | None = None,
) -> dict[Partition, int]:
    """Return the new offset of each partition, by the first option that is given; else the end of the log.

    Offsets outside the log are moved to its nearest end. `shift_by` is relative to `before`, or to the start
    of the log for a partition that is not in it.
    """
    partitions = list(partitions)
    topics = Admin(client).topics
    first = {key: at.offset for key, at in topics.offsets(dict.fromkeys(partitions, EARLIEST)).items()}
    last = {key: at.offset for key, at in topics.offsets(dict.fromkeys(partitions, LATEST)).items()}
    if to_earliest:
        return first
    if to_offset is not None:
        wanted = dict.fromkeys(partitions, to_offset)
    elif time_ms is not None:
        found = topics.offsets(dict.fromkeys(partitions, time_ms))
        # No record has a timestamp that late: go to the end of the log.
        wanted = {key: at.offset if at.offset >= 0 else last[key] for key, at in found.items()}
    elif shift_by is not None:
        wanted = {key: before.get(key, first[key]) + shift_by for key in partitions}
    else:
        return last
    return {key: min(max(offset, first[key]), last[key]) for key, offset in wanted.items()}
