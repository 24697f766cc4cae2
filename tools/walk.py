"""Writes docs/walk.md: the files that a request visits, in order, found by tracing a real broker.

A broker on disk serves a request in this process while every function call is recorded. A file is listed
where it is first entered, with the first sentence of its docstring.
"""

import ast
import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

import semel
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
            peer.ask(
                CreateTopicsRequest(
                    topics=[CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)]
                ),
                4,
            )
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


def walked(work: Callable[[Peer], Any]) -> dict[str, set[str]]:
    """Return the files that a piece of work visits in the broker, in order, and their functions."""
    with broker() as (peer, trace):
        time.sleep(SETTLE_SECONDS)
        trace.is_recording = True
        work(peer)
        time.sleep(SETTLE_SECONDS)
        trace.is_recording = False
    return trace.functions


WALKS: Final[dict[str, tuple[str, Callable[[Peer], Any]]]] = {
    "A produced record": (
        "Produce, from the socket to the response, and on to ledger and chunk.",
        lambda peer: peer.ask(produce(), 9),
    ),
    "A fetch": ("Fetch of records that are on disk.", lambda peer: peer.ask(fetch(), 11)),
    "A librdkafka transaction": ("InitProducerId, AddPartitionsToTxn, Produce and EndTxn.", _transaction),
}

SPARK: Final = (
    "spark/data_source.py",
    "spark/options.py",
    "spark/source/source.py",
    "spark/partition_offsets.py",
    "spark/source/source.py",
    "spark/source/source.py",
    "spark/checkpoint.py",
    "spark/sink/sink.py",
    "spark/sink/planning.py",
    "spark/sink/continuity.py",
    "spark/sink/decision.py",
    "spark/source/reading.py",
    "spark/sink/writing.py",
    "client/produce/commit_transactions.py",
    "spark/sink/batch_commit.py",
    "spark/sink/outputs.py",
)
"""A micro-batch runs in several processes of Spark, so this path is listed by hand."""

HEAD = """# The path of a request

The files of `src/semel` that a request visits, in the order in which they are entered. `python -m tools.walk`
records the first three
by tracing a real broker, and a test compares them. The line of each file is the first sentence of its
docstring.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for title, (what, work) in WALKS.items():
        files = walked(work)
        functions = sum(map(len, files.values()))
        parts.append(f"\n## {title}\n\n{what} {len(files)} files, {functions} functions.\n\n{_table(files)}")
    parts.append(f"\n## A Spark micro-batch\n\nFrom Spark's call to the commit.\n\n{_table(SPARK)}")
    return "".join(parts)


def _table(files: Iterable[str]) -> str:
    rows = [f"| {number} | `{name}` | {first_sentence(name)} |" for number, name in enumerate(files, 1)]
    return "\n".join(["| | file | what it does |", "| --- | --- | --- |", *rows, ""])


def first_sentence(name: str) -> str:
    """Return the first paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse((SOURCE / name).read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "/")


if __name__ == "__main__":
    (SOURCE.parents[1] / "docs" / "walk.md").write_text(page(), encoding="utf-8")
