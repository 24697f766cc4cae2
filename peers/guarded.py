"""Semel and Apache Kafka with ACLs, side by side: the same requests by a principal with the same rights.

A `Side` is one of the two. It has a connection of a super user, who creates what the requests refer to and
changes the rights, and one of a principal that has only those rights. Names in requests, answers and rights
get a number, so that each row of the matrix has its own world in the same broker.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from support.brokers.process import free_port
from support.brokers.secured_broker import ADMIN, PASSWORD, Secured, secured
from support.clients.raw import RawClient
from support.models.rights import Right
from support.models.rights_requests import (
    CLASSIC,
    CONSUMER,
    DRIVER,
    NEW,
    G,
    T,
    World,
    X,
    consuming,
    prepare,
)
from support.waiting import until

from peers.brokers import COMMON, run_kafka
from semel.client import Admin, Client
from semel.core.security.acls import Permission
from semel.wire.errors import ErrorCode
from semel.wire.messages import APIS, ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from semel.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from semel.wire.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from semel.wire.schema import Declared

WHO, SECRET = "alice", "alice-s3cret"
PRINCIPAL = f"User:{WHO}"
NAMES = (T, G, X, CLASSIC, CONSUMER, DRIVER, NEW)
BEGIN_ATTEMPT = 20_001
CREATE_TOPICS = 19
CONSUMER_HEARTBEAT = 68
LEAVES = -1
ANY = 1
SAME = {
    "group.consumer.session.timeout.ms": "45000",
    "group.consumer.heartbeat.interval.ms": "5000",
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "4",
}
"""Members stay during a row, records of 1970 are kept, and a group always has the same coordinator."""
PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""Transient errors of new entities: Apache Kafka answers before all its parts know of a change."""
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

_numbers = count()


class Names:
    """The names of one world: ``t`` becomes ``t-17`` there."""

    def __init__(self) -> None:
        number = next(_numbers)
        self._there = {name: f"{name}-{number}" for name in NAMES}
        self._here = {there: name for name, there in self._there.items()}

    def right(self, right: Right) -> Right:
        return right._replace(name=self._there.get(right.name, right.name))

    def there(self, message: Any) -> Any:
        return _renamed(message, self._there)

    def here(self, message: Any) -> Any:
        return _renamed(message, self._here)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    if isinstance(value, Declared):
        for name in value.declared:
            setattr(value, name, _renamed(getattr(value, name), names))
    return value


class Rule(NamedTuple):
    """A right that is allowed, or denied regardless of other rules."""

    right: Right
    permission: Permission = Permission.ALLOW


def _has_partitions(answer: Any) -> bool:
    return answer.assignment is not None and bool(answer.assignment.topic_partitions)


class Side:
    """One of the two brokers."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self._root = connected(address, ADMIN, PASSWORD)
        self._client = connected(address, WHO, SECRET)
        self._rules: set[Rule] = set()
        answer = self._root.ask(ApiVersionsRequest(), 2)
        self.versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def close(self) -> None:
        self._root.close()
        self._client.close()

    def ask(self, names: Names, request: Any, version: int) -> Any:
        """Ask as the principal whose rights are given. Apache Kafka may need time for an abort."""
        request = names.there(request)
        while True:
            answer = self._client.ask(request, version)
            if ErrorCode.CONCURRENT_TRANSACTIONS not in error_codes(answer):
                return names.here(answer)
            time.sleep(0.02)

    def as_root(self, names: Names, request: Any, version: int) -> Any:
        """Ask as the super user. Transient errors are waited out, others fail."""
        request = names.there(request)
        deadline = time.monotonic() + 20
        while True:
            answer = self._root.ask(request, version)
            errors = set(error_codes(answer)) - {ErrorCode.NONE}
            if not errors:
                return names.here(answer)
            is_passing = errors <= PASSING and time.monotonic() < deadline
            assert is_passing, (self.name, request, answer)
            time.sleep(0.02)

    def world(self, names: Names) -> World:
        async def ask(key: int, request: Any, version: int) -> Any:
            if key == BEGIN_ATTEMPT:  # Apache Kafka does not have it
                return SimpleNamespace(producer_id=-1, producer_epoch=-1)
            answer = self.as_root(names, request, version)
            if key == CONSUMER_HEARTBEAT:
                answer = self._assigned(names, request, version, answer)
            if key == CREATE_TOPICS:
                wanted = MetadataRequest(topics=[MetadataRequestTopic(name=T)])
                self.as_root(names, wanted, 12)
            return answer

        world: World = finished(prepare(ask))
        return world

    def _assigned(self, names: Names, request: Any, version: int, answer: Any) -> Any:
        """Join until the member has partitions: Kafka's coordinator may not know a new topic yet."""
        while not _has_partitions(answer):
            self.as_root(names, consuming(answer.member_id, LEAVES), version)
            time.sleep(0.05)
            answer = self.as_root(names, request, version)
        return answer

    def give(self, names: Names, rules: Iterable[Rule]) -> None:
        """Replace all previous rules with these."""
        wanted = {rule._replace(right=names.right(rule.right)) for rule in rules}
        if old := self._rules - wanted:
            filters = [DeleteAclsFilter(**_filter(each)) for each in old]
            self._root_ask(DeleteAclsRequest(filters=filters))
        if new := wanted - self._rules:
            creations = [AclCreation(**_creation(each)) for each in new]
            self._root_ask(CreateAclsRequest(creations=creations))
        self._rules = wanted
        until(lambda: self._described() == wanted, what=f"the rights on {self.name}")

    def _described(self) -> set[Rule]:
        about = DescribeAclsRequest(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=PRINCIPAL,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )
        answer = self._root_ask(about)
        return {
            Rule(
                Right(acl.operation, resource.resource_type, resource.resource_name),
                Permission(acl.permission_type),
            )
            for resource in answer.resources
            for acl in resource.acls
        }

    def _root_ask(self, request: Any, version: int = 3) -> Any:
        answer = self._root.ask(request, version)
        assert not any(error_codes(answer)), answer
        return answer


def _creation(rule: Rule) -> dict[str, Any]:
    operation, resource_type, name = rule.right
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "principal": PRINCIPAL,
        "host": "*",
        "operation": operation,
        "permission_type": rule.permission,
    }


def _filter(rule: Rule) -> dict[str, Any]:
    given = _creation(rule)
    renamed = {name: f"{name}_filter" for name in ("resource_type", "resource_name", "principal", "host")}
    return {renamed.get(name, name): value for name, value in given.items()}


def finished(work: Any) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def connected(address: str, user: str, password: str) -> RawClient:
    """Connect as a user, by PLAIN."""
    client = RawClient(address, client_id="rights", timeout_seconds=30)
    assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.NONE
    token = f"\0{user}\0{password}".encode()
    assert client.ask(SaslAuthenticateRequest(auth_bytes=token), 2).error_code == ErrorCode.NONE
    return client


def error_codes(message: Any) -> Iterator[int]:
    """All error codes in a message."""
    if isinstance(message, list):
        for each in message:
            yield from error_codes(each)
    elif isinstance(message, Declared):
        for name in message.declared:
            value = getattr(message, name)
            if name.endswith("error_code"):
                yield value
            yield from error_codes(value)


# -- running them -----------------------------------------------------------------------------------------


@contextmanager
def both(class_path: str, folder: Path) -> Iterator[Sequence[Side]]:
    """Run Semel, then Apache Kafka."""
    with ExitStack() as stack:
        semel = stack.enter_context(secured(folder / "semel", **(COMMON | SAME)))
        _add_user(semel)
        kafka = stack.enter_context(guarded_kafka(class_path, folder / "kafka"))
        sides = [Side("semel", semel.address("SASL_PLAINTEXT")), Side("kafka", kafka)]
        for each in sides:
            stack.callback(each.close)
        yield sides


def _add_user(semel: Secured) -> None:
    with semel.admin() as admin:
        admin.users.put(WHO, SECRET, mechanism="SCRAM-SHA-256")


@contextmanager
def guarded_kafka(class_path: str, folder: Path, **settings: str) -> Iterator[str]:
    """Run Apache Kafka with its own authorizer; yield the address of a listener with SASL.

    A connection without SASL is the broker itself or its controller, and has all rights.
    """
    port = free_port()
    users = {ADMIN: PASSWORD, WHO: SECRET}
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    given = {
        "node.id": "0",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_LOGIN} required {known};",
        "group.consumer.assignment.interval.ms": "0",
        **SAME,
        **settings,
    }
    with run_kafka(class_path, folder, listeners={"SASL_PLAINTEXT": port}, **given) as broker:
        with Client(broker.direct) as client:
            # Semel has these users in its ledger, so that both describe the same users.
            for name, password in users.items():
                Admin(client).users.put(name, password)
        yield f"127.0.0.1:{port}"


def common_version(sides: Sequence[Side], key: int, wanted: int) -> int:
    """Return the version of a row, or the next lower one that both support."""
    lowest: int = max(each.versions[key][0] for each in sides)
    highest: int = min(each.versions[key][1] for each in sides)
    version = min(wanted, highest)
    assert lowest <= version, f"{APIS[key].name}: {[each.versions[key] for each in sides]}"
    return version
