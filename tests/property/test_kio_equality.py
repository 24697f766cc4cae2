"""Our codec against an independent one, for every message in every version.

kio is generated from Kafka's own message definitions by other people. For values that hypothesis makes up:

- our bytes are kio's bytes,
- kio reads our bytes as the value,
- we read kio's bytes as the value.

kio has its own Python types for what is a plain number here: durations, points in time (null is -1),
error codes and uuids (null is all zeros). `to_kio` translates; a field that has no counterpart fails the
test.
"""

import datetime
import io
import types
import typing
import uuid
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import FACTOR

from semel.wire.messages import APIS
from semel.wire.messages.semel import FIRST_OWN_KEY
from semel.wire.schema import Message
from semel.wire.spec import Field, Member, members

EXAMPLES = 8 * FACTOR if FACTOR > 1 else 5
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MOMENT_MAX = 2**33 * 1000 - 1
"""In 2242: kio reads moments through floats, which are not exact to a millisecond behind it."""

# kio knows what is Kafka's.
KAFKAS = [api for api in APIS.values() if api.key < FIRST_OWN_KEY]
CASES = [
    pytest.param(message, version, id=f"{message.__name__}-v{version}")
    for api in KAFKAS
    for message in (api.request, api.response)
    for version in range(message.min_version, message.max_version + 1)
]


def test_every_message_and_version_is_covered() -> None:
    covered = {(case.values[0], case.values[1]) for case in CASES}
    assert len(covered) == len(CASES)
    own = {"CommitTransactions", "BeginAttempt", "TxnShareAcknowledge"}
    assert {api.name for api in APIS.values() if api not in KAFKAS} == own
    for api in KAFKAS:
        for version in range(api.min_version, api.max_version + 1):
            assert (api.request, version) in covered
            assert (api.response, version) in covered


@pytest.mark.parametrize(("message", "version"), CASES)
def test_bytes_and_values_are_those_of_kio(message: type[Message], version: int) -> None:
    from kio.serial import entity_reader, entity_writer

    kio_class = kio_class_of(message, version)
    write, read = entity_writer(kio_class), entity_reader(kio_class)
    flexible = message.is_flexible(version)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(values(message, kio_class, version, flexible))
    def check(value: Message) -> None:
        ours = value.encode(version)
        kio_value = to_kio(value, kio_class, version, flexible)
        buffer = io.BytesIO()
        write(buffer, kio_value)
        theirs = buffer.getvalue()
        assert ours == theirs
        assert b"".join(value.encode_parts(version)) == ours
        assert message.decode(theirs, version) == value
        assert message.decode(memoryview(b"skip" + theirs), version, 4) == value
        kio_read, size = read(ours, 0)
        assert kio_read == kio_value
        assert size == len(ours)

    check()


def kio_class_of(message: type[Message], version: int) -> Any:
    from kio.index import load_request_schema, load_response_schema

    load = load_request_schema if message is APIS[message.api_key].request else load_response_schema
    return load(message.api_key, version)


@cache
def kio_fields(kio_class: type) -> dict[str, tuple[Any, str | None, Any]]:
    """By the name that we use: kio's field, its type on the wire, and its Python type without the null."""
    hints = typing.get_type_hints(kio_class)
    found = {}
    for field in fields(kio_class):
        kafka_type = field.metadata.get("kafka_type")
        ours = field.name
        if kafka_type in ("timedelta_i32", "timedelta_i64", "datetime_i64"):
            ours = f"{field.name}_ms"
        found[ours] = (field, kafka_type, hints[field.name])
    return found


def is_optional(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union) and type(None) in typing.get_args(hint)


def inner_type(hint: Any) -> Any:
    """The struct class in `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    if is_optional(hint):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


def present(struct_class: type, version: int, flexible: bool) -> list[Member]:
    return [
        member
        for member in members(struct_class)
        if version in member.field.versions and (member.field.tag is None or flexible)
    ]


def counterpart(kio_class: type, name: str) -> tuple[Any, str | None, Any]:
    known = kio_fields(kio_class)
    # kio drops the ending of durations and points in time that Kafka's names carry
    return known[name] if name in known else known[f"{name}_ms"]


def to_kio(value: Any, kio_class: Any, version: int, flexible: bool) -> Any:
    arguments = {}
    for member in present(type(value), version, flexible):
        field, kafka_type, hint = counterpart(kio_class, member.name)
        raw = getattr(value, member.name)
        inner = inner_type(hint)
        if raw is None:
            translated = None
        elif member.field.kind == "array":
            translated = tuple(
                to_kio(item, inner, version, flexible)
                if isinstance(member.field.element, type)
                else plain_to_kio(item, kafka_type, optional=False)
                for item in raw
            )
        elif member.field.kind == "nested":
            translated = to_kio(raw, inner, version, flexible)
        else:
            translated = plain_to_kio(raw, kafka_type, is_optional(hint))
        arguments[field.name] = translated
    assert set(arguments) == {field.name for field in fields(kio_class)}
    return kio_class(**arguments)


def plain_to_kio(raw: Any, kafka_type: str | None, optional: bool) -> Any:
    from kio.schema.errors import ErrorCode

    match kafka_type:
        case "error_code":
            return ErrorCode(raw)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=raw)
        case "datetime_i64":
            return None if optional and raw == -1 else EPOCH + datetime.timedelta(milliseconds=raw)
        case "uuid":
            return None if optional and raw == bytes(16) else uuid.UUID(bytes=raw)
        case _:
            return raw


def values(struct_class: type, kio_class: type, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    """Instances of a struct, with something in each field of this version and defaults in all others."""
    chosen = {}
    for member in present(struct_class, version, flexible):
        _, kafka_type, hint = counterpart(kio_class, member.name)
        strategy = field_values(member.field, kafka_type, hint, version, flexible)
        if member.field.nullable is not None and version in member.field.nullable:
            strategy = st.none() | strategy
        chosen[member.name] = strategy
    return st.builds(struct_class, **chosen)


def field_values(
    field: Field, kafka_type: str | None, hint: Any, version: int, flexible: bool
) -> st.SearchStrategy[Any]:
    if field.kind == "nested":
        assert isinstance(field.element, type)
        return values(field.element, inner_type(hint), version, flexible)
    if field.kind != "array":
        return plain_values(field.kind, kafka_type, is_optional(hint))
    if isinstance(field.element, type):
        return st.lists(values(field.element, inner_type(hint), version, flexible), max_size=2)
    assert field.element is not None
    elements = st.lists(plain_values(field.element, kafka_type, optional=False), max_size=3)
    return elements | elements.filter(bool).map(lambda some: some * 150)


@cache
def plain_values(kind: str, kafka_type: str | None, optional: bool) -> st.SearchStrategy[Any]:
    from kio.schema.errors import ErrorCode

    if kafka_type == "error_code":
        return st.sampled_from([int(code) for code in ErrorCode])
    if kafka_type in ("datetime_i64", "timedelta_i64"):
        return st.integers(-1 if optional else 0, MOMENT_MAX)
    match kind:
        case "string":
            return st.text(max_size=5) | st.sampled_from(["é" * 100, "x" * 126, "x" * 127, "x" * 20000])
        case "bytes" | "records":
            return st.binary(max_size=5) | st.sampled_from([bytes(126), bytes(127), b"r" * 9000])
        case "uuid":
            return st.just(bytes(16)) | st.binary(min_size=16, max_size=16)
        case "boolean":
            return st.booleans()
        case "float64":
            return st.floats(allow_nan=False, allow_infinity=False)
        case _:
            return integers(kind)


def integers(kind: str) -> st.SearchStrategy[int]:
    bits = int(kind.removeprefix("u").removeprefix("int"))
    if kind.startswith("u"):
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
