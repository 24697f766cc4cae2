"""One writer, one reader, one partition: the reader sees what the writer committed, in that order."""

import itertools
import random

from semel.client import Isolation
from support.workloads.clients import Sent
from support.workloads.running import Place, Reader, Worker, Workload, Writer


class Single(Workload):
    """A transactional writer and a read_committed reader, on their own topic."""

    def __init__(
        self, place: Place, name: str, kind: str, chance: random.Random, visibility: str = "marker"
    ) -> None:
        super().__init__(place, {f"{name}-single": 1}, visibility)
        self._numbers = itertools.count()
        self._id = f"{name}-single"
        self.writer = Writer(self.place, kind, self._id, self._plan, chance.randrange(2**32))
        self.workers = [self.writer, Reader(self.place, self.partitions, Isolation.READ_COMMITTED)]

    @property
    def writers(self) -> list[Worker]:
        return [self.writer]

    @property
    def transactional_ids(self) -> list[str]:
        return [self._id]

    def _plan(self, chance: random.Random) -> list[Sent]:
        (where,) = self.partitions
        return [Sent(*where, f"{next(self._numbers)}") for _ in range(chance.randrange(1, 5))]
