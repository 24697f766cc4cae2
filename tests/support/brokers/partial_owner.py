"""A broker in memory that owns only some of the partitions, groups and transactional ids."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from semel.broker.broker import Broker
from semel.broker.ownership import Node
from semel.core.types import ErrorCode, PartitionKey
from support.brokers.in_memory import LISTENER, broker_in_memory, make_topic
from support.models.ownership import Owners, Seat, endpoint

HERE, THERE, ELSEWHERE = 0, 1, 2
"""This broker; a broker with the same listener; a broker without it."""
MINE, YOURS = 0, 1
"""Partitions of `t` by leader."""
NOT_LEADER, NOT_COORDINATOR = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR


@asynccontextmanager
async def divided(**settings: Any) -> AsyncIterator[tuple[Broker, Owners, bytes]]:
    """A broker that leads t/0 at epoch 0, while another broker leads t/1 at epoch 1."""
    async with broker_in_memory(**{"group_initial_rebalance_delay_ms": 0, **settings}) as broker:
        topic = await make_topic(broker, "t", 2)
        owners = Owners(
            Node(HERE, {LISTENER: endpoint(HERE)}, "a"),
            Node(THERE, {LISTENER: endpoint(THERE)}, "b"),
            Node(ELSEWHERE, {"internal": endpoint(ELSEWHERE)}),
        )
        broker.ownership = Seat(owners, HERE)
        owners.move_leader(PartitionKey(topic.topic_id, YOURS), THERE)
        owners.move_coordinator("yours", THERE)
        yield broker, owners, topic.topic_id
