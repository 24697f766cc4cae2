"""The notation of the rights matrix: cases, the rights they need, and the result without each right."""

from collections.abc import Callable
from typing import Any, NamedTuple

from semel.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from support.models.rights_requests import G, T, World, X

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, ID_DENIED = 29, 30, 31, 53


class Right(NamedTuple):
    operation: Operation
    resource_type: ResourceType
    name: str


class Hidden(NamedTuple):
    """Instead of an error: the name is in a list with the right, and is not without it."""

    name: str


class Need(NamedTuple):
    """One of these rights is needed. Without all of them the response has an error, or hides something."""

    rights: tuple[Right, ...]
    error: int | Hidden
    path: str = ""
    """Where the error is, if not at the path of the case."""
    changes: bool = False
    """Whether the request has an effect even without the right."""


class Case(NamedTuple):
    name: str
    key: int
    version: int
    request: Callable[[World], Any]
    path: str
    """Where the response has its error, as names and indexes of lists; ``*`` means all items of a list."""
    needs: tuple[Need, ...]
    allowed: int = 0
    """The value at the path with all rights."""
    only_semel: bool = False

    def expected(self, need: Need) -> tuple[str, int | Hidden]:
        return need.path or self.path, need.error

    def allowed_at(self, need: Need) -> int | Hidden:
        """Return the value at the path of a need, with all rights."""
        if need.path not in ("", self.path):
            return need.error if isinstance(need.error, Hidden) else 0
        return self.allowed or (need.error if isinstance(need.error, Hidden) else 0)


def at(message: Any, path: str) -> Any:
    """Return the value at a path of a message."""
    for position, step in enumerate(path.split(".")):
        if step == "*":
            rest = ".".join(path.split(".")[position + 1 :])
            return [at(each, rest) for each in message]
        message = message[int(step)] if step.isdigit() else getattr(message, step)
    return message


# -- rights -----------------------------------------------------------------------------------------------


def topic(operation: Operation, name: str = T, error: int | Hidden = TOPIC_DENIED, path: str = "") -> Need:
    return Need((Right(operation, ResourceType.TOPIC, name),), error, path)


def group(operation: Operation, name: str = G, error: int | Hidden = GROUP_DENIED, path: str = "") -> Need:
    return Need((Right(operation, ResourceType.GROUP, name),), error, path)


def xid(operation: Operation, name: str = X, error: int | Hidden = ID_DENIED, path: str = "") -> Need:
    return Need((Right(operation, ResourceType.TRANSACTIONAL_ID, name),), error, path)


def cluster(operation: Operation, error: int | Hidden = CLUSTER_DENIED, path: str = "") -> Need:
    return Need((Right(operation, ResourceType.CLUSTER, CLUSTER_NAME),), error, path)


def either(*needs: Need, error: int | Hidden | None = None) -> Need:
    rights = tuple(right for need in needs for right in need.rights)
    return needs[0]._replace(rights=rights, error=needs[0].error if error is None else error)


# -- where responses have their errors --------------------------------------------------------------------

PRODUCED = "responses.0.partition_responses.0.error_code"
PARTITION = "topics.0.partitions.0.error_code"
FETCHED = "responses.0.partitions.0.error_code"
NAMED = "topics.0.error_code"
ADDED = "results_by_topic_v3_and_below.0.results_by_partition.0.partition_error_code"
MARKED = "markers.0.topics.0.partitions.0.error_code"
RESULT = "results.0.error_code"
ERROR = "error_code"
