"""Produce: checks batches, submits one ``Append`` per partition and returns the offsets.

This is the hot path of the broker, so it runs without a task: ``produce`` checks the batches, submits the
commands and returns a promise of the response. If a topic is not in memory, or if validation is so much work
that it needs a thread, the promise has work to be awaited first (``Promise.first``). The connection awaits
that work before it starts another request, so batches keep their order.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final

from semel.broker.broker import Broker
from semel.broker.commit.pending_commands import Answers
from semel.broker.commit.promise import Promise
from semel.broker.slices import SLICE_ITEMS
from semel.broker.topic_limits import TopicLimits
from semel.core.log.partition import Append, Appended
from semel.core.types import ErrorCode, Topic
from semel.handlers.context import CloseConnection, Handler, RequestContext
from semel.handlers.leadership import LeaderHints
from semel.handlers.produce_preparation import UNAUTHORIZED, Preparation, Refusal, TakesLong
from semel.handlers.transaction_errors import PRODUCE, told
from semel.store.contract import StoreRefused
from semel.wire.batch import is_transactional
from semel.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from semel.wire.schema import Encoded

PARTITIONS_AT_ONCE: Final = 1_000
"""Partitions of a request that are decided and written in one commit."""

SEVERAL_PRODUCERS: Final = Refusal(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional records of more than one producer"
)

TAKEN_AWAY: Final = Refusal(
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the right was taken away while the records were validated"
)


def _always() -> bool:
    return True


def produce(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    is_allowed: Callable[[], bool] = _always,
) -> Promise[ProduceResponse | Encoded | None]:
    """Produce v3–v13: append one batch to each partition.

    Behaviour: acks 1 and -1 are answered when the batches are durable; batches of a transaction may be
        answered earlier, and its end makes them durable (semel.durability). acks 0 is not answered, and an
        error closes the connection. Up to 1,000 partitions of one request become durable in one commit,
        larger requests in several. Transactional batches must belong to the open transaction. A partition
        that another broker leads is NOT_LEADER_OR_FOLLOWER. Rights are checked again after a long validation.
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
    topics = [_cached(broker, each, context.version) for each in request.topic_data]
    production = _Produce(broker, request, context, is_allowed)
    promise = production.promise
    promise.first = production.find_topics(topics) if None in topics else production.start(topics)
    return promise


def _cached(broker: Broker, data: TopicProduceData, version: int) -> Topic | None:
    if version >= 13:
        return broker.catalog.cached_by_id(data.topic_id)
    return broker.catalog.cached(data.name)


class _Produce:
    """One request in progress: the partitions that were refused, and those that wait for the commit."""

    __slots__ = ("_broker", "_context", "_is_allowed", "_limits", "_prepared", "_request", "promise")

    def __init__(
        self,
        broker: Broker,
        request: ProduceRequest,
        context: RequestContext,
        is_allowed: Callable[[], bool],
    ) -> None:
        self.promise: Promise[ProduceResponse | Encoded | None] = Promise()
        self._broker = broker
        self._request = request
        self._context = context
        self._is_allowed = is_allowed

    async def find_topics(self, topics: list[Topic | None]) -> None:
        """Load the topics that are not in memory, then start.

        ``topics`` keeps them: the catalog may evict the first topic before the last is loaded.
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
        """Validate the batches and submit those that pass, now or after validation on a thread."""
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
        if not self._is_allowed():
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
        parts: list[PartitionProduceResponse] = []
        for part in self._answered(answers):
            parts.append(part)
            if not len(parts) % SLICE_ITEMS:
                await self._broker.slices.turn()
        response = self._response(parts)
        if response is None:
            self.promise.resolve(None)
        else:
            encoded = await self._broker.slices.run(response.encode_in_slices(self._context.version))
            self.promise.resolve(Encoded(ProduceResponse, encoded))

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
            return UNAUTHORIZED if any(self._prepared.refused) and self._has_transactional() else None
        commands = self._prepared.commands
        if len(commands) < 2:
            return None
        producers = {
            (each.header.producer_id, each.header.producer_epoch)
            for each in commands
            if each.transaction_context is not None
        }
        return SEVERAL_PRODUCERS if len(producers) > 1 else None

    def _has_transactional(self) -> bool:
        parts = (part for data in self._request.topic_data for part in data.partition_data)
        return any(part.records is not None and is_transactional(part.records) for part in parts)

    def _decided(self, decided: Answers) -> None:
        """Called after the commit, or when the store refused it."""
        if isinstance(decided, Exception):
            self._refuse(decided)
            decided = []
        try:
            response: ProduceResponse | Exception | None = self._response(list(self._answered(decided)))
        except Exception as error:  # noqa: BLE001  the commit loop must not fail for one client's response
            response = error
        self.promise.resolve(response)

    def _refuse(self, refused: Exception) -> None:
        message = refused.told if isinstance(refused, StoreRefused) else None
        refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self._prepared.refused = [each or refusal for each in self._prepared.refused]

    def _answered(self, decided: Iterable[Appended]) -> Iterator[PartitionProduceResponse]:
        """The responses of all partitions, in the order of the request."""
        answers, refusals = iter(decided), iter(self._prepared.refused)
        for data in self._request.topic_data:
            for part in data.partition_data:
                yield _answer(part.index, next(refusals), answers, self._context.version)

    def _response(self, parts: list[PartitionProduceResponse]) -> ProduceResponse | None:
        if self._request.acks == 0:
            # There is no response with acks=0, so closing is the only way to report an error.
            if any(part.error_code for part in parts):
                raise CloseConnection("a Produce request with acks=0 failed")
            return None
        topics: list[TopicProduceResponse] = []
        start = 0
        for data in self._request.topic_data:
            stop = start + len(data.partition_data)
            some = parts[start:stop]
            topics.append(
                TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=some)
            )
            start = stop
        response = ProduceResponse(responses=topics)
        if any(part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER for part in parts):
            self._name_leaders(response)
        return response

    def _name_leaders(self, response: ProduceResponse) -> None:
        hints = LeaderHints(self._broker, self._context)
        for topic, limits in zip(response.responses, self._limits, strict=True):
            for part in topic.partition_responses:
                if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and limits is not None:
                    part.current_leader = hints.of(limits.partitions[part.index])
        response.node_endpoints = hints.endpoints


def _answer(
    index: int, refused: Refusal | None, answers: Iterator[Appended], version: int
) -> PartitionProduceResponse:
    if refused is not None:
        error, message, records = refused
        errors = [
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=reason)
            for at, reason in records
        ]
        return PartitionProduceResponse(
            index=index,
            error_code=error,
            base_offset=-1,
            record_errors=errors,
            error_message=message,
        )
    appended = next(answers)
    return PartitionProduceResponse(
        index=index,
        error_code=appended.error and told(appended.error, PRODUCE, version),
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=appended.log_start_offset,
        error_message=None,
    )


HANDLERS: dict[int, Handler] = {PRODUCE: produce}
