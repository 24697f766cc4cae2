"""Asks the cluster, for the driver, which partitions exist and where they start and end.

A retriable error is retried `fetchOffset.numRetries` times. While no broker can be reached, each query also
waits for the client's `patience_s`. The list of partitions may be cached (`partition.metadata.cache.ttl.ms`).
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from semel.client import EARLIEST, LATEST, Client, ClientError, Isolation, KafkaError, Partition
from semel.client.admin.group_offsets import fetch_offsets, is_unstable
from semel.client.consume.offsets import list_offsets
from semel.client.errors import is_retriable
from semel.spark.clients import connect
from semel.spark.errors import DataLoss, OptionError
from semel.spark.options import AtTime, SourceOptions, Where
from semel.spark.partition_offsets import (
    PartitionOffsets,
    TopicIds,
    recreated,
    recreated_text,
    topic_ids,
    without_topics,
)
from semel.spark.sink.decision import read_committed, take_over

T = TypeVar("T")

#: A decision takes milliseconds; after this long its driver is assumed dead.
DECISION_S = 5.0
#: The protocol's answer if there is no record at or after a time.
NO_OFFSET = -1
STARTING = "startingOffsets"


class Layout(NamedTuple):
    """The partitions to read, and the ids of their topics."""

    partitions: list[Partition]
    ids: TopicIds


class Positions:
    """What the cluster knows about the partitions to read."""

    def __init__(self, options: SourceOptions, *, require_stable: bool = True) -> None:
        """Without `require_stable`, the position is that before a decision in progress."""
        self._options = options
        self._require_stable = require_stable
        self._known: tuple[float, Layout] | None = None

    @property
    def client(self) -> Client:
        """The client of this process. It is not stored: this object is sent to other processes."""
        return connect(self._options.address)

    def partitions(self) -> list[Partition]:
        """The partitions of the layout."""
        return list(self.layout().partitions)

    def layout(self) -> Layout:
        """Return the current layout, or a cached one if it is recent enough."""
        now = time.monotonic()
        if self._known is not None and now - self._known[0] < self._options.partitions_age_s:
            return self._known[1]
        found = self._ask(self._layout)
        self._known = (now, found)
        return found

    def existing(self, partitions: Iterable[Partition]) -> set[Partition]:
        """Return which of these partitions exist in the cluster, whether the options name them or not."""
        names = {topic for topic, _ in partitions}
        topics = self._ask(lambda: self.client.describe(sorted(names))).topics
        return {(topic.name, each.partition) for topic in topics for each in topic.partitions}

    def ends(self, partitions: Sequence[Partition], isolation: Isolation | None = None) -> PartitionOffsets:
        """Return the offset up to which each partition can be read now."""
        return self._list(dict.fromkeys(partitions, LATEST), isolation)

    def settle(self) -> None:
        """Wait for a decision in progress; if its driver is gone, take over.

        A driver that died during a decision leaves offsets that no other process can commit. The query that
        starts here is its successor, so it may take over.
        """
        pipeline_id = self._options.pipeline_id or ""
        try:
            fetch_offsets(self.client, pipeline_id, stable_within_s=DECISION_S)
        except KafkaError as error:
            if not is_unstable(error):
                raise
            take_over(self.client, pipeline_id)

    def resolve(
        self, where: Where | PartitionOffsets | AtTime, partitions: Sequence[Partition], option: str
    ) -> PartitionOffsets:
        """Return the offsets that an option means now."""
        if isinstance(where, AtTime):
            return self._at_time(where, partitions, option)
        if isinstance(where, dict):
            found = self._at(_for_each(where, partitions, option))
            self._check_within(found, option)
            return found
        if where is Where.COMMITTED:
            return self._committed(partitions)
        return self._at(dict.fromkeys(partitions, EARLIEST if where is Where.EARLIEST else LATEST))

    def has_committed(self) -> bool:
        """Whether the group has offsets, committed by the pipeline or by another client."""
        committed = self._ask(lambda: read_committed(self.client, self._options.pipeline_id or ""))
        return bool(committed.offsets or committed.foreign)

    def _committed(self, partitions: Sequence[Partition]) -> PartitionOffsets:
        """Return the position of the pipeline. DataLoss if it is in a topic that no longer exists."""
        pipeline_id = self._options.pipeline_id or ""
        committed = self._ask(
            lambda: read_committed(self.client, pipeline_id, require_stable=self._require_stable)
        )
        inputs = {} if committed.decision is None else committed.decision.inputs
        before = {topic: each.topic_id for topic, each in inputs.items() if each.topic_id}
        anew = recreated(before, self.layout().ids)
        known = {**committed.foreign, **without_topics(committed.offsets, anew)}
        # Partitions that are new to the pipeline are read from their start, so that no record is missed.
        found = self._at({key: known.get(key, EARLIEST) for key in partitions})
        if self._options.fail_on_data_loss:
            if anew:
                raise DataLoss(recreated_text(anew, before, self.layout().ids))
            self._check_committed(found, pipeline_id)
        return found

    def _check_committed(self, begin: PartitionOffsets, pipeline_id: str) -> None:
        for (topic, partition), offset, end in self._past_end(begin, Isolation.READ_UNCOMMITTED):
            raise DataLoss(
                f"pipeline {pipeline_id!r} has read {topic}/{partition} up to offset {offset}, and the "
                f"log ends at {end}. The topic was deleted and created again, or the broker was restored "
                "from a backup"
            )

    def _check_within(self, given: PartitionOffsets, option: str) -> None:
        """Refuse offsets past the end of their partition.

        A start there would silently skip the records that are written next. An end there would be reported as
        data loss, although no record is lost.
        """
        is_start = option == STARTING
        isolation = Isolation.READ_UNCOMMITTED if is_start else None
        for (topic, partition), offset, end in self._past_end(given, isolation):
            raise OptionError(
                f"{option} {'begins' if is_start else 'ends'} at {offset} of {topic}/{partition}, which "
                f"{'ends at' if is_start else 'can be read up to'} {end}. Choose an offset up to there, "
                "or -1 for the end"
            )

    def _past_end(
        self, given: PartitionOffsets, isolation: Isolation | None
    ) -> Iterator[tuple[Partition, int, int]]:
        """Yield each partition whose offset is past its end, with the offset and the end."""
        ends = self._list(dict.fromkeys(given, LATEST), isolation)
        for partition, offset in sorted(given.items()):
            if offset > ends[partition]:
                yield partition, offset, ends[partition]

    def _at_time(self, where: AtTime, partitions: Sequence[Partition], option: str) -> PartitionOffsets:
        if isinstance(where.at_ms, dict):
            times = _for_each(where.at_ms, partitions, f"{option}ByTimestamp")
        else:
            times = dict.fromkeys(partitions, where.at_ms)
        found = self._list(times)
        late = [key for key, offset in found.items() if offset == NO_OFFSET]
        if late and not where.or_latest:
            topic, partition = late[0]
            raise OptionError(
                f"{topic}/{partition} has no record at or after timestamp {times[late[0]]}. Choose an "
                "earlier one, or set startingOffsetsByTimestampStrategy=latest to begin with what comes next"
            )
        return found | self.ends(late)

    def _at(self, wanted: Mapping[Partition, int]) -> PartitionOffsets:
        found = self._list({key: offset for key, offset in wanted.items() if offset < 0})
        return {key: found.get(key, offset) for key, offset in wanted.items()}

    def _list(self, wanted: Mapping[Partition, int], isolation: Isolation | None = None) -> PartitionOffsets:
        chosen = self._options.isolation if isolation is None else isolation
        found = self._ask(lambda: list_offsets(self.client, wanted, isolation=chosen))
        return {key: each.offset for key, each in found.items()}

    def _ask(self, question: Callable[[], T]) -> T:
        retries = self._options.retries
        began_at = time.monotonic()
        for left in reversed(range(retries.number + 1)):
            try:
                return question()
            except (KafkaError, ClientError) as error:
                is_over = not left or time.monotonic() - began_at >= self.client.patience_s
                if is_over or not is_retriable(error):
                    raise
                time.sleep(retries.pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _layout(self) -> Layout:
        wanted = self._options.topics
        if wanted.pattern is not None:
            pattern = re.compile(wanted.pattern)
            topics = [
                topic
                for topic in self.client.describe().topics
                if not topic.is_internal and pattern.fullmatch(topic.name)
            ]
        else:
            names = sorted({*wanted.names, *(topic for topic, _ in wanted.partitions)})
            topics = list(self.client.describe(names).topics)
            if missing := set(names) - {topic.name for topic in topics}:
                raise OptionError(
                    f"there is no topic {', '.join(sorted(missing))}. "
                    "Check the name, or create it with 'semel topics create'"
                )
        ids = topic_ids(topics)
        found = [(topic.name, each.partition) for topic in topics for each in topic.partitions]
        if not wanted.partitions:
            return Layout(found, ids)
        if absent := set(wanted.partitions) - set(found):
            names = [f"{topic}/{partition}" for topic, partition in sorted(absent)]
            raise OptionError(f"assign names partitions that do not exist: {', '.join(names)}")
        return Layout(list(wanted.partitions), ids)


def _for_each(given: PartitionOffsets, partitions: Sequence[Partition], option: str) -> PartitionOffsets:
    if wrong := set(partitions) ^ given.keys():
        names = [f"{topic}/{partition}" for topic, partition in sorted(wrong)]
        raise OptionError(f"{option} gives one number for every partition; check {', '.join(names)}")
    return given
