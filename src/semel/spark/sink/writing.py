"""Writes Arrow batches as records; runs in Spark's executors.

Rows are packed by the columnar codec, one batch per partition at a time. A full batch goes to the producer at
once, which sends it while the next rows are packed. No row becomes a Python object.

`BrokerClock` refuses output that the broker would delete at once, because its clock is ahead of this
machine's. The sink gives a record the time at which it is written, by the clock of the executor. The broker
deletes it when that is `retention.ms` ago by its own clock. Kafka shows a client that clock in one place:
DescribeTransactions returns when a transaction began. So when the first records of a topic are on the broker,
and before anything is decided, a task asks for the start of its own transaction and compares it with the
current time of the local clock. If the broker is ahead by half of the retention or more, the batch is
refused.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from semel.client import (
    Admin,
    Client,
    Codec,
    ConfigValue,
    ErrorCode,
    KafkaError,
    TopicInfo,
    TransactionalProducer,
)
from semel.client.admin.transactions import NO_TIME, describe_transactions
from semel.client.consume.offsets import Partition
from semel.client.errors import check
from semel.client.net.cluster import UNKNOWN_TOPIC_WAIT_S
from semel.spark.columns import binary_of, numbers_of
from semel.spark.errors import OptionError, PipelineError
from semel.spark.partition_offsets import TopicIds, topic_ids
from semel.spark.sink.row_faults import TopicLimits, find_faults, incompressible
from semel.wire.batch import HEADER_BYTES
from semel.wire.columns import Binary, Packed, Packer, choose, pack_headers
from semel.wire.messages import DescribeTransactionsRequest
from semel.wire.schema import Buffer

T = TypeVar("T")

#: Smaller differences are ignored, whatever the retention is.
TOLERATED_MS = 1_000
#: How long a process relies on what it has asked the broker about a topic, or about its clock. Without this,
#: every task of a small batch would ask again.
KNOWN_S = 5.0


class BrokerClock:
    """Compares the clock of the broker with that of this process, by the transaction of a producer."""

    def __init__(self, client: Client, producer: TransactionalProducer) -> None:
        self._client = client
        self._producer = producer
        self._ahead_ms: int | None = None

    def check(self, topic: str, retention_ms: int) -> None:
        """PipelineError if the broker would delete what is written to this topic too early.

        The producer must have records to send, or have sent some.
        """
        if self._ahead_ms is None:
            self._ahead_ms = self._measured_ms()
        if self._ahead_ms >= max(TOLERATED_MS, retention_ms / 2):
            raise PipelineError(
                f"nothing was decided: topic {topic} keeps records for {retention_ms / 1000:.0f} s "
                f"(retention.ms={retention_ms}), and the clock of the broker, which deletes them, is ahead "
                f"of this one by {self._ahead_ms / 1000:.0f} s. What is written here would be deleted after "
                f"{max(0, retention_ms - self._ahead_ms) / 1000:.0f} s. Set the clocks of both machines; or "
                "set message.timestamp.type=LogAppendTime on the topic, so that the time of the broker counts"
            )

    def _measured_ms(self) -> int:
        return known(self._client, "clock ", self._ask_ms)

    def _ask_ms(self) -> int:
        """Return how far the start of the transaction is ahead: the broker is ahead by at least as much."""
        if not self._client.serves(DescribeTransactionsRequest.api_key):
            return 0
        self._producer.flush()
        now_ms = int(time.time() * 1000)
        name = self._producer.transactional_id
        mine = describe_transactions(self._client, [name]).get(name)
        return 0 if mine is None or mine.started_ms == NO_TIME else max(0, mine.started_ms - now_ms)


_answers: WeakKeyDictionary[Client, dict[str, tuple[float, Any]]] = WeakKeyDictionary()


def known(client: Client, name: str, ask: Callable[[], T]) -> T:
    """Return what the broker has answered to this question a moment ago, or does now."""
    answers = _answers.setdefault(client, {})
    now = time.monotonic()
    for old in [each for each, (at, _) in answers.items() if now - at >= KNOWN_S]:
        del answers[old]
    if name not in answers:
        answers[name] = (now, ask())
    found: T = answers[name][1]
    return found


def retention_ms(configs: Sequence[ConfigValue]) -> int | None:
    """Return how long the broker keeps records by their timestamp; None if that does not matter."""
    values = {each.name: each.value or "" for each in configs}
    if values.get("message.timestamp.type") == "LogAppendTime":
        return None
    if "delete" not in values.get("cleanup.policy", "delete") or not values.get("retention.ms"):
        return None
    found = int(values["retention.ms"])
    return None if found < 0 else found


#: Half of what topics accept by default. Topics that accept less get smaller batches.
BATCH_BYTES = 512 << 10
#: The limit for incomplete batches, of all partitions together.
WAITING_BYTES_MAX = 32 << 20
#: How many topics that do not exist are remembered. Each has cost a request.
UNKNOWN_MAX = 10_000
_NO_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION})


class PackedProducer(Protocol):
    """Accepts batches: `Producer` and `TransactionalProducer`."""

    def send_packed(self, topic: str, partition: int, packed: Packed) -> Any:
        """Send a batch."""


class RowWriter:
    """Writes the rows of one task, to a given topic or to that of each row."""

    def __init__(
        self,
        client: Client,
        producer: PackedProducer,
        topic: str | None,
        clock: BrokerClock | None = None,
        codec: Codec = Codec.NONE,
    ) -> None:
        self._client = client
        self._producer = producer
        self._topic = topic
        self._clock = clock
        self._codec = codec
        self._packers: dict[str, _Topic] = {}
        #: The rows written to each topic.
        self.counts: Counter[str] = Counter()
        self._unknown: set[str] = set()
        #: A partition that was written to; None before the first row.
        self.where: Partition | None = None

    @property
    def outputs(self) -> TopicIds:
        """The ids of the topics that were written to."""
        return topic_ids(each.info for each in self._packers.values())

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows; send full batches."""
        if self._topic is not None:
            self._write_to(self._topic, rows)
        else:
            topics = rows.column("topic")
            if topics.null_count:
                raise OptionError("a row has no topic: its column is null, and there is no option topic")
            for topic in pc.unique(topics).to_pylist():
                self._write_to(topic, rows.filter(pc.equal(topics, topic)))
        if sum(each.packer.size_bytes for each in self._packers.values()) > WAITING_BYTES_MAX:
            self.finish()

    def faults(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Return the rows that cannot become records, by their place, with the reason."""
        if self._topic is not None:
            return find_faults(rows, self.limits(self._topic), self._codec)
        topics = rows.column("topic")
        found: dict[int, str] = {}
        for topic in pc.unique(topics).to_pylist():
            places = pc.indices_nonzero(pc.is_null(topics) if topic is None else pc.equal(topics, topic))
            if topic is None:
                found |= dict.fromkeys(places.to_pylist(), "the row has no topic: its column is null")
            elif not self._exists(topic):
                found |= dict.fromkeys(places.to_pylist(), f"there is no topic {topic!r}")
            else:
                wrong = find_faults(rows.take(places), self.limits(topic), self._codec)
                found |= {places[at].as_py(): reason for at, reason in wrong.items()}
        return found

    def limits(self, topic: str) -> TopicLimits:
        """Return what a topic takes."""
        return self._known(topic).limits

    def _exists(self, topic: str) -> bool:
        """Whether a topic that a row names exists, or could be created."""
        if topic in self._unknown:
            return False
        try:
            # The first may have been created just now. The others are looked up without waiting.
            self._known(topic, 0.0 if self._unknown else UNKNOWN_TOPIC_WAIT_S)
        except KafkaError as error:
            if error.code not in _NO_TOPIC:
                raise
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown.add(topic)
            return False
        return True

    def _known(self, name: str, wait_s: float = UNKNOWN_TOPIC_WAIT_S) -> "_Topic":
        if name not in self._packers:
            self._packers[name] = _Topic(self._client, name, wait_s, self._codec)
        return self._packers[name]

    def finish(self) -> None:
        """Send the incomplete batches too."""
        for name, topic in self._packers.items():
            for partition in range(topic.partitions):
                self._send(name, partition, topic.packer.take(partition))

    def _write_to(self, name: str, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        topic = self._known(name)
        self.counts[name] += rows.num_rows
        columns = {column: rows.column(column) for column in rows.schema.names}
        keys = binary_of(columns["key"]) if "key" in columns else None
        values = binary_of(columns["value"])
        headers = _packed_headers(columns["headers"]) if "headers" in columns else None
        chosen = topic.choose(rows.num_rows, keys, columns.get("partition"))
        if self.where is None:
            self.where = (name, int.from_bytes(chosen[:4], sys.byteorder))
        now, at = int(time.time() * 1000), 0
        while at < rows.num_rows:
            at = topic.packer.add(at, rows.num_rows, chosen, keys, values, headers, now)
            if topic.packer.full is not None:
                self._send(name, topic.packer.full, topic.packer.take(topic.packer.full))

    def _send(self, name: str, partition: int, packed: Packed | None) -> None:
        if packed is None:
            return
        self._producer.send_packed(name, partition, packed)
        topic = self._packers[name]
        if self._clock is not None and topic.unchecked_retention_ms is not None:
            self._clock.check(name, topic.unchecked_retention_ms)
            topic.unchecked_retention_ms = None


class _Topic:
    """An output topic: its number of partitions, and the incomplete batch of each."""

    def __init__(self, client: Client, name: str, wait_s: float, codec: Codec) -> None:
        self._name = name
        self.info, configs = known(client, name, lambda: _ask(client, name, wait_s))
        self.partitions = len(self.info.partitions)
        self.limits = TopicLimits.of(name, self.partitions, configs)
        self.packer = Packer(self.partitions, _records_bytes(self.limits.batch_bytes_max, codec))
        self.unchecked_retention_ms = retention_ms(configs)

    def choose(self, rows: int, keys: Binary | None, given: pa.Array | None) -> Buffer:
        """Choose the partition of each row: the given one, else that of its key, else any."""
        if given is not None and given.null_count < rows:
            bounds = pc.min_max(given).as_py()
            wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
            if not 0 <= wrong < self.partitions:
                message = f"topic {self._name!r} has no partition {wrong}, only 0 to {self.partitions - 1}"
                check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        numbers = None if given is None else numbers_of(given)
        # Rows without a key stay together, in a random partition for every Arrow batch.
        return choose(rows, self.partitions, keys, numbers, random.randrange(self.partitions))


def _ask(client: Client, name: str, wait_s: float) -> tuple[TopicInfo, list[ConfigValue]]:
    """Ask for a topic and its configs: it may have more partitions by now, or have been created again."""
    return client.topic(name, create=True, wait_s=wait_s, anew=True), topic_configs(client, name)


def topic_configs(client: Client, topic: str) -> list[ConfigValue]:
    """Return the configs of a topic; none without the permission to describe it."""
    try:
        return Admin(client).configs.of_topic(topic)
    except KafkaError as error:
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return []  # permission to write does not imply permission to describe
        raise


def _records_bytes(limit: int | None, codec: Codec) -> int:
    """Return the size at which a batch is full, for a topic that takes batches of `limit` bytes."""
    if limit is None:
        return BATCH_BYTES
    packed = limit if codec is Codec.NONE else incompressible(limit)
    return max(1, min(BATCH_BYTES, packed - HEADER_BYTES))


def _packed_headers(column: pa.Array) -> list[bytes | None] | None:
    if column.null_count == len(column):
        return None
    return [_packed(headers) if headers else None for headers in column.to_pylist()]


def _packed(headers: list[Any]) -> bytes:
    if any(header is None or header["key"] is None for header in headers):
        raise OptionError(
            "a row has a header without a key; every header has one, and only its value may be null"
        )
    return pack_headers((header["key"], header["value"]) for header in headers)
