"""Transactional producers of several libraries behind one interface, each used as its documentation says.

The library says what to do after an error, and `Then` expresses it. Nothing is guessed: an error that a
library does not explain ends the instance, and the next instance takes over the transactional id.
"""

import asyncio
import enum
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from semel.client import (
    Client,
    ClientError,
    MustAbort,
    OutcomeUnknown,
    Partition,
    TransactionAborted,
    TransactionalProducer,
)
from semel.client import KafkaError as OwnError
from semel.wire.errors import ErrorCode
from support.clients.raw_transactions import RawProducer
from support.clients.stubborn import StubbornClient

T = TypeVar("T")
# aiokafka logs every connection that it loses, and here it loses many.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
CALL_SECONDS = 20.0
"""The limit of one call; after that another instance takes over."""


class Then(enum.Enum):
    """What an error requires."""

    AGAIN = enum.auto()
    """Repeat the call."""
    ABORT = enum.auto()
    NOTHING = enum.auto()
    """The transaction is already aborted."""
    REPLACE = enum.auto()
    """Start another instance."""


class Sent(NamedTuple):
    """One record of a transaction."""

    topic: str
    partition: int
    value: str
    key: str | None = None

    @property
    def key_bytes(self) -> bytes | None:
        return None if self.key is None else self.key.encode()


class Writing(Protocol):
    """One instance of a transactional producer."""

    errors: tuple[type[Exception], ...]
    """The exceptions that its calls may raise."""

    def open(self) -> tuple[int, int]:
        """Take the transactional id; return producer id and epoch if the library reports them."""

    def begin(self) -> None: ...

    def write(self, records: Sequence[Sent]) -> list[int]:
        """Send, wait for all, and return their offsets, negative where they have none."""

    def send_offsets(self, positions: Mapping[Partition, int], group: Any) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def after(self, error: Exception) -> Then: ...

    def close(self) -> None:
        """Release everything without another request to the broker, as far as the library can."""


class Own:
    """Semel's own client, in either version of the protocol."""

    errors = (OwnError, ClientError)

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, version: int = 2) -> None:
        self._client = Client(bootstrap, timeout_s=CALL_SECONDS)
        self._producer = TransactionalProducer(
            self._client,
            transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_s=0.001,
            timeout_s=CALL_SECONDS,
            version_max=version,
        )

    def open(self) -> tuple[int, int]:
        self._producer.init()
        return tuple(self._producer.identity)  # type: ignore[return-value]

    def begin(self) -> None:
        self._producer.begin()

    def write(self, records: Sequence[Sent]) -> list[int]:
        deliveries = [
            self._producer.send(each.topic, each.value.encode(), key=each.key_bytes, partition=each.partition)
            for each in records
        ]
        self._producer.flush()
        return [each.result().offset for each in deliveries]

    def send_offsets(self, positions: Mapping[Partition, int], group: Any) -> None:
        self._producer.send_offsets(positions, group)

    def commit(self) -> None:
        self._producer.commit()

    def abort(self) -> None:
        self._producer.abort()

    def after(self, error: Exception) -> Then:
        if isinstance(error, OutcomeUnknown):
            return Then.AGAIN
        if isinstance(error, TransactionAborted):
            return Then.NOTHING
        return Then.ABORT if isinstance(error, MustAbort) else Then.REPLACE

    def close(self) -> None:
        self._client.close()


class Librdkafka:
    """confluent-kafka."""

    # A fatal error is raised inside `flush`. If a delivery is reported at the same time, Python can only
    # raise SystemError.
    errors = (KafkaException, BufferError, SystemError)

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._failed: list[KafkaError] = []
        self._producer = LibrdkafkaProducer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, int(CALL_SECONDS * 1000)),
                "socket.timeout.ms": min(timeout_ms, 10_000),
                "linger.ms": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                # With the default, librdkafka 2.16 may never return when its only broker has gone away.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )

    def open(self) -> tuple[int, int]:
        self._producer.init_transactions(CALL_SECONDS)
        return (-1, -1)

    def begin(self) -> None:
        self._failed.clear()
        self._producer.begin_transaction()

    def write(self, records: Sequence[Sent]) -> list[int]:
        offsets: dict[Sent, int] = {}
        for each in records:

            def delivered(error: KafkaError | None, message: Message, sent: Sent = each) -> None:
                if error is not None:
                    self._failed.append(error)
                else:
                    found = message.offset()
                    offsets[sent] = -1 if found is None else found

            self._producer.produce(
                each.topic, each.value, each.key, partition=each.partition, on_delivery=delivered
            )
        left = self._producer.flush(2 * CALL_SECONDS)
        if self._failed or left:
            raise KafkaException(
                self._failed[0] if self._failed else KafkaError(KafkaError._MSG_TIMED_OUT, "not flushed")
            )
        return [offsets[each] for each in records]

    def send_offsets(self, positions: Mapping[Partition, int], group: Any) -> None:
        wanted = [LibrdkafkaPartition(*key, offset) for key, offset in positions.items()]
        self._producer.send_offsets_to_transaction(wanted, group, CALL_SECONDS)

    def commit(self) -> None:
        self._producer.commit_transaction(CALL_SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(CALL_SECONDS)

    def after(self, error: Exception) -> Then:
        told = error.args[0] if error.args else None
        if not isinstance(told, KafkaError) or told.fatal():
            return Then.REPLACE
        if self._failed or told.txn_requires_abort():
            return Then.ABORT
        return Then.AGAIN if told.retriable() else Then.REPLACE

    def close(self) -> None:
        self._producer.purge()


class Aiokafka:
    """aiokafka, on its own event loop. It uses the oldest versions of all requests."""

    errors = (AiokafkaError, TimeoutError, OSError)

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._loop = asyncio.new_event_loop()
        # aiokafka leaves failed tasks that no caller awaits; errors of the awaited calls are raised.
        self._loop.set_exception_handler(lambda loop, context: None)

        async def made() -> AIOKafkaProducer:
            return AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                retry_backoff_ms=20,
                request_timeout_ms=10_000,
            )

        self._producer: AIOKafkaProducer = self._do(made())

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(call, CALL_SECONDS))

    def open(self) -> tuple[int, int]:
        self._do(self._producer.start())
        return (-1, -1)

    def begin(self) -> None:
        self._do(self._producer.begin_transaction())

    def write(self, records: Sequence[Sent]) -> list[int]:
        async def sending() -> list[int]:
            sent = [
                await self._producer.send(
                    each.topic, each.value.encode(), each.key_bytes, partition=each.partition
                )
                for each in records
            ]
            return [each.offset for each in await asyncio.gather(*sent)]

        return self._do(sending())

    def send_offsets(self, positions: Mapping[Partition, int], group: Any) -> None:
        wanted = {TopicPartition(*key): offset for key, offset in positions.items()}
        self._do(self._producer.send_offsets_to_transaction(wanted, group))

    def commit(self) -> None:
        self._do(self._producer.commit_transaction())

    def abort(self) -> None:
        self._do(self._producer.abort_transaction())

    def after(self, error: Exception) -> Then:
        """Never repeat a call: aiokafka does not say which calls may be, and abandons cancelled calls.

        A connection that is lost while it looks for the coordinator is fatal to it.
        """
        is_plain = isinstance(error, AiokafkaError) and type(error).__name__ != "ProducerFenced"
        is_fatal = self._producer._txn_manager.is_fatal_error()
        return Then.ABORT if is_plain and not is_fatal else Then.REPLACE

    def close(self) -> None:
        with suppress(*self.errors):
            self._do(self._producer.stop())
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class Raw:
    """Single requests without a library; a request is repeated on another connection when one breaks."""

    errors = (OwnError, AssertionError, OSError)

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, generation: int) -> None:
        self._client = StubbornClient(bootstrap)
        self._args = (transactional_id, generation, timeout_ms)

    def open(self) -> tuple[int, int]:
        self._producer = RawProducer(self._client, *self._args)
        return self._producer.pair

    def begin(self) -> None:
        """Do nothing: the transaction begins with the first write."""

    def write(self, records: Sequence[Sent]) -> list[int]:
        return [
            self._producer.write(each.topic, each.value.encode(), partition=each.partition)
            for each in records
        ]

    def send_offsets(self, positions: Mapping[Partition, int], group: Any) -> None:
        for (topic, partition), offset in positions.items():
            assert partition == 0, "it knows no other"
            self._producer.write_offset(group, topic, offset)

    def commit(self) -> None:
        self._end(commit=True)

    def abort(self) -> None:
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        answer = self._producer.end(commit=commit)
        if answer.error_code != ErrorCode.NONE:
            raise OwnError(answer.error_code, "the end was refused")
        if self._producer.generation == 2:
            self._producer.take(answer)

    def after(self, error: Exception) -> Then:
        return Then.REPLACE

    def close(self) -> None:
        self._client.close()


KINDS: dict[str, Any] = {
    "raw-1": partial(Raw, generation=1),
    "raw-2": partial(Raw, generation=2),
    "own": Own,
    "own-1": partial(Own, version=1),
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
}
"""By name, so that another process can be given the name."""
