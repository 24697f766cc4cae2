"""kafka-python for tests: create topics, send and wait, read, be a member of a group."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import kafka.net.inet
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaConnectionError

from support.clients.reading import WAIT_SECONDS, PollingReader, subscribed

Fresh = Callable[[str], str]


class ForgottenSocket(socket.socket):
    """A socket that closes itself: kafka-python leaves sockets of failed connects to the garbage collector.

    Otherwise their ResourceWarning would fail whichever test runs at that moment.
    """

    def __del__(self) -> None:
        self.close()


class _SocketModule:
    """The module ``socket`` as kafka-python sees it."""

    socket = ForgottenSocket

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)


kafka.net.inet.socket = _SocketModule()


@contextmanager
def administrator(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        yield client
    finally:
        client.close()


def create(admin: KafkaAdminClient, name: str, partitions: int = 1, **configs: str) -> str:
    options = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
    admin.create_topics({name: options}, wait_for_metadata=True)
    return name


@contextmanager
def producing(bootstrap: str, **config: Any) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, **config)
    try:
        yield producer
    finally:
        producer.close(WAIT_SECONDS)


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **config: Any
) -> list[int]:
    """Send, wait for all, and return their offsets."""
    with producing(bootstrap, **config) as producer:
        sent = [producer.send(topic, value, partition=partition) for value in values]
        return [each.get(WAIT_SECONDS).offset for each in sent]


class Reader(PollingReader):
    """A consumer that keeps what it has read.

    It polls for a long time; a poll returns at once when records arrive. kafka-python 3.0.12 loses a
    rebalance that ends between two polls, and then neither reads nor sends heartbeats (against Apache Kafka
    4.3, too).
    """

    def __init__(self, bootstrap: str, group: str | None, **config: Any) -> None:
        self.records: list[Any] = []
        # Longer than a pause of the machine, yet short enough to wait until a member that lost a rebalance
        # expires.
        options = {"auto_offset_reset": "earliest", "session_timeout_ms": 10_000}
        options |= {
            "heartbeat_interval_ms": 200,
            "retry_backoff_ms": 50,
            "metadata_max_age_ms": 2_000,
            "reconnect_backoff_max_ms": 500,
        }
        self.consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **{**options, **config})

    def poll(self, timeout_ms: int = 3_000) -> list[Any]:
        for records in self.consumer.poll(timeout_ms=timeout_ms).values():
            self.records += records
        return self.records

    @property
    def values(self) -> list[bytes]:
        return [each.value for each in self.records]


def reader(
    bootstrap: str, group: str | None, topic: str | None = None, **config: Any
) -> AbstractContextManager[Reader]:
    return subscribed(Reader(bootstrap, group, **config), topic)


class Member(Reader):
    """A reader that polls in its own thread, as group members do in an application."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: Any) -> None:
        super().__init__(bootstrap, group, auto_commit_interval_ms=100, **config)
        self.partitions: set[int] = set()
        self.failure: BaseException | None = None
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        assert self.failure is None

    def _run(self) -> None:
        try:
            self.consumer.subscribe([self._topic], listener=self._listener())
            while not self._stopping.is_set():
                # While no broker listens, kafka-python raises the refused connection in the application.
                with contextlib.suppress(KafkaConnectionError):
                    self.poll(1_000)
        except BaseException as error:  # noqa: BLE001 - the waiting test must see it
            self.failure = error
        finally:
            self.consumer.close()

    def _listener(self) -> ConsumerRebalanceListener:
        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
                member.partitions -= {each.partition for each in revoked}

            def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
                member.partitions |= {each.partition for each in assigned}

        return Listener()


def shared(members: list[Member], count: int) -> bool:
    """Every member has some partitions, and together they have each once."""
    parts = [member.partitions for member in members]
    return all(parts) and sorted(each for part in parts for each in part) == list(range(count))
