"""Sends a broker legal requests of every API at the edges of the limits: fuzzing with well-formed requests.

A request is generated from its declaration. One of its arrays, at any depth, is as long as the limits allow,
or longer; ids and names exist, are made up, are repeated, or have the maximum length. Nothing in it is
malformed, so the broker has to process it.

A request fails if it blocks the broker's event loop for longer than ``pauses`` allows, if the broker stops,
or if another client gets no answer afterwards. A seed always produces the same request.
"""

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from semel.embedded import Embedded, embedded
from semel.handlers import served
from semel.wire.frames import encode_request
from semel.wire.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
)
from semel.wire.messages.groups import JoinGroupRequest, SyncGroupRequest
from semel.wire.schema import Request
from semel.wire.spec import FIXED_SIZES, Field, members
from verification.pauses import UNITS_MAX, Probe, calibrated_seconds

ELEMENTS: Final = (1, 999, 1_001, 10_000, 49_000, 200_000)
"""Lengths of the long array: around a slice, almost at the limit, and far beyond it."""
DISTINCT: Final = 2_000
"""The number of distinct elements. The others repeat them: generating one takes longer than sending it."""
BODY_BYTES_MAX: Final = 4_000_000
PATIENCE_SECONDS: Final = 10.0
SHORT_SECONDS: Final = 0.2
MAY_WAIT: Final = (FetchRequest, JoinGroupRequest, SyncGroupRequest, ProduceRequest)
"""A Fetch may wait for records, a join for other members, and Produce may request no response."""
TOPICS: Final = 20
PARTITIONS: Final = 10
TEXTS: Final = ("", "a", "legal-0", "legal-1", "range", "x" * 249, "x" * 1_024)
SETTINGS: Final = {"auto.create.topics.enable": "false", "semel.partitions.max": "20000"}


@dataclass(frozen=True)
class Slow:
    """A request that blocked the event loop, or stopped the broker."""

    seed: int
    request: str
    what: str


@dataclass
class Legal:
    """The results of all requests."""

    requests: int = 0
    longest_units: float = 0.0
    longest: str = ""
    failures: list[Slow] = field(default_factory=list)
    seeds: range = range(0)


def run(requests: int, first_seed: int = 0) -> Legal:
    """Send this many requests to one broker."""
    found = Legal(seeds=range(first_seed, first_seed + requests))
    with embedded(settings=SETTINGS) as broker:
        assert broker._loop is not None
        _make_topics(broker)
        probe = Probe(broker._loop)
        unit = calibrated_seconds()
        for seed in found.seeds:
            request, version = made(seed)
            name = f"{type(request).__name__} v{version}"
            probe.longest_seconds()
            _ask(broker, request, version)
            seconds = probe.longest_seconds()
            units = seconds / unit
            if units > found.longest_units:
                found.longest_units, found.longest = units, f"seed {seed}: {name}"
            if units > UNITS_MAX:
                # Calibrate again before reporting, in case the machine was slower just now.
                unit = max(unit, calibrated_seconds())
                if seconds > UNITS_MAX * unit:
                    what = f"the event loop was held up for {seconds / unit:.0f} calibrated loops"
                    found.failures.append(Slow(seed, name, what))
            if not _ask(broker, MetadataRequest(topics=[]), 9):
                found.failures.append(Slow(seed, name, "another client was not answered"))
            found.requests += 1
        probe.end()
    return found


def made(seed: int) -> tuple[Request, int]:
    """Return the request of a seed, and its version."""
    chance = random.Random(seed)
    api = served()[seed % len(served())]
    version = chance.choice((api.advertised_max, chance.randint(api.min_version, api.advertised_max)))
    arrays = list(_arrays(api.request, version, ()))
    long_one = chance.choice(arrays) if arrays else ()
    elements = chance.choice(ELEMENTS)
    while True:
        request = _Making(version, chance, long_one, elements).struct(api.request)
        if sum(map(len, request.encode_parts(version))) <= BODY_BYTES_MAX or elements <= 1:
            return request, version
        elements //= 2


def _arrays(kind: type, version: int, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of every array in a struct and its nested structs."""
    for member in members(kind):
        if version not in member.field.versions:
            continue
        here = (*path, member.name)
        if member.field.kind == "array":
            yield here
        if isinstance(member.field.element, type):
            yield from _arrays(member.field.element, version, here)


class _Making(NamedTuple):
    """Makes a request of a version, with one long array."""

    version: int
    chance: random.Random
    long_one: tuple[str, ...]
    """The path of the long array."""
    elements: int
    """Its length."""

    def struct(self, kind: type, path: tuple[str, ...] = ()) -> Any:
        values: dict[str, Any] = {}
        for member in members(kind):
            if self.version in member.field.versions:
                values[member.name] = self._value(member.field, (*path, member.name))
        return kind(**values)

    def _value(self, what: Field, path: tuple[str, ...]) -> Any:
        chance = self.chance
        if what.kind == "array":
            is_on_the_way = self.long_one[: len(path)] == path
            if what.nullable is not None and self.version in what.nullable and not is_on_the_way:
                return chance.choice((None, []))
            count = self.elements if path == self.long_one else 1
            if isinstance(what.element, type):
                distinct = min(count, DISTINCT)
                made = [self.struct(what.element, path) for _ in range(distinct)]
                return (made * (count // distinct + 1))[:count]
            assert what.element is not None
            return [_plain(what.element, chance, at) for at in range(count)]
        if what.kind == "nested":
            assert isinstance(what.element, type)
            return self.struct(what.element, path)
        return _plain(what.kind, chance, chance.randrange(PARTITIONS))


def _plain(kind: str, chance: random.Random, number: int) -> Any:
    if kind == "boolean":
        return chance.random() < 0.5
    if kind == "float64":
        return 0.0
    if kind == "uuid":
        return chance.choice((bytes(16), chance.randbytes(16)))
    if kind == "string":
        return chance.choice((f"n{number}", f"legal-{chance.randrange(TOPICS)}", *TEXTS))
    if kind == "records":
        return None
    if kind == "bytes":
        return b"\0" * chance.choice((0, 1, 100))
    bits = 8 * FIXED_SIZES[kind]
    return chance.choice((0, 1, number % 100, 2 ** (bits - 1) - 1)) if bits > 8 else chance.choice((0, 1))


def _make_topics(broker: Embedded) -> None:
    topics = [
        CreatableTopic(name=f"legal-{number}", num_partitions=PARTITIONS, replication_factor=1)
        for number in range(TOPICS)
    ]
    assert _ask(broker, CreateTopicsRequest(topics=topics), 5)


def _ask(broker: Embedded, request: Request, version: int) -> bytes | None:
    """Return the response; None without one in time: connection closed, request parked, or acks=0."""
    address = (broker.host, broker.port)
    with suppress(OSError), socket.create_connection(address, PATIENCE_SECONDS) as wire:
        wire.sendall(b"".join(encode_request(request, version, 1, "legal")))
        wire.settimeout(SHORT_SECONDS if isinstance(request, MAY_WAIT) else PATIENCE_SECONDS)
        (size,) = struct.unpack(">i", _exactly(wire, 4))
        return _exactly(wire, size)
    return None


def _exactly(wire: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = wire.recv(size - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return bytes(data)
