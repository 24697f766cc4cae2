"""Snapshots of compacted topics: held while they are read, and refused if that did not help."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.brokers.compaction_by_hand import CONFIGS, SETTINGS, compact, compact_markers_away, put
from support.clients.raw import RawClient
from support.clients.raw_transactions import RawProducer
from support.spark.snapshots import Reading

import semel
from semel.client import Admin, Client, NewTopic
from semel.client.consume.compaction import compactions
from semel.embedded import Embedded
from semel.spark import SnapshotOvertaken
from semel.spark.source import snapshot

pytestmark = pytest.mark.spark

TOPIC = "table"
NO_HOLDS = {"semel.compaction.hold.ms": 0}
OVERTAKEN = f"{TOPIC}/0 was compacted while the snapshot was read.*Read it again"


@contextmanager
def compacted(**settings: Any) -> Iterator[Embedded]:
    """A broker with a compacted topic."""
    with semel.embedded(settings={**SETTINGS, **settings}) as broker:
        create(broker)
        yield broker


def create(broker: Embedded) -> None:
    with Client(broker.bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic(TOPIC, partitions=1, configs=CONFIGS))


def count(broker: Embedded) -> int:
    with Client(broker.bootstrap_servers) as client:
        return compactions(client, [(TOPIC, 0)])[TOPIC, 0].number


def read_between(
    monkeypatch: pytest.MonkeyPatch, reading: Reading, after_fetches: int, act: Any
) -> list[bytes]:
    """Read a tail batch by batch, and do something after so many fetches."""
    fetch, fetches = snapshot._fetch, 0

    def gated(*arguments: Any) -> Any:
        nonlocal fetches
        if fetches == after_fetches:
            act()
        fetches += 1
        return fetch(*arguments)

    monkeypatch.setattr(snapshot, "_fetch", gated)
    return reading.values()


def test_a_key_that_is_updated_and_compacted_after_the_cut_is_in_the_snapshot() -> None:
    with compacted() as broker:
        put(broker, TOPIC, "a", "1")
        put(broker, TOPIC, "b", "1")
        reading = Reading(broker.bootstrap_servers, TOPIC)
        put(broker, TOPIC, "a", "2")
        compact(broker)
        assert count(broker) == 0, "compaction waits"
        assert reading.values() == [b"1", b"1"]


def test_a_snapshot_that_compaction_has_overtaken_is_refused() -> None:
    with compacted(**NO_HOLDS) as broker:
        put(broker, TOPIC, "a", "1")
        put(broker, TOPIC, "b", "1")
        reading = Reading(broker.bootstrap_servers, TOPIC)
        put(broker, TOPIC, "a", "2")
        compact(broker)
        with pytest.raises(SnapshotOvertaken, match=OVERTAKEN):
            reading.values()
        assert sorted(Reading(broker.bootstrap_servers, TOPIC).values()) == [b"1", b"2"]


@contextmanager
def tail_with_aborted_records(broker: Embedded) -> Iterator[tuple[Reading, Any]]:
    """A snapshot whose tail has an aborted transaction and a committed one of the same producer and epoch."""
    with RawClient(broker.bootstrap_servers) as raw, RawClient(broker.bootstrap_servers) as another:
        open_, producer = RawProducer(another), RawProducer(raw)
        open_.write(TOPIC, b"open", key=b"o")
        producer.write(TOPIC, b"aborted", key=b"a")
        producer.abort()
        put(broker, TOPIC, "plain", "plain")
        producer.write(TOPIC, b"committed", key=b"b")
        producer.commit()
        reading = Reading(broker.bootstrap_servers, TOPIC, **{"kafka.max.partition.fetch.bytes": "1"})

        def compact_all() -> None:
            open_.abort()
            compact_markers_away(broker, TOPIC)

        yield reading, compact_all


def test_what_was_aborted_in_the_tail_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task has read the aborted record when compaction wants to remove it and its marker."""
    with compacted() as broker, tail_with_aborted_records(broker) as (reading, compact_all):
        assert read_between(monkeypatch, reading, 2, compact_all) == [b"plain", b"committed"]
        assert count(broker) == 0, "compaction waits"


def test_a_tail_that_compaction_has_overtaken_shows_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with compacted(**NO_HOLDS) as broker, tail_with_aborted_records(broker) as (reading, compact_all):
        shown: list[bytes] = []
        monkeypatch.setattr(snapshot, "ROWS_MAX", 1)
        with pytest.raises(SnapshotOvertaken, match=OVERTAKEN):
            shown += read_between(monkeypatch, reading, 2, compact_all)
        assert shown == []
        assert count(broker) > 0


def test_a_tail_whose_last_batches_are_gone_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with compacted(**NO_HOLDS) as broker, RawClient(broker.bootstrap_servers) as raw:
        open_ = RawProducer(raw)
        open_.write(TOPIC, b"open", key=b"o")
        put(broker, TOPIC, "a", "1")
        reading = Reading(broker.bootstrap_servers, TOPIC, **{"kafka.max.partition.fetch.bytes": "1"})

        def replace() -> None:
            open_.abort()
            put(broker, TOPIC, "a", "2")
            compact(broker)

        with pytest.raises(SnapshotOvertaken, match=OVERTAKEN):
            read_between(monkeypatch, reading, 1, replace)


def test_tasks_that_wait_for_their_turn_are_held_by_those_that_run() -> None:
    """Each task holds all partitions of the snapshot anew."""
    with semel.embedded(settings=SETTINGS) as broker:
        with Client(broker.bootstrap_servers) as client:
            Admin(client).topics.create(NewTopic(TOPIC, partitions=2, configs=CONFIGS))
        for partition in (0, 1):
            put(broker, TOPIC, "a", "1", partition)
        reading = Reading(broker.bootstrap_servers, TOPIC)
        first, second = reading.tasks
        assert broker._server is not None
        holds = broker._server.broker.holds
        holds._held.clear()  # as if a long time had passed
        list(reading._reader.read(first))
        assert {key.index for key in holds._held} == {0, 1}
        put(broker, TOPIC, "a", "2", 1)
        compact(broker)
        assert [row["value"] for batch in reading._reader.read(second) for row in batch.to_pylist()] == [b"1"]


def test_compaction_waits_for_a_bounded_time() -> None:
    with compacted(**{"semel.compaction.hold.max.ms": 1}) as broker:
        put(broker, TOPIC, "a", "1")
        reading = Reading(broker.bootstrap_servers, TOPIC)
        put(broker, TOPIC, "a", "2")
        while not count(broker):
            compact(broker)
        with pytest.raises(SnapshotOvertaken, match=OVERTAKEN):
            reading.values()


def test_a_broker_that_restarts_forgets_holds_and_the_snapshot_is_refused(tmp_path: Path) -> None:
    with semel.embedded(tmp_path, settings=SETTINGS) as broker:
        create(broker)
        put(broker, TOPIC, "a", "1")
        reading, port = Reading(broker.bootstrap_servers, TOPIC), broker.port
    with semel.embedded(tmp_path, settings=SETTINGS, port=port) as broker:
        put(broker, TOPIC, "a", "2")
        compact(broker)
        with pytest.raises(SnapshotOvertaken, match=OVERTAKEN):
            reading.values()
        assert Reading(broker.bootstrap_servers, TOPIC).values() == [b"2"]
