"""`Producer`: writes records, each exactly once and in order within its partition.

    with Client("127.0.0.1:9092") as client, Producer(client) as producer:
        delivery = producer.send("orders", b"three apples", key=b"customer-7")
        producer.flush()
        print(delivery.result().offset)

There is no thread. Records are collected in batches; a batch is sent, in the caller's thread, when it is
full, when a later `send` finds that it is older than `linger_s`, and at `flush`, `close` and
`Delivery.result`. So call `flush` before waiting for something else.

An idempotent producer (the default) numbers its batches. It repeats a batch whose answer was lost with the
same sequence numbers, so that the broker writes it once. If a batch is refused for good, its deliveries fail,
`flush` raises the error, and the producer continues with a new producer id, because the sequence of the old
one has a gap.

`batches` queues the records and builds the batches. `TransactionWriter` is the producer inside a
`TransactionalProducer`.
"""

import random
import time
from collections.abc import Sequence
from typing import Self

from semel.client import errors
from semel.client.consume.offsets import Partition
from semel.client.net.cluster import UNKNOWN_TOPIC_WAIT_S, Client
from semel.client.net.connection import Connection, Pending
from semel.client.net.retry import BackOff, retrying
from semel.client.produce import batches
from semel.client.produce.transaction_coordinator import FIRST_PRODUCE, NOBODY_YET, Coordinator
from semel.wire import messages as wire
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.columns import Packed
from semel.wire.compression import Codec
from semel.wire.errors import ErrorCode
from semel.wire.partitioner import partition_for

ALL = -1
PACKED_BYTES = 1 << 20  # of queued batches, from which `send_packed` waits for the round in flight
NO_TOPIC_ID = bytes(16)
LAST_VERSION_WITH_NAMES = 12


class Producer:
    """Writes records through a client, which it does not close."""

    def __init__(
        self,
        client: Client,
        *,
        idempotent: bool = True,
        codec: Codec = Codec.NONE,
        acks: int = ALL,
        linger_s: float = 0.05,
        batch_bytes: int = 256 << 10,
        buffer_bytes: int = 32 << 20,
        delivery_timeout_s: float = 60.0,
    ) -> None:
        if acks not in (-1, 0, 1):
            raise ValueError(f"acks must be -1 (all), 0 or 1, not {acks}")
        if idempotent and acks != ALL:
            raise ValueError("an idempotent producer needs acks=-1; set idempotent=False for acks 0 or 1")
        self._client = client
        self._idempotent = idempotent
        self._codec = codec
        self._acks = acks
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._identity: ProducerIdAndEpoch | None = None if idempotent else ProducerIdAndEpoch()
        self._transactional_id: str | None = None
        self._outgoing: dict[Partition, batches.Outgoing] = {}
        self._sticky: dict[str, int] = {}
        self._buffered_bytes = 0
        self._in_flight: batches.Round | None = None
        self._failure: Exception | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        errors.close_after(error, self.close)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: batches.Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> batches.Delivery:
        """Add a record to a batch. Without a partition the key selects it, as in every Kafka client.

        Raises at once if there is no such topic or partition. Later errors are in the `Delivery`.
        """
        if self._is_closed:
            raise errors.ClientError("the producer is closed.")
        timestamp = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        record = batches.record_of(timestamp, key, value, headers)
        chosen = self._choose(topic, key, partition)
        delivery = batches.Delivery(self, topic, chosen, timestamp)
        queue = self._queue((topic, chosen))
        size_bytes = batches.size_of(record)
        self._buffered_bytes += size_bytes
        is_full = queue.add(record, delivery, size_bytes)
        if is_full:
            self._sticky.pop(topic, None)
        if self._buffered_bytes >= self._buffer_bytes:
            self._drain(everything=True)
        elif is_full or self._lingered(queue):
            self._drain(everything=False)
        return delivery

    def send_packed(self, topic: str, partition: int, packed: Packed) -> batches.Delivery:
        """Send packed records as one batch; see `wire.columns`.

        The batch is sent at once, without waiting for the answer, if no round is in flight; otherwise it is
        queued, see `PACKED_BYTES`. The `Delivery` says where the first record was written.
        """
        if self._is_closed:
            raise errors.ClientError("the producer is closed.")
        delivery = batches.Delivery(self, topic, partition, packed.max_timestamp)
        self._queue((topic, partition)).add_packed(packed, delivery)
        self._buffered_bytes += len(packed.payload)
        if self._in_flight is None or self._buffered_bytes - self._in_flight.size_bytes >= PACKED_BYTES:
            self._go_on()
        return delivery

    def flush(self) -> None:
        """Send everything and wait for the answers. Raises the first failure since the last flush."""
        self._drain(everything=True)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, and accept no more records. May be called again."""
        if not self._is_closed:
            self._is_closed = True
            self.flush()

    def _settle(self, delivery: batches.Delivery) -> None:
        self._drain(everything=True)
        # `result` raises it for the caller; `flush` need not raise it again.
        if delivery.error is self._failure:
            self._failure = None

    def _choose(self, topic: str, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            self._client.topic_with(topic, partition, create=True)
            return partition
        count = len(self._client.topic(topic, create=True, wait_s=UNKNOWN_TOPIC_WAIT_S).partitions)
        by_key = partition_for(key, count)
        if by_key is not None:
            return by_key
        # Records without a key stick to a partition until its batch is full, and then move on.
        sticky = self._sticky.get(topic)
        if sticky is None or sticky >= count:
            sticky = self._sticky[topic] = random.randrange(count)
        return sticky

    def _queue(self, key: Partition) -> batches.Outgoing:
        queue = self._outgoing.get(key)
        if queue is None:
            queue = self._outgoing[key] = batches.Outgoing(key, self._batch_bytes)
        return queue

    def _lingered(self, queue: batches.Outgoing) -> bool:
        oldest_at = queue.oldest_at
        return oldest_at is not None and time.monotonic() - oldest_at >= self._linger_s

    # ---- sending

    def _drain(self, *, everything: bool) -> None:
        """Send batches until none waits; with `everything`, also those that are not full."""
        self._finish_last()
        now = time.monotonic()
        for queue in self._outgoing.values():
            oldest_at = queue.oldest_at
            if oldest_at is not None and (everything or now - oldest_at >= self._linger_s):
                queue.close_open()
        pauses = BackOff()
        while ready := [queue for queue in self._outgoing.values() if queue.is_ready]:
            if self._finish(self._begin(ready)):
                pauses = BackOff()
            else:
                time.sleep(pauses.next_s())

    def _begin(self, ready: Sequence[batches.Outgoing]) -> batches.Round:
        """Send the head of each queue, to all brokers in parallel, without waiting for the answers."""
        identity = self._identify(ready)
        if identity is None:
            return batches.Round()
        heads: dict[Partition, tuple[batches.Outgoing, batches.Batch]] = {}
        for queue in ready:
            batch = queue.head(
                identity,
                codec=self._codec,
                timeout_s=self._delivery_timeout_s,
                transactional=self._transactional_id is not None,
            )
            heads[queue.partition] = (queue, batch)
        sent = batches.Round(heads)
        for node, keys in self._by_leader(heads).items():
            for part in batches.portions(keys, heads):
                try:
                    sent.posted.append((part, self._post(node, part, heads)))
                except (errors.KafkaError, errors.ClientError, errors.ProtocolError) as error:
                    sent.is_sent = self._lost(part, heads, error)
        return sent

    def _finish(self, sent: batches.Round) -> bool:
        """Wait for the answers; return whether no batch has to be sent again."""
        settled = sent.is_sent
        for part, pending in sent.posted:
            try:
                self._take(part, sent.heads, pending)
            except (errors.ClientError, errors.ProtocolError) as error:
                settled &= self._lost(part, sent.heads, error)
        return settled and sent.is_answered

    def _finish_last(self) -> bool:
        """Finish the round that `send_packed` has in flight; return whether no batch has to be sent again."""
        last, self._in_flight = self._in_flight, None
        return last is None or self._finish(last)

    def _go_on(self) -> None:
        """Finish the round in flight, and send the queued batches without waiting for their answers."""
        if not self._finish_last():
            self._drain(everything=False)
        if ready := [queue for queue in self._outgoing.values() if queue.is_ready]:
            self._in_flight = self._begin(ready)

    def _identify(self, ready: Sequence[batches.Outgoing]) -> ProducerIdAndEpoch | None:
        if self._identity is None:
            try:
                self._identity = retrying(self._init_producer_id, self._client.patience_s)
            except (errors.KafkaError, errors.ClientError) as error:
                # Without a producer id nothing can be sent.
                for queue in ready:
                    self._buffered_bytes -= queue.drop(error)
                self._failure = self._failure or error
        return self._identity

    def _init_producer_id(self) -> ProducerIdAndEpoch:
        request = wire.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response: wire.InitProducerIdResponse = self._client.send(request)
        errors.check(response.error_code, "no producer id was allocated")
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    def _by_leader(self, heads: batches.Heads) -> dict[int, list[Partition]]:
        grouped: dict[int, list[Partition]] = {}
        for key in heads:
            try:
                grouped.setdefault(self._client.leader(*key), []).append(key)
            except (errors.KafkaError, errors.ClientError) as error:
                self._retry_or_fail(key, heads, error)
        return grouped

    def _post(self, node: int, keys: Sequence[Partition], heads: batches.Heads) -> Pending | None:
        topics: dict[str, wire.TopicProduceData] = {}
        for name, partition in keys:
            topic_id = self._client.topic(name).topic_id
            topic = topics.setdefault(name, wire.TopicProduceData(name=name, topic_id=topic_id))
            data = heads[name, partition][1].data
            topic.partition_data.append(wire.PartitionProduceData(index=partition, records=data))
        request = wire.ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=int(self._client.timeout_s * 1000),
            topic_data=list(topics.values()),
        )
        has_ids = all(topic.topic_id != NO_TOPIC_ID for topic in topics.values())
        connection = self._client.connection(node)
        version = self._version(connection, None if has_ids else LAST_VERSION_WITH_NAMES)
        if self._acks == 0:
            connection.post_unanswered(request, version)
            return None
        return connection.post(request, version)

    def _version(self, connection: Connection, at_most: int | None) -> int:
        """Return the version of Produce for this broker."""
        return connection.version_of(wire.ProduceRequest.api_key, at_most)

    def _take(
        self,
        keys: Sequence[Partition],
        heads: batches.Heads,
        pending: Pending | None,
    ) -> None:
        if pending is None:
            for key in keys:
                self._succeed(key, heads, wire.PartitionProduceResponse(base_offset=-1))
            return
        response: wire.ProduceResponse = pending.wait()
        # Topics are identified by name or, from version 13 on, by id: the request maps ids to names.
        request: wire.ProduceRequest = pending.request  # type: ignore[assignment]
        names = {bytes(topic.topic_id): topic.name for topic in request.topic_data}
        answered: set[Partition] = set()
        for topic in response.responses:
            name = topic.name or names.get(bytes(topic.topic_id), "")
            for answer in topic.partition_responses:
                key = (name, answer.index)
                if key not in heads or key in answered:
                    raise errors.ProtocolError(
                        f"the response has an answer for {name}/{answer.index}, to which nothing was sent"
                    )
                answered.add(key)
                self._settle_answer(key, heads, answer)
        if missing := set(keys) - answered:
            raise errors.ProtocolError(f"the response has no answer for {missing}")

    def _settle_answer(
        self,
        key: Partition,
        heads: batches.Heads,
        answer: wire.PartitionProduceResponse,
    ) -> None:
        if answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._succeed(key, heads, answer)
            return
        try:
            errors.check(
                answer.error_code, f"a batch for {key[0]}/{key[1]} was refused", answer.error_message
            )
        except errors.KafkaError as error:
            self._retry_or_fail(key, heads, error)

    def _succeed(
        self,
        key: Partition,
        heads: batches.Heads,
        answer: wire.PartitionProduceResponse,
    ) -> None:
        queue, batch = heads[key]
        batch.succeed(answer.base_offset, answer.log_append_time_ms)
        queue.settle_head()
        self._buffered_bytes -= batch.size_bytes

    def _lost(self, keys: Sequence[Partition], heads: batches.Heads, error: Exception) -> bool:
        for key in keys:
            if not heads[key][1].deliveries[0].done:
                self._retry_or_fail(key, heads, error)
        return False

    def _retry_or_fail(self, key: Partition, heads: batches.Heads, error: Exception) -> None:
        queue, batch = heads[key]
        self._client.forget_topic(key[0])
        batch.error = error
        if errors.is_retriable(error) and time.monotonic() < batch.deadline:
            return
        batch.fail(error)
        queue.settle_head()
        self._buffered_bytes -= batch.size_bytes
        self._failure = self._failure or error
        if self._idempotent and batch.identity == self._identity:
            self._identity = None


class TransactionWriter(Producer):
    """Writes the records of successive transactions, with a producer id and epoch that it is given.

    In version 1 a partition is added to the transaction before its first batch; the version of Produce
    selects the transaction version. A refused batch fails the whole transaction, so nothing more is sent.
    """

    def __init__(
        self,
        client: Client,
        coordinator: Coordinator,
        *,
        codec: Codec,
        linger_s: float,
        batch_bytes: int,
        buffer_bytes: int,
        timeout_s: float,
    ) -> None:
        super().__init__(
            client,
            codec=codec,
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            delivery_timeout_s=timeout_s,
        )
        self._coordinator = coordinator
        self._transactional_id = coordinator.transactional_id
        self._given = NOBODY_YET
        self._transaction_version = 2
        self._added: set[Partition] = set()
        self.has_written = False  # or has tried to: the coordinator may know of the transaction

    @property
    def failure(self) -> Exception | None:
        """The first error in this transaction."""
        return self._failure

    def start(self, identity: ProducerIdAndEpoch, version: int) -> None:
        """Start another transaction, in this version."""
        self._given, self._transaction_version = identity, version
        self._added.clear()
        self._failure = None
        self.has_written = False

    def drop(self, error: Exception) -> None:
        """Drop what was not sent. Wait for requests in flight first: their batches may be written already."""
        self._finish_last()
        for queue in self._outgoing.values():
            self._buffered_bytes -= queue.drop(error)

    def send_all(self) -> None:
        """Send everything and wait for the answers. An error is kept in `failure`."""
        if self._failure is None:
            self._drain(everything=True)

    def _settle(self, delivery: batches.Delivery) -> None:
        self.send_all()

    def _begin(self, ready: Sequence[batches.Outgoing]) -> batches.Round:
        self.has_written = True
        return super()._begin(ready)

    def _finish(self, sent: batches.Round) -> bool:
        is_settled = super()._finish(sent)
        if self._failure is None:
            return is_settled
        self.drop(self._failure)
        return True

    def _identify(self, ready: Sequence[batches.Outgoing]) -> ProducerIdAndEpoch | None:
        self._identity = self._given
        fresh = [queue.partition for queue in ready if queue.partition not in self._added]
        if self._transaction_version >= 2 or not fresh:
            return self._given
        try:
            self._coordinator.add_partitions(self._given, fresh)
        except (errors.KafkaError, errors.ClientError) as error:
            self._failure = error
            return None
        self._added.update(fresh)
        return self._given

    def _version(self, connection: Connection, at_most: int | None) -> int:
        if self._transaction_version < 2:
            return super()._version(connection, FIRST_PRODUCE - 1)
        version = super()._version(connection, at_most)
        if version < FIRST_PRODUCE:
            raise errors.UnsupportedRequest(
                f"{connection.host}:{connection.port} does not support transaction version 2, which is used. "
                "All brokers of a cluster should run the same release."
            )
        return version
