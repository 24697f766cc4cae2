"""DescribeTransactions, ListTransactions, DescribeProducers, WriteTxnMarkers: inspect transactions, and end
transactions that hang.

Listings read the ledger, so unsynced work is flushed first: a listing includes everything that was
acknowledged before it.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.catalog import TopicLimits
from semel.core.names import NamePattern, PatternError
from semel.core.topics import name_problem
from semel.core.transactions.commands import DescribeTransaction, WriteMarker
from semel.core.types import ErrorCode, PartitionKey, Topic, Transaction, TransactionState
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import leadership_error, owned
from semel.handlers.rights import (
    ALTER,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_DENIED,
    DESCRIBE,
    ID_DENIED,
    MESSAGES,
    READ,
    TOPIC,
    TOPIC_DENIED,
    TRANSACTIONAL_ID,
    RequestRights,
    rights_of,
)
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey
from semel.wire.partitioner import coordinator_partition

OFFSETS_TOPIC: Final = "__consumer_offsets"

KNOWN_STATES: Final = frozenset(each.label for each in TransactionState) | {
    "PrepareCommit",
    "PrepareAbort",
    "PrepareEpochFence",
    "Dead",
}
"""Kafka's names of states. A filter may name states that never occur in Semel."""


async def describe_transactions(
    broker: Broker, request: wire.DescribeTransactionsRequest, context: RequestContext
) -> wire.DescribeTransactionsResponse:
    """DescribeTransactions v0: the state of each transactional id.

    Behaviour: TRANSACTIONAL_ID_NOT_FOUND for an id that was never used, or has expired. The groups of a
        transaction are shown as partitions of __consumer_offsets. A repeated id is described once. An id of
        another coordinator is NOT_COORDINATOR.
    Versions:  v0.
    Differs:   never PrepareCommit or PrepareAbort: a transaction ends in one step.
    """
    rights = rights_of(broker, request, context)
    ids = dict.fromkeys(request.transactional_ids)
    allowed, refused = rights.split(ids, partial(rights.transactional_id, DESCRIBE))
    denied = frozenset(refused)
    known = owned(broker, filter(None, allowed))
    asked = [DescribeTransaction(each) for each in known]
    found = dict(zip(known, await broker.ask_each(asked), strict=True))
    response = wire.DescribeTransactionsResponse()
    for transactional_id in ids:
        transaction = found.get(transactional_id)
        if transactional_id in denied:
            # With an error, Kafka returns start time 0; -1 means that there is no transaction.
            shown = wire.TransactionState(
                transactional_id=transactional_id, error_code=ID_DENIED, transaction_start_time_ms=0
            )
        elif transaction is None:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
            if transactional_id and transactional_id not in found:
                error = ErrorCode.NOT_COORDINATOR
            shown = wire.TransactionState(error_code=error, transactional_id=transactional_id)
        else:
            shown = await _described(broker, rights, transaction)
        response.transaction_states.append(shown)
    return response


async def _described(
    broker: Broker, rights: RequestRights, transaction: Transaction
) -> wire.TransactionState:
    """The state of a transaction, without the topics that may not be described."""
    topics: dict[str, list[int]] = {}
    for partition in transaction.partitions:
        topic = await broker.catalog.topic_by_id(partition.topic_id)
        # Deleting a topic removes it from the transaction.
        if topic is not None:
            topics.setdefault(topic.name, []).append(partition.index)
    of_groups = broker.settings.offsets_topic_num_partitions
    offsets = {coordinator_partition(group_id, of_groups) for group_id in transaction.groups}
    if offsets:
        topics[OFFSETS_TOPIC] = sorted(offsets)
    started_ms = transaction.started_ms
    if started_ms >= 0:
        started_ms += broker.clock.ahead_ms()
    return wire.TransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=transaction.state.label,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[
            wire.TopicData(topic=name, partitions=partitions)
            for name, partitions in topics.items()
            if rights.has(DESCRIBE, TOPIC, name)
        ],
    )


class _Filter(NamedTuple):
    """The filters of ListTransactions. A filter that is empty, negative or None matches all transactions."""

    states: frozenset[str]
    producer_ids: frozenset[int]
    open_longer_ms: int
    pattern: NamePattern | None

    def takes(self, transaction: Transaction, now: int) -> bool:
        """Whether a transaction passes all filters. Without a start (-1), it passes any duration."""
        return (
            (not self.states or transaction.state.label in self.states)
            and (not self.producer_ids or transaction.producer_id in self.producer_ids)
            and (self.open_longer_ms < 0 or now - transaction.started_ms > self.open_longer_ms)
            and (self.pattern is None or self.pattern.matches(transaction.transactional_id))
        )


async def list_transactions(
    broker: Broker, request: wire.ListTransactionsRequest, context: RequestContext
) -> wire.ListTransactionsResponse:
    """ListTransactions v0–v2: every transactional id of this coordinator, or those that pass all filters.

    Behaviour: filters by state, producer id, duration, and a pattern that the whole id must match. The
        response lists unknown states. An invalid pattern is INVALID_REGULAR_EXPRESSION.
    Versions:  v1 duration (KIP-994) · v2 pattern (KIP-1152).
    Differs:   the pattern has no word boundaries and no Unicode classes.
    """
    rights = rights_of(broker, request, context)
    try:
        text = request.transactional_id_pattern
        pattern = NamePattern(text) if text else None
    except PatternError:
        return wire.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    wanted = _Filter(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        request.duration_filter,
        pattern,
    )
    if not await broker.flush():
        return wire.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    listed: list[Transaction] = []
    async for page in broker.listings.transactions():
        mine = [each for each in page if broker.ownership.coordinates(each.transactional_id)]
        listed += await _taken(wanted, mine, broker.now())
    return wire.ListTransactionsResponse(
        unknown_state_filters=[each for each in request.state_filters if each not in KNOWN_STATES],
        transaction_states=[
            wire.ListTransactionsTransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.label,
            )
            for each in listed
            if rights.has(DESCRIBE, TRANSACTIONAL_ID, each.transactional_id)
        ],
    )


async def _taken(wanted: _Filter, page: Iterable[Transaction], now: int) -> list[Transaction]:
    """The transactions of a page that pass. Patterns run on a thread, because long ids take long to match."""

    def passing() -> list[Transaction]:
        return [each for each in page if wanted.takes(each, now)]

    return passing() if wanted.pattern is None else await asyncio.to_thread(passing)


async def describe_producers(
    broker: Broker, request: wire.DescribeProducersRequest, context: RequestContext
) -> wire.DescribeProducersResponse:
    """DescribeProducers v0: the producers that partitions remember, transactional and idempotent.

    Behaviour: the current state. A producer that was idle for producer.id.expiration.ms is not listed. If
        there is no room to flush unsynced work, KAFKA_STORAGE_ERROR. A partition that another broker leads is
        NOT_LEADER_OR_FOLLOWER.
    Versions:  v0.
    Differs:   a transaction in a topic with journal visibility has no start offset: it has no offsets yet.
    """
    rights = rights_of(broker, request, context)
    allowed, refused = rights.split(
        request.topics, lambda each: name_problem(each.name) is not None or rights.topic(READ, each.name)
    )
    is_flushed = await broker.flush()
    response = wire.DescribeProducersResponse()
    for wanted in allowed:
        is_valid = name_problem(wanted.name) is None
        topic = await broker.catalog.topic(wanted.name) if is_valid else None
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION
        response.topics.append(
            wire.TopicResponse(
                name=wanted.name,
                partitions=[
                    await _partition(broker, topic, index, unknown)
                    if is_flushed
                    else wire.PartitionResponse(
                        partition_index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR
                    )
                    for index in dict.fromkeys(wanted.partition_indexes)
                ],
            )
        )
    response.topics += map(_denied, refused)
    return response


def _denied(topic: wire.ProducersTopicRequest) -> wire.TopicResponse:
    return wire.TopicResponse(
        name=topic.name,
        partitions=[
            wire.PartitionResponse(
                partition_index=index, error_code=TOPIC_DENIED, error_message=MESSAGES[TOPIC_DENIED]
            )
            for index in topic.partition_indexes
        ],
    )


async def _partition(
    broker: Broker, topic: Topic | None, index: int, unknown: ErrorCode
) -> wire.PartitionResponse:
    if topic is None or not 0 <= index < topic.partitions:
        return wire.PartitionResponse(partition_index=index, error_code=unknown)
    key = PartitionKey(topic.topic_id, index)
    if error := leadership_error(broker, key):
        return wire.PartitionResponse(partition_index=index, error_code=error)
    producers = await broker.listings.producers(key)
    return wire.PartitionResponse(
        partition_index=index,
        active_producers=[
            wire.ProducerState(
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


async def write_txn_markers(
    broker: Broker, request: wire.WriteTxnMarkersRequest, context: RequestContext
) -> wire.WriteTxnMarkersResponse:
    """WriteTxnMarkers v1–v2: end a producer's transaction in single partitions, bypassing its coordinator.

    Behaviour: ends a transaction that hangs; DescribeProducers returns the values to send. Each partition
        succeeds or fails independently. A partition that another broker leads is NOT_LEADER_OR_FOLLOWER.
        Results are grouped by producer id.
    Versions:  v1 flexible · v2 transaction version: from 2 on the epoch must be higher (KIP-1228).
    Differs:   partitions of __consumer_offsets do not exist: offsets end with their transaction.
        Without ACLs, it is CLUSTER_AUTHORIZATION_FAILED if semel.cluster.action.enable is false.
    """
    rights = rights_of(broker, request, context)
    if not rights.has(ALTER, CLUSTER) and not rights.cluster(CLUSTER_ACTION):
        return _unmarked(request)
    errors: dict[int, dict[tuple[str, int], ErrorCode]] = {}
    commands: list[tuple[int, tuple[str, int], WriteMarker]] = []
    for marker in request.markers:
        of_producer = errors.setdefault(marker.producer_id, {})
        for asked in marker.topics:
            topic = None if asked.name == OFFSETS_TOPIC else await broker.catalog.topic(asked.name)
            for index in asked.partition_indexes:
                place = (asked.name, index)
                if not broker.may_act_as_broker:
                    of_producer[place] = CLUSTER_DENIED
                elif topic is None or not 0 <= index < topic.partitions:
                    of_producer[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif error := leadership_error(broker, PartitionKey(topic.topic_id, index)):
                    of_producer[place] = error
                else:
                    limits = broker.catalog.limits(topic)
                    commands.append((marker.producer_id, place, _command(marker, limits, index)))
    try:
        answers: list[ErrorCode] = await broker.ask_each([command for _, _, command in commands])
    except StoreRefused:
        answers = [ErrorCode.KAFKA_STORAGE_ERROR] * len(commands)
    for (producer_id, place, _), answer in zip(commands, answers, strict=True):
        errors[producer_id][place] = answer
    return wire.WriteTxnMarkersResponse(
        markers=[
            wire.WritableTxnMarkerResult(producer_id=producer_id, topics=_marker_results(of_producer))
            for producer_id, of_producer in errors.items()
        ]
    )


def _unmarked(request: wire.WriteTxnMarkersRequest) -> wire.WriteTxnMarkersResponse:
    """The response to a client that may not write markers."""
    by_producer = {each.producer_id: each for each in request.markers}
    return wire.WriteTxnMarkersResponse(
        markers=[
            wire.WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    wire.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            wire.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=CLUSTER_DENIED
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for producer_id, marker in by_producer.items()
        ]
    )


def _command(marker: wire.WritableTxnMarker, limits: TopicLimits, index: int) -> WriteMarker:
    return WriteMarker(
        limits.partitions[index],
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        marker.transaction_version,
        limits.is_journal,
    )


def _marker_results(errors: dict[tuple[str, int], ErrorCode]) -> list[wire.WritableTxnMarkerTopicResult]:
    topics: dict[str, list[wire.WritableTxnMarkerPartitionResult]] = {}
    for (name, index), error in errors.items():
        result = wire.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
        topics.setdefault(name, []).append(result)
    return [
        wire.WritableTxnMarkerTopicResult(name=name, partitions=results) for name, results in topics.items()
    ]


HANDLERS: dict[int, Handler] = {
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
}
