"""Inspecting transactions: Describe on ids, Read on topics. Writing markers: Alter or ClusterAction."""

from collections.abc import Awaitable
from typing import Any, Final

from semel.broker.commit.promise import resolved
from semel.core.security.acls import CLUSTER_NAME, Operation
from semel.core.topics import name_problem
from semel.handlers.authorization.access import (
    CLUSTER,
    CLUSTER_DENIED,
    ID_DENIED,
    MESSAGES,
    TOPIC,
    TOPIC_DENIED,
    TRANSACTIONAL_ID,
    Access,
    Guard,
    except_for,
)
from semel.wire.api_key import ApiKey
from semel.wire.messages import transactions as wire

DESCRIBE: Final = Operation.DESCRIBE


def write_txn_markers(access: Access, request: wire.WriteTxnMarkersRequest) -> Awaitable[Any]:
    """Alter or ClusterAction on the cluster."""
    may_alter = access.rights.may(Operation.ALTER, CLUSTER, CLUSTER_NAME)
    if may_alter or access.may_cluster(Operation.CLUSTER_ACTION):
        return access.pass_on(request)
    by_producer = {each.producer_id: each for each in request.markers}
    return resolved(
        wire.WriteTxnMarkersResponse(
            markers=[
                wire.WritableTxnMarkerResult(producer_id=producer_id, topics=_unmarked(marker))
                for producer_id, marker in by_producer.items()
            ]
        )
    )


def _unmarked(marker: wire.WritableTxnMarker) -> list[wire.WritableTxnMarkerTopicResult]:
    return [
        wire.WritableTxnMarkerTopicResult(
            name=topic.name,
            partitions=[
                wire.WritableTxnMarkerPartitionResult(partition_index=index, error_code=CLUSTER_DENIED)
                for index in topic.partition_indexes
            ],
        )
        for topic in marker.topics
    ]


async def describe_producers(
    access: Access, request: wire.DescribeProducersRequest
) -> wire.DescribeProducersResponse:
    """Read on each topic. The handler refuses names that no topic can have."""
    denied = [
        each
        for each in request.topics
        if name_problem(each.name) is None and not access.may(Operation.READ, TOPIC, each.name)
    ]
    request.topics = except_for(request.topics, denied)
    response: wire.DescribeProducersResponse = await access.pass_on(request)
    response.topics += [
        wire.TopicResponse(
            name=topic.name,
            partitions=[
                wire.PartitionResponse(
                    partition_index=index, error_code=TOPIC_DENIED, error_message=MESSAGES[TOPIC_DENIED]
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in denied
    ]
    return response


async def describe_transactions(
    access: Access, request: wire.DescribeTransactionsRequest
) -> wire.DescribeTransactionsResponse:
    """Describe on each id. Topics that may not be described are left out."""
    ids = list(dict.fromkeys(request.transactional_ids))
    request.transactional_ids = [each for each in ids if access.may(DESCRIBE, TRANSACTIONAL_ID, each)]
    response: wire.DescribeTransactionsResponse = await access.pass_on(request)
    for state in response.transaction_states:
        state.topics = [each for each in state.topics if access.rights.may(DESCRIBE, TOPIC, each.topic)]
    found = {each.transactional_id: each for each in response.transaction_states}
    response.transaction_states = [found.get(each) or _not_described(each) for each in ids]
    return response


def _not_described(transactional_id: str) -> wire.TransactionState:
    # With an error, Kafka returns start time 0; -1 means that there is no transaction.
    return wire.TransactionState(
        transactional_id=transactional_id, error_code=ID_DENIED, transaction_start_time_ms=0
    )


async def list_transactions(
    access: Access, request: wire.ListTransactionsRequest
) -> wire.ListTransactionsResponse:
    """Only the ids that may be described."""
    response: wire.ListTransactionsResponse = await access.pass_on(request)
    may = access.rights.may
    response.transaction_states = [
        each for each in response.transaction_states if may(DESCRIBE, TRANSACTIONAL_ID, each.transactional_id)
    ]
    return response


GUARDS: dict[int, Guard] = {
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
}
