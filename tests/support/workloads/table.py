"""A table in a compacted topic, with few keys that are often written, and a log that keeps everything.

Every transaction writes the same records to both. So the records that compaction leaves under a key are a
subsequence of the records under that key in the log, and include the last. A key belongs to one writer: of
two concurrent writers, table and log might each see another one first.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from semel.client import Isolation
from support.clients.raw_log import Log
from support.clients.routed import raw_client
from support.workloads.clients import Sent
from support.workloads.running import Place, Reader, Worker, Workload, Writer

PARTITIONS = 2
KEYS = 3
"""Per writer and partition."""


class Table(Workload):
    """Several writers, and a read_committed reader, which compaction overtakes."""

    def __init__(
        self, place: Place, name: str, kinds: Sequence[str], chance: random.Random, visibility: str = "marker"
    ) -> None:
        self.table, self.log = f"{name}-table", f"{name}-log"
        super().__init__(place, {self.table: PARTITIONS, self.log: PARTITIONS}, visibility)
        self._numbers = itertools.count()
        self._ids = [f"{name}-clerk-{index}" for index in range(len(kinds))]
        self.clerks = [
            Writer(self.place, kind, each, partial(self._entries, each), chance.randrange(2**32))
            for kind, each in zip(kinds, self._ids, strict=True)
        ]
        self.workers = [*self.clerks, Reader(self.place, self.partitions, Isolation.READ_COMMITTED)]

    def configs(self, topic: str) -> dict[str, str]:
        configs = super().configs(topic)
        if topic == self.table:
            configs |= {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": "0",
            }
        return configs

    @property
    def writers(self) -> list[Worker]:
        return [*self.clerks]

    @property
    def transactional_ids(self) -> list[str]:
        return self._ids

    def _entries(self, clerk: str, chance: random.Random) -> list[Sent]:
        """Plan new values for some keys, several of them perhaps for the same key."""
        sent: list[Sent] = []
        for _ in range(chance.randrange(1, 6)):
            index, key = chance.randrange(PARTITIONS), f"{clerk}-{chance.randrange(KEYS)}"
            value = f"{key}:{next(self._numbers)}"
            sent += [Sent(topic, index, value, key) for topic in (self.table, self.log)]
        return sent

    def problems(self) -> list[str]:
        problems: list[str] = []
        kept_in_all = written_in_all = 0
        with raw_client(self.place.bootstrap) as client:
            for index in range(PARTITIONS):
                kept = by_key(Log(client, self.table, index).values())
                written = by_key(Log(client, self.log, index).values())
                problems += [f"partition {index}: {each}" for each in _differences(kept, written)]
                kept_in_all += sum(map(len, kept.values()))
                written_in_all += sum(map(len, written.values()))
        if not kept_in_all < written_in_all:
            problems.append(f"{written_in_all} records were written, and none was compacted away")
        return problems


def by_key(values: Sequence[bytes]) -> dict[bytes, list[bytes]]:
    found = defaultdict(list)
    for value in values:
        found[value.rpartition(b":")[0]].append(value)
    return found


def _differences(kept: dict[bytes, list[bytes]], written: dict[bytes, list[bytes]]) -> list[str]:
    problems: list[str] = []
    for key in kept.keys() | written.keys():
        rest = iter(written.get(key, []))
        left = kept.get(key, [])
        if left[-1:] != written.get(key, [])[-1:]:
            problems.append(f"the newest under {key!r} is {left[-1:]}, not {written.get(key, [])[-1:]}")
        elif not all(value in rest for value in left):
            problems.append(f"under {key!r} there is what nobody wrote, or in another order")
    return problems
