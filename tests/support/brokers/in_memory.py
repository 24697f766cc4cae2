"""A broker in memory, without a server, for tests of handlers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from semel.broker.broker import Broker
from semel.broker.ownership import Endpoint
from semel.config import Settings
from semel.core.topics import CreateTopic
from semel.core.types import ErrorCode, Topic
from semel.handlers import HANDLERS
from semel.handlers.context import RequestContext
from semel.wire.messages import APIS

LISTENER = "plain"
HOST, PORT = "broker.example", 9092


def context(version: int) -> RequestContext:
    """The context of a request from the listener that clients know as ``HOST:PORT``."""
    return RequestContext(version, "test", "127.0.0.1", LISTENER, 1)


async def send(
    broker: Broker, key: int, request: Any, version: int | None = None, asked: RequestContext | None = None
) -> Any:
    """Send through the codec in both directions, so that fields which the version lacks are dropped."""
    api = APIS[key]
    version = api.max_version if version is None else version
    decoded = api.request.decode(request.encode(version), version)
    response = await HANDLERS[key](broker, decoded, asked or context(version))
    return None if response is None else api.response.decode(response.encode(version), version)


@asynccontextmanager
async def broker_in_memory(**settings: Any) -> AsyncIterator[Broker]:
    """A broker that keeps its data in memory, with one listener."""
    broker = await Broker.open(Settings(**settings), None)
    broker.endpoints[LISTENER] = Endpoint(HOST, PORT)
    try:
        yield broker
    finally:
        await broker.close()


async def make_topic(broker: Broker, name: str, partitions: int = 1, **configs: str) -> Topic:
    """Create a topic, with configs in Python's spelling."""
    topic_id = name.encode().ljust(16, b".")[:16]
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    answer = await broker.ask(CreateTopic(name, topic_id, partitions, dotted))
    assert answer.error == ErrorCode.NONE, answer.message
    assert isinstance(answer.topic, Topic)
    return answer.topic
