"""Connections that lose, delay and repeat requests, and break, but never reorder; clients that find brokers.

TCP's guarantees hold: requests on one connection arrive in the order in which they were sent, or the
connection is closed. Everything else may happen: an answer is lost with its connection, and a request that
its client has given up still arrives, seconds later, on the connection it was sent on.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from semel.handlers.context import RequestContext
from semel.wire.errors import ErrorCode
from semel.wire.messages import FindCoordinatorRequest, MetadataRequest, MetadataRequestTopic
from simulation.faults import Faults
from simulation.processes import OUTSIDE
from simulation.virtual_time import VirtualLoop, sleep

PATIENCE_SECONDS = 0.4
"""How long a client waits for an answer."""
MOVED = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)
"""The errors after which a client looks for the broker again."""


class Life(Protocol):
    """One life of a broker, for clients."""

    is_over: bool
    is_cut: bool
    """Whether clients cannot reach it."""

    def do(self, work: Any) -> Any:
        """Run a task that ends with this life."""

    async def handle(self, request: Any, context: RequestContext) -> Any:
        """Return the broker's answer; None if it closes the connection instead."""

    def gone(self, connection: int) -> None:
        """Notice that a client has closed its connection."""


class World(Protocol):
    """What clients need of a world of one or several brokers."""

    random: Random
    faults: Faults
    last_arrival: float

    @property
    def loop(self) -> VirtualLoop:
        """The loop on which everything happens."""

    @property
    def nodes(self) -> Sequence[int]:
        """The brokers that clients know from the start."""

    def life_at(self, node: int) -> Life | None:
        """Return the life of a broker, if it runs."""

    def next_connection(self) -> int:
        """Return the next connection number, which is unique across lives."""


class Target(NamedTuple):
    """The broker that a request is for: the leader of a partition, or the coordinator of a group or id."""

    kind: str
    name: str
    partition: int = -1


def leader(topic: str, partition: int) -> Target:
    """Return the leader of a partition as a target."""
    return Target("leader", topic, partition)


def of_group(name: str) -> Target:
    """Return the coordinator of a group as a target."""
    return Target("group", name)


def of_transactions(name: str | None) -> Target | None:
    """Return the coordinator of a transactional id as a target; None, for any broker, without an id."""
    return None if name is None else Target("transaction", name)


class Unanswered(Exception):
    """The request may have been carried out, or may still be."""


class Refused(Exception):
    """The broker is not running: the request was not sent."""


class _Sent(NamedTuple):
    request: Any
    version: int
    answer: "asyncio.Future[Any] | None"


class Connection:
    """A connection of one client to one life of the broker."""

    def __init__(self, world: World, client_id: str, node: int) -> None:
        life = world.life_at(node)
        if life is None or life.is_cut:
            raise Refused
        self._world = world
        self._life: Life = life
        self._client_id = client_id
        self.node = node
        self.number = world.next_connection()
        self._arrived: deque[_Sent] = deque()
        self._awaited: asyncio.Future[None] | None = None
        self.is_cut = False
        self._life.do(self._serve())

    @property
    def is_usable(self) -> bool:
        """Whether the client may use it again."""
        return not self.is_cut and not self._life.is_over

    async def ask(self, request: Any, version: int, *, may_repeat: bool = False) -> Any:
        """Return the answer. After Unanswered the connection is not used again."""
        faults, random, loop = self._world.faults, self._world.random, self._world.loop
        if self._life.is_cut or faults.happens(random, "lost request"):
            await sleep(_delay(random))
            raise self._cut()
        if faults.happens(random, "held request"):
            # The request is delayed beyond the client's timeout.
            await sleep(_delay(random))
            self._hold(random.choice((0.1, 0.4, 1.5)) * random.random(), request, version)
            raise self._cut()
        answer: asyncio.Future[Any] = loop.create_future()
        loop.call_later(_delay(random), self._arrive, _Sent(request, version, answer))
        if may_repeat and faults.happens(random, "repeated request"):
            self._hold(random.uniform(0.003, 1.2), request, version)
        is_lost = faults.happens(random, "lost response")
        patience = PATIENCE_SECONDS + getattr(request, "max_wait_ms", 0) / 1000
        impatient = loop.call_later(patience, _give_up, answer)
        try:
            outcome = await answer
        finally:
            impatient.cancel()
        if outcome is None or is_lost or faults.happens(random, "cut connection"):
            raise self._cut()
        return outcome

    def _cut(self) -> Unanswered:
        self.is_cut = True
        self._life.gone(self.number)
        return Unanswered()

    def _hold(self, seconds: float, request: Any, version: int) -> None:
        """Deliver the request after its client has given up."""
        world = self._world
        world.last_arrival = max(world.last_arrival, world.loop.now + seconds)
        world.loop.call_later(seconds, self._arrive, _Sent(request, version, None))

    def _arrive(self, sent: _Sent) -> None:
        self._arrived.append(sent)
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    async def _serve(self) -> None:
        """Serve the broker's end: one request after another."""
        world, life, arrived = self._world, self._life, self._arrived
        while True:
            if not arrived:
                self._awaited = world.loop.create_future()
                await self._awaited
            request, version, answer = arrived.popleft()
            context = RequestContext(version, self._client_id, "simulated", "x", self.number)
            outcome = await life.handle(request, context)
            if answer is not None and not life.is_over and not life.is_cut:
                world.loop.call_later(_delay(world.random), _deliver, answer, outcome, context=OUTSIDE)
            if outcome is None:
                return


def _delay(random: Random) -> float:
    """Return the latency of a message."""
    return random.uniform(0.0001, 0.003)


def _deliver(answer: "asyncio.Future[Any]", outcome: Any) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _give_up(answer: "asyncio.Future[Any]") -> None:
    """Time out. None has the same meaning as a closed connection."""
    _deliver(answer, None)


class Caller:
    """A client's access to the brokers. Finds the right one, and reconnects when necessary."""

    def __init__(self, world: World, client_id: str) -> None:
        self.world = world
        self.client_id = client_id
        self._connections: dict[int, Connection] = {}
        self._known: dict[Target, int] = {}

    async def once(
        self, request: Any, version: int, *, to: Target | None = None, may_repeat: bool = False
    ) -> Any:
        """Send one request, connecting first if necessary. Raises Unanswered or Refused."""
        node = await self._find(to)
        try:
            return await self._connection(node).ask(request, version, may_repeat=may_repeat)
        except (Unanswered, Refused):
            self.moved(to)
            raise

    def moved(self, to: Target | None) -> None:
        """Forget which broker the target is, because it has moved or does not answer."""
        if to is not None:
            self._known.pop(to, None)

    def _connection(self, node: int) -> Connection:
        connection = self._connections.get(node)
        if connection is None or not connection.is_usable:
            connection = self._connections[node] = Connection(self.world, self.client_id, node)
        return connection

    async def _find(self, to: Target | None) -> int:
        """Return the broker of a target. Refused if no broker says which one it is."""
        nodes = self.world.nodes
        if len(nodes) == 1:
            return nodes[0]
        anyone = self.world.random.choice(nodes)
        if to is None:
            return anyone
        found = self._known.get(to)
        if found is None:
            try:
                found = await self._ask_for(to, self._connection(anyone))
            except Unanswered:
                raise Refused from None
            if found < 0:
                raise Refused
            self._known[to] = found
        return found

    async def _ask_for(self, to: Target, connection: Connection) -> int:
        if to.kind == "leader":
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=to.name)], allow_auto_topic_creation=False
            )
            (topic,) = (await connection.ask(request, 9)).topics
            # Without a leader, use this broker: any broker answers that a topic does not exist.
            return next(
                (each.leader_id for each in topic.partitions if each.partition_index == to.partition),
                connection.node,
            )
        key_type = 0 if to.kind == "group" else 1
        asked = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[to.name])
        (coordinator,) = (await connection.ask(asked, 4)).coordinators
        return int(coordinator.node_id)

    async def pause(self) -> None:
        """Pause between two attempts."""
        await sleep(self.world.random.uniform(0.003, 0.06))
