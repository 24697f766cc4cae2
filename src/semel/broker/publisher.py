"""Publishes commits to readers. The commit loop calls it before it answers."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from semel.broker.catalog import Catalog
from semel.broker.published_log import PublishedLog
from semel.core.facts import (
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    FeatureChanged,
    PartitionChanged,
    StagedCommitted,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from semel.core.types import Buffer, Cluster, Fact, Partition, PartitionKey
from semel.store.interface import Counts

_RARE: Final = frozenset({TopicCreated, TopicChanged, TopicDeleted, FeatureChanged})


class Publisher:
    """Distributes facts to the published log, the catalog and the cluster's features."""

    def __init__(self, published: PublishedLog, catalog: Catalog) -> None:
        self._published = published
        self._catalog = catalog
        self.cluster = Cluster()
        """Only the features are kept up to date."""
        self.counts = Counts(0, 0, 0)
        """What clients have created, as counted some seconds ago; partitions are up to date."""

    def is_awaited(self, keys: Iterable[PartitionKey]) -> bool:
        """Whether a READ_UNCOMMITTED reader waits for one of the partitions."""
        return self._published.is_awaited(keys)

    def publish(self, facts: Sequence[Fact], batches: Sequence[Buffer | None]) -> None:
        """Publish the facts of a commit; the i-th batch among them has the bytes batches[i]."""
        changed: dict[PartitionKey, Partition] = {}
        compacted: list[PartitionKey] = []
        appended: list[tuple[BatchAppended | StagedCommitted, Buffer | None]] = []
        rare: list[Fact] = []
        nth = iter(batches)
        for fact in facts:
            kind = type(fact)
            if kind is BatchAppended:
                appended.append((fact, next(nth)))
            elif kind is PartitionChanged:
                changed[fact.key] = fact.partition
            elif kind is BatchStaged:
                # Not readable before its transaction commits.
                next(nth)
            elif kind is BatchesReplaced:
                # Readers find the new batches on disk.
                compacted.append(fact.partition)
                deque(islice(nth, len(fact.rewritten)), maxlen=0)
            elif kind is StagedCommitted:
                appended.append((fact, None))
            elif kind in _RARE:
                rare.append(fact)
        if changed:
            self._published.publish(changed, appended, compacted)
        if rare:
            self._publish_rare(rare)

    def _publish_rare(self, facts: Sequence[Fact]) -> None:
        self._catalog.publish(facts)
        for fact in facts:
            if type(fact) is FeatureChanged:
                self.cluster = self.cluster.but(
                    transaction_version=fact.transaction_version, features_epoch=fact.features_epoch
                )
            elif type(fact) is TopicCreated:
                self._add_partitions(fact.topic.partitions)
            elif type(fact) is TopicDeleted:
                topic = fact.topic
                self._add_partitions(-topic.partitions)
                keys = (PartitionKey(topic.topic_id, index) for index in range(topic.partitions))
                self._published.forget(keys)

    def _add_partitions(self, more: int) -> None:
        self.counts = self.counts._replace(partitions=self.counts.partitions + more)
