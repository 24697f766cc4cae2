"""Connections that lose, hold, repeat and break, and never reorder.

What TCP promises is kept: on one connection requests arrive in the order in which they were sent, or the
connection is gone. What it does not promise happens: an answer is lost with its connection, and a request
that its client has given up arrives all the same, seconds later, on the connection that it was sent on.
"""

import asyncio
from typing import Any, NamedTuple

from semel.handlers.context import RequestContext
from simulation.world import Life, World

PATIENCE_SECONDS = 1.0
"""How long a client waits for an answer."""


class Unanswered(Exception):
    """The request may have been carried out, or may still be."""


class Refused(Exception):
    """The broker is not there: the request was not sent."""


class _Sent(NamedTuple):
    request: Any
    version: int
    answer: "asyncio.Future[Any] | None"


class Connection:
    """Of one client to one life of the broker."""

    def __init__(self, world: World, client_id: str) -> None:
        if world.life is None:
            raise Refused
        self._world = world
        self._life: Life = world.life
        self._client_id = client_id
        self.number = world.next_connection()
        self._sent: asyncio.Queue[_Sent] = asyncio.Queue()
        self.is_cut = False
        self._life.do(self._serve())

    @property
    def is_usable(self) -> bool:
        """Whether the client may use it again."""
        return not self.is_cut and not self._life.is_over

    async def ask(self, request: Any, version: int, *, may_repeat: bool = False) -> Any:
        """The answer. Unanswered, and then the connection is not used again."""
        faults, random = self._world.faults, self._world.random
        await asyncio.sleep(random.uniform(0.0001, 0.003))
        if faults.happens(random, "lost request"):
            raise self._cut()
        if faults.happens(random, "held request"):
            # It is on its way, and slower than its client is patient.
            asyncio.get_running_loop().call_later(
                random.choice((0.3, 1.0, 8.0)) * random.random(),
                self._sent.put_nowait,
                _Sent(request, version, None),
            )
            raise self._cut()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._sent.put_nowait(_Sent(request, version, answer))
        if may_repeat and faults.happens(random, "repeated request"):
            asyncio.get_running_loop().call_later(
                random.uniform(0.001, 4.0), self._sent.put_nowait, _Sent(request, version, None)
            )
        is_lost = faults.happens(random, "lost response")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS + getattr(request, "max_wait_ms", 0) / 1000):
                outcome = await answer
        except TimeoutError:
            raise self._cut() from None
        if outcome is None or is_lost or faults.happens(random, "cut connection"):
            raise self._cut()
        await asyncio.sleep(random.uniform(0.0001, 0.003))
        return outcome

    def _cut(self) -> Unanswered:
        self.is_cut = True
        return Unanswered()

    async def _serve(self) -> None:
        """The broker's end: one request after another."""
        while True:
            request, version, answer = await self._sent.get()
            context = RequestContext(version, self._client_id, "simulated", "x", self.number)
            outcome = await self._life.handle(request, context)
            if answer is not None and not answer.done() and not self._life.is_over:
                answer.set_result(outcome)
            if outcome is None:
                return


class Caller:
    """A client's way to the broker: connects again when it has to."""

    def __init__(self, world: World, client_id: str) -> None:
        self.world = world
        self.client_id = client_id
        self._connection: Connection | None = None

    async def once(self, request: Any, version: int, *, may_repeat: bool = False) -> Any:
        """Ask once, on a connection that is there or can be made. Unanswered, Refused."""
        connection = self._connection
        if connection is None or not connection.is_usable:
            connection = self._connection = Connection(self.world, self.client_id)
        return await connection.ask(request, version, may_repeat=may_repeat)

    async def pause(self) -> None:
        """A moment between two attempts."""
        await asyncio.sleep(self.world.random.uniform(0.005, 0.15))
