"""Writes docs/walk.md: the files that a request visits, in order, found by tracing a real broker.

A broker on disk serves a request in this process while every function call is recorded. A file is listed
where it is first entered, with the first sentence of its docstring. The source and the sink of Spark are
called as Spark calls them, and the console serves a page, in this process too.
"""

import ast
import asyncio
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple
from unittest.mock import patch
from urllib.request import urlopen

from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructType

import semel
from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings
from semel.spark.data_source import SemelDataSource
from semel.wire.frames import FrameParser, decode_response_header, encode_request
from semel.wire.messages import APIS
from semel.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from semel.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from semel.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from semel.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from semel.wire.records import Record, encode_batch

SOURCE: Final = Path(semel.__file__).parent
TOPIC: Final = "orders"
OUTPUT: Final = "invoices"
SETTLE_SECONDS: Final = 0.5
"""Longer than the delay after which the WAL is applied."""
PERIODIC: Final = (
    "semel.broker.upkeep.housekeeping.Housekeeping._every",
    "semel.server.server.check_connections",
    "semel.server.server.probe_loop",
)
"""The periodic work of a broker. It is disabled here, because it would be recorded with the request."""


class Trace:
    """The files and functions that were entered while recording."""

    def __init__(self) -> None:
        self.is_recording = False
        self.functions: dict[str, set[str]] = {}
        """By file, in the order in which files were entered."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record a call; this is the hook of the profiler."""
        if not self.is_recording or event != "call":
            return
        path = frame.f_code.co_filename
        if path.startswith(str(SOURCE)):
            name = str(Path(path).relative_to(SOURCE))
            self.functions.setdefault(name, set()).add(frame.f_code.co_qualname)


class Peer:
    """A client that sends one frame and waits for the answer."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._parser = FrameParser(1 << 30, 1 << 30, ())

    def ask(self, request: Any, version: int) -> Any:
        """Send a request, and return the response."""
        self._socket.sendall(b"".join(encode_request(request, version, 1, "walk")))
        frames: list[memoryview] = []
        while not frames:
            frames = list(self._parser.feed(self._socket.recv(1 << 20)))
        _, position = decode_response_header(frames[0], request.api_key, version)
        return APIS[request.api_key].response.decode(frames[0], version, position)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def produce(**fields: Any) -> ProduceRequest:
    """Build a request with one batch of one record, in a transaction if there is a producer id."""
    batch = encode_batch(
        [Record(0, 1_700_000_000_000, b"key", b"value")], transactional=bool(fields), **fields
    )
    topic = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    name = "walk" if fields else None
    return ProduceRequest(acks=-1, timeout_ms=1_000, transactional_id=name, topic_data=[topic])


def fetch() -> FetchRequest:
    """Build a request for everything in the partition."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic=TOPIC, partitions=[partition])
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[topic])


@contextmanager
def broker() -> Iterator[tuple[Peer, Trace]]:
    """Run a broker with a topic and some records; yield it with a trace of its threads."""
    trace = Trace()
    threading.setprofile(trace)
    try:
        with ExitStack() as stack:
            for each in PERIODIC:
                stack.enter_context(patch(each, _never))
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            started = stack.enter_context(semel.embedded(directory))
            peer = Peer(started.bootstrap_servers)
            created = [
                CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in (TOPIC, OUTPUT)
            ]
            peer.ask(CreateTopicsRequest(topics=created), 4)
            # The first requests load what later ones find in memory.
            _transaction(peer)
            for _ in range(3):
                peer.ask(produce(), 9)
                peer.ask(fetch(), 11)
            yield peer, trace
            peer.close()
    finally:
        threading.setprofile(None)


async def _never(*_: Any) -> None:
    await asyncio.Event().wait()


def _transaction(peer: Peer) -> None:
    """Send what librdkafka sends for a transaction of one batch."""
    begun = peer.ask(InitProducerIdRequest(transactional_id="walk", transaction_timeout_ms=60_000), 4)
    identity = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
    old: dict[str, Any] = {f"v3_and_below_{name}": value for name, value in identity.items()}
    adding = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="walk", v3_and_below_topics=topics, **old
    )
    peer.ask(adding, 0)
    peer.ask(produce(**identity, base_sequence=0), 9)
    ended = peer.ask(EndTxnRequest(transactional_id="walk", committed=True, **identity), 1)
    assert ended.error_code == 0


ROWS: Final = StructType().add("key", BinaryType()).add("value", BinaryType())


class Query:
    """A streaming query from topic to topic, which calls source and sink as Spark does."""

    def __init__(self, address: str, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        (checkpoint / "offsets").mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": "walk"}))
        common = {"kafka.bootstrap.servers": address}
        self._source = SemelDataSource(common | {"subscribe": TOPIC, "startingOffsets": "earliest"})
        self._sink = SemelDataSource(
            common | {"topic": OUTPUT, "pipeline.id": "walk", "checkpointLocation": str(checkpoint)}
        )
        self._reader = self._source.streamReader(ROWS)
        self._position = self._reader.initialOffset()
        self._number = 0

    def batch(self) -> None:
        """Read what there is, and write it exactly once."""
        end = self._reader.latestOffset(self._position, self._reader.getDefaultReadLimit())
        offsets = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(end)])
        (self._checkpoint / "offsets" / str(self._number)).write_text(offsets)
        # The one task of the batch, as in a process of Spark.
        context: Any = TaskContext._getOrCreate()
        context._partitionId = context._attemptNumber = context._stageId = context._taskAttemptId = 0
        context._localProperties = {}
        writer = self._sink.streamWriter(ROWS, overwrite=False)
        writer.__getstate__()
        messages = [
            writer.write(self._reader.read(task)) for task in self._reader.partitions(self._position, end)
        ]
        writer.commit(list(messages), self._number)
        self._position = end
        self._number += 1


@contextmanager
def spark(peer: Peer) -> Iterator[Callable[[], Any]]:
    """Yield a function that runs a micro-batch of a query. The first batch was run."""
    with tempfile.TemporaryDirectory() as directory:
        query = Query(peer.address, Path(directory) / "checkpoint")
        query.batch()
        peer.ask(produce(), 9)
        yield query.batch


@contextmanager
def console(peer: Peer) -> Iterator[Callable[[], Any]]:
    """Yield a function that gets a page of a console. The page was shown once."""
    # Sections are sampled when the console starts, and not again in this time.
    settings = ConsoleSettings(bootstrap=peer.address, port=0, sample_seconds=3_600.0)
    with Beside(settings) as beside:

        def page() -> None:
            with urlopen(f"{beside.address}/topics/{TOPIC}") as reply:
                assert TOPIC in reply.read().decode()

        page()
        yield page


@contextmanager
def client(peer: Peer, work: Callable[[Peer], Any]) -> Iterator[Callable[[], Any]]:
    """Yield a function that sends the requests of a client."""
    yield lambda: work(peer)


class Walk(NamedTuple):
    """What is traced: a description, the preparation of the work, and whose files are listed (all: ())."""

    what: str
    prepare: Callable[[Peer], AbstractContextManager[Callable[[], Any]]]
    rooms: tuple[str, ...] = ()
    is_in_this_thread: bool = False
    """Whether the calls of this thread are recorded, too: otherwise it is only the client."""


def walked(walk: Walk) -> dict[str, set[str]]:
    """Return the files that a piece of work visits, in order, and their functions."""
    with broker() as (peer, trace), walk.prepare(peer) as work:
        time.sleep(SETTLE_SECONDS)
        trace.is_recording = True
        if walk.is_in_this_thread:
            sys.setprofile(trace)
        work()
        sys.setprofile(None)
        time.sleep(SETTLE_SECONDS)
        trace.is_recording = False
    return {
        name: functions
        for name, functions in trace.functions.items()
        if not walk.rooms or name.startswith(walk.rooms)
    }


WALKS: Final[dict[str, Walk]] = {
    "A produced record": Walk(
        "Produce, from the socket to the response, and on to ledger and chunk.",
        lambda peer: client(peer, lambda peer: peer.ask(produce(), 9)),
    ),
    "A fetch": Walk(
        "Fetch of records that are on disk.", lambda peer: client(peer, lambda peer: peer.ask(fetch(), 11))
    ),
    "A librdkafka transaction": Walk(
        "InitProducerId, AddPartitionsToTxn, Produce and EndTxn.", lambda peer: client(peer, _transaction)
    ),
    "A Spark micro-batch": Walk(
        "From topic to topic, exactly once: plan, read, write, commit. Files of source, sink, client.",
        spark,
        ("spark/", "client/"),
        is_in_this_thread=True,
    ),
    "A page of the console": Walk(
        "The page of a topic. Only the files of console and client.", console, ("console/", "client/")
    ),
}

HEAD = """# The path of a request

The files of `src/semel` that a request visits, in the order in which they are entered. `python -m tools.walk`
records them by tracing a real broker, and a test compares them. The line of each file is the first sentence
of its docstring.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for title, walk in WALKS.items():
        files = walked(walk)
        functions = sum(map(len, files.values()))
        counted = f"{walk.what} {len(files)} files, {functions} functions."
        parts.append(f"\n## {title}\n\n{counted}\n\n{_table(files)}")
    return "".join(parts)


def _table(files: Iterable[str]) -> str:
    rows = [f"| {number} | `{name}` | {first_sentence(name)} |" for number, name in enumerate(files, 1)]
    return "\n".join(["| | file | what it does |", "| --- | --- | --- |", *rows, ""])


def first_sentence(name: str) -> str:
    """Return the first paragraph of a module's docstring."""
    if not name.endswith(".py"):
        return "A template."
    text = ast.get_docstring(ast.parse((SOURCE / name).read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "/")


if __name__ == "__main__":
    (SOURCE.parents[1] / "docs" / "walk.md").write_text(page(), encoding="utf-8")
