"""ShareFetch and ShareAcknowledge (KIP-932): acquire records for a member, and acknowledge them.

The handler keeps the share session (``share_partitions``) and builds the response. ``semel.core.shares``
decides which member gets a record.

A fetch looks up the first available record of each share-partition, reads from there, and then acquires what
it has read. If another member acquired it in between, the fetch starts again. If nothing is available, the
fetch waits until records arrive or become available again (``broker/reads/waiting.py``).
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.reads.offset_search import EARLIEST, LATEST
from semel.broker.reads.reads import FetchRange, FetchResult, Isolation
from semel.broker.reads.waiting import ShareWait
from semel.core.groups.configs import ShareConfigs
from semel.core.shares import commands
from semel.core.types import Buffer, ErrorCode, PartitionKey, ShareKey
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import MOVED, LeaderHints, leadership_error
from semel.handlers.rights import GROUP_DENIED, READ, rights_of
from semel.handlers.share_partitions import (
    BEGIN,
    END,
    FIRST_WITH_RENEWAL,
    Acknowledgements,
    SessionKey,
    ShareSession,
    TopicIdPartition,
    Turn,
    acknowledge,
    answered,
    batches_of,
    check_places,
    end_session,
    identified,
    sessions_of,
)
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey
from semel.wire.records import iter_batches


async def share_acknowledge(
    broker: Broker, request: wire.ShareAcknowledgeRequest, context: RequestContext
) -> wire.ShareAcknowledgeResponse:
    """ShareAcknowledge v1–v2: accept, release, reject or renew acquired records (KIP-932).

    Behaviour: the acknowledgements of a partition are accepted as a whole or not at all, and are durable when
        they are answered. INVALID_RECORD_STATE if the member does not, or no longer, hold one of the records.
        Epoch -1 also ends the share session, which releases what the member still holds.
    Versions:  v2 renews locks (KIP-1222).
    """
    rights = rights_of(broker, request, context)
    if request.group_id and not rights.group(READ, request.group_id):
        return wire.ShareAcknowledgeResponse(error_code=GROUP_DENIED)
    key = identified(request.group_id, request.member_id)
    if isinstance(key, str):
        return wire.ShareAcknowledgeResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=key)
    epoch = request.share_session_epoch
    if epoch == BEGIN:
        return wire.ShareAcknowledgeResponse(error_code=ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    sessions = sessions_of(broker)
    turn = sessions.go_on(key, epoch, context.principal, [], [])
    if turn.session is None:
        return wire.ShareAcknowledgeResponse(error_code=turn.error)
    wanted = batches_of(request.topics)
    configs = broker.policies.configs.share_group(key[0])
    errors = await check_places(broker, wanted, rights)
    answers = await acknowledge(
        broker,
        turn.session,
        [Acknowledgements(place, batches) for place, batches in wanted.items()],
        errors,
        configs,
        knows_renewal=context.version >= FIRST_WITH_RENEWAL,
        is_renewing=context.version >= FIRST_WITH_RENEWAL and request.is_renew_ack,
    )
    end_session(broker, sessions, key, epoch)
    hints = LeaderHints(broker, context)
    return wire.ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=configs.limits.lock_ms,
        responses=answered(answers, hints),
        node_endpoints=hints.endpoints,
    )


PARTITION_BYTES: Final = 1_048_576
"""Bytes read from a partition at once. Of a longer read, only few records could be acquired."""
ROUNDS_MAX: Final = 100
"""The most rounds of one fetch: it looks again if other members were faster, or if it was woken."""
RECORD_LIMIT: Final = 1
"""The acquire mode in which no more records are acquired than requested (KIP-1206)."""


class Part(NamedTuple):
    """One batch that was read."""

    first: int
    last: int
    data: Buffer


class Got(NamedTuple):
    """The result for one share-partition."""

    error: ErrorCode
    runs: Sequence[commands.AcquiredRun] = ()
    records: Buffer = b""


class ShareReader:
    """One fetch of a member."""

    def __init__(
        self,
        broker: Broker,
        request: wire.ShareFetchRequest,
        context: RequestContext,
        configs: ShareConfigs,
        session: ShareSession,
    ) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._configs = configs
        self._isolation = (
            Isolation.READ_COMMITTED if configs.is_committed_only else Isolation.READ_UNCOMMITTED
        )
        self._session = session
        self._owners_known = broker.ownership.changes

    async def get(self, keys: Sequence[ShareKey]) -> dict[ShareKey, Got]:
        """Acquire records of these share-partitions within ``max_wait_ms``. Raises ``StoreRefused``."""
        clock = asyncio.get_running_loop().time
        wait_ms = min(max(self._request.max_wait_ms, 0), self._broker.settings.semel_fetch_wait_max_ms)
        deadline = clock() + wait_ms / 1000
        for _ in range(ROUNDS_MAX):
            wait = self._broker.share_waits.wait(keys)
            try:
                looks = await self._look(keys)
                got = {key: Got(look.error) for key, look in looks.items() if look.error}
                results = None
                seconds = 0.0 if got else deadline - clock()
                ranges = await self._ranges(looks)
                if ranges:
                    results = await self._read(ranges, wait, max(seconds, 0.0))
                elif seconds > 0 and not self._broker.share_waits.is_ending:
                    await asyncio.wait([wait.woken], timeout=seconds)
            finally:
                wait.close()
            if results is None and wait.woken.done() and not (got or self._is_over):
                # Look again even if the time is over: the fetch was woken, so there may be records.
                continue
            if results is not None:
                if not self._may_send(results):
                    return got
                got |= await self._acquire(ranges, results)
                if not any(result.buffers or result.error for result in results):
                    return got
            if got or self._is_over or clock() >= deadline:
                return got
        return {}

    @property
    def _is_over(self) -> bool:
        """Whether to stop waiting: the session is over, the broker stops, or partitions have moved."""
        broker = self._broker
        has_moved = broker.ownership.changes != self._owners_known
        return self._session.is_ended or broker.share_waits.is_ending or has_moved

    async def _look(self, keys: Sequence[ShareKey]) -> dict[ShareKey, commands.Acquirable]:
        limits = self._configs.limits
        looks = dict(
            zip(
                keys,
                await self._broker.submit([commands.FindAcquirable(key, limits) for key in keys]),
                strict=True,
            )
        )
        unstarted = [key for key, look in looks.items() if not look.is_started]
        if unstarted:
            starts = [commands.StartShare(key, await self._first_offset(key)) for key in unstarted]
            await self._broker.submit(starts)
            again = await self._broker.submit([commands.FindAcquirable(key, limits) for key in unstarted])
            looks.update(zip(unstarted, again, strict=True))
        return looks

    async def _first_offset(self, key: ShareKey) -> int:
        """The offset at which the group begins (share.auto.offset.reset)."""
        configs, reads = self._configs, self._broker.reads
        back_ms = configs.reset_ms
        timestamp = EARLIEST if configs.reset == "earliest" else LATEST
        if back_ms is not None:
            timestamp = max(self._broker.time_of_day() - back_ms, 0)
        found = await reads.list_offsets(key.partition, timestamp, Isolation.READ_UNCOMMITTED)
        if found.offset < 0:
            # Every record is older than the timestamp.
            found = await reads.list_offsets(key.partition, LATEST, Isolation.READ_UNCOMMITTED)
        return max(found.offset, 0)

    async def _ranges(self, looks: dict[ShareKey, commands.Acquirable]) -> list[tuple[ShareKey, FetchRange]]:
        ranges = []
        for key, look in looks.items():
            if look.offset is None or look.error:
                continue
            log = await self._broker.reads.partition(key.partition)
            # An administrator may have moved the group past the end of the log.
            if log is not None and look.offset <= log.high_watermark:
                wanted = FetchRange(key.partition, look.offset, PARTITION_BYTES, self._isolation)
                ranges.append((key, wanted))
        return ranges

    async def _read(
        self, ranges: Sequence[tuple[ShareKey, FetchRange]], wait: ShareWait, seconds: float
    ) -> Sequence[FetchResult] | None:
        """A result for each range; None if the fetch was woken first and should look again."""
        broker, request, throttle = self._broker, self._request, self._context.throttle
        max_bytes = request.max_bytes
        if not throttle.is_idle and (limit := throttle.fetch_bytes_max()) is not None:
            max_bytes = min(max_bytes, limit)
        reading = asyncio.get_running_loop().create_task(
            broker.reads.fetch(
                [wanted for _, wanted in ranges],
                max(min(request.min_bytes, PARTITION_BYTES), 1),
                max_bytes,
                int(seconds * 1000),
                self._context.reserve,
                lambda: broker.ownership.changes == self._owners_known,
            )
        )
        if seconds <= 0:
            return await reading
        try:
            # Any: their results are not used.
            either: list[asyncio.Future[Any]] = [reading, wait.woken]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            if not reading.done():
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading

    def _may_send(self, results: Sequence[FetchResult]) -> bool:
        """Whether the quota of the client allows the records that were read."""
        throttle = self._context.throttle
        size = sum(len(buffer) for result in results for buffer in result.buffers)
        return not size or throttle.is_idle or throttle.may_send(size)

    async def _acquire(
        self, ranges: Sequence[tuple[ShareKey, FetchRange]], results: Sequence[FetchResult]
    ) -> dict[ShareKey, Got]:
        got: dict[ShareKey, Got] = {}
        parts: dict[ShareKey, list[Part]] = {}
        reads: list[commands.AcquireFrom] = []
        for (key, wanted), result in zip(ranges, results, strict=True):
            if result.error and result.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                got[key] = Got(result.error)
            elif result.buffers:
                parts[key], read = _parsed(key, wanted.offset, result)
                reads.append(read)
        request = self._request
        if not reads or request.max_records <= 0 or self._session.is_ended:
            return got
        self._session.acquiring.update(parts)
        answers: Sequence[commands.Acquired] = await self._broker.ask(
            commands.Acquire(
                self._session.key[1],
                tuple(reads),
                request.max_records,
                max(request.batch_size, 1),
                request.share_acquire_mode == RECORD_LIMIT,
                self._configs.limits,
            )
        )
        self._session.acquiring.difference_update(parts)
        for read, answer in zip(reads, answers, strict=True):
            if answer.error or answer.runs:
                got[read.key] = Got(answer.error, answer.runs, _of(parts[read.key], answer.runs))
        return got


def _parsed(key: ShareKey, offset: int, result: FetchResult) -> tuple[list[Part], commands.AcquireFrom]:
    """The batches of a result, and which of them belong to aborted transactions."""
    parts: list[Part] = []
    batches: list[commands.ReadBatch] = []
    aborted: set[int] = set()
    beginning = sorted(result.aborted or (), key=lambda each: each[1], reverse=True)
    aborting: set[int] = set()
    for buffer in result.buffers:
        found = list(iter_batches(buffer))
        ends = [at for at, _ in found[1:]] + [len(buffer)]
        view = memoryview(buffer)
        for (at, header), end in zip(found, ends, strict=True):
            last = header.base_offset + header.last_offset_delta
            while beginning and beginning[-1][1] <= last:
                aborting.add(beginning.pop()[0])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in aborting:
                aborted.add(header.base_offset)
            parts.append(Part(header.base_offset, last, view[at:end]))
            batches.append(commands.ReadBatch(header.base_offset, last))
    return parts, commands.AcquireFrom(key, offset, tuple(batches), frozenset(aborted))


def _of(parts: Sequence[Part], runs: Sequence[commands.AcquiredRun]) -> bytes:
    """The batches that contain acquired records."""
    wanted = []
    left = list(runs)
    for part in parts:
        while left and left[0].last < part.first:
            left.pop(0)
        if left and left[0].first <= part.last:
            wanted.append(part.data)
    return b"".join(wanted)


PAUSE_MAX_SECONDS: Final = 5.0
"""The longest delay of the response SHARE_SESSION_LIMIT_REACHED."""


async def share_fetch(
    broker: Broker, request: wire.ShareFetchRequest, context: RequestContext
) -> wire.ShareFetchResponse:
    """ShareFetch v1–v2: acknowledge records, then acquire others, waiting for them if needed (KIP-932).

    Behaviour: the first request of a share session (epoch 0) lists partitions, and later requests change the
        list. Epoch -1, or the end of the connection, ends the session and releases what the member holds.
        Waits up to max_wait_ms for new records, and for records that other members release. Records are
        acquired until the lock ends; a record that was delivered too often is archived. Whole batches are
        sent, and acquired_records lists the offsets that the member has acquired.
    Versions:  v2 strict limits (KIP-1206), and renewal of locks without fetching (KIP-1222).
    Differs:   no more than group.share.partition.max.record.locks are in flight; Kafka rounds up to a batch.
        The records of a batch that was delivered often are not delivered one by one.
    """
    rights = rights_of(broker, request, context)
    if request.group_id and not rights.group(READ, request.group_id):
        return wire.ShareFetchResponse(error_code=GROUP_DENIED)
    key = identified(request.group_id, request.member_id)
    problem = key if isinstance(key, str) else _problem(request, context.version)
    if problem or isinstance(key, str):
        return wire.ShareFetchResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem or "")
    turn = _begin(broker, request, context, key)
    session = turn.session
    if session is None:
        if turn.error is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            await asyncio.sleep(min(max(request.max_wait_ms, 0) / 1000, PAUSE_MAX_SECONDS))
        return wire.ShareFetchResponse(error_code=turn.error)
    configs = broker.policies.configs.share_group(key[0])
    epoch = request.share_session_epoch
    wanted = {place: batches for place, batches in batches_of(request.topics).items() if batches}
    # Another request of the session may change its partitions while this one waits.
    partitions = dict(session.partitions)
    errors = await check_places(broker, {**partitions, **dict.fromkeys(wanted)}, rights)
    is_renewing = context.version >= FIRST_WITH_RENEWAL and request.is_renew_ack
    acknowledged = await acknowledge(
        broker,
        session,
        [Acknowledgements(place, batches) for place, batches in wanted.items()],
        errors,
        configs,
        knows_renewal=context.version >= FIRST_WITH_RENEWAL,
        is_renewing=is_renewing,
    )
    got: dict[TopicIdPartition, Got] = {}
    if epoch != END and not is_renewing:
        reader = ShareReader(broker, request, context, configs, session)
        readable = [place for place in partitions if not errors[place]]
        got = await _fetch(broker, reader, session, readable)
        # Rights may have changed, and partitions moved, during the wait.
        errors = await check_places(broker, partitions, rights)
        got |= {place: Got(error) for place, error in errors.items() if error}
    end_session(broker, sessions_of(broker), key, epoch)
    hints = LeaderHints(broker, context)
    return wire.ShareFetchResponse(
        acquisition_lock_timeout_ms=configs.limits.lock_ms,
        responses=_responses(acknowledged, got, hints),
        node_endpoints=hints.endpoints,
    )


def _problem(request: wire.ShareFetchRequest, version: int) -> str | None:
    """The error message for a request that is invalid in any session; None if it is valid."""
    if request.share_session_epoch == BEGIN and any(
        each.acknowledgement_batches for topic in request.topics for each in topic.partitions
    ):
        return "The first request of a share session cannot acknowledge records."
    if version >= FIRST_WITH_RENEWAL and request.is_renew_ack:
        limits = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
        if any(limits):
            return "A request that renews locks fetches nothing: its limits must be 0."
    return None


def _begin(broker: Broker, request: wire.ShareFetchRequest, context: RequestContext, key: SessionKey) -> Turn:
    sessions = sessions_of(broker)
    places = [(topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions]
    if request.share_session_epoch == BEGIN:
        return sessions.begin(key, context.connection_id, context.principal, places, broker.share_locks)
    forgotten = [
        (topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions
    ]
    return sessions.go_on(key, request.share_session_epoch, context.principal, places, forgotten)


async def _fetch(
    broker: Broker, reader: ShareReader, session: ShareSession, readable: list[TopicIdPartition]
) -> dict[TopicIdPartition, Got]:
    """Acquire records of the partitions that can be read."""
    places = {ShareKey(*place, session.key[0]): place for place in readable}
    try:
        found = await reader.get(list(places)) if places else {}
    except StoreRefused:
        return {
            place: Got(leadership_error(broker, key.partition) or ErrorCode.KAFKA_STORAGE_ERROR)
            for key, place in places.items()
        }
    for key, got in found.items():
        if got.runs:
            session.move_to_end(places[key])
    return {places[key]: got for key, got in found.items()}


def _responses(
    acknowledged: dict[TopicIdPartition, ErrorCode], got: dict[TopicIdPartition, Got], hints: LeaderHints
) -> list[wire.ShareFetchTopicResponse]:
    """The partitions with acknowledgements, acquired records or errors."""
    topics: dict[bytes, wire.ShareFetchTopicResponse] = {}
    for place in {**acknowledged, **got}:
        topic_id, index = place
        found = got.get(place, Got(ErrorCode.NONE))
        data = wire.SharePartitionData(
            partition_index=index,
            error_code=found.error,
            acknowledge_error_code=acknowledged.get(place, ErrorCode.NONE),
            records=found.records,
            acquired_records=[
                wire.AcquiredRecords(
                    first_offset=each.first, last_offset=each.last, delivery_count=each.deliveries
                )
                for each in found.runs
            ],
        )
        if found.error in MOVED or data.acknowledge_error_code in MOVED:
            data.current_leader = hints.of(PartitionKey(topic_id, index))
        topics.setdefault(topic_id, wire.ShareFetchTopicResponse(topic_id=topic_id)).partitions.append(data)
    return list(topics.values())


HANDLERS: dict[int, Handler] = {
    ApiKey.SHARE_FETCH: share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge,
}
