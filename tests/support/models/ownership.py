"""Ownership as a table that a test changes, and several brokers over one log that follow it.

The brokers of `SharedLog` are one broker, served at several ports. At each port it has another node id and
answers as that node would, by the table. So a client sees a cluster in which leaders and coordinators move,
while everything behind it is a single broker.
"""

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvloop

from semel.broker.broker import Broker
from semel.broker.ownership import Endpoint, Leader, Node
from semel.config import Settings
from semel.core.types import Key, PartitionKey
from semel.server.listener import ListenerConfig
from semel.server.server import Server

NOBODY = -1


class Owners:
    """The table of owners. The first node owns everything that is not in the table, at epoch 0."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.changes = 1
        self._first = nodes[0].node_id
        self._leaders: dict[PartitionKey, Leader] = {}
        self._coordinators: dict[str, int] = {}

    def leader(self, key: PartitionKey) -> Leader:
        return self._leaders.get(key, Leader(self._first, 0))

    def coordinator(self, name: str) -> int:
        return self._coordinators.get(name, self._first)

    def move_leader(self, key: PartitionKey, node_id: int) -> None:
        self._leaders[key] = Leader(node_id, self.leader(key).epoch + 1)
        self.changes += 1

    def move_coordinator(self, name: str, node_id: int) -> None:
        self._coordinators[name] = node_id
        self.changes += 1

    def remove_node(self, node_id: int) -> None:
        del self.nodes[node_id]
        self.changes += 1


class Seat:
    """The table as one broker sees it."""

    def __init__(self, owners: Owners, node_id: int) -> None:
        self.owners = owners
        self.node_id = node_id

    @property
    def changes(self) -> int:
        return self.owners.changes

    def nodes(self) -> Sequence[Node]:
        return [self.owners.nodes[node_id] for node_id in sorted(self.owners.nodes)]

    def listed(self) -> Sequence[Node]:
        return self.nodes()

    def node(self, node_id: int) -> Node | None:
        return self.owners.nodes.get(node_id)

    def controller_id(self) -> int:
        return max(self.owners.nodes)

    def leader(self, partition: PartitionKey) -> Leader:
        return self.owners.leader(partition)

    def leads(self, partition: PartitionKey) -> bool:
        return self.leader(partition).node_id == self.node_id

    def coordinator(self, name: str) -> int:
        return self.owners.coordinator(name)

    def coordinates(self, name: str) -> bool:
        return self.coordinator(name) == self.node_id

    def owns(self, key: Key) -> bool:
        return True

    def shards(self) -> None:
        """Return None: this broker owns all shards, as `owns` says."""

    def is_janitor(self) -> bool:
        return self.node_id == min(self.owners.nodes)


class SharedLog:
    """Brokers 1, 2, … over one log, and the table of their ownership."""

    def __init__(self, brokers: dict[int, Broker], servers: dict[int, Server], owners: Owners) -> None:
        self._loop = asyncio.get_running_loop()
        self._brokers = brokers
        self._servers = servers
        self.owners = owners
        self.stopping = asyncio.Event()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(map(self.address, sorted(self._servers)))

    def address(self, node_id: int) -> str:
        """The address of one broker."""
        return f"127.0.0.1:{self._servers[node_id].ports['PLAINTEXT']}"

    def key(self, topic: str, partition: int) -> PartitionKey:
        """The key of a partition of an existing topic."""
        found = self._run(lambda: self._brokers[1].catalog.topic(topic))
        return PartitionKey(found.topic_id, partition)

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make another broker the leader of a partition; NOBODY for no leader."""
        key = self.key(topic, partition)
        self._change(lambda: self.owners.move_leader(key, node_id))

    def move_coordinator(self, name: str, node_id: int) -> None:
        """Make another broker the coordinator of a group or a transactional id."""
        self._change(lambda: self.owners.move_coordinator(name, node_id))

    def parked(self) -> int:
        """Return the number of waiting fetches."""
        return self._brokers[1].reads.parked

    def crash(self, node_id: int) -> None:
        """Abort a broker. The table keeps it until the test removes it."""
        self._run(self._servers[node_id].abort)

    def remove_node(self, node_id: int) -> None:
        """Remove a broker from the table, so that the others know it is gone."""
        self._change(lambda: self.owners.remove_node(node_id))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self.stopping.set)

    def _change(self, change: Callable[[], None]) -> None:
        async def changed() -> None:
            change()
            self._brokers[1].reads.owners_changed()

        self._run(changed)

    def _run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)


@contextmanager
def shared_log(brokers: int = 2, **settings: Any) -> Iterator[SharedLog]:
    """Several brokers on free ports, in a thread of this process."""
    ready = threading.Event()
    found: list[SharedLog] = []
    failed: list[BaseException] = []

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(brokers, Settings(node_id=1, **settings), found, ready))
        except BaseException as error:  # noqa: BLE001 - the test must see it
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="shared log")
    thread.start()
    assert ready.wait(30)
    try:
        if found:
            yield found[0]
            found[0].stop()
    finally:
        if found:
            found[0].stop()
        thread.join(30)
    assert not failed, failed


async def _serve(count: int, settings: Settings, found: list[SharedLog], ready: threading.Event) -> None:
    broker = await Broker.open(settings, None)
    brokers = {1: broker}
    for node_id in range(2, count + 1):
        brokers[node_id] = copy.copy(broker)
        brokers[node_id].node_id = node_id
        brokers[node_id].endpoints = {}
    owners = Owners(*(Node(node_id, each.endpoints, f"rack-{node_id}") for node_id, each in brokers.items()))
    servers: dict[int, Server] = {}
    for node_id, each in brokers.items():
        each.ownership = Seat(owners, node_id)
        servers[node_id] = Server(each, [ListenerConfig("PLAINTEXT", "127.0.0.1", 0)])
        await servers[node_id].start()
    shared = SharedLog(brokers, servers, owners)
    found.append(shared)
    ready.set()
    await shared.stopping.wait()
    broker.end_waits()
    for server in servers.values():
        await server.stop(1.0)
    await broker.close()


def endpoint(node_id: int) -> Endpoint:
    """Return an address for tests that do not connect."""
    return Endpoint(f"broker-{node_id}.example", 9000 + node_id)
