"""ApiVersions, Metadata, DescribeTopicPartitions: the APIs, features and topics of the broker.

DescribeCluster, UnregisterBroker and FindCoordinator are in ``cluster``.

A partition has one replica, its leader. Clients get the addresses of the listener they connected to; a node
without that listener is left out.

Caches the encoded Metadata response for all topics, which all clients share.

Clients with patterns, and every admin tool, request all topics, many of them repeatedly. Building and
encoding fifty thousand partitions takes a good part of a second, so the encoded response is cached until a
topic is created, changed or deleted, or a node or a leader changes. Requests that arrive while it is being
built wait for it.
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final

from semel.broker.broker import Broker
from semel.broker.features import features, finalized_levels
from semel.core.topics import CreateTopic, name_problem
from semel.core.types import ErrorCode, PartitionKey, Topic
from semel.handlers import cluster
from semel.handlers.changes import record
from semel.handlers.cluster import cluster_operations
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import ShownLeaders, controller, reachable
from semel.handlers.rights import CLUSTER, CREATE, DESCRIBE, TOPIC, TOPIC_DENIED, RequestRights, rights_of
from semel.handlers.topics import NO_TOPIC_ID, ask_topics
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey
from semel.wire.schema import Encoded

ANSWERS_MAX: Final = 8
"""The most cached responses: one per version, listener and flags, so enough for a few kinds of clients."""


class MetadataCache:
    """The responses of one broker, for one state of the catalog and of ownership."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Encoded] = {}
        self._changes = (-1, -1)
        self._building = asyncio.Lock()

    async def answer(
        self,
        broker: Broker,
        key: Hashable,
        version: int,
        build: Callable[[], Awaitable[wire.MetadataResponse]],
    ) -> Encoded:
        """The cached response; builds it if there is none or its content has changed."""
        async with self._building:
            changes = _changes(broker)
            if changes != self._changes:
                self._answers.clear()
                self._changes = changes
            known = self._answers.get(key)
            if known is None:
                response = await build()
                parts = await broker.slices.run(response.encode_in_slices(version))
                known = Encoded(wire.MetadataResponse, parts)
                # It may lack a change made while it was built: correct for this request, not for later ones.
                if _changes(broker) == changes:
                    while len(self._answers) >= ANSWERS_MAX:
                        del self._answers[next(iter(self._answers))]
                    self._answers[key] = known
            return known


def _changes(broker: Broker) -> tuple[int, int]:
    return broker.catalog.changes, broker.ownership.changes


def _cache(broker: Broker) -> MetadataCache:
    return MetadataCache()


INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Names that Kafka reserves. In Semel these are ordinary topics that are shown as internal."""

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
PARTITIONS_PER_RESPONSE_MAX: Final = 2_000
FIRST_WITH_LISTENER_ERROR: Final = 6
"""The version of Metadata from which LISTENER_NOT_FOUND may be returned."""
TOPICS_AT_ONCE: Final = 50
"""Topics, with their partitions, that are described in one slice."""


async def api_versions(
    broker: Broker, request: wire.ApiVersionsRequest, context: RequestContext
) -> wire.ApiVersionsResponse:
    """ApiVersions v0–v4: the APIs, their versions, and the features.

    Behaviour: an unknown version is answered with UNSUPPORTED_VERSION and the versions of this API alone
        (KIP-511), encoded as version 0. With the whole list, franz-go would continue without the features.
    Versions:  v3 flexible, name of the client's software, features · v4 features whose lowest level is 0,
        which older Java clients cannot decode.
    """
    if not request.min_version <= context.version <= request.max_version:
        own = [each for each in _api_keys(broker) if each.api_key == request.api_key]
        return wire.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
    if context.version >= 3:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(each) for each in names):
            return wire.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    extensions = broker.settings.semel_extensions_enable
    return wire.ApiVersionsResponse(
        api_keys=_api_keys(broker),
        supported_features=[
            wire.SupportedFeatureKey(name=each.name, min_version=each.min_level, max_version=each.max_level)
            for each in features(extensions=extensions)
            if each.min_level > 0 or context.version >= 4
        ],
        finalized_features_epoch=broker.cluster.features_epoch,
        finalized_features=[
            wire.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized_levels(broker.cluster, extensions=extensions).items()
            if level > 0
        ],
    )


def _api_keys(broker: Broker) -> list[wire.ApiVersion]:
    # Imported here because ``semel.handlers`` imports this module for its table of handlers.
    from semel.handlers import served

    return [
        wire.ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.advertised_max)
        for api in served(
            two_phase=broker.settings.transaction_two_phase_commit_enable,
            extensions=broker.settings.semel_extensions_enable,
        )
    ]


async def metadata(
    broker: Broker, request: wire.MetadataRequest, context: RequestContext
) -> wire.MetadataResponse | Encoded:
    """Metadata v0–v13: the nodes, and topics with their partitions.

    Behaviour: all topics (null, or none in v0), or the requested ones. A missing topic is created only if
        both the client and auto.create.topics.enable allow it. A partition without a leader is
        LEADER_NOT_AVAILABLE; one whose leader lacks the client's listener is LISTENER_NOT_FOUND.
    Versions:  v1 null for all topics · v4 clients may disable auto creation · v6 LISTENER_NOT_FOUND, before
        that LEADER_NOT_AVAILABLE · v7 leader epochs · v8 authorized operations · v9 flexible · v10 topic ids
        in the response · v12 topics by id · v13 error code.
    Differs:   a topic that this request created is shown at once; Kafka first returns
        UNKNOWN_TOPIC_OR_PARTITION. A topic with neither name nor id is INVALID_TOPIC_EXCEPTION, in Kafka
        UNKNOWN_SERVER_ERROR.
    """
    if context.version < 12 and _is_by_id(request):
        return wire.MetadataResponse(
            topics=[
                wire.MetadataResponseTopic(
                    error_code=ErrorCode.INVALID_REQUEST, name=each.name or "", topic_id=each.topic_id
                )
                for each in request.topics or ()
            ]
        )
    rights = rights_of(broker, request, context)
    if request.topics is None or (context.version == 0 and not request.topics):
        if not rights.are_all:
            return await _all_topics(broker, rights, request, context)
        operations = (
            request.include_topic_authorized_operations,
            request.include_cluster_authorized_operations,
        )
        return await broker.kept(_cache).answer(
            broker,
            (context.version, context.listener, *operations),
            context.version,
            lambda: _all_topics(broker, rights, request, context),
        )
    allowed, refused = await _split(broker, rights, request.topics)
    wanted = list({(each.topic_id, each.name): each for each in allowed}.values())
    topics: list[wire.MetadataResponseTopic] = []
    leaders = _leaders(broker, context)
    async for some in broker.slices.over(wanted):
        by_name = await broker.catalog.topics(
            {each.name for each in some if each.name and not name_problem(each.name)}
        )
        topics += [await _find(broker, each, by_name, leaders) for each in some]
    if request.allow_auto_topic_creation and broker.settings.auto_create_topics_enable:
        topics, uncreatable = rights.split(topics, partial(_may_create, rights))
        await _create_missing(broker, topics, leaders, context)
        refused = [_uncreated(each.name or "") for each in uncreatable] + refused
    response = _metadata(broker, rights, request, context, topics)
    response.topics += refused
    return response


async def _all_topics(
    broker: Broker, rights: RequestRights, request: wire.MetadataRequest, context: RequestContext
) -> wire.MetadataResponse:
    """All topics that may be described."""
    topics: list[wire.MetadataResponseTopic] = []
    leaders = _leaders(broker, context)
    async for some in broker.slices.over(await broker.catalog.all(), TOPICS_AT_ONCE):
        topics += [_described(each, leaders) for each in some if rights.has(DESCRIBE, TOPIC, each.name)]
    return _metadata(broker, rights, request, context, topics)


async def _split(
    broker: Broker, rights: RequestRights, topics: list[wire.MetadataRequestTopic]
) -> tuple[list[wire.MetadataRequestTopic], list[wire.MetadataResponseTopic]]:
    """The topics that may be described, and the refusals of the others, whether they exist or not."""
    if rights.are_all:
        return topics, []
    allowed: list[wire.MetadataRequestTopic] = []
    refused: list[wire.MetadataResponseTopic] = []
    for each in topics:
        name = each.name
        if each.topic_id != NO_TOPIC_ID:
            topic = await broker.catalog.topic_by_id(each.topic_id)
            name = None if topic is None else topic.name
        if name is None or rights.topic(DESCRIBE, name):
            allowed.append(each)
        elif each.topic_id != NO_TOPIC_ID:
            # The id is not secret, but the name is.
            refused.append(
                wire.MetadataResponseTopic(error_code=TOPIC_DENIED, name=None, topic_id=each.topic_id)
            )
        else:
            refused.append(wire.MetadataResponseTopic(error_code=TOPIC_DENIED, name=name))
    return allowed, refused


def _may_create(rights: RequestRights, topic: wire.MetadataResponseTopic) -> bool:
    """Whether the client may create the topic, or it exists, or cannot be created anyway."""
    is_missing = topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not is_missing or not topic.name or rights.has(CREATE, CLUSTER):
        return True
    return rights.topic(CREATE, topic.name)


def _uncreated(name: str) -> wire.MetadataResponseTopic:
    return wire.MetadataResponseTopic(error_code=TOPIC_DENIED, name=name, is_internal=name in INTERNAL_TOPICS)


def _leaders(broker: Broker, context: RequestContext) -> ShownLeaders:
    return ShownLeaders(broker, context, knows_listeners=context.version >= FIRST_WITH_LISTENER_ERROR)


def _metadata(
    broker: Broker,
    rights: RequestRights,
    request: wire.MetadataRequest,
    context: RequestContext,
    topics: list[wire.MetadataResponseTopic],
) -> wire.MetadataResponse:
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.name is not None:
                topic.topic_authorized_operations = rights.operations(TOPIC, topic.name)
    response = wire.MetadataResponse(
        brokers=[
            wire.MetadataResponseBroker(node_id=node.node_id, host=host, port=port, rack=node.rack)
            for node, (host, port) in reachable(broker.ownership.listed(), context)
        ],
        cluster_id=broker.cluster_id,
        controller_id=controller(broker, context),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(rights)
    return response


def _is_by_id(request: wire.MetadataRequest) -> bool:
    """Whether a topic is given by id. Versions 10 and 11 have the field, but Kafka refuses it there."""
    return any(each.topic_id != NO_TOPIC_ID or each.name is None for each in request.topics or ())


async def _find(
    broker: Broker,
    wanted: wire.MetadataRequestTopic,
    by_name: Mapping[str, Topic | None],
    leaders: ShownLeaders,
) -> wire.MetadataResponseTopic:
    if wanted.topic_id != NO_TOPIC_ID:
        topic = await broker.catalog.topic_by_id(wanted.topic_id)
        if topic is None:
            return wire.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=wanted.topic_id
            )
        return _described(topic, leaders)
    name = wanted.name or ""
    if name_problem(name):
        return wire.MetadataResponseTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=name)
    topic = by_name[name]
    if topic is None:
        return wire.MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, is_internal=name in INTERNAL_TOPICS
        )
    return _described(topic, leaders)


async def _create_missing(
    broker: Broker, topics: list[wire.MetadataResponseTopic], leaders: ShownLeaders, context: RequestContext
) -> None:
    """Create the topics that were not found, up to the limit of one request, and replace their errors."""
    settings = broker.settings
    partitions = min(
        settings.semel_partitions_per_topic_max, settings.semel_partitions_max - broker.counts.partitions
    )
    room = max(0, partitions) // max(1, settings.num_partitions)
    missing = [
        (index, each.name)
        for index, each in enumerate(topics)
        if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and each.name
    ][:room]
    commands = [CreateTopic(name, uuid.uuid4().bytes, settings.num_partitions, {}) for _, name in missing]
    if not context.throttle.is_idle:
        # Clients do not expect an error here, so the quota only throttles them.
        context.throttle.may_change(settings.num_partitions * len(commands), strict=False)
    created = []
    for (index, name), answer in zip(missing, await ask_topics(broker, commands), strict=True):
        topic = answer.topic
        if answer.error == ErrorCode.TOPIC_ALREADY_EXISTS:
            # Another client has created it meanwhile.
            topic = await broker.catalog.topic(name)
        elif topic is not None:
            created.append(f"created topic {name}")
        if topic is not None:
            topics[index] = _described(topic, leaders)
        elif answer.error == ErrorCode.KAFKA_STORAGE_ERROR:
            topics[index].error_code = answer.error
    record(broker, "Metadata", created, context)


def _described(topic: Topic, leaders: ShownLeaders) -> wire.MetadataResponseTopic:
    partitions = []
    for index in range(topic.partitions):
        shown = leaders.of(PartitionKey(topic.topic_id, index))
        partitions.append(
            wire.MetadataResponsePartition(
                error_code=shown.error,
                partition_index=index,
                leader_id=shown.leader_id,
                leader_epoch=shown.epoch,
                replica_nodes=shown.replicas,
                isr_nodes=shown.replicas,
                offline_replicas=shown.offline,
            )
        )
    return wire.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
    )


async def describe_topic_partitions(
    broker: Broker, request: wire.DescribeTopicPartitionsRequest, context: RequestContext
) -> wire.DescribeTopicPartitionsResponse:
    """DescribeTopicPartitions v0: topics with their partitions, page by page.

    Behaviour: topics in the order of names, all if the request has none, from the cursor on; at most
        response_partition_limit partitions, but no more than 2000, then a cursor for the next page.
    Versions:  v0.
    """
    first_name, first_index = "", 0
    if request.cursor is not None:
        first_name, first_index = request.cursor.topic_name, request.cursor.partition_index
    if request.cursor is not None and not _is_valid(request.cursor, request.topics):
        return wire.DescribeTopicPartitionsResponse(
            topics=[
                wire.DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.INVALID_REQUEST, name=each.name
                )
                for each in request.topics
            ]
        )
    rights = rights_of(broker, request, context)
    found: dict[str, Topic | None]
    denied: list[str] = []
    if request.topics:
        names = sorted({each.name for each in request.topics if each.name >= first_name})
        names, denied = rights.split(names, partial(rights.topic, DESCRIBE))
        found = {name: None if name_problem(name) else await broker.catalog.topic(name) for name in names}
    else:
        found = {
            each.name: each
            for each in await broker.catalog.all()
            if each.name >= first_name and rights.has(DESCRIBE, TOPIC, each.name)
        }
    room = max(1, min(request.response_partition_limit, PARTITIONS_PER_RESPONSE_MAX))
    leaders = ShownLeaders(broker, context)
    response = wire.DescribeTopicPartitionsResponse()
    for name, topic in found.items():
        if room == 0:
            response.next_cursor = wire.Cursor(topic_name=name, partition_index=0)
            break
        start = first_index if name == first_name else 0
        end = 0 if topic is None else min(topic.partitions, start + room)
        shown = _paged(name, topic, range(start, end), leaders)
        shown.topic_authorized_operations = rights.operations(TOPIC, name)
        response.topics.append(shown)
        room -= max(0, end - start)
        if topic is not None and end < topic.partitions:
            response.next_cursor = wire.Cursor(topic_name=name, partition_index=end)
            break
    response.topics += [
        wire.DescribeTopicPartitionsResponseTopic(error_code=TOPIC_DENIED, name=each) for each in denied
    ]
    return response


def _is_valid(cursor: wire.Cursor, topics: Sequence[wire.PartitionsTopicRequest]) -> bool:
    """Whether a page may begin here: the topic has a valid name and is one of the requested ones."""
    if cursor.partition_index < 0 or name_problem(cursor.topic_name):
        return False
    return not topics or any(each.name == cursor.topic_name for each in topics)


def _paged(
    name: str, topic: Topic | None, indexes: range, leaders: ShownLeaders
) -> wire.DescribeTopicPartitionsResponseTopic:
    if topic is None:
        error = (
            ErrorCode.INVALID_TOPIC_EXCEPTION if name_problem(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        return wire.DescribeTopicPartitionsResponseTopic(error_code=error, name=name)
    partitions = []
    for index in indexes:
        shown = leaders.of(PartitionKey(topic.topic_id, index))
        partitions.append(
            wire.DescribeTopicPartitionsResponsePartition(
                error_code=shown.error,
                partition_index=index,
                leader_id=shown.leader_id,
                leader_epoch=shown.epoch,
                replica_nodes=shown.replicas,
                isr_nodes=shown.replicas,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=shown.offline,
            )
        )
    return wire.DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=partitions,
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.METADATA: metadata,
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    **cluster.HANDLERS,
}
