"""InitProducerId and DescribeProducers: who may write, and what partitions remember of them.

Transactions are not served yet. A producer without a transactional id gets an id that nobody had before, at
epoch 0: that is all an idempotent producer needs. A request with a transactional id is answered with
UNSUPPORTED_VERSION, so that a client fails at the start and not in the middle.
"""

from semel.broker.broker import Broker
from semel.core.partition import AllocateProducerId
from semel.core.topics import name_problem
from semel.core.types import NO_PRODUCER, ErrorCode, PartitionKey, Topic
from semel.handlers.context import Handler, RequestContext
from semel.store.interface import StoreFull
from semel.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NO_EPOCH = -1


async def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """InitProducerId v0–v6: a producer id and an epoch.

    Behaviour: without a transactional id always a new producer id at epoch 0, whatever id and epoch the
        request carries. A full disk is COORDINATOR_NOT_AVAILABLE, which clients try again.
    Versions:  v2 flexible · v3 id and epoch in the request (KIP-360) · v6 two-phase commit, not advertised.
    Differs:   a transactional id is UNSUPPORTED_VERSION until transactions are served.
    """
    error = _init_error(request)
    if error:
        return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH)
    try:
        producer_id: int = await broker.ask(AllocateProducerId())
    except StoreFull:
        return InitProducerIdResponse(
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH
        )
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _init_error(request: InitProducerIdRequest) -> ErrorCode:
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if request.transactional_id is None:
        return ErrorCode.NONE
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.UNSUPPORTED_VERSION


async def describe_producers(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """DescribeProducers v0: the producers that partitions remember, also those that are only idempotent.

    Behaviour: as of the last commit. A producer that was silent for producer.id.expiration.ms is forgotten.
    Versions:  v0.
    """
    response = DescribeProducersResponse()
    for wanted in request.topics:
        is_valid = name_problem(wanted.name) is None
        topic = await broker.catalog.topic(wanted.name) if is_valid else None
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION
        response.topics.append(
            TopicResponse(
                name=wanted.name,
                partitions=[
                    await _partition(broker, topic, index, unknown)
                    for index in dict.fromkeys(wanted.partition_indexes)
                ],
            )
        )
    return response


async def _partition(
    broker: Broker, topic: Topic | None, index: int, unknown: ErrorCode
) -> PartitionResponse:
    if topic is None or not 0 <= index < topic.partitions:
        return PartitionResponse(partition_index=index, error_code=unknown)
    producers = await broker.store.ledger.producers(PartitionKey(topic.topic_id, index))
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.batches[-1].last_sequence if state.batches else -1,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=state.transaction_first_offset,
            )
            for producer_id, state in producers
        ],
    )


HANDLERS: dict[int, Handler] = {22: init_producer_id, 61: describe_producers}
