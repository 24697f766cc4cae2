"""Produce: check batch headers, one ``Append`` per partition, offsets back.

The hot path of the broker, so it runs without a task: ``submit`` reads nothing but batch headers, hands the
commands to the commit loop and returns; ``done`` is called with the response when they are durable. Only a
request for a topic that is not in memory has to wait first, or one for a topic that is compacted, whose
records need keys: ``submit`` then returns a coroutine, and the connection runs it before it begins anything
else, so that batches keep their order.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeAlias

from semel.broker.broker import Broker
from semel.broker.commit_loop import Outcome
from semel.broker.topic_limits import TopicLimits
from semel.core.partition import Append, Appended, Membership
from semel.core.types import ErrorCode, Topic
from semel.handlers.context import CloseConnection, RequestContext
from semel.handlers.submitting import Done
from semel.handlers.transaction_errors import PRODUCE, told
from semel.store.interface import StoreFull
from semel.wire.batch import CODEC_MASK, is_transactional
from semel.wire.errors import ProtocolError
from semel.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from semel.wire.records import (
    HEADER_BYTES,
    BatchHeader,
    check_produced,
    read_header,
    with_log_append_time,
)
from semel.wire.reducing import has_keyless
from semel.wire.schema import Buffer

Refusal: TypeAlias = tuple[ErrorCode, str | None]
"""Why a batch is not appended: the code, and words for people."""

SECOND_GENERATION: Final = 12
"""The version of Produce from which a transactional batch adds its partition to the transaction (KIP-890)."""

UNAUTHORIZED: Final[Refusal] = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None)
SEVERAL_PRODUCERS: Final[Refusal] = (
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "transactional records of more than one producer",
)
KEYLESS: Final[Refusal] = (
    ErrorCode.INVALID_RECORD,
    "a compacted topic cannot take a record without a key: send one, or change cleanup.policy",
)
UNREADABLE: Final[Refusal] = (ErrorCode.INVALID_RECORD, "the records of the batch cannot be read")
OPENED_HERE_BYTES_MAX: Final = 4_096
"""Up to this size a batch that is not compressed is opened where it came in: a thread costs more."""
FULL: Final = Appended(ErrorCode.KAFKA_STORAGE_ERROR)
FULL_MESSAGE: Final = "the broker's disk is full; records are refused until there is room"


def submit(
    broker: Broker, request: ProduceRequest, context: RequestContext, done: Done
) -> Coroutine[Any, Any, None] | None:
    """Produce v3–v13: append one batch to each partition.

    Behaviour: acks 1 and -1 are answered when the batches are durable, in a transaction when its end will
        make them so (semel.durability); acks 0 is not answered, and an error closes the connection. The
        partitions of one request become durable together. Transactional batches must belong to the open
        transaction.
    Versions:  v5 log start offset · v7 zstd · v8 error messages · v9 flexible · v11 TRANSACTION_ABORTABLE,
        before that INVALID_TXN_STATE · v12 a transactional batch adds its partition · v13 topic ids.
    Differs:   topics with journal visibility answer a transactional batch with base offset -1. Batches are
        not opened, but for those to compacted topics: what is wrong inside is found by readers, timestamps
        are those of the header, and no single records are named in errors. What is not one batch is
        INVALID_RECORD, also where Kafka says UNKNOWN_SERVER_ERROR, or CORRUPT_MESSAGE and the client would
        try again in vain. The bit for the broker's time is INVALID_TIMESTAMP on every topic. A refused batch
        has log start offset -1. A partition that is named twice gets both batches.
    """
    topics = [_cached(broker, each, context.version) for each in request.topic_data]
    for topic in topics:
        if topic is None or (topic.configs and broker.catalog.limits(topic).compacts):
            return _look_first(broker, topics, request, context, done)
    _Produce(broker, request, context, done).start(topics)
    return None


async def _look_first(
    broker: Broker,
    topics: list[Topic | None],
    request: ProduceRequest,
    context: RequestContext,
    done: Done,
) -> None:
    """Topics that are not in memory have to be asked for, and compacted ones need a look at their keys.

    The connection begins nothing else meanwhile. Topics are kept here until all are found: the catalog may
    have forgotten the first when the last one comes.
    """
    for at, each in enumerate(request.topic_data):
        if topics[at] is not None:
            continue
        if context.version >= 13:
            topics[at] = await broker.catalog.topic_by_id(each.topic_id)
        else:
            topics[at] = await broker.catalog.topic(each.name)
    production = _Produce(broker, request, context, done)
    for topic, data in zip(topics, request.topic_data, strict=True):
        if topic is not None and broker.catalog.limits(topic).compacts:
            for part in data.partition_data:
                await production.look_at_keys(part.records)
    production.start(topics)


def _cached(broker: Broker, data: TopicProduceData, version: int) -> Topic | None:
    if version >= 13:
        return broker.catalog.cached_by_id(data.topic_id)
    return broker.catalog.cached(data.name)


class _Produce:
    """One request on its way: which partitions were refused at once, which wait for the commit."""

    __slots__ = ("_broker", "_commands", "_context", "_done", "_keyless", "_refused", "_request")

    def __init__(self, broker: Broker, request: ProduceRequest, context: RequestContext, done: Done) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._done = done
        self._commands: list[Append] = []
        # One for each partition, in the order of the request; None for those that wait for the commit.
        self._refused: list[Refusal | None] = []
        # Why a batch cannot be in a compacted topic, by the identity of its bytes.
        self._keyless: dict[int, Refusal] = {}

    async def look_at_keys(self, records: Buffer | None) -> None:
        """Open a batch for a compacted topic, on a thread unless it is small and plain."""
        if records is None or len(records) < HEADER_BYTES:
            return
        is_quick = len(records) <= OPENED_HERE_BYTES_MAX and not read_header(records).attributes & CODEC_MASK
        why = _key_refusal(records) if is_quick else await asyncio.to_thread(_key_refusal, records)
        if why is not None:
            self._keyless[id(records)] = why

    def start(self, topics: list[Topic | None]) -> None:
        """Check what can be checked without the log, and submit the rest."""
        now = self._broker.now()
        for data, topic in zip(self._request.topic_data, topics, strict=True):
            limits = None if topic is None else self._broker.catalog.limits(topic)
            membership = None if limits is None else self._membership(limits)
            for part in data.partition_data:
                self._refused.append(self._prepare(limits, part.index, part.records, membership, now))
        nothing = self._refuses_all()
        if nothing is not None:
            self._commands.clear()
            self._refused = [nothing] * len(self._refused)
        if self._commands:
            if len(self._commands) > 1 and self._request.transactional_id is not None:
                self._join_together()
            self._broker.submit(self._commands, self._decided)
        else:
            self._decided([])

    def _join_together(self) -> None:
        """The first batch brings the partitions of all into the transaction, which then grows only once."""
        first = self._commands[0]
        memberships = [each.membership for each in self._commands]
        if first.membership is None or first.membership.version == 1:
            return
        if all(each is not None and each.block_max_ms < 0 for each in memberships):
            also = tuple(each.partition for each in self._commands[1:])
            self._commands[0] = first.but(membership=first.membership.but(also=also))

    def _refuses_all(self) -> Refusal | None:
        """Why nothing of the request is taken, although one batch alone may be at fault."""
        if self._request.transactional_id is None:
            # Refused batches are looked at too: in Kafka this comes before all that can be wrong with them.
            return UNAUTHORIZED if any(self._refused) and self._has_transactional() else None
        producers = {
            (each.header.producer_id, each.header.producer_epoch)
            for each in self._commands
            if each.membership is not None
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
        membership: Membership | None,
        now: int,
    ) -> Refusal | None:
        if limits is None:
            by_id = self._context.version >= 13
            return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if not 0 <= index < len(limits.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        header, error = check_produced(records, self._context.version)
        if header is None or records is None:
            return error, None
        if self._request.acks not in (-1, 0, 1):
            return ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1"
        if not header.is_transactional:
            return self._fit(limits, index, header, records, None, now)
        if membership is None:
            return UNAUTHORIZED
        if header.producer_id < 0:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a transaction without a producer id"
        return self._fit(limits, index, header, records, membership, now)

    def _fit(
        self,
        limits: TopicLimits,
        index: int,
        header: BatchHeader,
        records: Buffer,
        membership: Membership | None,
        now: int,
    ) -> Refusal | None:
        """Hold the batch against the topic's configs; what fits waits for the commit."""
        if header.length > limits.max_message_bytes:
            return (
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch is larger than {limits.max_message_bytes} bytes",
            )
        if id(records) in self._keyless:
            return self._keyless[id(records)]
        append_time = -1
        if limits.log_append_time:
            append_time = now
            records = with_log_append_time(records, append_time)
        elif header.max_timestamp > now + limits.after_max_ms:
            return ErrorCode.INVALID_TIMESTAMP, "a timestamp is too far in the future for this topic"
        elif 0 <= header.base_timestamp < now - limits.before_max_ms:
            return ErrorCode.INVALID_TIMESTAMP, "a timestamp is too old for this topic"
        self._commands.append(
            Append(limits.partitions[index], header, records, append_time, membership, limits.is_journal)
        )
        return None

    def _membership(self, limits: TopicLimits) -> Membership | None:
        """The transaction that the request's transactional batches belong to."""
        if self._request.transactional_id is None:
            return None
        return Membership(
            self._request.transactional_id,
            2 if self._context.version >= SECOND_GENERATION else 1,
            self._broker.settings.transaction_partition_verification_enable,
            limits.block_max_ms,
        )

    def _decided(self, outcome: Outcome) -> None:
        """The commit has happened, or there was no room for it."""
        answers = iter([FULL] * len(self._commands) if isinstance(outcome, StoreFull) else outcome)
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
            self._done(ProduceResponse(responses=topics))
            return
        # Nobody waits for this answer, so closing is the only way to say that something went wrong.
        failed = any(part.error_code for topic in topics for part in topic.partition_responses)
        self._done(CloseConnection("a Produce request with acks=0 failed") if failed else None)


def _key_refusal(records: Buffer) -> Refusal | None:
    """Why a compacted topic cannot have this batch; None if it can, or if it is no batch at all."""
    try:
        return KEYLESS if has_keyless(records) else None
    except ProtocolError:
        return UNREADABLE


def _answer(
    index: int, refused: Refusal | None, answers: Iterator[Appended], version: int
) -> PartitionProduceResponse:
    if refused is not None:
        error, message = refused
        return PartitionProduceResponse(index=index, error_code=error, base_offset=-1, error_message=message)
    appended = next(answers)
    return PartitionProduceResponse(
        index=index,
        error_code=told(appended.error, PRODUCE, version),
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=appended.log_start_offset,
        error_message=FULL_MESSAGE if appended is FULL else None,
    )
