"""Watches the ends of partitions and the offsets of groups all the time: neither may ever go back.

The observations go to the history, and the checker compares them (`watermark-regress`, `lost-offset`).
"""

from collections.abc import Sequence

from semel.client import LATEST, Client, Isolation
from semel.client.admin.group_offsets import fetch_offsets
from semel.client.consume.offsets import list_offsets
from support.workloads.running import PATIENCE_SECONDS, QUIET, Place, Worker, Workload

LOOK_SECONDS = 0.05


class Edges(Workload):
    """Watches the partitions and groups of other workloads."""

    def __init__(self, place: Place, watched: Sequence[Workload]) -> None:
        super().__init__(place, {}, "marker")
        self.watcher = _Watcher(place, watched)
        self.workers = [self.watcher]

    @property
    def writers(self) -> list[Worker]:
        return []

    @property
    def transactional_ids(self) -> list[str]:
        return []

    def problems(self) -> list[str]:
        return [] if self.watcher.steps else ["nobody looked at the ends of partitions"]


class _Watcher(Worker):
    def __init__(self, place: Place, watched: Sequence[Workload]) -> None:
        super().__init__("watcher", place)
        self._watched = watched

    def work(self) -> None:
        process = self.place.recorder.process("watcher")
        clock = self.place.recorder.clock
        partitions = [key for workload in self._watched for key in workload.partitions]
        with Client(self.place.bootstrap, timeout_s=PATIENCE_SECONDS) as client:
            while not self.stopping.wait(LOOK_SECONDS):
                try:
                    for isolation in Isolation:
                        started = clock()
                        found = list_offsets(client, dict.fromkeys(partitions, LATEST), isolation=isolation)
                        for key, each in found.items():
                            if isolation is Isolation.READ_COMMITTED:
                                process.ends(started, key, last_stable=each.offset)
                            else:
                                process.ends(started, key, high_watermark=each.offset)
                    for workload in self._watched:
                        for group, wanted in workload.groups.items():
                            started = clock()
                            positions = fetch_offsets(client, group, wanted, require_stable=False)
                            for key in wanted:
                                position = positions[key].offset if key in positions else None
                                process.offset_fetch(started, group, key, position, is_stable=False)
                except QUIET:
                    continue
                self.steps += 1
