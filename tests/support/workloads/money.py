"""Money moves between accounts inside transactions: whatever happens, none is made and none is lost.

An account is a partition. A transfer takes an amount from one account and gives it to another, in one
transaction, so the sum of all accounts is zero whenever all of them are read at one point. An auditor does so
all the time: the ends in one ListOffsets response belong to one commit, and below them every transaction is
complete or absent (docs/adr/0025). In a cluster any broker can list them, even for partitions that others
lead, if the request asks for the ends after one commit.
"""

import itertools
import random
import time
from collections.abc import Sequence

from semel.client import LATEST, Isolation, Partition
from semel.client.consume.offsets import END_TOGETHER
from semel.wire.errors import ErrorCode
from semel.wire.messages.fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from semel.wire.records import decode_batch, iter_batches, read_marker
from support.clients.raw import RawClient
from support.clients.raw_log import READ_UNCOMMITTED, Log
from support.clients.routed import RoutedClient, error_codes, raw_client
from support.clients.stubborn import StubbornClient
from support.waiting import PAUSE_SECONDS
from support.workloads.clients import Sent
from support.workloads.running import PATIENCE_SECONDS, Place, Reader, Worker, Workload, Writer

ACCOUNTS = 4
ANSWER_SECONDS = 3.0
BANKS = 2
"""The number of topics over which the accounts are spread."""


class Money(Workload):
    """Several producers transfer, an auditor adds up, and readers of both isolation levels read."""

    def __init__(
        self, place: Place, name: str, kinds: Sequence[str], chance: random.Random, visibility: str = "marker"
    ) -> None:
        super().__init__(place, {f"{name}-bank-{index}": ACCOUNTS for index in range(BANKS)}, visibility)
        self._numbers = itertools.count()
        self._ids = [f"{name}-teller-{index}" for index in range(len(kinds))]
        self.tellers = [
            Writer(self.place, kind, each, self._transfer, chance.randrange(2**32))
            for kind, each in zip(kinds, self._ids, strict=True)
        ]
        self.auditor = Auditor(self.place, self.partitions, visibility)
        self.workers = [
            *self.tellers,
            self.auditor,
            Reader(self.place, self.partitions, Isolation.READ_COMMITTED),
            Reader(self.place, self.partitions, Isolation.READ_UNCOMMITTED),
        ]

    @property
    def writers(self) -> list[Worker]:
        return [*self.tellers]

    @property
    def transactional_ids(self) -> list[str]:
        return self._ids

    def _transfer(self, chance: random.Random) -> list[Sent]:
        """Plan one transfer, or several."""
        sent: list[Sent] = []
        for _ in range(chance.choice([1, 1, 1, 3])):
            payer, payee = chance.sample(self.partitions, 2)
            amount, number = chance.randrange(1, 100), next(self._numbers)
            sent += [Sent(*payer, f"{number}:{-amount}"), Sent(*payee, f"{number}:{amount}")]
        return sent

    def problems(self) -> list[str]:
        with raw_client(self.place.bootstrap) as client:
            values = [value for key in self.partitions for value in Log(client, *key).values()]
        total = sum(map(amount_of, values))
        problems = [f"at the end the sum of all accounts is {total}"] if total else []
        if not values:
            problems.append("no money was moved")
        if not self.auditor.audits:
            problems.append("nobody looked at all accounts at once")
        return problems + self.auditor.wrong


def amount_of(value: bytes) -> int:
    return int(value.rpartition(b":")[2])


class Auditor(Worker):
    """Adds up all accounts as they are after one commit, again and again."""

    def __init__(self, place: Place, partitions: Sequence[Partition], visibility: str) -> None:
        super().__init__("auditor", place)
        self.partitions = partitions
        self.is_journal = visibility == "journal"
        self.audits = 0
        self.wrong: list[str] = []
        self._balance = 0
        self._held: dict[tuple[Partition, int], int] = {}
        """By partition and producer: amounts in transactions that have not ended."""
        self._positions = dict.fromkeys(partitions, 0)

    def work(self) -> None:
        process = self.place.recorder.process("auditor")
        bootstrap, is_cluster = self.place.bootstrap, self.place.is_cluster
        # A broker that is cut off may not answer, so other brokers are asked soon.
        routed = RoutedClient(bootstrap, timeout_seconds=ANSWER_SECONDS) if is_cluster else None
        with routed or StubbornClient(bootstrap) as client:
            while not self.stopping.wait(0.05):
                started = self.place.recorder.clock()
                cut = ends_together(client, self.partitions, END_TOGETHER if is_cluster else LATEST)
                if cut is None:
                    continue
                for key, end in cut.items():
                    process.ends(started, key, high_watermark=end)
                for key, end in cut.items():
                    self._read(Log(client, *key), key, end)
                if self.stopping.is_set():
                    return
                self.audits += 1
                self.steps += 1
                if self._balance:
                    self.wrong.append(f"the sum of all accounts is {self._balance} at {cut}")
                    return

    def _read(self, log: Log, key: Partition, end: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._positions[key] < end and not self.stopping.is_set():
            part = log.fetch(self._positions[key], isolation=READ_UNCOMMITTED)
            if part.error_code == ErrorCode.KAFKA_STORAGE_ERROR and not self.stopping.wait(0.05):
                # A broker without file descriptors cannot open the chunk, and returns this error. Clients
                # retry.
                continue
            assert part.error_code == ErrorCode.NONE, part
            data = bytes(part.records or b"")
            if not data and self.place.is_cluster and time.monotonic() < deadline:
                # The leader does not yet know of a commit that another broker has made.
                time.sleep(PAUSE_SECONDS)
                continue
            assert data, f"{key} ends at {end}, and there is nothing at {self._positions[key]}"
            for at, header in iter_batches(data):
                if header.base_offset >= end:
                    break
                self._positions[key] = header.last_offset + 1
                self._take(data, at, key, header.producer_id, is_control=header.is_control)

    def _take(self, data: bytes, at: int, key: Partition, producer_id: int, *, is_control: bool) -> None:
        if is_control:
            marker = read_marker(data, at)
            held = self._held.pop((key, producer_id), 0)
            self._balance += held if marker is not None and marker.commit else 0
            return
        total = sum(amount_of(record.value or b"") for record in decode_batch(data, at))
        if self.is_journal:
            self._balance += total
        else:
            self._held[key, producer_id] = self._held.get((key, producer_id), 0) + total


def ends_together(
    client: RawClient, partitions: Sequence[Partition], timestamp: int = LATEST
) -> dict[Partition, int] | None:
    """Return the ends of partitions from one response; None if the broker cannot list them now."""
    topics: dict[str, ListOffsetsTopic] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=list(topics.values()))
    answer = client.ask(request, 7)
    if any(error_codes(answer)):
        return None
    return {
        (topic.name, each.partition_index): each.offset
        for topic in answer.topics
        for each in topic.partitions
    }
