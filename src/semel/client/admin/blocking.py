"""Find open transactions in partitions and their owners: hanging ones, and those that readers wait for.

The leader of a partition knows producer ids, a coordinator knows transactional ids, and no request returns
both. So open transactions are read from the partitions, and their owners are looked up by producer id. Either
may change between the two requests: a transaction that seems to hang may have ended, so it is read again.
"""

import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from semel.client.admin.admin import Admin
from semel.client.admin.transactions import (
    ProducerDescription,
    TransactionDescription,
    describe_transactions,
)
from semel.client.consume.offsets import LATEST, Isolation, Partition
from semel.client.errors import ClientError
from semel.client.net.cluster import Client

OPEN_STATE = "Ongoing"
JOURNAL = "journal"
VISIBILITY = "semel.visibility"
BLOCK_MAX = "semel.transaction.block.max.ms"

#: How often a partition is read at most, if its open transaction ends between two requests.
READS_MAX = 3


class NotOpen(ClientError):
    """The transaction is not open, so nothing was ended."""


@dataclass(frozen=True, slots=True)
class Open:
    """A transaction that is open in a partition. It hangs if no coordinator knows it: `owner` is None."""

    topic: str
    partition: int
    producer: ProducerDescription
    owner: TransactionDescription | None

    @property
    def first_offset(self) -> int:
        """The offset at which it starts in this partition."""
        return self.producer.transaction_start_offset

    @property
    def also_in(self) -> list[str]:
        """The other partitions of the same transaction."""
        here = (self.topic, self.partition)
        return [f"{key[0]}/{key[1]}" for key in (self.owner.partitions if self.owner else ()) if key != here]

    @property
    def command(self) -> str:
        """The command line that aborts it."""
        if self.owner is not None:
            return f"semel transactions abort {shlex.quote(self.owner.transactional_id)}"
        where = f"--topic {self.topic} --partition {self.partition} --start-offset {self.first_offset}"
        return f"semel transactions abort {where}"


@dataclass(frozen=True, slots=True)
class Blockage:
    """The last stable offset of a partition, and its open transactions, oldest first."""

    last_stable_offset: int
    high_watermark: int
    visibility: str
    open: list[Open]
    ends_ms: int | None
    """When the broker aborts the oldest of them; None if it never does."""

    @property
    def waiting(self) -> int:
        """How many offsets exist but cannot be read with read_committed yet."""
        return max(0, self.high_watermark - self.last_stable_offset)


def now_ms() -> int:
    """The time of day, as in the timestamps of transactions."""
    return int(time.time() * 1000)


def open_in(client: Client, topic: str, partitions: Iterable[int] | None = None) -> list[Open]:
    """Return the open transactions in these partitions of a topic, or in all; in each, oldest first."""
    found = {
        (topic, partition): [producer for producer in producers if producer.transaction_start_offset >= 0]
        for partition, producers in Admin(client).transactions.producers(topic, partitions).items()
    }
    return _with_owners(client, found)


def hanging_in(client: Client, topic: str, partitions: Iterable[int] | None = None) -> list[Open]:
    """Return the open transactions in these partitions that no coordinator knows."""
    suspects = [found for found in open_in(client, topic, partitions) if found.owner is None]
    if not suspects:
        return []
    # Coordinators do not know transactions that have ended since, either; those are no longer open.
    still_open = {
        (found.partition, found.producer.producer_id, found.first_offset)
        for found in open_in(client, topic, {suspect.partition for suspect in suspects})
    }
    return [
        suspect
        for suspect in suspects
        if (suspect.partition, suspect.producer.producer_id, suspect.first_offset) in still_open
    ]


def explain(client: Client, topic: str, partition: int) -> Blockage:
    """Return what holds back the last stable offset of a partition."""
    key = (topic, partition)
    admin = Admin(client)
    visibility = config_of(client, topic).get(VISIBILITY) or "marker"
    end, stable, found = 0, 0, list[Open]()
    for _ in range(READS_MAX):
        end = admin.topics.offsets({key: LATEST}, Isolation.READ_UNCOMMITTED)[key].offset
        stable = admin.topics.offsets({key: LATEST}, Isolation.READ_COMMITTED)[key].offset
        found = open_in(client, topic, [partition]) if visibility != JOURNAL else []
        if found or stable >= end:
            break
    ends_ms = _end_of(client, found[0].owner) if found and found[0].owner else None
    return Blockage(min(stable, end), end, visibility, found, ends_ms)


def open_of(client: Client, transactional_id: str) -> TransactionDescription:
    """Return the open transaction of an id. NotOpen if none is open; KafkaError if the id is unknown.

    Call this before fencing the id: fencing an unused id would create it.
    """
    found = Admin(client).transactions.describe(transactional_id)
    if found.state != OPEN_STATE:
        raise NotOpen(f"{transactional_id!r} has no open transaction; it is {found.state}.")
    return found


def hanging_at(client: Client, topic: str, partition: int, start_offset: int) -> Open:
    """Return the transaction that hangs in a partition from this offset on. NotOpen if none does."""
    where = f"{topic}/{partition}"
    found = open_in(client, topic, [partition])
    chosen = next((transaction for transaction in found if transaction.first_offset == start_offset), None)
    if chosen is None:
        begin = ", ".join(str(transaction.first_offset) for transaction in found)
        there = f"open ones begin at {begin}" if found else "none is open there"
        raise NotOpen(f"no transaction in {where} begins at offset {start_offset}; {there}.")
    if chosen.owner is not None:
        # A marker in this partition alone would not be atomic: the other partitions would still commit.
        raise NotOpen(
            f"the transaction does not hang; it is open for {chosen.owner.transactional_id!r}. "
            f"Use '{chosen.command}'."
        )
    return chosen


def end_hanging(client: Client, hanging: Open) -> None:
    """Abort a hanging transaction in its partition."""
    producer = hanging.producer
    Admin(client).transactions.abort(
        *(hanging.topic, hanging.partition, producer.producer_id, producer.epoch, producer.coordinator_epoch)
    )


def config_of(client: Client, topic: str) -> Mapping[str, str | None]:
    """Return the configs of a topic by name. Brokers other than Semel lack the `semel.` ones."""
    return {config.name: config.value for config in Admin(client).configs.of_topic(topic)}


def _with_owners(client: Client, found: Mapping[Partition, list[ProducerDescription]]) -> list[Open]:
    producer_ids = sorted({producer.producer_id for producers in found.values() for producer in producers})
    if not producer_ids:
        return []
    listed = Admin(client).transactions.all(producer_ids=producer_ids)
    described = describe_transactions(client, [listing.transactional_id for listing in listed])
    owners = {(owner.producer_id, key): owner for owner in described.values() for key in owner.partitions}
    return [
        Open(*key, producer, owners.get((producer.producer_id, key)))
        for key, producers in sorted(found.items())
        for producer in sorted(producers, key=lambda producer: producer.transaction_start_offset)
    ]


def _end_of(client: Client, owner: TransactionDescription) -> int | None:
    """Return when the broker aborts a transaction: its timeout, or the shortest `BLOCK_MAX` of its topics."""
    if owner.is_two_phase or owner.started_ms < 0:
        return None
    limits = [owner.timeout_ms]
    for topic in client.describe({topic for topic, _ in owner.partitions}).topics:
        block_max = int(config_of(client, topic.name).get(BLOCK_MAX) or -1)
        if block_max >= 0:
            limits.append(block_max)
    return owner.started_ms + min(limits)
