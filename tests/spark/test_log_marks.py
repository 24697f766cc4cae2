"""A query recognises the log that it has read, also if a restored one has grown past its position."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.spark.jobs import create, fill

import semel
from semel.client import Admin, Client
from semel.spark import DataLoss
from semel.spark.delta.resume import ResumingReader
from semel.spark.options import SourceOptions
from semel.spark.partition_offsets import MARK, of_json
from semel.spark.source.log_marks import Mark

DATA = "data"


def reader(servers: str, **options: str) -> ResumingReader:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "in", "startingOffsets": "earliest", **options}
    return ResumingReader(SourceOptions.of(given, is_stream=True), ["value"])


def latest(reader: ResumingReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def first_batch(servers: str) -> dict[str, Any]:
    reading = reader(servers)
    return latest(reading, reading.initialOffset())


@pytest.fixture
def servers(semel_broker: semel.Embedded) -> str:
    create(semel_broker.bootstrap_servers, ("in", 2))
    fill(semel_broker.bootstrap_servers, "in", range(50))
    return semel_broker.bootstrap_servers


def changed(end: dict[str, Any]) -> dict[str, Any]:
    mark = Mark.of_json(end[MARK])
    assert mark is not None
    return {**end, MARK: list(mark._replace(crc=mark.crc ^ 1))}


def test_a_restored_broker_that_has_grown_past_the_position(tmp_path: Path) -> None:
    with semel.embedded(tmp_path / DATA) as broker:
        create(broker.bootstrap_servers, ("in", 1))
        fill(broker.bootstrap_servers, "in", range(20))
    shutil.copytree(tmp_path / DATA, tmp_path / "backup")
    with semel.embedded(tmp_path / DATA) as broker:
        fill(broker.bootstrap_servers, "in", range(20, 40))
        end = first_batch(broker.bootstrap_servers)
        assert latest(reader(broker.bootstrap_servers), end) == end
    shutil.rmtree(tmp_path / DATA)
    (tmp_path / "backup").rename(tmp_path / DATA)
    with semel.embedded(tmp_path / DATA) as broker:
        fill(broker.bootstrap_servers, "in", range(100, 160))
        with pytest.raises(DataLoss, match=r"in/0 .* offset 39 "):
            latest(reader(broker.bootstrap_servers), end)
        with pytest.raises(DataLoss, match="is not the log that was read before"):
            reader(broker.bootstrap_servers).partitions({}, end)
        lenient = reader(broker.bootstrap_servers, failOnDataLoss="false")
        assert of_json(latest(lenient, end)) == {("in", 0): 80}


def test_the_mark_goes_on_with_the_position(servers: str) -> None:
    end = first_batch(servers)
    running = reader(servers)
    assert latest(running, end) == end, "nothing new"
    fill(servers, "in", range(50, 90))
    following = latest(running, end)
    assert following[MARK] != end[MARK]
    assert latest(reader(servers), following) == following


def test_the_mark_of_a_topic_that_was_created_again_is_forgotten(servers: str) -> None:
    end = first_batch(servers)
    with Client(servers) as client:
        Admin(client).topics.delete("in")
    create(servers, ("in", 2))
    with pytest.raises(DataLoss, match="was deleted and created again"):
        latest(reader(servers), end)
    following = latest(reader(servers, failOnDataLoss="false"), end)
    assert MARK not in following
    assert latest(reader(servers), following) == following


def test_a_log_that_cannot_be_compared_is_taken_for_the_same(servers: str) -> None:
    end = changed(first_batch(servers))
    with pytest.raises(DataLoss, match="is not the log that was read before"):
        latest(reader(servers), end)
    assert latest(reader(servers), {**end, MARK: "something else"})
    with Client(servers) as client:
        topics = Admin(client).topics
        topics.delete_records(dict.fromkeys([("in", 0), ("in", 1)], -1))
        assert latest(reader(servers), end) == end


def test_compacted_topics_are_not_compared(semel_broker: semel.Embedded) -> None:
    servers = semel_broker.bootstrap_servers
    create(servers, ("in", 1), **{"cleanup.policy": "compact"})
    fill(servers, "in", range(10))
    end = changed(first_batch(servers))
    assert latest(reader(servers), end) == end
