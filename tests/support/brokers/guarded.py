"""A broker in memory with ACLs."""

import inspect
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from semel.broker.broker import Broker
from semel.broker.commit.pending_commands import Promise
from semel.core.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from semel.core.security.policies import AddAcl, RemoveAcl
from semel.handlers import HANDLERS
from semel.wire.messages import APIS
from semel.wire.messages.groups import ConsumerGroupDescribeRequest, DescribeGroupsRequest, ListGroupsRequest
from semel.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from semel.wire.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from support.brokers.in_memory import broker_in_memory, context
from support.models.rights import Right
from support.models.rights_requests import G, X

ALICE, ROOT = "User:alice", "User:root"
SETTINGS = {
    "semel_authorizer": "acl",
    "super_users": f"User:other; {ROOT}",
    "group_initial_rebalance_delay_ms": 0,
    "auto_create_topics_enable": True,
    "semel_cluster_action_enable": True,
    "transaction_two_phase_commit_enable": True,
}
EVERYTHING = [
    Right(Operation.ALL, kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else "*")
    for kind in (
        ResourceType.TOPIC,
        ResourceType.GROUP,
        ResourceType.TRANSACTIONAL_ID,
        ResourceType.CLUSTER,
    )
]


class Guarded:
    """Sends requests as a principal."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def start(self, key: int, request: Any, version: int, principal: str = ALICE) -> Any:
        """The answer as the handler returns it: a coroutine or a promise."""
        decoded = APIS[key].request.decode(request.encode(version), version)
        return HANDLERS[key](self.broker, decoded, context(version)._replace(principal=principal))

    async def ask(self, key: int, request: Any, version: int, principal: str = ALICE) -> Any:
        answer = self.start(key, request, version, principal)
        assert isinstance(answer, Promise) or inspect.iscoroutine(answer), "a connection closes coroutines"
        response = await answer
        return APIS[key].response.decode(response.encode(version), version)

    async def as_root(self, key: int, request: Any, version: int) -> Any:
        return await self.ask(key, request, version, ROOT)

    async def allow(self, *rights: Right, pattern: PatternType = PatternType.LITERAL) -> None:
        await self.broker.submit(
            [AddAcl(binding(each, Permission.ALLOW, pattern)) for each in dict.fromkeys(rights)]
        )

    async def deny(self, *rights: Right) -> None:
        await self.broker.submit([AddAcl(binding(each, Permission.DENY)) for each in dict.fromkeys(rights)])

    async def take(self, *rights: Right) -> None:
        await self.broker.submit([RemoveAcl(binding(each, Permission.ALLOW)) for each in rights])

    async def state(self) -> str:
        """Return everything that a request could have changed, as text."""
        classic = await self.as_root(16, ListGroupsRequest(), 4)
        names = sorted(each.group_id for each in classic.groups)
        ids = await self.as_root(66, ListTransactionsRequest(), 1)
        transactions = sorted(each.transactional_id for each in ids.transaction_states)
        described = [
            await self.as_root(15, DescribeGroupsRequest(groups=names), 5),
            await self.as_root(69, ConsumerGroupDescribeRequest(group_ids=names), 0),
            await self.as_root(65, DescribeTransactionsRequest(transactional_ids=[*transactions, X]), 0),
            await self.as_root(
                9, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=G, topics=None)]), 8
            ),
        ]
        broker = self.broker
        return json.dumps(
            [
                broker.metrics.facts,
                list(map(repr, await broker.catalog.all())),
                list(map(repr, described)),
                sorted(map(repr, broker.policies.acls)),
                repr(broker.policies.credentials),
                repr(broker.cluster),
            ]
        )


def binding(
    right: Right, permission: Permission, pattern: PatternType = PatternType.LITERAL, who: str = ALICE
) -> AclBinding:
    operation, resource_type, name = right
    return AclBinding(resource_type, pattern, name, who, "*", operation, permission)


@asynccontextmanager
async def guarded_broker(**settings: Any) -> AsyncIterator[Guarded]:
    async with broker_in_memory(**{**SETTINGS, **settings}) as broker:
        yield Guarded(broker)
