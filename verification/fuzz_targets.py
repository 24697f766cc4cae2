"""Lists the fuzz targets: every decoder, with valid inputs to start from and the errors that it may raise.

A target takes bytes and either succeeds or raises one of its typed errors. Two decoders for the same thing
must agree, and a decoded value must be the same after encoding and decoding it again.
"""

import contextlib
import importlib
import io
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import typer

from semel.check.history import HistoryError, read_lines, write_lines
from semel.cli import serve
from semel.client import CommittedOffset, PreparedTransaction
from semel.core.groups.offsets import _topics_of
from semel.record_lines import InputFormat, LineError, read_line
from semel.spark import option_reader
from semel.spark.delta import group, position
from semel.spark.errors import OptionError, PipelineError
from semel.spark.partition_offsets import parse_vector
from semel.spark.sink import decision
from semel.store.contract import StoreBroken
from semel.store.embedded.wal import paths_in
from semel.store.embedded.wal_reading import read_wal
from semel.wire import _columns_py
from semel.wire.batch import HEADER_BYTES, read_header, seal
from semel.wire.compression import Codec, compress, decompress
from semel.wire.errors import InvalidRecords, ProtocolError
from semel.wire.frames import (
    FrameParser,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
)
from semel.wire.records import (
    Header,
    Record,
    check_produced,
    decode_batch,
    encode_batch,
    first_at_or_after,
    iter_batches,
    marker,
    read_marker,
)
from semel.wire.schema import Message
from semel.wire.validating import validate
from verification import fuzz_store, made_up
from verification.fuzz_texts import HISTORY, NOTES, TOML
from verification.mutations import damaged, noise
from verification.seeds import shared_memory
from verification.turns import replaced

HALVES: list[Any] = [_columns_py]
with contextlib.suppress(ImportError):
    HALVES.append(importlib.import_module("semel.wire._columns"))
"""The columnar codec in Python, and the compiled one if available."""

LIMIT_BYTES: Final = 1 << 20
ALL_OFFSETS: Final = (0, (1 << 63) - 1)

Read = Callable[[bytes], Any]
Make = Callable[[random.Random], bytes]
Change = Callable[[bytes, random.Random, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """One decoder."""

    name: str
    weight: float
    make: Make
    """Returns a valid input."""
    read: Read
    errors: tuple[type[Exception], ...]
    """The only errors that it may raise."""
    change: Change = damaged
    is_bounded: bool = True
    """Whether memory must be proportional to the input."""


@cache
def targets() -> list[Target]:
    """Return all targets."""
    kinds = made_up.messages()
    bodies = [_message_target(message, version, 45 / len(kinds)) for message, version in kinds]
    return [
        *bodies,
        Target("frames", 3, _frames, _read_frames, (ProtocolError,)),
        Target("request-header", 2, _request, decode_request_header, (ProtocolError,)),
        Target("response-header", 2, _response, _read_response_header, (ProtocolError,)),
        Target("batches", 8, _batches, _read_batches, (ProtocolError,)),
        Target("records", 12, _batches, _read_batches, (ProtocolError,), _resealed),
        Target("columns", 8, _batch, _read_columns, (ProtocolError,), _resealed),
        Target("codecs", 4, _compressed, _read_compressed, (ProtocolError,)),
        Target("subscription", 1, lambda chance: SUBSCRIPTION, _topics_of, ()),
        Target("history", 3, lambda chance: chance.choice(HISTORY), _read_history, (HistoryError,)),
        Target("notes", 3, lambda chance: chance.choice(NOTES), _read_notes, (PipelineError,)),
        Target("table", 1, lambda chance: TABLE, _read_table, (PipelineError,)),
        Target("assigned", 1, lambda chance: b'{"orders":[0,1]}', _read_assigned, (OptionError,)),
        Target("position", 1, lambda chance: POSITION, _read_position, ()),
        Target("vector", 1, lambda chance: VECTOR, _read_vector, (OptionError,)),
        Target("prepared", 1, lambda chance: b"123:4:orders/task/0", _read_prepared, (ValueError,)),
        Target("lines", 1, lambda chance: LINE, _read_line, (LineError,)),
        Target(
            "config",
            2,
            lambda chance: chance.choice(TOML),
            _read_config,
            (typer.BadParameter, typer.Exit),
            is_bounded=False,
        ),
        Target("wal", 2, fuzz_store.wal, _read_wal, (StoreBroken,)),
        Target("facts", 1, fuzz_store.wal, _read_wal, (StoreBroken,), fuzz_store.sealed, False),
        Target(
            "store", 0.6, fuzz_store.image, fuzz_store.read_image, fuzz_store.ERRORS, fuzz_store.spoilt, False
        ),
    ]


def by_name(name: str) -> Target:
    """Return the target with this name. KeyError."""
    return {target.name: target for target in targets()}[name]


# -- messages ---------------------------------------------------------------------------------------------


def _message_target(message: type[Message], version: int, weight: float) -> Target:
    return Target(
        f"{message.__name__}-{version}",
        weight,
        partial(made_up.encoded, message, version),
        partial(_read_message, message, version),
        (ProtocolError,),
    )


def _read_message(message: type[Message], version: int, data: bytes) -> None:
    found = message.decode(data, version)
    again = b"".join(map(bytes, found.encode_parts(version)))
    # Compare the text, because NaN is not equal to itself.
    if repr(message.decode(again, version)) != repr(found):
        raise AssertionError(f"{found!r} is another message when it is written and read again")


def _request(chance: random.Random) -> bytes:
    message, version = chance.choice(
        [each for each in made_up.messages() if each[0].__name__.endswith("Request")]
    )
    body = message.decode(made_up.encoded(message, version, chance), version)
    return b"".join(map(bytes, encode_request(body, version, 7, chance.choice((None, "", "me")))))[4:]  # type: ignore[arg-type]


def _response(chance: random.Random) -> bytes:
    message, version = chance.choice(
        [each for each in made_up.messages() if each[0].__name__.endswith("Response")]
    )
    body = message.decode(made_up.encoded(message, version, chance), version)
    return b"".join(map(bytes, encode_response(body, version, 7)))[4:]  # type: ignore[arg-type]


def _read_response_header(data: bytes) -> None:
    for api_key, version in ((3, 9), (18, 3), (0, 3)):
        decode_response_header(data, api_key, version)


def _frames(chance: random.Random) -> bytes:
    payloads = [chance.randbytes(chance.choice((0, 1, 30, 300))) for _ in range(chance.randint(1, 4))]
    return b"".join(len(each).to_bytes(4, "big") + each for each in payloads)


def _read_frames(data: bytes) -> None:
    whole = FrameParser(LIMIT_BYTES).feed(data)
    pieces, parser = [], FrameParser(LIMIT_BYTES)
    for at in range(0, len(data), 7):
        pieces += parser.feed(data[at : at + 7])
    if [bytes(each) for each in pieces] != [bytes(each) for each in whole]:
        raise AssertionError("frames depend on the pieces in which they come")


# -- records ----------------------------------------------------------------------------------------------


def _batch(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return marker(5, 1, True, 0, 1_000)
    records = [
        Record(
            0,
            1_000 + at,
            chance.choice((None, b"", b"key")),
            chance.choice((None, b"", chance.randbytes(20), b"x" * 200)),
            tuple(Header("h", chance.choice((None, b"v"))) for _ in range(chance.choice((0, 0, 1, 3)))),
        )
        for at in range(chance.choice((1, 1, 2, 5)))
    ]
    return encode_batch(
        records,
        codec=chance.choice((Codec.NONE, Codec.NONE, *Codec)),
        producer_id=chance.choice((-1, 5)),
        base_sequence=chance.choice((-1, 0)),
        transactional=chance.random() < 0.3,
    )


def _batches(chance: random.Random) -> bytes:
    return b"".join(_batch(chance) for _ in range(chance.choice((1, 1, 2))))


def _resealed(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Damage the records, compressed or not, or the header, and correct the checksum."""
    header = read_header(data)
    payload = data[HEADER_BYTES : header.length]
    if header.codec is not Codec.NONE and chance.random() < 0.7:
        payload = compress(
            header.codec, damaged(decompress(header.codec, payload, LIMIT_BYTES), chance, others)
        )
    else:
        payload = damaged(payload, chance, others)
    if chance.random() < 0.3:
        count = chance.choice((-1, 0, 1, header.record_count + 1, 2**31 - 1))
        header = header._replace(record_count=count)
    if chance.random() < 0.2:
        header = header._replace(last_offset_delta=chance.choice((-1, 0, 7, 2**31 - 1)))
    if chance.random() < 0.2:
        header = header._replace(base_offset=chance.choice((-1, 2**63 - 1)), base_timestamp=2**63 - 1)
    return seal(header, payload) + data[header.length :]


def _read_batches(data: bytes) -> None:
    _validate(data)
    for at, header in iter_batches(data):
        if header.is_control:
            read_marker(data, at)
        decode_batch(data, at, limit_bytes=LIMIT_BYTES)
        first_at_or_after(data, 1_001, at, limit_bytes=LIMIT_BYTES)


def _validate(data: bytes) -> None:
    """Check that a batch which passes the validation of Produce is readable."""
    header, _ = check_produced(data, 9)
    if header is None:
        return
    try:
        validate(data, header, limit_bytes=LIMIT_BYTES)
    except InvalidRecords:
        return
    try:
        records = decode_batch(data, limit_bytes=LIMIT_BYTES)
    except ProtocolError as error:
        raise AssertionError("a batch that was validated cannot be read") from error
    assert [each.offset for each in records] == list(range(header.record_count))


def _read_columns(data: bytes) -> None:
    """Check that the Python and the compiled codec read the same."""
    header = read_header(data)
    if not HEADER_BYTES <= header.length <= len(data):
        raise ProtocolError("not whole")
    payload = decompress(header.codec, data[HEADER_BYTES : header.length], LIMIT_BYTES)
    answers = [_columns_of(half, payload, header) for half in HALVES]
    if any(answer != answers[0] for answer in answers):
        raise AssertionError(f"the halves of the codec differ: {answers}")


def _columns_of(half: Any, payload: bytes, header: Any) -> Any:
    reader = half.Reader(True, True, True)
    try:
        reader.add(payload, header, *ALL_OFFSETS)
    except ProtocolError:
        return ProtocolError
    found = reader.take()
    parts = [found.offsets, found.timestamps, found.timestamp_types]
    for column in (found.keys, found.values):
        parts += [column.offsets, column.data]
    return found.rows, [bytes(each) for each in parts], found.headers


def _compressed(chance: random.Random) -> bytes:
    codec = chance.choice(list(Codec))
    data = chance.choice((b"", b"abc" * 30, bytes(3 * LIMIT_BYTES if chance.random() < 0.01 else 5_000)))
    return bytes([codec]) + compress(codec, data)


def _read_compressed(data: bytes) -> None:
    if not data or data[0] not in list(Codec):
        raise ProtocolError("no codec")
    found = decompress(Codec(data[0]), data[1:], LIMIT_BYTES)
    if len(found) > max(LIMIT_BYTES, len(data)):
        raise AssertionError(f"{len(found)} bytes, and {LIMIT_BYTES} were allowed")


# -- texts ------------------------------------------------------------------------------------------------

SUBSCRIPTION: Final = b"\0\1\0\0\0\2\0\6orders\0\10payments\0\0\0\0"
VECTOR: Final = b'{"orders":{"0":23,"1":-2},"began:":{"orders":{"0":1}}}'
TABLE: Final = b'{"table_id":"7","location":"/tables/orders"}'
POSITION: Final = (
    b'{"semel":1,"number":2,"run":"r","query":"q","batch":3,"offsets":{"orders":{"0":5}},"winners":["w"]}'
)
LINE: Final = b'{"key":"k","value":{"base64":"aGk="},"headers":{"h":"v"},"partition":1,"timestamp":5}'


def _read_history(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    operations = list(read_lines(io.StringIO(text)))
    written = io.StringIO()
    write_lines(operations, written)
    if list(read_lines(io.StringIO(written.getvalue()))) != operations:
        raise AssertionError(f"{operations} are other operations when they are written and read again")


def _read_notes(data: bytes) -> None:
    notes = data.decode("utf-8", "replace").split("\n")
    found = {("orders", at): CommittedOffset(at, note) for at, note in enumerate(notes)}
    made = decision._assemble("pipeline", found)
    if not all(type(each) is int for each in (*made.run, made.batch_id)):
        raise AssertionError(f"{made} is no decision")


def _read_table(data: bytes) -> None:
    group._table("pipeline", data.decode("utf-8", "replace"))


def _read_assigned(data: bytes) -> None:
    option_reader._parse_assigned(data.decode("utf-8", "replace"))


def _read_position(data: bytes) -> None:
    position._parse(data.decode("utf-8", "replace"))


def _read_vector(data: bytes) -> None:
    parse_vector("startingOffsets", data.decode("utf-8", "replace"))


def _read_prepared(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = PreparedTransaction.parse(text)
    if PreparedTransaction.parse(str(found)) != found:
        raise AssertionError(f"{found} is another transaction when it is written and read again")


def _read_line(data: bytes) -> None:
    for form in (InputFormat.text, InputFormat.hex, InputFormat.base64):
        with contextlib.suppress(LineError):
            read_line(data, form, b":")
    read_line(data, InputFormat.json, None)


def _read_config(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=shared_memory(), suffix=".toml") as file:
        file.write(data)
        file.flush()
        # With a valid configuration the command ends with Exit, as when a broker stops.
        with replaced([(serve, "_serve", lambda *parts: 0)]):
            serve.serve(typer.Context(typer.core.TyperCommand("serve")), config=Path(file.name))


# -- the store --------------------------------------------------------------------------------------------


def _read_wal(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=shared_memory()) as directory:
        half = len(data) // 2
        (Path(directory) / "wal-0").write_bytes(data[:half])
        (Path(directory) / "wal-1").write_bytes(data[half:])
        # The store id of the first frame.
        store_id = data[8:16].ljust(16, b"\0")
        frames = read_wal(paths_in(Path(directory)), store_id, 0).frames
        if [frame.number for frame in frames] != list(
            range(frames[0].number, frames[-1].number + 1) if frames else []
        ):
            raise AssertionError("the WAL has a gap")


__all__ = ["Target", "by_name", "noise", "targets"]
