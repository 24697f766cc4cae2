"""The log as readers see it: published partitions, their newest batches, and the fetches that wait.

The commit loop publishes every commit (``Publisher``) before it replies.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from semel.broker.catalog import Catalog
from semel.broker.policies import Policies
from semel.broker.reads.published_partitions import Isolation, PublishedPartitions
from semel.broker.reads.tail import Tail
from semel.broker.reads.waiting import ShareWaits, Waiting
from semel.config import Settings
from semel.core import types
from semel.core.facts import (
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    FeatureChanged,
    Put,
    StagedCommitted,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from semel.store.contract import Counts, Ledger

_TOPICS: Final = (TopicCreated, TopicChanged, TopicDeleted)
_RARE: Final = (*_TOPICS, FeatureChanged)


class PublishedLog:
    """Written by the commit loop (``Publisher``), read by ``Reads``. Lives on the event loop's thread."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self.partitions = PublishedPartitions(ledger, settings.semel_entities_max)
        self.tail = Tail()
        self.waiting = Waiting(settings.semel_fetch_waiting_partitions_max)

    def publish(
        self,
        partitions: dict[types.PartitionKey, types.Partition],
        appended: Iterable[tuple[BatchAppended | StagedCommitted, types.Buffer | None]],
        compacted: Iterable[types.PartitionKey] = (),
    ) -> None:
        """Publish a commit: the values of the partitions it touched, and its batches.

        A batch without its bytes is read from disk. In the ``compacted`` partitions batches were replaced.
        """
        for fact, buffer in appended:
            if fact.partition in partitions:
                self.tail.append(fact, buffer)
        for key, partition in partitions.items():
            before = self.partitions.publish(key, partition)
            if before is not None and before.high_watermark > partition.high_watermark:
                # The value in memory was from a later commit of another broker. Have the newest loaded.
                self.drop((key,))
                continue
            if before is None or before.log_start_offset != partition.log_start_offset:
                self.tail.trim(key, partition.log_start_offset)
            if self.waiting.parked:
                self.waiting.published(key, before, partition)
        for key in compacted:
            # All replaced batches are below the last stable offset.
            if key in partitions:
                self.tail.trim(key, partitions[key].last_stable_offset)

    def forget(self, keys: Iterable[types.PartitionKey]) -> None:
        """Remove deleted partitions."""
        for key in keys:
            self.partitions.forget(key)
            self.tail.forget(key)
            self.waiting.published(key, None, None)

    def drop(self, keys: Iterable[types.PartitionKey]) -> None:
        """Drop partitions that another broker has changed or leads, so that readers load them again."""
        for key in keys:
            self.partitions.drop(key)
            self.tail.forget(key)
            self.waiting.published(key, None, None)

    def is_awaited(self, keys: Iterable[types.PartitionKey]) -> bool:
        """Whether a READ_UNCOMMITTED reader waits for one of the partitions."""
        return self.waiting.is_awaited(keys, Isolation.READ_UNCOMMITTED)


class Publisher:
    """Distributes facts to the published log, waiting share fetches, catalog, policies and features."""

    def __init__(self, published: PublishedLog, catalog: Catalog, policies: Policies) -> None:
        self._published = published
        self._catalog = catalog
        self.policies = policies
        self.share_waits = ShareWaits()
        self.cluster = types.Cluster()
        """Only the features are kept up to date."""
        self.counts = Counts(0, 0, 0)
        """What clients have created, as counted some seconds ago; partitions are up to date."""

    def is_awaited(self, keys: Iterable[types.PartitionKey]) -> bool:
        """Whether a READ_UNCOMMITTED reader waits for one of the partitions."""
        return self._published.is_awaited(keys)

    def publish(self, facts: Sequence[types.Fact], batches: Sequence[types.Buffer | None]) -> None:
        """Publish the facts of a commit; the i-th batch among them has the bytes batches[i]."""
        changed: dict[types.PartitionKey, types.Partition] = {}
        compacted: list[types.PartitionKey] = []
        appended: list[tuple[BatchAppended | StagedCommitted, types.Buffer | None]] = []
        rare: list[types.Fact] = []
        nth = iter(batches)
        for fact in facts:
            if type(fact) is BatchAppended:
                appended.append((fact, next(nth)))
            elif type(fact) is Put:
                if type(fact.key) is types.PartitionKey:
                    assert isinstance(fact.value, types.Partition)
                    changed[fact.key] = fact.value
                else:
                    self._publish_value(fact.key, fact.value)
            elif type(fact) is BatchStaged:
                # Not readable before its transaction commits.
                next(nth)
            elif type(fact) is BatchesReplaced:
                # Readers find the new batches on disk.
                compacted.append(fact.partition)
                deque(islice(nth, len(fact.rewritten)), maxlen=0)
            elif type(fact) is StagedCommitted:
                appended.append((fact, None))
            elif isinstance(fact, _RARE):
                rare.append(fact)
        if changed:
            self._published.publish(changed, appended, compacted)
        if rare:
            self._publish_rare(rare)

    def _publish_value(self, key: types.Key, value: types.Value | None) -> None:
        """Publish the value of an entity other than a partition. Readers see few kinds of them."""
        if type(key) is types.ShareKey:
            self.share_waits.wake(key)
        elif type(key) is types.PolicyKey:
            assert value is None or isinstance(value, str)
            self.policies.change(key, value)

    def learn(self, fact: types.Fact) -> None:
        """Process a fact about a topic, feature or policy that another broker has committed.

        Such facts may arrive in another order than they were committed. So a topic is only forgotten here and
        loaded when it is needed, a policy is loaded by `Policies.catch_up`, and features have an epoch that
        grows.
        """
        if type(fact) is Put:
            assert type(fact.key) is types.PolicyKey
            self.policies.suspect(fact.key)
            return
        if type(fact) is FeatureChanged:
            if fact.features_epoch > self.cluster.features_epoch:
                self._publish_rare([fact])
            return
        assert isinstance(fact, _TOPICS)
        self._catalog.forget(fact.topic)
        if type(fact) is TopicDeleted:
            self._published.forget(partitions_of(fact.topic))

    def suspect_all(self) -> None:
        """Note that other brokers may have changed any topic or policy, so that all are loaded again."""
        self._catalog.clear()
        self.policies.suspect_all()

    def shows(self, key: types.PartitionKey, value: object) -> bool:
        """Whether readers see this value of a partition."""
        return self._published.partitions.get(key) == value

    def drop(self, keys: Iterable[types.PartitionKey]) -> None:
        """Drop partitions, so that readers load them again."""
        self._published.drop(keys)

    def drop_unless(self, is_kept: Callable[[types.PartitionKey], bool]) -> None:
        """Drop the partitions that are not kept, and wake the readers that wait for them."""
        # Not a set, whose order differs from run to run: readers are woken in the same order each time.
        known = dict.fromkeys((*self._published.partitions.keys(), *self._published.waiting.keys()))
        self._published.drop([key for key in known if not is_kept(key)])

    def _publish_rare(self, facts: Sequence[types.Fact]) -> None:
        self._catalog.publish(facts)
        for fact in facts:
            if type(fact) is FeatureChanged:
                self.cluster = self.cluster.but(
                    transaction_version=fact.transaction_version, features_epoch=fact.features_epoch
                )
            elif type(fact) is TopicCreated:
                self._add_partitions(fact.topic.partitions)
            elif type(fact) is TopicDeleted:
                self._add_partitions(-fact.topic.partitions)
                self._published.forget(partitions_of(fact.topic))

    def _add_partitions(self, more: int) -> None:
        self.counts = self.counts._replace(partitions=self.counts.partitions + more)


def partitions_of(topic: types.Topic) -> list[types.PartitionKey]:
    """Return the partitions of a topic."""
    return [types.PartitionKey(topic.topic_id, index) for index in range(topic.partitions)]
