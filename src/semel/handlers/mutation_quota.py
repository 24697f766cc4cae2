"""The quota on created and deleted partitions (KIP-599)."""

from collections.abc import Sequence
from typing import Final

from semel.broker.broker import Broker
from semel.core.topics import AddPartitions, CreateTopic, DeleteTopic, TopicAnswer
from semel.core.types import ErrorCode
from semel.handlers.context import RequestContext

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
            await _partitions(broker, each), strict=context.version >= STRICT_SINCE[type(each)]
        )
        for each in commands
    ]


async def _partitions(broker: Broker, command: Mutation) -> int:
    """How many partitions a command creates or deletes."""
    if isinstance(command, CreateTopic):
        return 0 if command.validate_only else command.partitions
    topic = await broker.catalog.topic(command.name)
    if topic is None:
        return 0
    if isinstance(command, DeleteTopic):
        return topic.partitions
    return 0 if command.validate_only else max(0, command.partitions - topic.partitions)
