"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer protocol (KIP-848).

The group rules have no access to topics, so a heartbeat takes two commands: read the group's subscriptions,
look those topics up, then submit the heartbeat with the result. Topics and subscriptions may change between
the two; the next heartbeat notices. Regular expressions are matched against all topics only periodically
(``REGEX_REFRESH_MS``), and when a member sends one.
"""

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from semel.broker.broker import Broker
from semel.core.groups import commands
from semel.core.groups.assignors import DEFAULT_ASSIGNOR
from semel.core.groups.consumer import problem
from semel.core.groups.model import NO_ASSIGNMENT, ConsumerGroup, ConsumerMember, Group, TopicShape
from semel.core.groups.model import Assignment as OwnedPartitions
from semel.core.names import NamePattern, PatternError
from semel.core.types import ErrorCode, Topic
from semel.handlers.context import Handler, RequestContext
from semel.handlers.group_admin import describe_each
from semel.handlers.leadership import coordination_error, refused_by_store
from semel.handlers.rights import DESCRIBE, GROUP_DENIED, READ, TOPIC, TOPIC_DENIED, RequestRights, rights_of
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
"""The member types of a consumer group, by protocol."""
LOOKUPS_MAX: Final = 3
"""How often the topics of a joining member are looked up at most. The group may change during each lookup."""
NAMES_AT_ONCE: Final = 64
"""Names that are matched before the event loop gets a turn."""
HAS_DENIED_TOPICS: Final = "A topic of this group may not be described."


async def consumer_group_heartbeat(
    broker: Broker, request: wire.ConsumerGroupHeartbeatRequest, context: RequestContext
) -> wire.ConsumerGroupHeartbeatResponse:
    """ConsumerGroupHeartbeat v0–v1: join a group, stay a member, leave, and get an assignment (KIP-848).

    Behaviour: a null assignment means "unchanged". The next heartbeat notices a new topic or partition; one
        that matches only a regular expression is noticed some seconds later. A group of another coordinator
        is NOT_COORDINATOR. A regular expression matches only topics that the client may describe. A classic
        group becomes a consumer group with its members, unless group.consumer.migration.policy forbids it
        (GROUP_ID_NOT_FOUND), and a classic group again when only members of the classic protocol remain.
    Versions:  v1 regular expressions, and the client chooses its member id.
    Differs:   targets of up to 100 members and regular expressions are computed at once, in Kafka
        asynchronously. The first heartbeat on a connection gets the assignment; Kafka sends it again to
        members that list what they own, which librdkafka does not do after a timeout. A static member may
        rejoin under its own member id; in Kafka that is UNRELEASED_INSTANCE_ID.
    """
    rights = rights_of(broker, request, context)
    if not rights.group(READ, request.group_id):
        return wire.ConsumerGroupHeartbeatResponse(error_code=GROUP_DENIED)
    if not rights.topics(DESCRIBE, request.subscribed_topic_names or ()):
        return wire.ConsumerGroupHeartbeatResponse(error_code=TOPIC_DENIED)
    try:
        if error := coordination_error(broker, request.group_id):
            answer = commands.ConsumerAnswer(error, "This broker does not coordinate the group.")
        elif request.member_epoch == 0 and not await broker.has_room_for_group(request.group_id):
            answer = commands.ConsumerAnswer(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too many groups (semel.groups.max)."
            )
        else:
            answer = await _heartbeat(broker, request, context, rights)
    except StoreRefused:
        error = refused_by_store(broker, request.group_id)
        answer = commands.ConsumerAnswer(error, "the broker cannot write now")
    except PatternError as error:
        message = f"SubscribedTopicRegex `{request.subscribed_topic_regex}` is not valid: {error}."
        answer = commands.ConsumerAnswer(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
    return wire.ConsumerGroupHeartbeatResponse(
        error_code=answer.error,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None
        if answer.assignment is None
        else wire.Assignment(
            topic_partitions=[
                wire.TopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic(answer.assignment)
                if rights.are_all or await _may_see(broker, rights, topic_id)
            ]
        ),
    )


async def _may_see(broker: Broker, rights: RequestRights, topic_id: bytes) -> bool:
    """Whether the member may describe a topic that is assigned to it.

    As in Kafka, a regular expression is matched with the rights of any member of the group. So the assignment
    may contain topics that this member may not describe; the response omits them.
    """
    topic = broker.catalog.cached_by_id(topic_id) or await broker.catalog.topic_by_id(topic_id)
    return topic is None or rights.has(DESCRIBE, TOPIC, topic.name)


async def _heartbeat(
    broker: Broker,
    request: wire.ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    rights: RequestRights,
) -> commands.ConsumerAnswer:
    command = _command(broker, request, context)
    if wrong := problem(command):
        return commands.ConsumerAnswer(ErrorCode.INVALID_REQUEST, wrong)
    patterns = {}
    if request.subscribed_topic_regex:
        patterns[request.subscribed_topic_regex] = NamePattern(request.subscribed_topic_regex)
    wanted = commands.Subscriptions()
    if request.group_id and request.member_epoch >= 0:
        wanted = await broker.ask(commands.ReadSubscriptions(request.group_id, request.member_epoch == 0))
    patterns.update({regex: NamePattern(regex) for regex in wanted.regexes if regex not in patterns})
    names = wanted.topic_names.union(request.subscribed_topic_names or ())
    topics, matches = await _look_up(broker, names, patterns, rights)
    for _ in range(LOOKUPS_MAX):
        answer: commands.ConsumerAnswer | commands.TopicsNeeded = await broker.ask(
            command.but(topics=topics, regex_matches=matches)
        )
        if not isinstance(answer, commands.TopicsNeeded):
            return answer
        # A classic group that becomes a consumer group changed during the lookup.
        topics = {**topics, **await look_up(broker, answer.names)}
    return commands.ConsumerAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group changes all the time.")


def _command(
    broker: Broker, request: wire.ConsumerGroupHeartbeatRequest, context: RequestContext
) -> commands.ConsumerHeartbeat:
    """The command, before the topics are looked up."""
    settings = broker.settings
    member_id = request.member_id
    if not member_id and context.version == 0 and request.member_epoch == 0:
        member_id = str(uuid.uuid4())
    timeouts = broker.policies.configs.group(request.group_id)
    return commands.ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=member_id,
        epoch=request.member_epoch,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=_names(request.subscribed_topic_names),
        topic_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        connection_id=context.connection_id,
        session_timeout_ms=timeouts.session_timeout_ms,
        heartbeat_interval_ms=timeouts.heartbeat_interval_ms,
        members_max=settings.group_consumer_max_size,
        member_bytes_max=settings.semel_group_member_bytes_max,
        group_bytes_max=settings.semel_group_bytes_max,
        sessions_max=settings.semel_entities_max,
    )


def _names(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _owned(partitions: list[wire.TopicPartitions] | None) -> OwnedPartitions | None:
    if partitions is None:
        return None
    return frozenset((each.topic_id, partition) for each in partitions for partition in each.partitions)


async def look_up(broker: Broker, names: frozenset[str]) -> dict[str, TopicShape | None]:
    """The topics with these names; None for those that do not exist."""
    return _shapes(await broker.catalog.topics(names))


def _shapes(topics: Mapping[str, Topic | None]) -> dict[str, TopicShape | None]:
    return {
        name: None if topic is None else TopicShape(topic.topic_id, topic.partitions)
        for name, topic in topics.items()
    }


async def _look_up(
    broker: Broker,
    names: frozenset[str],
    patterns: dict[str, NamePattern],
    rights: RequestRights,
) -> tuple[dict[str, TopicShape | None], dict[str, tuple[str, ...]]]:
    """The topics with these names and those that match the patterns, and the matches of each pattern."""
    found = await broker.catalog.topics(names)
    matches: dict[str, tuple[str, ...]] = {}
    if patterns:
        everything = [each for each in await broker.catalog.all() if rights.has(DESCRIBE, TOPIC, each.name)]
        for regex, pattern in patterns.items():
            matched = await _matching(pattern, everything)
            matches[regex] = tuple(topic.name for topic in matched)
            found.update({topic.name: topic for topic in matched})
    return _shapes(found), matches


async def _matching(pattern: NamePattern, topics: list[Topic]) -> list[Topic]:
    matched: list[Topic] = []
    for first in range(0, len(topics), NAMES_AT_ONCE):
        matched.extend(
            topic for topic in topics[first : first + NAMES_AT_ONCE] if pattern.matches(topic.name)
        )
        await asyncio.sleep(0)
    return matched


def by_topic(owned: Iterable[tuple[bytes, int]]) -> list[tuple[bytes, list[int]]]:
    """The partitions of each topic, in order."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in owned:
        topics.setdefault(topic_id, []).append(partition)
    return [(topic_id, sorted(topics[topic_id])) for topic_id in sorted(topics)]


async def consumer_group_describe(
    broker: Broker, request: wire.ConsumerGroupDescribeRequest, context: RequestContext
) -> wire.ConsumerGroupDescribeResponse:
    """ConsumerGroupDescribe v0–v1: consumer groups with their members, assignments and target assignments.

    Behaviour: GROUP_ID_NOT_FOUND for groups that do not exist or are classic, NOT_COORDINATOR for those of
        another coordinator. A repeated group is described once.
    Versions:  v1 member type.
    """
    rights = rights_of(broker, request, context)
    groups = await describe_each(
        broker,
        rights,
        request.group_ids,
        _described,
        wire.ConsumerGroupDescribeDescribedGroup,
        has_operations=request.include_authorized_operations,
    )
    return wire.ConsumerGroupDescribeResponse(
        groups=[
            each
            if rights.topics(DESCRIBE, _assigned_topics(each))
            else wire.ConsumerGroupDescribeDescribedGroup(
                group_id=each.group_id, error_code=TOPIC_DENIED, error_message=HAS_DENIED_TOPICS
            )
            for each in groups
        ]
    )


def _assigned_topics(group: wire.ConsumerGroupDescribeDescribedGroup) -> Iterator[str]:
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            for each in assignment.topic_partitions:
                yield each.topic_name


def _described(group_id: str, group: Group | None) -> wire.ConsumerGroupDescribeDescribedGroup:
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        return wire.ConsumerGroupDescribeDescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID,
            error_message=f"Group {group_id} {what}.",
            group_id=group_id,
        )
    names = {shape.topic_id: name for name, shape in group.topics.items()}
    return wire.ConsumerGroupDescribeDescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor or DEFAULT_ASSIGNOR,
        members=[_member(group, member, names) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, names: dict[bytes, str]) -> wire.Member:
    return wire.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_regex or "",
        # A member owns the partitions that it is revoking until it confirms the revocation.
        assignment=_shown(member.assigned | member.revoking, names),
        target_assignment=_shown(group.target.get(member.member_id, NO_ASSIGNMENT), names),
        member_type=CLASSIC_MEMBER if member.classic else CONSUMER_MEMBER,
    )


def _shown(owned: OwnedPartitions, names: dict[bytes, str]) -> wire.ConsumerGroupDescribeAssignment:
    """An assignment with topic names. Topics that have been deleted have no name and are left out."""
    return wire.ConsumerGroupDescribeAssignment(
        topic_partitions=[
            wire.ConsumerGroupDescribeTopicPartitions(
                topic_id=topic_id, topic_name=names[topic_id], partitions=partitions
            )
            for topic_id, partitions in by_topic(owned)
            if topic_id in names
        ]
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
}
