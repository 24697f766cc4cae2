"""Connections that lose, delay and repeat requests, and break, but never reorder.

TCP's guarantees hold: requests on one connection arrive in the order in which they were sent, or the
connection is closed. Everything else may happen: an answer is lost with its connection, and a request that
its client has given up still arrives, seconds later, on the connection it was sent on.
"""

import asyncio
from collections import deque
from random import Random
from typing import Any, NamedTuple

from semel.handlers.context import RequestContext
from simulation.virtual_time import sleep
from simulation.world import Life, World

PATIENCE_SECONDS = 0.4
"""How long a client waits for an answer."""


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

    def __init__(self, world: World, client_id: str) -> None:
        if world.life is None:
            raise Refused
        self._world = world
        self._life: Life = world.life
        self._client_id = client_id
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
        if faults.happens(random, "lost request"):
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
            if answer is not None and not life.is_over:
                world.loop.call_later(_delay(world.random), _deliver, answer, outcome)
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
    """A client's access to the broker. Reconnects when necessary."""

    def __init__(self, world: World, client_id: str) -> None:
        self.world = world
        self.client_id = client_id
        self._connection: Connection | None = None

    async def once(self, request: Any, version: int, *, may_repeat: bool = False) -> Any:
        """Send one request, connecting first if necessary. Unanswered, Refused."""
        connection = self._connection
        if connection is None or not connection.is_usable:
            connection = self._connection = Connection(self.world, self.client_id)
        return await connection.ask(request, version, may_repeat=may_repeat)

    async def pause(self) -> None:
        """Pause between two attempts."""
        await sleep(self.world.random.uniform(0.003, 0.06))
