"""CreateTopics, DeleteTopics, CreatePartitions: turns requests into one command per topic.

APIs for the records of topics are in ``logs``.

``semel.core.topics`` decides the commands. The checks that need no state are here: repeated topics,
replication factors, assignments and limits. All commands of a request are decided in one tick; each succeeds
or fails independently, as in Kafka.

Any broker accepts these requests. The store makes records durable, so any replication factor is accepted and
1 is reported. An assignment must have one live node for each partition, and is then ignored: the brokers
divide the partitions among themselves. The timeout of a request is ignored: a commit takes milliseconds or
the process ends.

Created and deleted partitions count against a quota (KIP-599).
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from semel.broker.broker import Broker
from semel.core.topics import AddPartitions, CreateTopic, DeleteTopic, TopicAnswer, name_problem
from semel.core.types import AnyCommand, ErrorCode, Topic
from semel.handlers import logs
from semel.handlers.config_entries import topic_entries
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import (
    ALTER,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    MESSAGES,
    TOPIC,
    TOPIC_DENIED,
    RequestRights,
    rights_of,
)
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

Mutation = CreateTopic | DeleteTopic | AddPartitions

STRICT_SINCE: Final = {CreateTopic: 6, DeleteTopic: 5, AddPartitions: 3}
"""From these versions on clients retry THROTTLING_QUOTA_EXCEEDED. Older clients are only throttled."""
EXCEEDED: Final = TopicAnswer(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The quota of created and deleted partitions is exceeded; try again."
)


async def within_quota(broker: Broker, commands: Sequence[Mutation], context: RequestContext) -> list[bool]:
    """Whether the client's quota allows each command, in order."""
    throttle = context.throttle
    if throttle.is_idle:
        return [True] * len(commands)
    return [
        throttle.may_change(
            await _partitions_of(broker, each), strict=context.version >= STRICT_SINCE[type(each)]
        )
        for each in commands
    ]


async def _partitions_of(broker: Broker, command: Mutation) -> int:
    """How many partitions a command creates or deletes."""
    if isinstance(command, CreateTopic):
        return 0 if command.validate_only else command.partitions
    topic = await broker.catalog.topic(command.name)
    if topic is None:
        return 0
    if isinstance(command, DeleteTopic):
        return topic.partitions
    return 0 if command.validate_only else max(0, command.partitions - topic.partitions)


NO_TOPIC_ID = bytes(16)

PARTITIONS_AT_ONCE: Final = 500
"""A request that creates or deletes more partitions waits for other such requests."""


async def ask_topics(broker: Broker, commands: Sequence[AnyCommand]) -> list[TopicAnswer]:
    """Have topic commands decided in one tick. A full disk is KAFKA_STORAGE_ERROR, which clients retry.

    Large changes are serialized. The ledger needs a tenth of a second for thousands of partitions, and a tick
    that loads a topic waits until the ledger is up to date. Waiting here keeps that wait out of the tick, so
    other requests are not delayed.
    """
    try:
        if sum(_partitions(broker, each) for each in commands) <= PARTITIONS_AT_ONCE:
            return await broker.submit(commands)
        async with broker.large_changes:
            await broker.listings.catch_up()
            return await broker.submit(commands)
    except StoreRefused as refused:
        return [TopicAnswer(ErrorCode.KAFKA_STORAGE_ERROR, refused.client_message)] * len(commands)


async def _ask_within_quota(
    broker: Broker, commands: Sequence[Mutation], context: RequestContext
) -> list[TopicAnswer]:
    """Like `ask_topics`, for a client that may have a quota."""
    allowed = await within_quota(broker, commands, context)
    if all(allowed):
        return await ask_topics(broker, commands)
    some = [each for each, is_allowed in zip(commands, allowed, strict=True) if is_allowed]
    answers = iter(await ask_topics(broker, some))
    return [next(answers) if is_allowed else EXCEEDED for is_allowed in allowed]


def _partitions(broker: Broker, command: AnyCommand) -> int:
    """How many partitions a command creates or deletes; 0 if a topic to delete is not in memory."""
    if isinstance(command, CreateTopic | AddPartitions):
        return command.partitions
    topic = broker.catalog.cached(command.name) if isinstance(command, DeleteTopic) else None
    return 0 if topic is None else topic.partitions


async def create_topics(
    broker: Broker, request: wire.CreateTopicsRequest, context: RequestContext
) -> wire.CreateTopicsResponse:
    """CreateTopics v2–v7: create topics.

    Behaviour: each topic succeeds or fails independently. An existing topic is TOPIC_ALREADY_EXISTS, even in
        a retry by the client that created it. When the response is sent, the topic exists for all clients.
    Versions:  v4 -1 for the default number of partitions · v5 flexible, configs in the response · v6
        THROTTLING_QUOTA_EXCEEDED · v7 topic ids.
    Differs:   any replication factor is accepted, and 1 is reported. Names that differ only in '.' and '_'
        are different topics, since no metric is named after them. A repeated config is INVALID_CONFIG; Kafka
        uses the last value.
    """
    rights = rights_of(broker, request, context)
    names = Counter(each.name for each in request.topics)
    may_all = rights.has(CREATE, CLUSTER)
    # Kafka refuses repeated topics before it checks rights.
    allowed, denied = rights.split(
        names, lambda name: may_all or names[name] > 1 or rights.topic(CREATE, name)
    )
    topics = {each.name: each for each in request.topics}
    answers: dict[str, TopicAnswer] = {}
    commands: dict[str, CreateTopic] = {}
    for name in allowed:
        if names[name] > 1:
            answers[name] = TopicAnswer(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            continue
        command = _creation(broker, topics[name], validate_only=request.validate_only)
        if isinstance(command, TopicAnswer):
            answers[name] = await _rather(broker, name, command)
        else:
            commands[name] = command
    refused = too_many_partitions(broker, sum(each.partitions for each in commands.values()))
    if refused:
        answers.update(dict.fromkeys(commands, refused))
    elif commands:
        answered = await _ask_within_quota(broker, list(commands.values()), context)
        answers.update(zip(commands, answered, strict=True))
    created = [_created(broker, rights, name, answers[name], context.version) for name in allowed]
    created += [
        wire.CreatableTopicResult(name=each, error_code=TOPIC_DENIED, error_message="Authorization failed.")
        for each in denied
    ]
    return wire.CreateTopicsResponse(topics=created)


def too_many_partitions(broker: Broker, more: int) -> TopicAnswer | None:
    """The error if a request would create too many partitions; otherwise None."""
    settings = broker.settings
    if more > settings.semel_partitions_per_topic_max:
        limit, what = settings.semel_partitions_per_topic_max, "new partitions in one request"
    elif more > 0 and broker.counts.partitions + more > settings.semel_partitions_max:
        limit, what = settings.semel_partitions_max, "partitions in all topics (semel.partitions.max)"
    else:
        return None
    return TopicAnswer(ErrorCode.POLICY_VIOLATION, f"More than {limit} {what}.")


async def _rather(broker: Broker, name: str, refused: TopicAnswer) -> TopicAnswer:
    """The error for an invalid or existing name, which takes precedence; otherwise ``refused``."""
    wrong_name = name_problem(name)
    if wrong_name:
        return TopicAnswer(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong_name)
    if await broker.catalog.topic(name) is not None:
        return TopicAnswer(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists")
    return refused


def _creation(
    broker: Broker, wanted: wire.CreatableTopic, *, validate_only: bool
) -> CreateTopic | TopicAnswer:
    """The command that creates this topic, or the error."""
    settings = broker.settings
    if wanted.assignments:
        refused = _assignments_refused(broker, wanted)
        if refused:
            return refused
        partitions = len(wanted.assignments)
    elif wanted.replication_factor == 0 or wanted.replication_factor < -1:
        return TopicAnswer(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 for the default.",
        )
    else:
        partitions = settings.num_partitions if wanted.num_partitions == -1 else wanted.num_partitions
    if partitions < 1:
        return TopicAnswer(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0, or -1 for the default."
        )
    if partitions > settings.semel_partitions_per_topic_max:
        return TopicAnswer(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic may have at most {settings.semel_partitions_per_topic_max} partitions.",
        )
    configs = {each.name: each.value for each in wanted.configs}
    if len(configs) < len(wanted.configs):
        return TopicAnswer(ErrorCode.INVALID_CONFIG, "A config is given twice.")
    return CreateTopic(wanted.name, uuid.uuid4().bytes, partitions, configs, validate_only)


def _assignments_refused(broker: Broker, wanted: wire.CreatableTopic) -> TopicAnswer | None:
    """The error of a manual assignment unless it has partitions 0, 1, 2 … with one live node each."""
    if wanted.replication_factor != -1 or wanted.num_partitions != -1:
        return TopicAnswer(
            ErrorCode.INVALID_REQUEST,
            "With a manual assignment, the number of partitions and the replication factor must be -1.",
        )
    indexes = sorted(each.partition_index for each in wanted.assignments)
    if indexes != list(range(len(indexes))):
        return TopicAnswer(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Partitions should be a consecutive 0-based integer sequence.",
        )
    return _nodes_refused(broker, [each.broker_ids for each in wanted.assignments])


def _nodes_refused(broker: Broker, assignments: Sequence[Sequence[int]]) -> TopicAnswer | None:
    live = [each.node_id for each in broker.ownership.nodes()]
    if all(len(nodes) == 1 and nodes[0] in live for nodes in assignments):
        return None
    return TopicAnswer(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"Each partition must be assigned to one node, and live nodes are {', '.join(map(str, live))}.",
    )


def _created(
    broker: Broker, rights: RequestRights, name: str, answer: TopicAnswer, version: int
) -> wire.CreatableTopicResult:
    result = wire.CreatableTopicResult(name=name, error_code=answer.error, error_message=answer.message)
    if answer.topic is None or answer.error:
        return result
    result.topic_id = answer.topic.topic_id
    if not rights.has(DESCRIBE_CONFIGS, TOPIC, name):
        result.topic_config_error_code = TOPIC_DENIED
        return result
    result.num_partitions = answer.topic.partitions
    result.replication_factor = 1
    if version >= 5:
        result.configs = [
            wire.CreatableTopicConfigs(
                name=each.name,
                value=each.value,
                read_only=each.is_read_only,
                config_source=each.source,
                is_sensitive=each.is_sensitive,
            )
            for each in topic_entries(answer.topic, broker.policies.configs)
        ]
    return result


async def delete_topics(
    broker: Broker, request: wire.DeleteTopicsRequest, context: RequestContext
) -> wire.DeleteTopicsResponse:
    """DeleteTopics v1–v6: delete topics by name or by id, with their records and every group's offsets.

    Behaviour: each topic succeeds or fails independently. When the response is sent, no client sees the topic
        any more; the space of its records is freed a little later.
    Versions:  v3 TOPIC_DELETION_DISABLED · v4 flexible · v5 error messages,
        THROTTLING_QUOTA_EXCEEDED · v6 topic ids.
    Differs:   a topic that is given once by name and once by id is deleted; Kafka refuses both.
    """
    rights = rights_of(broker, request, context)
    if context.version >= 6:
        wanted = request.topics
    else:
        wanted = [wire.DeleteTopicState(name=name) for name in request.topic_names]
    times = Counter((each.name, each.topic_id) for each in wanted)
    denied = await _undeletable(broker, rights, [key for key in times if times[key] == 1])
    results = {
        key: wire.DeletableTopicResult(name=key[0], topic_id=key[1], error_message=None)
        for key in times
        if key not in denied
    }
    commands: list[DeleteTopic] = []
    waiting: list[wire.DeletableTopicResult] = []
    for key, result in results.items():
        found = await _deletion(broker, result, context.version, twice=times[key] > 1)
        if isinstance(found, TopicAnswer):
            result.error_code, result.error_message = found.error, found.message
        else:
            commands.append(found)
            waiting.append(result)
    if commands:
        for result, answer in zip(waiting, await _ask_within_quota(broker, commands, context), strict=True):
            result.error_code, result.error_message = answer.error, answer.message
            if answer.topic is not None:
                result.name, result.topic_id = answer.topic.name, answer.topic.topic_id
    return wire.DeleteTopicsResponse(responses=[*results.values(), *denied.values()])


async def _undeletable(
    broker: Broker, rights: RequestRights, topics: Iterable[tuple[str | None, bytes]]
) -> dict[tuple[str | None, bytes], wire.DeletableTopicResult]:
    """The results for topics, given by name or id, that the client may not delete."""
    results: dict[tuple[str | None, bytes], wire.DeletableTopicResult] = {}
    if broker.settings.delete_topic_enable and not rights.has(DELETE, CLUSTER):
        for name, topic_id in topics:
            result = await _denied_deletion(broker, rights, name, topic_id)
            if result is not None:
                results[name, topic_id] = result
    return results


async def _denied_deletion(
    broker: Broker, rights: RequestRights, name: str | None, topic_id: bytes
) -> wire.DeletableTopicResult | None:
    """None if it may be deleted, or if there is another error. Without Describe, the name is hidden."""
    by_id = topic_id != NO_TOPIC_ID
    if by_id == (name is not None):
        return None
    if by_id:
        topic = await broker.catalog.topic_by_id(topic_id)
        name = None if topic is None else topic.name
    if name is None or rights.topic(DELETE, name):
        return None
    error, message = TOPIC_DENIED, MESSAGES[TOPIC_DENIED]
    may_describe = rights.has(DESCRIBE, TOPIC, name)
    if not by_id and may_describe and await broker.catalog.topic(name) is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist."
    return wire.DeletableTopicResult(
        name=name if may_describe or not by_id else None,
        topic_id=topic_id,
        error_code=error,
        error_message=message,
    )


async def _deletion(
    broker: Broker, wanted: wire.DeletableTopicResult, version: int, *, twice: bool
) -> DeleteTopic | TopicAnswer:
    """The command that deletes this topic, or the error."""
    if not broker.settings.delete_topic_enable:
        error = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        return TopicAnswer(error, "Topics cannot be deleted: delete.topic.enable is false.")
    by_id = wanted.topic_id != NO_TOPIC_ID
    if by_id == (wanted.name is not None):
        return TopicAnswer(ErrorCode.INVALID_REQUEST, "Give either the name of a topic or its id.")
    if twice:
        return TopicAnswer(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if by_id else 'name'}.")
    if wanted.name is not None:
        return DeleteTopic(wanted.name)
    topic: Topic | None = await broker.catalog.topic_by_id(wanted.topic_id)
    if topic is None:
        return TopicAnswer(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
    return DeleteTopic(topic.name, topic.topic_id)


async def create_partitions(
    broker: Broker, request: wire.CreatePartitionsRequest, context: RequestContext
) -> wire.CreatePartitionsResponse:
    """CreatePartitions v0–v3: add partitions to topics; the count is the new total.

    Behaviour: each topic succeeds or fails independently. The new partitions are empty.
    Versions:  v2 flexible · v3 THROTTLING_QUOTA_EXCEEDED.
    """
    rights = rights_of(broker, request, context)
    names = Counter(each.name for each in request.topics)
    allowed, denied = rights.split(names, lambda name: names[name] > 1 or rights.topic(ALTER, name))
    topics = {each.name: each for each in request.topics}
    answers: dict[str, TopicAnswer] = {}
    commands: dict[str, AddPartitions] = {}
    for name in allowed:
        each = topics[name]
        refused = _growth_refused(broker, each, twice=names[name] > 1)
        if refused:
            answers[name] = refused
        else:
            added = None if each.assignments is None else len(each.assignments)
            commands[name] = AddPartitions(name, each.count, request.validate_only, added)
    refused = too_many_partitions(broker, await _increase(broker, commands.values()))
    if refused:
        answers.update(dict.fromkeys(commands, refused))
    elif commands:
        answered = await _ask_within_quota(broker, list(commands.values()), context)
        answers.update(zip(commands, answered, strict=True))
    answers.update(dict.fromkeys(denied, TopicAnswer(TOPIC_DENIED)))
    return wire.CreatePartitionsResponse(
        results=[
            wire.CreatePartitionsTopicResult(
                name=name, error_code=answers[name].error, error_message=answers[name].message
            )
            for name in (*allowed, *denied)
        ]
    )


async def _increase(broker: Broker, commands: Iterable[AddPartitions]) -> int:
    """Roughly how many partitions this creates. It bounds the work of a request and need not be exact."""
    increase = 0
    for each in commands:
        topic = await broker.catalog.topic(each.name)
        increase += 0 if topic is None else max(0, each.partitions - topic.partitions)
    return increase


def _growth_refused(broker: Broker, wanted: wire.CreatePartitionsTopic, *, twice: bool) -> TopicAnswer | None:
    if twice:
        return TopicAnswer(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    limit = broker.settings.semel_partitions_per_topic_max
    if wanted.count > limit:
        return TopicAnswer(ErrorCode.INVALID_PARTITIONS, f"A topic may have at most {limit} partitions.")
    if wanted.assignments is None:
        return None
    return _nodes_refused(broker, [each.broker_ids for each in wanted.assignments])


HANDLERS: dict[int, Handler] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    **logs.HANDLERS,
}
