"""Produce: checks batches, submits one ``Append`` per partition and returns the offsets.

This is the hot path of the broker, so it runs without a task: ``produce`` checks the batches, submits the
commands and returns a promise of the response. If a topic is not in memory, or if validation is so much work
that it needs a thread, the promise has work to be awaited first (``Promise.first``). The connection awaits
that work before it starts another request, so batches keep their order.

Validates produced batches before they are submitted: the topic, the header, the content.

`Preparation` iterates over the batches of a request and makes a command of each valid one. Small requests are
prepared on the event loop. Larger ones are prepared on the validation threads, in slices of a few
milliseconds; between two slices other connections have their turn (``Broker.beside``).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.catalog import TopicLimits
from semel.broker.commit.pending_commands import Answers, Promise, Work
from semel.broker.slices import SLICE_ITEMS
from semel.core.log.partition import Append, Appended, TransactionContext
from semel.core.types import ErrorCode, PartitionKey, Topic
from semel.handlers.context import CloseConnection, Handler, RequestContext
from semel.handlers.leadership import LeaderHints
from semel.handlers.rights import (
    ID_DENIED,
    TOPIC,
    TOPIC_DENIED,
    TRANSACTIONAL_ID,
    WRITE,
    RequestRights,
    rights_of,
)
from semel.handlers.transaction_errors import error_for_client
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey
from semel.wire.batch import CODEC_MASK, is_transactional, produced_fault
from semel.wire.errors import InvalidRecords
from semel.wire.invalid_records import NAMED_MAX
from semel.wire.records import BatchHeader, check_produced, with_log_append_time
from semel.wire.schema import Buffer, Encoded
from semel.wire.validating import IS_COMPILED, MAX_TIMESTAMP, MIN_TIMESTAMP, validate, with_max_timestamp

FIRST_BY_ID: Final = 13
"""The version of Produce from which topics are given by id."""
SECOND_GENERATION: Final = 12
"""The version of Produce from which a transactional batch adds its partition to the transaction (KIP-890)."""
EFFORT_MAX: Final = 16_384 if IS_COMPILED else 1_024
"""Records per request that the event loop validates: up to two milliseconds. Threads validate larger ones."""
SMALL_BATCH_BYTES: Final = 8_192
SMALL_CONTENT_BYTES: Final = 65_536
"""A compressed batch is validated on the event loop only if both it and its content are small."""
SMALL_BATCH_EFFORT: Final = 1_024
"""The cost of decompressing such a batch, in records."""
SLICE_SECONDS: Final = 0.01
"""How long a thread works on a request before other requests have their turn. A batch is never divided."""


class Refusal(NamedTuple):
    """Why a batch is not appended: error code, message, and the invalid records with their own messages."""

    error: ErrorCode
    message: str | None = None
    records: tuple[tuple[int, str], ...] = ()


UNAUTHORIZED: Final = Refusal(ID_DENIED)
NOT_LEADER: Final = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class TakesLong(Exception):
    """Raised if a request is too much work for the event loop and needs a thread."""


class Preparation:
    """Turns the batches of one request into commands."""

    __slots__ = (
        "_effort",
        "_leads",
        "_limits",
        "_nameable",
        "_now",
        "_parts",
        "_request",
        "_verifies",
        "_version",
        "commands",
        "refused",
        "unstamped",
    )

    def __init__(
        self,
        request: wire.ProduceRequest,
        context: RequestContext,
        limits: list[TopicLimits | None],
        now: int,
        leads: Callable[[PartitionKey], bool],
        *,
        verifies: bool,
        is_beside: bool,
    ) -> None:
        self._request = request
        self._version = context.version
        self._limits = limits
        self._now = now
        self._leads = leads
        self._verifies = verifies
        # How many records may still be validated on the event loop; None (no limit) on a thread.
        self._effort: int | None = None if is_beside else EFFORT_MAX
        self._nameable = NAMED_MAX
        self._parts = self._each()
        self.commands: list[Append] = []
        self.refused: list[Refusal | None] = []
        """One for each partition, in the order of the request; None if the batch became a command."""
        self.unstamped: list[int] = []
        """Indexes of the commands that get the broker's time (LogAppendTime)."""

    def all(self) -> None:
        """Prepare all batches now; raises ``TakesLong`` if that is too much for the event loop."""
        self.refused.extend(self._parts)

    def go_on(self) -> bool:
        """Prepare some batches, on a thread. Returns whether there are more."""
        until = time.perf_counter() + SLICE_SECONDS
        for refused in self._parts:
            self.refused.append(refused)
            if time.perf_counter() > until:
                return True
        return False

    def stamp(self, now: int) -> None:
        """Set LogAppendTime, in the turn that submits the batches, so that it ascends with offsets."""
        for at in self.unstamped:
            command = self.commands[at]
            records = with_log_append_time(command.records, now)
            self.commands[at] = command.but(records=records, log_append_time=now)

    def _each(self) -> Iterator[Refusal | None]:
        for data, limits in zip(self._request.topic_data, self._limits, strict=True):
            transaction_context = None if limits is None else self._transaction_context(limits)
            for part in data.partition_data:
                yield self._prepare(limits, part.index, part.records, transaction_context, self._now)

    def _prepare(
        self,
        limits: TopicLimits | None,
        index: int,
        records: Buffer | None,
        transaction_context: TransactionContext | None,
        now: int,
    ) -> Refusal | None:
        if limits is None:
            by_id = self._version >= FIRST_BY_ID
            return Refusal(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not 0 <= index < len(limits.partitions):
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not self._leads(limits.partitions[index]):
            return NOT_LEADER
        header, error = check_produced(records, self._version)
        if header is None or records is None:
            return Refusal(error, produced_fault(records, error))
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
        """Check the batch against the topic's configs; add a command if it passes."""
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
                return self._refusal(error)
            if newest != header.max_timestamp and not limits.log_append_time:
                # Kafka's own producers set the max timestamp correctly; Kafka corrects that of others.
                header = header._replace(max_timestamp=newest)
                records = with_max_timestamp(records, header)
        elif header.max_timestamp > latest:
            return Refusal(ErrorCode.INVALID_TIMESTAMP, "a timestamp is too far in the future")
        elif 0 <= header.base_timestamp < earliest:
            return Refusal(ErrorCode.INVALID_TIMESTAMP, "a timestamp is too old")
        if limits.log_append_time:
            self.unstamped.append(len(self.commands))
        self.commands.append(
            Append(limits.partitions[index], header, records, -1, transaction_context, limits.is_journal)
        )
        return None

    def _refusal(self, error: InvalidRecords) -> Refusal:
        """Name the invalid records, within the limit for a response; at least the first of each batch."""
        named = error.records[: max(1, self._nameable)]
        self._nameable -= len(named)
        return Refusal(error.code, error.message, named)

    def _validate(
        self, limits: TopicLimits, header: BatchHeader, records: Buffer, earliest: int, latest: int
    ) -> int:
        """Validate the records; return their largest timestamp. Raises ``TakesLong`` if it needs a thread."""
        content_max_bytes, is_packed = limits.content_max_bytes, header.attributes & CODEC_MASK
        if self._effort is not None:
            self._effort -= SMALL_BATCH_EFFORT if is_packed else header.record_count
            if self._effort < 0 or (is_packed and header.length > SMALL_BATCH_BYTES):
                raise TakesLong
            content_max_bytes = min(content_max_bytes, SMALL_CONTENT_BYTES)
        try:
            return validate(records, header, content_max_bytes, earliest, latest, limits.compacts)
        except InvalidRecords:
            # The batch may be valid, but have more content than the event loop decompresses.
            if is_packed and self._effort is not None:
                raise TakesLong from None
            raise

    def _transaction_context(self, limits: TopicLimits) -> TransactionContext | None:
        """The transaction that the request's transactional batches belong to."""
        if self._request.transactional_id is None:
            return None
        return TransactionContext(
            self._request.transactional_id,
            2 if self._version >= SECOND_GENERATION else 1,
            self._verifies,
            limits.block_max_ms,
        )


PARTITIONS_AT_ONCE: Final = 1_000
"""Partitions of a request that are decided and written in one commit."""

SEVERAL_PRODUCERS: Final = Refusal(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional records of more than one producer"
)

TAKEN_AWAY: Final = Refusal(TOPIC_DENIED, "the right was taken away while the records were validated")


def produce(
    broker: Broker, request: wire.ProduceRequest, context: RequestContext
) -> Promise[wire.ProduceResponse | Encoded | None]:
    """Produce v3–v13: append one batch to each partition.

    Behaviour: acks 1 and -1 are answered when the batches are durable; batches of a transaction may be
        answered earlier, and its end makes them durable (semel.durability). acks 0 is not answered, and an
        error closes the connection. Up to 1,000 partitions of one request become durable in one commit,
        larger requests in several. Transactional batches must belong to the open transaction. A partition
        that another broker leads is NOT_LEADER_OR_FOLLOWER. A fenced producer is INVALID_PRODUCER_EPOCH in
        every version. Rights are checked again after a long validation.
    Versions:  v5 log start offset · v7 zstd · v8 error messages · v9 flexible · v10 the current leader
        (KIP-951) · v11 TRANSACTION_ABORTABLE,
        before that INVALID_TXN_STATE · v12 a transactional batch adds its partition · v13 topic ids.
    Differs:   a transactional batch to a topic with journal visibility is answered with base offset -1.
        semel.validate.records selects which batches are validated. The response names the refused records
        (KIP-467), at most 1,000 of them, and the first damaged record of a batch, which Kafka does not name.
        Anything but one intact batch is INVALID_RECORD, even where Kafka returns UNKNOWN_SERVER_ERROR or
        CORRUPT_MESSAGE (which clients would retry in vain). A batch with the bit for LogAppendTime is
        INVALID_TIMESTAMP on every topic. A refused batch has log start offset -1. A partition that occurs
        twice gets both batches.
    """
    production = _Produce(broker, request, context, rights_of(broker, request, context))
    production.promise.first = production.begin()
    return production.promise


def _cached(broker: Broker, data: wire.TopicProduceData, version: int) -> Topic | None:
    if version >= FIRST_BY_ID:
        return broker.catalog.cached_by_id(data.topic_id)
    return broker.catalog.cached(data.name)


class _Produce:
    """One request in progress: the partitions that were refused, and those that wait for the commit."""

    __slots__ = (
        "_allowed",
        "_broker",
        "_context",
        "_denied",
        "_limits",
        "_prepared",
        "_request",
        "_rights",
        "promise",
    )

    def __init__(
        self, broker: Broker, request: wire.ProduceRequest, context: RequestContext, rights: RequestRights
    ) -> None:
        self.promise: Promise[wire.ProduceResponse | Encoded | None] = Promise()
        self._broker = broker
        self._request = request
        self._context = context
        self._rights = rights
        self._allowed: Sequence[str] = ()
        """The names of the topics that may be written, if that was to be checked."""
        self._denied: Sequence[wire.TopicProduceData] = ()
        """The data for the others."""

    def begin(self) -> Work[None] | None:
        """Check the rights, then start. Returns work that has to be awaited first, if there is any."""
        request, version = self._request, self._context.version
        if not self._rights.are_all and not self._may_use_id():
            self._refuse_all()
            return None
        topics = [_cached(self._broker, each, version) for each in request.topic_data]
        if version < FIRST_BY_ID and not self._keep_allowed(topics):
            return None
        return self.find_topics(topics) if None in topics else self.start(topics)

    def _may_use_id(self) -> bool:
        rights, transactional_id = self._rights, self._request.transactional_id
        # Kafka checks the id only if there is a transactional batch. Finding one takes longer than the check.
        return (
            transactional_id is None
            or rights.has(WRITE, TRANSACTIONAL_ID, transactional_id)
            or not _has_transactional(self._request.topic_data)
            or rights.transactional_id(WRITE, transactional_id)
        )

    def _keep_allowed(self, topics: list[Topic | None]) -> bool:
        """Set aside the data for topics that may not be written, and remove these from ``topics``.

        Returns False if that refuses the whole request.
        """
        rights, request = self._rights, self._request
        if rights.are_all:
            return True
        names: list[str | None] = [each.name for each in request.topic_data]
        if self._context.version >= FIRST_BY_ID:
            # An unknown id has no name, and is refused for that.
            names = [None if each is None else each.name for each in topics]
        allowed, denied = rights.split(
            zip(names, request.topic_data, topics, strict=True),
            lambda each: each[0] is None or rights.topic(WRITE, each[0]),
        )
        self._denied = [data for _, data, _ in denied]
        if request.transactional_id is None and _has_transactional(self._denied):
            # Transactional batches without an id refuse the whole request, and these would not be seen later.
            self._refuse_all()
            return False
        self._allowed = [name for name, _, _ in allowed if name is not None]
        request.topic_data = [data for _, data, _ in allowed]
        topics[:] = [topic for _, _, topic in allowed]
        return True

    def _refuse_all(self) -> None:
        if self._request.acks == 0:
            self.promise.resolve(_closed())
        else:
            refused = [_denied(each, ID_DENIED) for each in self._request.topic_data]
            self.promise.resolve(wire.ProduceResponse(responses=refused))

    async def find_topics(self, topics: list[Topic | None]) -> None:
        """Load the topics that are not in memory, then start.

        ``topics`` keeps them: the catalog may evict the first topic before the last is loaded.
        """
        catalog = self._broker.catalog
        for at, each in enumerate(self._request.topic_data):
            if topics[at] is not None:
                continue
            if self._context.version >= FIRST_BY_ID:
                topics[at] = await catalog.topic_by_id(each.topic_id)
            else:
                topics[at] = await catalog.topic(each.name)
        first = self.start(topics)
        if first is not None:
            await first

    def start(self, topics: list[Topic | None]) -> Work[None] | None:
        """Validate the batches and submit those that pass, now or after validation on a thread."""
        if self._context.version >= FIRST_BY_ID and not self._keep_allowed(topics):
            return None
        catalog = self._broker.catalog
        limits = [None if topic is None else catalog.limits(topic) for topic in topics]
        now = self._broker.time_of_day()
        partitions = 0
        for data in self._request.topic_data:
            partitions += len(data.partition_data)
        if partitions > PARTITIONS_AT_ONCE:
            return self._do_large(limits, now)
        self._prepared = self._preparation(limits, now, is_beside=False)
        try:
            self._prepared.all()
        except TakesLong:
            return self._start_beside(limits, now)
        self._submit()
        return None

    def _preparation(self, limits: list[TopicLimits | None], now: int, *, is_beside: bool) -> Preparation:
        self._limits = limits
        return Preparation(
            self._request,
            self._context,
            limits,
            now,
            self._broker.ownership.leads,
            verifies=self._broker.settings.transaction_partition_verification_enable,
            is_beside=is_beside,
        )

    async def _prepare_beside(self, limits: list[TopicLimits | None], now: int) -> None:
        self._prepared = self._preparation(limits, now, is_beside=True)
        while await self._broker.beside(self._prepared.go_on):
            pass

    async def _start_beside(self, limits: list[TopicLimits | None], now: int) -> None:
        await self._prepare_beside(limits, now)
        self._refuse_denied()
        self._submit()

    def _refuse_denied(self) -> None:
        """Refuse the whole request if a right was revoked while its batches were validated."""
        rights, transactional_id = self._rights.now(), self._request.transactional_id
        may_use_id = transactional_id is None or rights.has(WRITE, TRANSACTIONAL_ID, transactional_id)
        if not may_use_id or not all(rights.has(WRITE, TOPIC, each) for each in self._allowed):
            prepared = self._prepared
            prepared.commands.clear()
            prepared.refused = [TAKEN_AWAY] * len(prepared.refused)

    async def _do_large(self, limits: list[TopicLimits | None], now: int) -> None:
        """Process a request with very many partitions in several ticks, with other requests in between."""
        await self._prepare_beside(limits, now)
        self._refuse_denied()
        self._settle()
        answers: list[Appended] = []
        async for some in self._broker.slices.over(self._prepared.commands, PARTITIONS_AT_ONCE):
            try:
                answers += await self._broker.submit(self._joined_together(some))
            except StoreRefused:
                answers += [Appended(ErrorCode.KAFKA_STORAGE_ERROR)] * len(some)
        parts: list[wire.PartitionProduceResponse] = []
        for part in self._answered(answers):
            parts.append(part)
            if not len(parts) % SLICE_ITEMS:
                await self._broker.slices.turn()
        response = self._response(parts)
        if response is None:
            self.promise.resolve(None)
        else:
            encoded = await self._broker.slices.run(response.encode_in_slices(self._context.version))
            self.promise.resolve(Encoded(wire.ProduceResponse, encoded))

    def _settle(self) -> None:
        """Refuse all batches if the whole request is invalid; else set LogAppendTime where needed."""
        prepared = self._prepared
        nothing = self._refuses_all()
        if nothing is not None:
            prepared.commands.clear()
            prepared.refused = [nothing] * len(prepared.refused)
        elif prepared.unstamped:
            prepared.stamp(self._broker.time_of_day())

    def _submit(self) -> None:
        self._settle()
        commands: Sequence[Append] = self._prepared.commands
        if commands:
            if len(commands) > 1 and self._request.transactional_id is not None:
                commands = self._joined_together(commands)
            self._broker.submit(commands).then(self._decided)
        else:
            self._decided([])

    def _joined_together(self, commands: Sequence[Append]) -> Sequence[Append]:
        """Have the first batch add all partitions to the transaction, so that it changes only once."""
        first, *others = commands
        contexts = [each.transaction_context for each in commands]
        if first.transaction_context is None or first.transaction_context.version == 1:
            return commands
        if not all(each is not None and each.block_max_ms < 0 for each in contexts):
            return commands
        also = tuple(each.partition for each in others)
        return [first.but(transaction_context=first.transaction_context.but(also=also)), *others]

    def _refuses_all(self) -> Refusal | None:
        """The reason to refuse the whole request, even if only one batch is invalid."""
        if self._request.transactional_id is None:
            # Refused batches count too: Kafka makes this check before all others.
            return (
                UNAUTHORIZED
                if any(self._prepared.refused) and _has_transactional(self._request.topic_data)
                else None
            )
        commands = self._prepared.commands
        if len(commands) < 2:
            return None
        producers = {
            (each.header.producer_id, each.header.producer_epoch)
            for each in commands
            if each.transaction_context is not None
        }
        return SEVERAL_PRODUCERS if len(producers) > 1 else None

    def _decided(self, decided: Answers) -> None:
        """Called after the commit, or when the store refused it."""
        if isinstance(decided, Exception):
            self._refuse(decided)
            decided = []
        try:
            response: wire.ProduceResponse | Exception | None = self._response(list(self._answered(decided)))
        except Exception as error:  # noqa: BLE001  the commit loop must not fail for one client's response
            response = error
        self.promise.resolve(response)

    def _refuse(self, refused: Exception) -> None:
        message = refused.client_message if isinstance(refused, StoreRefused) else None
        refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self._prepared.refused = [each or refusal for each in self._prepared.refused]

    def _answered(self, decided: Iterable[Appended]) -> Iterator[wire.PartitionProduceResponse]:
        """The responses of all partitions, in the order of the request."""
        answers, refusals = iter(decided), iter(self._prepared.refused)
        for data in self._request.topic_data:
            for part in data.partition_data:
                yield _answer(part.index, next(refusals), answers, self._context.version)

    def _response(self, parts: list[wire.PartitionProduceResponse]) -> wire.ProduceResponse | None:
        if self._request.acks == 0:
            # There is no response with acks=0, so closing is the only way to report an error.
            if any(part.error_code for part in parts):
                raise CloseConnection("a Produce request with acks=0 failed")
            if self._denied:
                raise _closed()
            return None
        topics: list[wire.TopicProduceResponse] = []
        start = 0
        for data in self._request.topic_data:
            stop = start + len(data.partition_data)
            some = parts[start:stop]
            topics.append(
                wire.TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=some)
            )
            start = stop
        response = wire.ProduceResponse(responses=topics)
        if any(part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER for part in parts):
            self._name_leaders(response)
        response.responses += [_denied(each, TOPIC_DENIED) for each in self._denied]
        return response

    def _name_leaders(self, response: wire.ProduceResponse) -> None:
        hints = LeaderHints(self._broker, self._context)
        for topic, limits in zip(response.responses, self._limits, strict=True):
            for part in topic.partition_responses:
                if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and limits is not None:
                    part.current_leader = hints.of(limits.partitions[part.index])
        response.node_endpoints = hints.endpoints


def _closed() -> CloseConnection:
    return CloseConnection("a Produce request with acks=0 was denied")


def _denied(data: wire.TopicProduceData, error: ErrorCode) -> wire.TopicProduceResponse:
    return wire.TopicProduceResponse(
        name=data.name,
        topic_id=data.topic_id,
        partition_responses=[
            wire.PartitionProduceResponse(index=part.index, error_code=error, base_offset=-1)
            for part in data.partition_data
        ],
    )


def _has_transactional(topics: Iterable[wire.TopicProduceData]) -> bool:
    parts = (part for data in topics for part in data.partition_data)
    return any(part.records is not None and is_transactional(part.records) for part in parts)


def _answer(
    index: int, refused: Refusal | None, answers: Iterator[Appended], version: int
) -> wire.PartitionProduceResponse:
    if refused is not None:
        error, message, records = refused
        errors = [
            wire.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=reason)
            for at, reason in records
        ]
        return wire.PartitionProduceResponse(
            index=index,
            error_code=error,
            base_offset=-1,
            record_errors=errors,
            error_message=message,
        )
    appended = next(answers)
    return wire.PartitionProduceResponse(
        index=index,
        error_code=appended.error and error_for_client(appended.error, ApiKey.PRODUCE, version),
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=appended.log_start_offset,
        error_message=None,
    )


HANDLERS: dict[int, Handler] = {ApiKey.PRODUCE: produce}
