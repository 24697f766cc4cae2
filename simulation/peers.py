"""Delivers messages between simulated brokers: delays, reorders, loses and repeats them, and cuts off pairs.

Like the real delivery (``server/peers``), it delivers to whatever process listens at an address, and gives up
after a while.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from semel.store.cluster.contract import Peer
from simulation.processes import OUTSIDE

if TYPE_CHECKING:
    from simulation.cluster import BrokerLife, ClusterWorld

ANSWER_SECONDS: Final = 0.15


class SimulatedPeers:
    """Sends the messages of one broker to the others. Implements ``announcing.Peers``."""

    def __init__(self, world: "ClusterWorld", node: int) -> None:
        self._world = world
        self._node = node

    async def send(self, peer: Peer, message: bytes) -> bytes:
        """Return the answer of a broker. Raises OSError or TimeoutError if there is none."""
        world, to = self._world, peer.internal[1]
        random, faults, loop = world.random, world.faults, world.loop
        answer: asyncio.Future[bytes] = loop.create_future()
        loop.call_later(ANSWER_SECONDS, _give_up, answer)
        if not faults.happens(random, "lost notice"):
            loop.call_later(self._delay(), self._arrive, to, message, answer, context=OUTSIDE)
        if faults.happens(random, "repeated notice"):
            unanswered: asyncio.Future[bytes] = loop.create_future()
            loop.call_later(random.uniform(0, 1), self._arrive, to, message, unanswered, context=OUTSIDE)
        return await answer

    def _delay(self) -> float:
        random = self._world.random
        if self._world.faults.happens(random, "held notice"):
            return random.uniform(0, 0.6)
        return random.uniform(0.0001, 0.003)

    def _arrive(self, to: int, message: bytes, answer: "asyncio.Future[bytes]") -> None:
        life = self._world.life_at(to)
        if life is None:
            if not answer.done():
                answer.set_exception(ConnectionError("nobody listens there"))
        elif not self._world.is_cut(self._node, to):
            life.do(self._answered(life, to, message, answer))

    async def _answered(
        self, life: "BrokerLife", to: int, message: bytes, answer: "asyncio.Future[bytes]"
    ) -> None:
        world = self._world
        assert life.broker.member is not None
        result = await life.broker.member.receive(message)
        is_lost = world.faults.happens(world.random, "lost notice answer") or world.is_cut(self._node, to)
        if not life.is_over and not is_lost:
            world.loop.call_later(self._delay(), _deliver, answer, result, context=OUTSIDE)

    def close(self) -> None:
        """Nothing to close."""


def _give_up(answer: "asyncio.Future[bytes]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("no answer in time"))


def _deliver(answer: "asyncio.Future[bytes]", result: bytes) -> None:
    if not answer.done():
        answer.set_result(result)
