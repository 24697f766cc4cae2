"""Finds the transaction that holds back the last stable offset of a partition: the first open one there.

A coordinator knows when a transaction began, but only the leader of a partition knows at which offset it
begins. So the console asks leaders for the producers of partitions whose readers wait, a few at each sample.
While the last stable offset does not move, its blocker stays the same and is not asked for again.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from semel.client import Admin, Client, KafkaError, Partition, TransactionDescription, UnsupportedRequest

if TYPE_CHECKING:
    from semel.console.observing import Observer
    from semel.console.sampling import PartitionEnds

ASKED_MAX = 50
"""Partitions queried at each sample, those with most waiting offsets first; the others follow later."""


async def sample_blockers(
    observer: "Observer", ends: "PartitionEnds", before: "PartitionEnds | None"
) -> dict[Partition, int]:
    """Return the id of the producer that blocks each partition, where it is known."""
    known = {}
    if before is not None:
        known = {
            key: before.blockers[key]
            for key in ends.waiting
            if key in before.blockers and before.stable.get(key) == ends.stable[key]
        }
    unknown = [key for key in ends.waiting if key not in known][:ASKED_MAX]
    return known | (await observer.ask(first_producers, unknown) if unknown else {})


def first_producers(client: Client, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the producer whose open transaction begins first in each partition. Some may be left out."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    found: dict[Partition, int] = {}
    for topic, numbers in by_topic.items():
        try:
            listed = Admin(client).transactions.producers(topic, numbers)
        except UnsupportedRequest:
            return {}
        except KafkaError:
            continue  # Deleted, moving, or not authorized: its blocker stays unknown.
        for number, producers in listed.items():
            begun = [each for each in producers if each.transaction_start_offset >= 0]
            if begun:
                first = min(begun, key=lambda each: each.transaction_start_offset)
                found[topic, number] = first.producer_id
    return found


def blockers_of(
    key: Partition, open_: Mapping[str, TransactionDescription], ends: "PartitionEnds"
) -> tuple[TransactionDescription | None, list[str]]:
    """Return the transaction that blocks a partition; if it is unknown, the ids of the candidates."""
    here = [each for each in open_.values() if key in each.partitions]
    if key not in ends.blockers:
        return None, [each.transactional_id for each in here]
    return next((each for each in here if each.producer_id == ends.blockers[key]), None), []
