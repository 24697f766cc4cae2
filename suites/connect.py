"""Kafka Connect and MirrorMaker 2 in their own processes: given input, killed, restarted, and checked."""

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from support.brokers.process import free_port

from peers.programs import needed
from suites.outcomes import FAILED, PASSED, REASON_MAX, Case, Report, Target

START_SECONDS = 90.0
WAIT_SECONDS = 60.0
LINES, PORTION, KILLS = 500, 50, 2
CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
REPLICATION_FACTORS = tuple(
    f"{name}replication.factor"
    for name in (
        "",
        "checkpoints.topic.",
        "heartbeats.topic.",
        "offset-syncs.topic.",
        "config.storage.",
        "offset.storage.",
        "status.storage.",
    )
)


class NotInTimeError(Exception):
    """An awaited condition did not become true in time."""


def until(is_so: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise NotInTimeError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.2)


def connect(target: Target, seconds: float) -> Report:
    """Run a distributed worker with exactly.once.source.support, and a standalone one."""
    scenarios = {
        "an exactly-once source, with its worker killed": _exactly_once_source,
        "a sink": _sink,
        "a standalone worker": _standalone,
    }
    return _played(scenarios, target, seconds)


def mirror(target: Target, seconds: float) -> Report:
    """Run MirrorMaker 2 from the broker to itself, under another name."""
    return _played({"records, configs and offsets of groups are mirrored": _mirrored}, target, seconds)


def _played(scenarios: Mapping[str, Callable[[Target], None]], target: Target, seconds: float) -> Report:
    deadline = time.monotonic() + seconds
    report: Report = {}
    for name, play in scenarios.items():
        if time.monotonic() > deadline:
            report[name] = Case(FAILED, "its time was up")
            continue
        try:
            play(target)
            report[name] = Case(PASSED)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is the result
            report[name] = Case(FAILED, f"{type(error).__name__}: {error}"[:REASON_MAX])
    return report


# -- scenarios --------------------------------------------------------------------------------------------


def _exactly_once_source(target: Target) -> None:
    """Copy the lines of a file to a topic. The worker is killed in between, twice."""
    name, path = fresh("source"), target.directory / "lines.txt"
    path.write_text("")
    config = {
        "connector.class": SOURCE,
        "file": str(path),
        "topic": name,
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }
    create(target, name)
    expected = [f"line {number}" for number in range(LINES * (KILLS + 1))]
    with distributed(target) as worker:
        worker.put(name, config)
        for first in range(0, len(expected), LINES):
            # In portions: each is one transaction, or several.
            for start in range(first, first + LINES, PORTION):
                with path.open("a") as file:
                    file.writelines(f"{line}\n" for line in expected[start : start + PORTION])
                time.sleep(0.1)
            if first + LINES < len(expected):
                _until_more_than(target, name, first)
                worker.kill()
                worker.start()
        _until_more_than(target, name, len(expected) - 1)
    found = committed(target, name)
    assert found == expected, f"{len(found)} lines instead of {len(expected)}, or in another order"


def _until_more_than(target: Target, topic: str, count: int) -> None:
    until(lambda: len(committed(target, topic)) > count, f"more than {count} lines", START_SECONDS)


def _sink(target: Target) -> None:
    """Copy the records of a topic to a file."""
    name, path = fresh("sink"), target.directory / "sink.txt"
    create(target, name)
    expected = [f"record {number}" for number in range(100)]
    produce(target, name, expected)
    with distributed(target) as worker:
        worker.put(name, {"connector.class": SINK, "file": str(path), "topics": name})
        until(lambda: path.exists() and path.read_text().splitlines() == expected, "a file with all records")


def _standalone(target: Target) -> None:
    """Run a worker without a group, whose offsets are in a file."""
    name, path = fresh("standalone"), target.directory / "standalone.txt"
    create(target, name)
    expected = [f"line {number}" for number in range(100)]
    path.write_text("".join(f"{line}\n" for line in expected))
    worker = target.directory / "standalone.properties"
    settings = {
        "offset.storage.file.filename": str(target.directory / "offsets"),
        "offset.flush.interval.ms": "500",
    }
    write(worker, common(target) | settings | {"listeners": f"http://127.0.0.1:{free_port()}"})
    connector = target.directory / "connector.properties"
    write(connector, {"name": name, "connector.class": SOURCE, "file": str(path), "topic": name})
    with java(target, "org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(connector)):
        until(lambda: committed(target, name) == expected, "all lines", START_SECONDS)


def _mirrored(target: Target) -> None:
    topic, group = fresh("mirrored"), fresh("group")
    create(target, topic, **{"retention.ms": "1234567"})
    values = [f"record {number}" for number in range(200)]
    produce(target, topic, values)
    commit(target, topic, group, 150)
    path = target.directory / "mirror.properties"
    settings = {
        "clusters": "here, there",
        "here.bootstrap.servers": target.bootstrap,
        "there.bootstrap.servers": target.bootstrap,
        "here->there.enabled": "true",
        "here->there.topics": topic,
        "here->there.groups": group,
        "there->here.enabled": "false",
        **dict.fromkeys(REPLICATION_FACTORS, "1"),
        "sync.topic.acls.enabled": "false",
        "sync.group.offsets.enabled": "true",
        "refresh.topics.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "sync.topic.configs.interval.seconds": "1",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "emit.offset-syncs.interval.seconds": "1",
        "offset.lag.max": "0",
    }
    write(path, settings)
    copy = f"here.{topic}"
    with java(target, "org.apache.kafka.connect.mirror.MirrorMaker", str(path)):
        until(lambda: topic_exists(target, copy), "the copy of the topic", START_SECONDS)
        until(lambda: sorted(committed(target, copy)) == sorted(values), "all records")
        until(lambda: retention(target, copy) == "1234567", "the config of the topic")
        until(lambda: (offset := position(target, copy, group)) is not None and 0 < offset <= 150, "offsets")


# -- workers ----------------------------------------------------------------------------------------------


class Worker:
    """A distributed worker, used through its REST interface."""

    def __init__(self, target: Target, path: Path, port: int) -> None:
        self._target, self._path, self._port = target, path, port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the worker, and wait until it has joined its group."""
        self._process = _launch(
            self._target, "org.apache.kafka.connect.cli.ConnectDistributed", str(self._path)
        )
        until(self._answers, "the start of a worker", START_SECONDS)

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            _kill(self._process)
            self._process = None

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector; retry while it is refused because workers rebalance."""
        until(
            lambda: self._ask("PUT", f"/connectors/{name}/config", config) in (200, 201), f"connector {name}"
        )

    def _answers(self) -> bool:
        return self._ask("GET", "/connectors") == 200

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            if error.code == 400:
                raise NotInTimeError(error.read().decode()[:REASON_MAX]) from error
            return error.code
        except OSError:
            return 0


@contextmanager
def distributed(target: Target) -> Iterator[Worker]:
    """Run a worker in its own group, which supports exactly-once sources."""
    port, group = free_port(), fresh("connect")
    path = target.directory / f"{group}.properties"
    topics = {
        f"{kind}.storage.{what}": value
        for kind in ("config", "offset", "status")
        for what, value in (("topic", f"{group}-{kind}"), ("replication.factor", "1"))
    }
    settings = {
        "group.id": group,
        "exactly.once.source.support": "enabled",
        "listeners": f"http://127.0.0.1:{port}",
        "offset.storage.partitions": "2",
        "status.storage.partitions": "2",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "offset.flush.interval.ms": "500",
    }
    write(path, common(target) | topics | settings)
    worker = Worker(target, path, port)
    try:
        worker.start()
        yield worker
    finally:
        worker.kill()


def common(target: Target) -> dict[str, str]:
    """Return the settings of every worker."""
    return {
        "bootstrap.servers": target.bootstrap,
        "key.converter": CONVERTER,
        "value.converter": CONVERTER,
        "plugin.discovery": "only_scan",
    }


@contextmanager
def java(target: Target, *words: str) -> Iterator[None]:
    """Run a Java program, and kill it at the end."""
    process = _launch(target, *words)
    try:
        yield
    finally:
        _kill(process)


def _launch(target: Target, *words: str) -> subprocess.Popen[bytes]:
    with (target.directory / "connect.log").open("a") as log:
        command = [needed("java"), "-Xmx512m", "-cp", target.class_path, *words]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def write(path: Path, settings: Mapping[str, str]) -> None:
    """Write a properties file."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


# -- the broker, through librdkafka -----------------------------------------------------------------------


def fresh(word: str) -> str:
    """Return a unique name."""
    return f"{word}-{uuid.uuid4().hex[:8]}"


def _admin(target: Target) -> AdminClient:
    """Return an admin client. Keep it until its answers have arrived: closing it cancels them."""
    return AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})


def create(target: Target, name: str, **configs: str) -> None:
    """Create a topic with one partition."""
    admin = _admin(target)
    admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result(30)


def topic_exists(target: Target, name: str) -> bool:
    """Whether the topic exists."""
    return name in _admin(target).list_topics(timeout=30).topics


def retention(target: Target, name: str) -> str:
    """Return the topic's retention.ms."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    admin = _admin(target)
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(30)
    return str(found["retention.ms"].value)


def position(target: Target, topic: str, group: str) -> int | None:
    """Return the offset that a group has committed for the first partition."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    admin = _admin(target)
    found = admin.list_consumer_group_offsets([wanted])[group].result(30)
    offset = int(found.topic_partitions[0].offset)
    return offset if offset >= 0 else None


def produce(target: Target, topic: str, values: list[str]) -> None:
    """Write the values, and wait for all."""
    producer = Producer({"bootstrap.servers": target.bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(30) == 0


def commit(target: Target, topic: str, group: str, offset: int) -> None:
    """Commit an offset for a group that has no members."""
    with _consumer(target, group) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def committed(target: Target, topic: str) -> list[str]:
    """Return what a read_committed reader gets."""
    with _consumer(target, fresh("reader")) as consumer:
        part = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(part, timeout=30)
        consumer.assign([part])
        found: list[str] = []
        ended = False
        while not ended and end > 0:
            for message in consumer.consume(1_000, 5):
                if message.error() is None:
                    found.append((message.value() or b"").decode())
                else:
                    ended = True  # the end of the partition
        return found


@contextmanager
def _consumer(target: Target, group: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()
