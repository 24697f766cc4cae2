"""An administrator: recreates a topic under open transactions, deletes records, and lists transactions."""

from typing import Any, Final

from semel.wire.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from simulation.actors import Actor
from simulation.network import Caller, Refused, Target, Unanswered, leader, of_transactions

SIDE: Final = "side"
"""The topic that the administrator deletes. Its records are not checked."""


class Administrator(Actor):
    """Sends administrative requests that disturb other actors."""

    rest_seconds_max = 0.06

    async def work(self) -> None:
        """Work until the end."""
        caller = Caller(self.world, self.process)
        while not self.is_ending:
            await self.step()
            request, version, to = self._next()
            try:
                await caller.once(request, version, to=to)
            except (Unanswered, Refused):
                await caller.pause()
        await self._make_again(caller)

    async def _make_again(self, caller: Caller) -> None:
        while True:
            try:
                await caller.once(_create(), 5)
                return
            except (Unanswered, Refused):
                await caller.pause()

    def _next(self) -> tuple[Any, int, Target | None]:
        match self.world.random.randint(0, 5):
            case 0:
                return DeleteTopicsRequest(topic_names=[SIDE], timeout_ms=1000), 5, None
            case 1 | 2:
                return _create(), 5, None
            case 3:
                part = DeleteRecordsPartition(partition_index=0, offset=-1)
                topic = DeleteRecordsTopic(name=SIDE, partitions=[part])
                return DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2, leader(SIDE, 0)
            case 4:
                return ListTransactionsRequest(), 0, None
            case _:
                asked = DescribeTransactionsRequest(transactional_ids=["twins"])
                return asked, 0, of_transactions("twins")


def _create() -> CreateTopicsRequest:
    topic = CreatableTopic(name=SIDE, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)
