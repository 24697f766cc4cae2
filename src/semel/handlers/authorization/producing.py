"""Produce: Write on each topic; for transactional batches also Write on the transactional id.

An allowed request costs one lookup per topic, and the guard returns the handler's own promise. From version
13 on topics are named by id; a topic that is not in memory is loaded first (``Promise.first``), as in the
handler.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final, cast

from semel.broker.commit.promise import Promise, resolved
from semel.core.security.acls import Operation
from semel.core.types import ErrorCode, Topic
from semel.handlers.authorization.access import (
    ID_DENIED,
    TOPIC,
    TOPIC_DENIED,
    TRANSACTIONAL_ID,
    Access,
    Guard,
    except_for,
)
from semel.handlers.context import CloseConnection
from semel.wire.api_key import ApiKey
from semel.wire.batch import is_transactional
from semel.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from semel.wire.schema import Encoded

FIRST_BY_ID: Final = 13
WRITE: Final = Operation.WRITE


def produce(access: Access, request: ProduceRequest) -> Promise[Any]:
    """Refuse all batches if one is transactional and its id is denied; else those of denied topics."""
    transactional_id = request.transactional_id
    # Kafka checks the id only if there is a transactional batch. Finding one takes longer than the check.
    if (
        transactional_id is not None
        and not access.rights.may(WRITE, TRANSACTIONAL_ID, transactional_id)
        and _has_transactional(request.topic_data)
    ):
        access.deny(WRITE, TRANSACTIONAL_ID, transactional_id)
        return _refuse_all(request)
    if access.context.version < FIRST_BY_ID:
        refused = [each for each in request.topic_data if not access.may(WRITE, TOPIC, each.name)]
        return _write_others(access, request, refused, {})
    catalog = access.broker.catalog
    topics = [catalog.cached_by_id(each.topic_id) for each in request.topic_data]
    if None not in topics:
        return _write_others(access, request, _refused_of(access, request, topics), _names_of(topics))
    promise: Promise[Any] = Promise()
    promise.first = _look_up(access, request, promise)
    return promise


async def _look_up(access: Access, request: ProduceRequest, promise: Promise[Any]) -> None:
    """Load the topics that are not in memory, then continue as with known topics."""
    catalog = access.broker.catalog
    topics = [await catalog.topic_by_id(each.topic_id) for each in request.topic_data]
    decided = _write_others(access, request, _refused_of(access, request, topics), _names_of(topics))
    if decided.first is not None:
        await decided.first
    decided.then(promise.resolve)


def _refused_of(
    access: Access, request: ProduceRequest, topics: list[Topic | None]
) -> list[TopicProduceData]:
    """The data for topics that may not be written. An unknown id has no name; the handler refuses it."""
    return [
        each
        for each, topic in zip(request.topic_data, topics, strict=True)
        if topic is not None and not access.may(WRITE, TOPIC, topic.name)
    ]


def _names_of(topics: list[Topic | None]) -> dict[bytes, str]:
    return {each.topic_id: each.name for each in topics if each is not None}


def _write_others(
    access: Access, request: ProduceRequest, refused: list[TopicProduceData], names: dict[bytes, str]
) -> Promise[Any]:
    """Pass on all topics but the refused ones. ``names`` has the names of topics that are given by id."""
    if not refused:
        return _pass_on(access, request, names)
    if request.transactional_id is None and _has_transactional(refused):
        # Transactional batches without an id refuse the whole request, but the handler would not see these.
        return _refuse_all(request)
    request.topic_data = except_for(request.topic_data, refused)
    answer: Promise[Any] = resolved(ProduceResponse())
    if request.topic_data:
        answer = _pass_on(access, request, names)
    complete = answer.map(partial(_completed, refused, request.acks, access.context.version))
    complete.first = answer.first
    return complete


def _pass_on(access: Access, request: ProduceRequest, names: dict[bytes, str]) -> Promise[Any]:
    handler: Any = access.handler
    may_still = partial(_may_still, access, request, names)
    return cast(Promise[Any], handler(access.broker, request, access.context, may_still))


def _may_still(access: Access, request: ProduceRequest, names: dict[bytes, str]) -> bool:
    """Whether the topics that were passed on, and the transactional id, are still allowed."""
    rights = access.broker.policies.rights(access.context.principal, access.context.client_host)
    if request.transactional_id is not None and not rights.may(
        WRITE, TRANSACTIONAL_ID, request.transactional_id
    ):
        return False
    by_id = access.context.version >= FIRST_BY_ID
    # A topic whose id is unknown has no name, and the handler refuses it.
    found = [names.get(each.topic_id) if by_id else each.name for each in request.topic_data]
    return all(name is None or rights.may(WRITE, TOPIC, name) for name in found)


def _completed(refused: list[TopicProduceData], acks: int, version: int, answer: Any) -> ProduceResponse:
    """The handler's response together with the refused topics."""
    if isinstance(answer, Exception):
        raise answer
    if acks == 0:
        raise _closed()
    response: ProduceResponse = answer
    if isinstance(answer, Encoded):
        response = ProduceResponse.decode(answer.encode(version), version)
    response.responses += [_refused(each, TOPIC_DENIED) for each in refused]
    return response


def _refuse_all(request: ProduceRequest) -> Promise[Any]:
    promise: Promise[Any] = Promise()
    if request.acks == 0:
        promise.resolve(_closed())
    else:
        promise.resolve(ProduceResponse(responses=[_refused(each, ID_DENIED) for each in request.topic_data]))
    return promise


def _closed() -> CloseConnection:
    # There is no response with acks=0, so closing is the only way to report an error.
    return CloseConnection("a Produce request with acks=0 was denied")


def _refused(data: TopicProduceData, error: ErrorCode) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=data.name,
        topic_id=data.topic_id,
        partition_responses=[
            PartitionProduceResponse(index=part.index, error_code=error, base_offset=-1)
            for part in data.partition_data
        ],
    )


def _has_transactional(topics: Iterable[TopicProduceData]) -> bool:
    parts = (part for data in topics for part in data.partition_data)
    return any(part.records is not None and is_transactional(part.records) for part in parts)


GUARDS: dict[int, Guard] = {ApiKey.PRODUCE: produce}
