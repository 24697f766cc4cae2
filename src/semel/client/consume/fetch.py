"""Fetches records from leaders, and decodes the responses.

A response consists of whole batches, starting with the one that contains the fetch offset. `visible` turns
them into the records that a reader may see:

- records before the fetch offset are left out, because a batch is never split;
- control batches (markers) are skipped;
- with read_committed, so are the batches of aborted transactions. The broker sends the list of them; a
  transaction is skipped from its first offset to its abort marker.

In every case the reader continues after the last whole batch, even if none of its records was visible. Fetch
sessions (KIP-227) are not used: they would not help a client with few partitions.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from semel.client.consume.offsets import Isolation, Partition
from semel.client.errors import ClientError, ErrorCode, KafkaError, ProtocolError
from semel.client.net.cluster import Client
from semel.client.net.connection import Pending
from semel.wire import messages as wire
from semel.wire.records import BatchHeader, Header, iter_batches, iter_records, read_marker
from semel.wire.schema import Buffer

LAST_VERSION_WITH_NAMES = 12
NO_TOPIC_ID = bytes(16)


class ConsumedRecord(NamedTuple):
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(slots=True)
class Fetched:
    """The result of a fetch for one partition: visible records, and the next offset."""

    partition: Partition
    offset: int  # the fetch offset
    records: deque[ConsumedRecord]
    next_offset: int
    high_watermark: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How long a broker may wait for how many bytes, and how many it may send."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 32 << 20
    partition_max_bytes: int = 4 << 20


class NoRecordsYet(ClientError):
    """The broker has no records where others have seen some: a new leader may lag behind the previous one."""


def fetch(
    client: Client, positions: Mapping[Partition, int], isolation: Isolation, limits: FetchLimits
) -> list[Fetched]:
    """Return the records that a reader at these offsets may see; see `fetch_batches`."""
    found = fetch_batches(client, positions, isolation, limits)
    return [_open(key, positions[key], data, isolation) for key, data in found]


def fetch_batches(
    client: Client, positions: Mapping[Partition, int], isolation: Isolation, limits: FetchLimits
) -> list[tuple[Partition, wire.PartitionData]]:
    """Fetch batches at these offsets from all leaders in parallel.

    Partitions without a leader, and those of brokers that could not be reached, are missing; the caller
    tries again. If no broker answered, the first error is raised.
    """
    return begin_fetch(client, positions, isolation, limits).wait()


def begin_fetch(
    client: Client, positions: Mapping[Partition, int], isolation: Isolation, limits: FetchLimits
) -> "FetchUnderWay":
    """Send the requests of `fetch_batches`; the caller waits later, while the leaders work."""
    problems: list[Exception] = []
    wanted: dict[int, dict[str, wire.FetchTopic]] = {}
    for (name, partition), offset in positions.items():
        try:
            topics = wanted.setdefault(client.leader(name, partition), {})
        except KafkaError as error:
            if not error.retriable:
                raise
            problems.append(error)
            continue
        if name not in topics:
            topics[name] = wire.FetchTopic(topic=name, topic_id=client.topic(name).topic_id)
        topics[name].partitions.append(
            wire.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=limits.partition_max_bytes
            )
        )
    posted = []
    for node, by_name in wanted.items():
        request = wire.FetchRequest(
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            isolation_level=isolation,
            topics=list(by_name.values()),
        )
        has_ids = all(topic.topic_id != NO_TOPIC_ID for topic in request.topics)
        try:
            posted.append(
                client.post(request, node=node, max_version=None if has_ids else LAST_VERSION_WITH_NAMES)
            )
        except ClientError as error:
            problems.append(error)
            for name in by_name:
                client.forget_topic(name)
    return FetchUnderWay(client, positions, limits, posted, problems)


class FetchUnderWay:
    """A fetch from all leaders whose responses are outstanding."""

    def __init__(
        self,
        client: Client,
        positions: Mapping[Partition, int],
        limits: FetchLimits,
        posted: list[Pending],
        problems: list[Exception],
    ) -> None:
        self.positions = positions
        self._client = client
        self._limits = limits
        self._posted = posted
        self._problems = problems

    def wait(self) -> list[tuple[Partition, wire.PartitionData]]:
        """Return the responses, as `fetch_batches` does."""
        found: list[tuple[Partition, wire.PartitionData]] = []
        for pending in self._posted:
            # A FetchRequest was posted here; `Pending` only knows the base class.
            names = {bytes(topic.topic_id): topic.topic for topic in pending.request.topics}  # type: ignore[attr-defined]
            try:
                response: wire.FetchResponse = pending.wait(
                    self._limits.max_wait_ms / 1000 + self._client.timeout_s
                )
            except ClientError as error:
                self._problems.append(error)
                for name in names.values():
                    self._client.forget_topic(name)
                continue
            if response.error_code:
                raise KafkaError(response.error_code, "The broker refused a fetch.")
            found += _take(response, names, self.positions)
        if self._problems and not found:
            raise self._problems[0]
        return found


def visible(
    partition: Partition,
    offset: int,
    data: Buffer,
    aborted: Iterable[wire.AbortedTransaction] | None,
    isolation: Isolation,
) -> tuple[deque[ConsumedRecord], int]:
    """Return the records that a reader at `offset` may see, and the offset where it continues."""
    topic, number = partition
    records: deque[ConsumedRecord] = deque()
    next_offset = offset
    for at, header, is_shown in shown(data, aborted, isolation):
        if is_shown and header.last_offset >= offset:
            records.extend(
                ConsumedRecord(topic, number, *record)
                for record in iter_records(data, at)
                if record.offset >= offset
            )
        next_offset = max(next_offset, header.last_offset + 1)
    return records, next_offset


def shown(
    data: Buffer, aborted: Iterable[wire.AbortedTransaction] | None, isolation: Isolation
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Return every whole batch: its position, its header, and whether a reader may see its records."""
    skip = _AbortedRanges(aborted or ()) if isolation is Isolation.READ_COMMITTED else None
    for at, header in iter_batches(data):
        hidden = skip is not None and skip.hides(header, data, at)
        yield at, header, not hidden and not header.is_control


class _AbortedRanges:
    """Determines, for one batch after another, whether it belongs to an aborted transaction."""

    def __init__(self, aborted: Iterable[wire.AbortedTransaction]) -> None:
        # Brokers list them in the order of their ends; `hides` needs them in the order of their starts.
        self._to_come = [(transaction.first_offset, transaction.producer_id) for transaction in aborted]
        heapq.heapify(self._to_come)
        self._producers: set[int] = set()

    def hides(self, header: BatchHeader, data: Buffer, at: int) -> bool:
        """Whether the next batch of the log must be hidden."""
        while self._to_come and self._to_come[0][0] <= header.last_offset:
            self._producers.add(heapq.heappop(self._to_come)[1])
        if header.is_control:
            marker = read_marker(data, at)
            if marker is not None and not marker.commit:
                self._producers.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._producers


def _take(
    response: wire.FetchResponse, names: Mapping[bytes, str], positions: Mapping[Partition, int]
) -> list[tuple[Partition, wire.PartitionData]]:
    found = []
    for topic in response.responses:
        name = topic.topic or names.get(bytes(topic.topic_id), "")
        for data in topic.partitions:
            key = (name, data.partition_index)
            if key not in positions:
                raise ProtocolError(
                    f"the response has {name}/{data.partition_index}, which was not requested"
                )
            found.append((key, data))
    return found


def _open(key: Partition, offset: int, data: wire.PartitionData, isolation: Isolation) -> Fetched:
    if data.error_code:
        error = KafkaError(data.error_code).code
        return Fetched(key, offset, deque(), offset, data.high_watermark, error)
    records, next_offset = visible(key, offset, data.records or b"", data.aborted_transactions, isolation)
    return Fetched(key, offset, records, next_offset, data.high_watermark)
