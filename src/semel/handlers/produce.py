"""Produce: check batches, one ``Append`` per partition, offsets back.

This is the hot path of the broker, so it needs no task: ``produce`` checks the batches, submits the commands
and returns a promise of the response. If a topic is not in memory, or if there is so much to validate that it
must be done on a thread, the promise has work to be awaited first (``Promise.first``). The connection awaits
it before it starts another request, so batches keep their order.
"""

from collections.abc import Coroutine, Iterator
from typing import Any, Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.pending_commands import Answers
from semel.broker.promise import Promise
from semel.broker.topic_limits import TopicLimits
from semel.core.partition import Append, Appended, TransactionContext
from semel.core.types import ErrorCode, Topic
from semel.handlers.context import CloseConnection, Handler, RequestContext
from semel.handlers.transaction_errors import PRODUCE, told
from semel.wire.batch import CODEC_MASK, is_transactional
from semel.wire.errors import InvalidRecords
from semel.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from semel.wire.records import BatchHeader, check_produced, with_log_append_time
from semel.wire.schema import Buffer
from semel.wire.validating import (
    IS_COMPILED,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    validate,
    with_max_timestamp,
)


class Refusal(NamedTuple):
    """Why a batch is not appended: the code, words for people, and which of its records is at fault."""

    error: ErrorCode
    message: str | None = None
    record: int = -1


SECOND_GENERATION: Final = 12
"""The version of Produce from which a transactional batch adds its partition to the transaction (KIP-890)."""

UNAUTHORIZED: Final = Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
SEVERAL_PRODUCERS: Final = Refusal(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional records of more than one producer"
)
EFFORT_MAX: Final = 16_384 if IS_COMPILED else 1_024
"""Records that are validated on the event loop, per request: up to two milliseconds. A thread does more."""
SMALL_BATCH_BYTES: Final = 8_192
SMALL_CONTENT_BYTES: Final = 65_536
"""A compressed batch is opened on the event loop if it is small, and only if its content is."""
SMALL_BATCH_EFFORT: Final = 1_024
"""What opening one counts for, in records."""
FULL: Final = Appended(ErrorCode.KAFKA_STORAGE_ERROR)
FULL_MESSAGE: Final = "the broker's disk is full; records are refused until there is room"


def produce(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> Promise[ProduceResponse | None]:
    """Produce v3–v13: append one batch to each partition.

    Behaviour: acks 1 and -1 are answered when the batches are durable, in a transaction when its end will
        make them so (semel.durability); acks 0 is not answered, and an error closes the connection. The
        partitions of one request become durable together. Transactional batches must belong to the open
        transaction.
    Versions:  v5 log start offset · v7 zstd · v8 error messages · v9 flexible · v11 TRANSACTION_ABORTABLE,
        before that INVALID_TXN_STATE · v12 a transactional batch adds its partition · v13 topic ids.
    Differs:   topics with journal visibility answer a transactional batch with base offset -1. Batches are
        opened unless semel.validate.records says otherwise; the first record that is wrong is named, where
        Kafka names all that have the same fault. What is not one batch, or damaged inside, is INVALID_RECORD,
        also where Kafka says UNKNOWN_SERVER_ERROR, or CORRUPT_MESSAGE and the client would try again in vain.
        The bit for the broker's time is INVALID_TIMESTAMP on every topic. A refused batch has log start
        offset -1. A partition that is named twice gets both batches.
    """
    topics = [_cached(broker, each, context.version) for each in request.topic_data]
    production = _Produce(broker, request, context)
    promise = production.promise
    promise.first = production.find_topics(topics) if None in topics else production.start(topics)
    return promise


def _cached(broker: Broker, data: TopicProduceData, version: int) -> Topic | None:
    if version >= 13:
        return broker.catalog.cached_by_id(data.topic_id)
    return broker.catalog.cached(data.name)


class _TakesLong(Exception):
    """There is more to validate than the event loop has time for."""


class _Produce:
    """One request on its way: which partitions were refused at once, which wait for the commit."""

    __slots__ = (
        "_broker",
        "_commands",
        "_context",
        "_effort",
        "_refused",
        "_request",
        "_unstamped",
        "promise",
    )

    def __init__(self, broker: Broker, request: ProduceRequest, context: RequestContext) -> None:
        self.promise: Promise[ProduceResponse | None] = Promise()
        self._broker = broker
        self._request = request
        self._context = context
        self._commands: list[Append] = []
        # One for each partition, in the order of the request; None for those that wait for the commit.
        self._refused: list[Refusal | None] = []
        # Which of the commands get the broker's time.
        self._unstamped: list[int] = []
        # How many records may still be validated here; None on a thread, which has the time.
        self._effort: int | None = EFFORT_MAX

    async def find_topics(self, topics: list[Topic | None]) -> None:
        """Ask for the topics that are not in memory, and start.

        They are kept here until all are found: the catalog may have forgotten the first when the last comes.
        """
        catalog = self._broker.catalog
        for at, each in enumerate(self._request.topic_data):
            if topics[at] is not None:
                continue
            if self._context.version >= 13:
                topics[at] = await catalog.topic_by_id(each.topic_id)
            else:
                topics[at] = await catalog.topic(each.name)
        first = self.start(topics)
        if first is not None:
            await first

    def start(self, topics: list[Topic | None]) -> Coroutine[Any, Any, None] | None:
        """Check what can be checked without the log and submit the rest, now or when a thread has checked."""
        catalog = self._broker.catalog
        limits = [None if topic is None else catalog.limits(topic) for topic in topics]
        now = self._broker.time_of_day()
        try:
            self._prepare_all(limits, now)
        except _TakesLong:
            return self._start_beside(limits, now)
        self._submit()
        return None

    async def _start_beside(self, limits: list[TopicLimits | None], now: int) -> None:
        self._effort = None
        await self._broker.beside(lambda: self._prepare_all(limits, now))
        self._submit()

    def _prepare_all(self, limits: list[TopicLimits | None], now: int) -> None:
        self._commands.clear()
        self._refused.clear()
        self._unstamped.clear()
        for data, of_topic in zip(self._request.topic_data, limits, strict=True):
            transaction_context = None if of_topic is None else self._transaction_context(of_topic)
            for part in data.partition_data:
                self._refused.append(
                    self._prepare(of_topic, part.index, part.records, transaction_context, now)
                )

    def _submit(self) -> None:
        nothing = self._refuses_all()
        if nothing is not None:
            self._commands.clear()
            self._refused = [nothing] * len(self._refused)
        if self._commands:
            if self._unstamped:
                self._stamp(self._broker.time_of_day())
            if len(self._commands) > 1 and self._request.transactional_id is not None:
                self._join_together()
            self._broker.submit(self._commands).then(self._decided)
        else:
            self._decided([])

    def _stamp(self, now: int) -> None:
        """Set the broker's time, in the turn in which the batches are submitted: it ascends with offsets."""
        for at in self._unstamped:
            command = self._commands[at]
            records = with_log_append_time(command.records, now)
            self._commands[at] = command.but(records=records, log_append_time=now)

    def _join_together(self) -> None:
        """The first batch brings the partitions of all into the transaction, which then grows only once."""
        first = self._commands[0]
        contexts = [each.transaction_context for each in self._commands]
        if first.transaction_context is None or first.transaction_context.version == 1:
            return
        if all(each is not None and each.block_max_ms < 0 for each in contexts):
            also = tuple(each.partition for each in self._commands[1:])
            self._commands[0] = first.but(transaction_context=first.transaction_context.but(also=also))

    def _refuses_all(self) -> Refusal | None:
        """Why nothing of the request is taken, although one batch alone may be at fault."""
        if self._request.transactional_id is None:
            # Refused batches are looked at too: in Kafka this comes before all that can be wrong with them.
            return UNAUTHORIZED if any(self._refused) and self._has_transactional() else None
        producers = {
            (each.header.producer_id, each.header.producer_epoch)
            for each in self._commands
            if each.transaction_context is not None
        }
        return SEVERAL_PRODUCERS if len(producers) > 1 else None

    def _has_transactional(self) -> bool:
        parts = (part for data in self._request.topic_data for part in data.partition_data)
        return any(part.records is not None and is_transactional(part.records) for part in parts)

    def _prepare(
        self,
        limits: TopicLimits | None,
        index: int,
        records: Buffer | None,
        transaction_context: TransactionContext | None,
        now: int,
    ) -> Refusal | None:
        if limits is None:
            by_id = self._context.version >= 13
            return Refusal(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not 0 <= index < len(limits.partitions):
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        header, error = check_produced(records, self._context.version)
        if header is None or records is None:
            return Refusal(error)
        if self._request.acks not in (-1, 0, 1):
            return Refusal(ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1")
        if not header.is_transactional:
            return self._fit(limits, index, header, records, None, now)
        if transaction_context is None:
            return UNAUTHORIZED
        if header.producer_id < 0:
            return Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a transaction without a producer id")
        return self._fit(limits, index, header, records, transaction_context, now)

    def _fit(
        self,
        limits: TopicLimits,
        index: int,
        header: BatchHeader,
        records: Buffer,
        transaction_context: TransactionContext | None,
        now: int,
    ) -> Refusal | None:
        """Hold the batch against the topic's configs; what fits waits for the commit."""
        if header.length > limits.max_message_bytes:
            return Refusal(
                ErrorCode.MESSAGE_TOO_LARGE, f"the batch is larger than {limits.max_message_bytes} bytes"
            )
        if limits.log_append_time:
            earliest, latest = MIN_TIMESTAMP, MAX_TIMESTAMP
        else:
            earliest, latest = now - limits.before_max_ms, min(now + limits.after_max_ms, MAX_TIMESTAMP)
        if limits.validates_compressed if header.attributes & CODEC_MASK else limits.validates:
            try:
                newest = self._validate(limits, header, records, earliest, latest)
            except InvalidRecords as error:
                return Refusal(error.code, error.message, error.index)
            if newest != header.max_timestamp and not limits.log_append_time:
                # Kafka's producers get this right; Kafka corrects those of others.
                header = header._replace(max_timestamp=newest)
                records = with_max_timestamp(records, header)
        elif header.max_timestamp > latest:
            return Refusal(ErrorCode.INVALID_TIMESTAMP, "a timestamp is too far in the future")
        elif 0 <= header.base_timestamp < earliest:
            return Refusal(ErrorCode.INVALID_TIMESTAMP, "a timestamp is too old")
        if limits.log_append_time:
            self._unstamped.append(len(self._commands))
        self._commands.append(
            Append(limits.partitions[index], header, records, -1, transaction_context, limits.is_journal)
        )
        return None

    def _validate(
        self, limits: TopicLimits, header: BatchHeader, records: Buffer, earliest: int, latest: int
    ) -> int:
        """Open a batch; return its largest timestamp. ``_TakesLong`` if a thread has to do it."""
        content_max_bytes, is_packed = limits.content_max_bytes, header.attributes & CODEC_MASK
        if self._effort is not None:
            self._effort -= SMALL_BATCH_EFFORT if is_packed else header.record_count
            if self._effort < 0 or (is_packed and header.length > SMALL_BATCH_BYTES):
                raise _TakesLong
            content_max_bytes = min(content_max_bytes, SMALL_CONTENT_BYTES)
        try:
            return validate(records, header, content_max_bytes, earliest, latest, limits.compacts)
        except InvalidRecords:
            # A small batch that is no good may only have more content than is unpacked here.
            if is_packed and self._effort is not None:
                raise _TakesLong from None
            raise

    def _transaction_context(self, limits: TopicLimits) -> TransactionContext | None:
        """The transaction that the request's transactional batches belong to."""
        if self._request.transactional_id is None:
            return None
        return TransactionContext(
            self._request.transactional_id,
            2 if self._context.version >= SECOND_GENERATION else 1,
            self._broker.settings.transaction_partition_verification_enable,
            limits.block_max_ms,
        )

    def _decided(self, decided: Answers) -> None:
        """The commit has happened, or there was no room for it."""
        try:
            response: ProduceResponse | Exception | None = self._response(decided)
        except Exception as error:  # noqa: BLE001  the commit loop must not fail for one client's response
            response = error
        self.promise.resolve(response)

    def _response(self, decided: Answers) -> ProduceResponse | None:
        answers = iter([FULL] * len(self._commands) if isinstance(decided, Exception) else decided)
        refusals = iter(self._refused)
        topics: list[TopicProduceResponse] = []
        for data in self._request.topic_data:
            parts = [
                _answer(part.index, next(refusals), answers, self._context.version)
                for part in data.partition_data
            ]
            topics.append(
                TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=parts)
            )
        if self._request.acks != 0:
            return ProduceResponse(responses=topics)
        # There is no response with acks=0, so closing is the only way to report an error.
        if any(part.error_code for topic in topics for part in topic.partition_responses):
            raise CloseConnection("a Produce request with acks=0 failed")
        return None


def _answer(
    index: int, refused: Refusal | None, answers: Iterator[Appended], version: int
) -> PartitionProduceResponse:
    if refused is not None:
        error, message, at = refused
        errors = [BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=message)]
        return PartitionProduceResponse(
            index=index,
            error_code=error,
            base_offset=-1,
            record_errors=errors if at >= 0 else [],
            error_message=message,
        )
    appended = next(answers)
    return PartitionProduceResponse(
        index=index,
        error_code=told(appended.error, PRODUCE, version),
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=appended.log_start_offset,
        error_message=FULL_MESSAGE if appended is FULL else None,
    )


HANDLERS: dict[int, Handler] = {PRODUCE: produce}
