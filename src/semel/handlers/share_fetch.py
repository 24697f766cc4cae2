"""ShareFetch: acquire records for a member of a share group, and acknowledge earlier ones (KIP-932).

The handler keeps the share session (``share_sessions``) and builds the response. ``share_reading`` finds
available records and waits for them; ``semel.core.shares`` decides which member gets a record.
"""

import asyncio
from typing import Final

from semel.broker.broker import Broker
from semel.core.types import ErrorCode, PartitionKey, ShareKey
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import MOVED, LeaderHints, leadership_error
from semel.handlers.share_partitions import (
    FIRST_WITH_RENEWAL,
    Acknowledgements,
    MayRead,
    acknowledge,
    check_places,
    end_session,
    identified,
    may_read_all,
    sessions_of,
)
from semel.handlers.share_reading import Got, ShareReader
from semel.handlers.share_sessions import BEGIN, END, Place, SessionKey, ShareSession, Turn
from semel.store.contract import StoreRefused
from semel.wire.messages.shares import (
    AcquiredRecords,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopicResponse,
    SharePartitionData,
)

PAUSE_MAX_SECONDS: Final = 5.0
"""The longest delay of the response SHARE_SESSION_LIMIT_REACHED."""


async def share_fetch(
    broker: Broker, request: ShareFetchRequest, context: RequestContext, may_read: MayRead = may_read_all
) -> ShareFetchResponse:
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
    key = identified(request.group_id, request.member_id)
    problem = key if isinstance(key, str) else _problem(request, context.version)
    if problem or isinstance(key, str):
        return ShareFetchResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem or "")
    turn = _begin(broker, request, context, key)
    session = turn.session
    if session is None:
        if turn.error is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            await asyncio.sleep(min(max(request.max_wait_ms, 0) / 1000, PAUSE_MAX_SECONDS))
        return ShareFetchResponse(error_code=turn.error)
    configs = broker.policies.configs.share_group(key[0])
    epoch = request.share_session_epoch
    wanted = {
        (topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in request.topics
        for each in topic.partitions
        if each.acknowledgement_batches
    }
    # Another request of the session may change its partitions while this one waits.
    partitions = dict(session.partitions)
    errors = await check_places(broker, {**partitions, **dict.fromkeys(wanted)}, may_read)
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
    got: dict[Place, Got] = {}
    if epoch != END and not is_renewing:
        reader = ShareReader(broker, request, context, configs, session)
        readable = [place for place in partitions if not errors[place]]
        got = await _fetch(broker, reader, session, readable)
        # Rights may have changed, and partitions moved, during the wait.
        errors = await check_places(broker, partitions, may_read)
        got |= {place: Got(error) for place, error in errors.items() if error}
    end_session(broker, sessions_of(broker), key, epoch)
    hints = LeaderHints(broker, context)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=configs.limits.lock_ms,
        responses=_responses(acknowledged, got, hints),
        node_endpoints=hints.endpoints,
    )


def _problem(request: ShareFetchRequest, version: int) -> str | None:
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


def _begin(broker: Broker, request: ShareFetchRequest, context: RequestContext, key: SessionKey) -> Turn:
    sessions = sessions_of(broker)
    places = [(topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions]
    if request.share_session_epoch == BEGIN:
        return sessions.begin(key, context.connection_id, context.principal, places, broker.share_locks)
    forgotten = [
        (topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions
    ]
    return sessions.go_on(key, request.share_session_epoch, context.principal, places, forgotten)


async def _fetch(
    broker: Broker, reader: ShareReader, session: ShareSession, readable: list[Place]
) -> dict[Place, Got]:
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
    acknowledged: dict[Place, ErrorCode], got: dict[Place, Got], hints: LeaderHints
) -> list[ShareFetchTopicResponse]:
    """The partitions with acknowledgements, acquired records or errors."""
    topics: dict[bytes, ShareFetchTopicResponse] = {}
    for place in {**acknowledged, **got}:
        topic_id, index = place
        found = got.get(place, Got(ErrorCode.NONE))
        data = SharePartitionData(
            partition_index=index,
            error_code=found.error,
            acknowledge_error_code=acknowledged.get(place, ErrorCode.NONE),
            records=found.records,
            acquired_records=[
                AcquiredRecords(
                    first_offset=each.first, last_offset=each.last, delivery_count=each.deliveries
                )
                for each in found.runs
            ],
        )
        if found.error in MOVED or data.acknowledge_error_code in MOVED:
            data.current_leader = hints.of(PartitionKey(topic_id, index))
        topics.setdefault(topic_id, ShareFetchTopicResponse(topic_id=topic_id)).partitions.append(data)
    return list(topics.values())


HANDLERS: dict[int, Handler] = {78: share_fetch}
