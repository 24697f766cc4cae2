"""A broker made of a script: what it answers is decided by the test, request by request.

For transactions there is a script that agrees to everything, but for what a test tells it to refuse.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from support.clocks import later

from semel.client import Client, ProducerIdAndEpoch, TransactionalProducer
from semel.client.net import retry
from semel.client.produce import batches, producer
from semel.wire.frames import FrameParser, decode_request_header, encode_response
from semel.wire.messages import (
    APIS,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Coordinator,
    EndTxnRequest,
    EndTxnResponse,
    FinalizedFeatureKey,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from semel.wire.records import read_header

TOPIC_ID = bytes(range(16))


class HangUpError(Exception):
    """Raised by a test's script: close the connection instead of answering."""


class FakeBroker:
    """Answers ApiVersions and Metadata by itself, and everything else by `script`."""

    def __init__(self, script: Callable[[Any, int], Any]) -> None:
        self.script = script
        self.features: dict[str, int] = {}
        self.versions: dict[int, int] = {}  # the last version that is served, where it is not the usual one
        self.requests: list[Any] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._clients: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hang_up(self) -> None:
        for client in self._clients:
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for client in self._clients:
            with contextlib.suppress(OSError):  # the other side may be gone
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._clients.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        parser = FrameParser(1 << 24)
        try:
            while data := client.recv(1 << 16):
                for frame in parser.feed(data):
                    header, at = decode_request_header(frame)
                    request = APIS[header.api_key].request.decode(bytes(frame), header.api_version, at)
                    response = self._answer(request, header.api_version)
                    if response is not None:
                        parts = encode_response(response, header.api_version, header.correlation_id)
                        client.sendall(b"".join(parts))
        except (OSError, HangUpError):
            pass
        finally:
            client.close()

    def _answer(self, request: Any, version: int) -> Any:
        if isinstance(request, ApiVersionsRequest):
            served = [
                ApiVersion(
                    api_key=api.key,
                    min_version=api.advertised_min,
                    max_version=self.versions.get(api.key, api.advertised_max),
                )
                for api in APIS.values()
            ]
            features = [
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in self.features.items()
            ]
            return ApiVersionsResponse(
                api_keys=served,
                finalized_features=features,
                finalized_features_epoch=len(features) - 1,  # none is said to be known without a feature
            )
        if isinstance(request, MetadataRequest):
            return self._metadata(request)
        self.requests.append(request)
        return self.script(request, version)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        topics = [
            MetadataResponseTopic(
                name=each.name,
                topic_id=TOPIC_ID,
                partitions=[MetadataResponsePartition(partition_index=n, leader_id=0) for n in range(2)],
            )
            for each in request.topics or []
        ]
        broker = MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)
        return MetadataResponse(brokers=[broker], controller_id=0, topics=topics)


@pytest.fixture
def fake_broker() -> Iterator[Callable[[Callable[[Any, int], Any]], FakeBroker]]:
    """Make a broker that answers by a script; it is closed at the end of the test."""
    made: list[FakeBroker] = []

    def make(script: Callable[[Any, int], Any]) -> FakeBroker:
        made.append(FakeBroker(script))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def hang_up() -> type[HangUpError]:
    return HangUpError


PRODUCER_ID = 7
LOST = -99  # no answer: the connection is closed instead


class Sent(NamedTuple):
    """A request and the version in which it came."""

    name: str
    version: int
    request: Any


class Script:
    """A coordinator and leader that agree to everything, but for what a test tells them to say."""

    LOST = LOST

    def __init__(self) -> None:
        self.port = 0
        self.epoch = 0
        self.sent: list[Sent] = []
        self.errors: dict[str, list[int]] = {}  # the next answers to a request; LOST hangs up instead
        self.prepared = ProducerIdAndEpoch()

    def __call__(self, request: Any, version: int) -> Any:
        if isinstance(request, FindCoordinatorRequest):
            found = Coordinator(key=request.key, node_id=0, host="127.0.0.1", port=self.port)
            return FindCoordinatorResponse(coordinators=[found])
        name = type(request).__name__.removesuffix("Request")
        self.sent.append(Sent(name, version, request))
        codes = self.errors.get(name, [])
        code = codes.pop(0) if codes else 0
        if code == LOST:
            raise HangUpError
        return ANSWERS[type(request)](self, request, code)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.sent]

    def versions(self, name: str) -> set[int]:
        return {each.version for each in self.sent if each.name == name}

    def headers(self) -> list[tuple[int, int, int]]:
        """Producer id, epoch and base sequence of every batch that was sent."""
        found = []
        for each in self.sent:
            if each.name == "Produce":
                for topic in each.request.topic_data:
                    header = read_header(topic.partition_data[0].records)
                    found.append((header.producer_id, header.producer_epoch, header.base_sequence))
        return found


def given(script: Script, request: InitProducerIdRequest, code: int) -> InitProducerIdResponse:
    if code:
        return InitProducerIdResponse(error_code=code)
    script.epoch += 1
    return InitProducerIdResponse(
        producer_id=PRODUCER_ID,
        producer_epoch=script.epoch,
        ongoing_txn_producer_id=script.prepared.producer_id,
        ongoing_txn_producer_epoch=script.prepared.epoch,
    )


def added(script: Script, request: AddPartitionsToTxnRequest, code: int) -> AddPartitionsToTxnResponse:
    topics = []
    for topic in request.v3_and_below_topics:
        results = [
            AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
            for number in topic.partitions
        ]
        topics.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def produced(script: Script, request: ProduceRequest, code: int) -> ProduceResponse:
    topics = []
    for topic in request.topic_data:
        partitions = [
            PartitionProduceResponse(index=each.index, error_code=code) for each in topic.partition_data
        ]
        topics.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
        )
    return ProduceResponse(responses=topics)


def taken(script: Script, request: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    topics = []
    for topic in request.topics:
        partitions = [
            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ]
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    return TxnOffsetCommitResponse(topics=topics)


def ended(script: Script, request: EndTxnRequest, code: int) -> EndTxnResponse:
    is_second = script.sent[-1].version >= 5
    if code or not is_second:
        return EndTxnResponse(error_code=code)
    script.epoch = request.producer_epoch + 1
    return EndTxnResponse(producer_id=request.producer_id, producer_epoch=script.epoch)


ANSWERS: dict[type, Callable[[Script, Any, int], Any]] = {
    InitProducerIdRequest: given,
    AddPartitionsToTxnRequest: added,
    AddOffsetsToTxnRequest: lambda script, request, code: AddOffsetsToTxnResponse(error_code=code),
    ProduceRequest: produced,
    TxnOffsetCommitRequest: taken,
    EndTxnRequest: ended,
}


class Scene(NamedTuple):
    """A producer, and the broker that it speaks to."""

    producer: TransactionalProducer
    script: Script
    broker: FakeBroker
    client: Client

    def begin(self) -> TransactionalProducer:
        """Begin a transaction with one record, which is not sent yet."""
        self.producer.begin()
        self.producer.send("t", b"v", partition=0)
        return self.producer

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """The coordinator has a moment to answer. Only here: a busy machine may need longer for the rest."""
        coordinator = self.producer._coordinator
        patience_s, coordinator._timeout_s = coordinator._timeout_s, 0.2
        yield
        coordinator._timeout_s = patience_s


@pytest.fixture
def stage(fake_broker: Callable[[Script], FakeBroker]) -> Iterator[Callable[..., Scene]]:
    """Make a transactional producer and a broker of this transaction version."""
    clients = []

    def make(version: int, *, versions: dict[int, int] | None = None, **options: Any) -> Scene:
        script = Script()
        broker = fake_broker(script)
        script.port = broker.port
        broker.features = {"transaction.version": version} if version else {}
        broker.versions = versions or {}
        client = Client(broker.address)
        clients.append(client)
        producer = TransactionalProducer(client, "x", **options)
        return Scene(producer, script, broker, client)

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between attempts pass at once."""
    clock = later()
    for each in (batches, producer, retry):
        monkeypatch.setattr(each, "time", clock)
