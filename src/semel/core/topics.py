"""Topics: create, delete, add partitions, configure.

Each command names one topic and is decided against its current state. If two clients create the same topic at
the same moment, one gets the topic and the other TOPIC_ALREADY_EXISTS. A retry of a successful create gets
TOPIC_ALREADY_EXISTS too, as in Kafka; clients take it as "the topic exists".

``validate_only`` returns the answer without the facts.

The caller provides the topic id, because ids are random and the core is deterministic. A topic that is
deleted and created again under the same name has another id, so it shares no partition, producer state or
offset with the old one.

The caller (``handlers/topics.py``) checks what does not belong to a topic's state: limits that are settings,
replication factors and assignments, and duplicate topics in a request.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from semel.core import topic_configs, types
from semel.core.configs import LIST, ConfigOperation, InvalidOperation, operate
from semel.core.data import Data
from semel.core.facts import TopicChanged, TopicCreated, TopicDeleted
from semel.wire.errors import ErrorCode

if TYPE_CHECKING:
    from semel.core.state import BrokerState

NAME_LENGTH_MAX: Final = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class CreateTopic(types.Command["TopicAnswer"]):
    """Create a topic with empty partitions."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str | None]
    validate_only: bool = False

    def keys(self) -> Iterable[types.Key]:
        """The topic, which may exist already."""
        return (types.TopicKey(self.name),)


class DeleteTopic(types.Command["TopicAnswer"]):
    """Delete a topic. With an id, only if the name still belongs to that id."""

    name: str
    topic_id: bytes | None = None

    def keys(self) -> Iterable[types.Key]:
        """The topic."""
        return (types.TopicKey(self.name),)


class AddPartitions(types.Command["TopicAnswer"]):
    """Grow a topic to this many partitions. ``added`` is how many the client expects to add, if given."""

    name: str
    partitions: int
    validate_only: bool = False
    added: int | None = None

    def keys(self) -> Iterable[types.Key]:
        """The topic."""
        return (types.TopicKey(self.name),)


class AlterTopic(types.Command["TopicAnswer"]):
    """Change a topic's configs: by operations, or (``replace``) to exactly the given values."""

    name: str
    operations: tuple[ConfigOperation, ...]
    replace: bool = False
    validate_only: bool = False

    def keys(self) -> Iterable[types.Key]:
        """The topic."""
        return (types.TopicKey(self.name),)


class TopicAnswer(Data):
    """The answer to all commands on topics: an error with a message, or the topic (if deleted, as it was)."""

    error: ErrorCode
    message: str | None = None
    topic: types.Topic | None = None


def name_problem(name: str) -> str | None:
    """Return the message for an invalid topic name, or None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is invalid: it is longer than {NAME_LENGTH_MAX} characters"
    if not _NAME.fullmatch(name):
        return "Topic name is invalid: only ASCII letters, digits, '.', '_' and '-' are allowed"
    return None


def _refuse(error: ErrorCode, message: str) -> types.Decision:
    return types.Decision(TopicAnswer(error, message))


def _unknown(name: str) -> types.Decision:
    return _refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist")


def _create(state: "BrokerState", command: CreateTopic, now: int) -> types.Decision:
    wrong_name = name_problem(command.name)
    if wrong_name:
        return _refuse(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong_name)
    if state.topics[types.TopicKey(command.name)] is not None:
        return _refuse(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {command.name!r} already exists")
    if command.partitions < 1:
        return _refuse(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0")
    configs: dict[str, str] = {}
    for name, value in command.configs.items():
        wrong_value = topic_configs.problem(name, value)
        if wrong_value or value is None:
            return _refuse(ErrorCode.INVALID_CONFIG, wrong_value or f"{name} needs a value")
        configs[name] = value
    conflict = topic_configs.conflict(configs)
    if conflict:
        return _refuse(ErrorCode.INVALID_CONFIG, conflict)
    topic = types.Topic(command.name, command.topic_id, command.partitions, configs)
    return types.Decision(
        TopicAnswer(ErrorCode.NONE, topic=topic), () if command.validate_only else (TopicCreated(topic),)
    )


def _delete(state: "BrokerState", command: DeleteTopic, now: int) -> types.Decision:
    topic = state.topics[types.TopicKey(command.name)]
    if command.topic_id is not None and (topic is None or topic.topic_id != command.topic_id):
        return _refuse(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id")
    if topic is None:
        return _unknown(command.name)
    return types.Decision(TopicAnswer(ErrorCode.NONE, topic=topic), (TopicDeleted(topic),))


def _add_partitions(state: "BrokerState", command: AddPartitions, now: int) -> types.Decision:
    topic = state.topics[types.TopicKey(command.name)]
    if topic is None:
        return _unknown(command.name)
    if command.partitions == topic.partitions:
        return _refuse(ErrorCode.INVALID_PARTITIONS, f"Topic already has {topic.partitions} partition(s)")
    if command.partitions < topic.partitions:
        return _refuse(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic has {topic.partitions} partition(s); {command.partitions} would not be an increase",
        )
    increase = command.partitions - topic.partitions
    if command.added is not None and command.added != increase:
        return _refuse(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{increase} partition(s) are to be added, but there are assignments for {command.added}",
        )
    grown = topic.but(partitions=command.partitions)
    return types.Decision(
        TopicAnswer(ErrorCode.NONE, topic=grown), () if command.validate_only else (TopicChanged(grown),)
    )


def _alter(state: "BrokerState", command: AlterTopic, now: int) -> types.Decision:
    topic = state.topics[types.TopicKey(command.name)]
    if topic is None:
        return _unknown(command.name)
    configs = topic_configs.kept(topic.configs) if command.replace else dict(topic.configs)
    for each in command.operations:
        problem = _operate(configs, each)
        if problem:
            return _refuse(ErrorCode.INVALID_CONFIG, problem)
    conflict = topic_configs.forbidden_change(topic.configs, configs) or topic_configs.conflict(configs)
    if conflict:
        return _refuse(ErrorCode.INVALID_CONFIG, conflict)
    changed = topic.but(configs=configs)
    # Setting a config to its current value must not cost a commit.
    facts = () if command.validate_only or changed == topic else (TopicChanged(changed),)
    return types.Decision(TopicAnswer(ErrorCode.NONE, topic=changed), facts)


def _operate(configs: dict[str, str], operation: ConfigOperation) -> str | None:
    """Apply one operation to the configs; return the message if it is invalid."""
    name = operation[0]
    row = topic_configs.TOPIC_CONFIGS.get(name)
    if row is None:
        return topic_configs.unknown(name)
    try:
        operate(configs, operation, row.default if row.kind is LIST else None)
    except InvalidOperation as invalid:
        return str(invalid)
    return topic_configs.problem(name, configs[name]) if name in configs else None


def _topic_created(state: "BrokerState", fact: TopicCreated) -> None:
    topic = fact.topic
    state.topics[types.TopicKey(topic.name)] = topic
    for index in range(topic.partitions):
        state.partitions[types.PartitionKey(topic.topic_id, index)] = types.Partition()


def _topic_changed(state: "BrokerState", fact: TopicChanged) -> None:
    topic = fact.topic
    before = state.topics[types.TopicKey(topic.name)]
    assert before is not None
    assert before.topic_id == topic.topic_id
    for index in range(before.partitions, topic.partitions):
        state.partitions[types.PartitionKey(topic.topic_id, index)] = types.Partition()
    state.topics[types.TopicKey(topic.name)] = topic


def _topic_deleted(state: "BrokerState", fact: TopicDeleted) -> None:
    """Mark loaded entities as absent instead of unloading them.

    The ledger has the old rows until this tick is committed. A later command of the tick that loaded them
    again would see the deleted topic.
    """
    topic = fact.topic
    state.topics[types.TopicKey(topic.name)] = None
    for index in range(topic.partitions):
        state.partitions[types.PartitionKey(topic.topic_id, index)] = None
    for producer in [key for key in state.producers if key.topic_id == topic.topic_id]:
        state.producers[producer] = None
    for share in [key for key in state.shares if key.topic_id == topic.topic_id]:
        state.shares[share] = None
        state.share_locks.pop(share, None)
    for offset in [key for key in state.offsets if key.topic == topic.name]:
        state.offsets[offset] = None
    for group, pending in list(state.pending.items()):
        kept = tuple(each for each in pending or () if each.key.topic != topic.name)
        state.pending[group] = kept or None


DECIDE: dict[type, types.Decide] = {
    CreateTopic: _create,
    DeleteTopic: _delete,
    AddPartitions: _add_partitions,
    AlterTopic: _alter,
}

APPLY: dict[type, types.Apply] = {
    TopicCreated: _topic_created,
    TopicChanged: _topic_changed,
    TopicDeleted: _topic_deleted,
}
