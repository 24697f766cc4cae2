"""Declares messages: one class for all versions of a message.

    @struct
    class TopicProduceData:
        name: str = string(versions="3-12")
        topic_id: bytes = uuid(versions="13+")
        partition_data: list[PartitionProduceData] = array(PartitionProduceData)

    @request(0, versions="3-13", flexible=9)
    class ProduceRequest(Request):
        ...

A declared class is like a dataclass with slots and keyword arguments, and every field has a default. A field
that does not exist in a version is left out when encoding and has its default after decoding, so the code
above the wire handles one class and rarely asks for the version.

The first `encode` or `decode` of a class in a version generates a Python function for exactly that pair (see
`encoding` and `decoding`) and caches it; reading a declaration is slow, running its function is not.

A decoder raises `ProtocolError` and nothing else, compares every length with the remaining bytes before it
allocates, and ignores bytes after the end of the message, as Kafka does. An encoder raises an `EncodeError`
that names the field if a value is out of range.

The base of every declared class: constructor, comparison and repr, as in a dataclass.

`dataclass` generates all three for each of hundreds of classes at import, which took a fifth of the broker's
startup time. Here a constructor is generated when the first object is created, as encoders and decoders are
on first use; comparison and repr need no generated code.

Finds the field that makes a message impossible to encode.

Encoders do not check values; `struct` does, and its error names no field. `find_fault` walks over the message
and finds the first value that its field cannot hold. It runs only after an encoder failed.
"""

import struct as struct_module
from collections.abc import Callable, Generator
from types import EllipsisType
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from semel.wire.decoding import Decoder, SlicedDecoder, compile_decoder, compile_sliced_decoder
from semel.wire.encoding import Encoder, SlicedEncoder, compile_encoder, compile_sliced_encoder
from semel.wire.errors import EncodeError, ProtocolError
from semel.wire.primitives import MAX_STRING
from semel.wire.source import SourceWriter
from semel.wire.spec import FIXED_SIZES, Buffer, Field, Versions, element_field, members


def find_fault(value: Any, struct_class: type, version: int) -> str | None:
    """Return a sentence such as `responses[0].error_code: 99999 does not fit int16`, or None."""
    for member in members(struct_class):
        if version in member.field.versions:
            fault = _field_fault(getattr(value, member.name), member.field, version)
            if fault is not None:
                return member.name + fault
    return None


def _field_fault(value: Any, field: Field, version: int) -> str | None:
    if value is None:
        nullable = field.nullable is not None and version in field.nullable
        return None if nullable else ": must not be None"
    if field.kind == "array":
        return _array_fault(value, field, version)
    if field.kind == "nested":
        assert isinstance(field.element, type)
        return _struct_fault(value, field.element, version)
    return _value_fault(value, field.kind)


def _array_fault(value: Any, field: Field, version: int) -> str | None:
    if not isinstance(value, list | tuple):
        return f": {type(value).__name__} is not a list"
    for index, item in enumerate(value):
        if isinstance(field.element, type):
            fault = _struct_fault(item, field.element, version)
        else:
            fault = _field_fault(item, element_field(str(field.element)), version)
        if fault is not None:
            return f"[{index}]{fault}"
    return None


def _struct_fault(value: Any, struct_class: type, version: int) -> str | None:
    if not isinstance(value, struct_class):
        return f": {type(value).__name__} is not a {struct_class.__name__}"
    fault = find_fault(value, struct_class, version)
    return None if fault is None else f".{fault}"


def _value_fault(value: Any, kind: str) -> str | None:
    if kind == "string":
        return _string_fault(value)
    if kind in ("bytes", "records", "uuid"):
        if not isinstance(value, bytes | bytearray | memoryview):
            return f": {type(value).__name__} is not bytes"
        return ": a uuid has 16 bytes" if kind == "uuid" and len(value) != 16 else None
    if kind in ("boolean", "float64"):
        return None
    if not isinstance(value, int):
        return f": {type(value).__name__} is not an integer"
    bits = FIXED_SIZES[kind] * 8
    low, high = (0, 1 << bits) if kind.startswith("uint") else (-(1 << bits - 1), 1 << bits - 1)
    return None if low <= value < high else f": {value} does not fit {kind}"


def _string_fault(value: Any) -> str | None:
    if not isinstance(value, str):
        return f": {type(value).__name__} is not a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return ": not valid Unicode"
    return None if size <= MAX_STRING else f": {size} bytes are more than a string holds ({MAX_STRING})"


class Declared:
    """The base of all structs and messages. `declare` creates the classes."""

    __slots__ = ()

    declared: ClassVar[dict[str, Field]] = {}
    """The fields by name, in wire order."""

    def __init__(self, **values: Any) -> None:
        kind = type(self)
        # The generated constructor replaces this one for the class.
        kind.__init__ = _constructor(kind)  # type: ignore[method-assign]
        kind.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.declared)

    __hash__ = None  # type: ignore[assignment]  # objects are mutable

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name, field in self.declared.items() if field.is_shown)
        return f"{type(self).__name__}({', '.join(shown)})"


def declare(declaration: type) -> type:
    """Return the class of a declaration, with a slot for every field."""
    content = {name: value for name, value in vars(declaration).items() if name not in _OF_A_CLASS}
    fields = {name: content.pop(name) for name in declaration.__annotations__}
    bases = declaration.__bases__ if issubclass(declaration, Declared) else (Declared,)
    return type(declaration.__name__, bases, {**content, "__slots__": tuple(fields), "declared": fields})


_OF_A_CLASS = ("__dict__", "__weakref__")
_NOT_GIVEN = object()


def _constructor(kind: type[Declared]) -> Any:
    """Generate a function that takes every field by name, with defaults."""
    out = SourceWriter({"NOT_GIVEN": _NOT_GIVEN})
    made = {name: _made_anew(out, field) for name, field in kind.declared.items()}
    for name, field in kind.declared.items():
        out.constants[f"DEFAULT_{name}"] = field.default if made[name] is None else _NOT_GIVEN
    taken = ", ".join(["self", *(["*"] if made else ()), *(f"{name}=DEFAULT_{name}" for name in made)])
    with out.block(f"def __init__({taken}):"):
        for name, anew in made.items():
            out.line(
                f"self.{name} = {name if anew is None else f'{anew} if {name} is NOT_GIVEN else {name}'}"
            )
        if not made:
            out.line("pass")
    return out.function("__init__", f"constructor of {kind.__name__}")


def _made_anew(out: SourceWriter, field: Field) -> str | None:
    """Return the source of a mutable default, which is created for each object; None if it is immutable."""
    if field.default is ...:
        assert isinstance(field.element, type)
        return f"{out.class_name(field.element)}()"
    return "[]" if field.default == [] else None


__all__ = ["Buffer"]  # of other modules, but part of this one

S = TypeVar("S")
M = TypeVar("M", bound="Message")

ZERO_UUID = bytes(16)

_ENCODE_ERRORS = (struct_module.error, AttributeError, TypeError, ValueError, OverflowError)
_DECODE_ERRORS = (
    ProtocolError,
    struct_module.error,
    IndexError,
    UnicodeDecodeError,
    MemoryError,
    OverflowError,
    ValueError,
)


class Message(Declared):
    """A request or a response, created by the decorators below from a declaration."""

    __slots__ = ()

    api_key: ClassVar[int]
    min_version: ClassVar[int]
    max_version: ClassVar[int]
    first_flexible: ClassVar[int | None]

    _encoders: ClassVar[dict[int, Encoder]]
    _decoders: ClassVar[dict[int, Decoder]]
    _sliced_encoders: ClassVar[dict[int, SlicedEncoder]]
    _sliced_decoders: ClassVar[dict[int, SlicedDecoder]]

    def encode(self, version: int) -> bytes:
        """Encode the body of this message in one piece."""
        return b"".join(self.encode_parts(version))

    def encode_parts(self, version: int) -> list[Buffer]:
        """Encode the body of this message in pieces to be sent in order; large records are not copied."""
        encoder = self._encoders.get(version) or self._compile_encoder(version)
        try:
            return encoder(self)
        except _ENCODE_ERRORS as error:
            raise self._encode_error(error, version) from error

    def encode_in_slices(self, version: int) -> Generator[None, None, list[Buffer]]:
        """Encode a long message: yields after each slice, and returns the pieces to be sent in order."""
        encoder = self._sliced_encoders.get(version)
        if encoder is None:
            encoder = compile_sliced_encoder(type(self), version, self.is_flexible(version))
            self._sliced_encoders[version] = encoder
        try:
            return (yield from encoder(self))
        except _ENCODE_ERRORS as error:
            raise self._encode_error(error, version) from error

    def _encode_error(self, error: Exception, version: int) -> EncodeError:
        fault = find_fault(self, type(self), version) or str(error)
        return EncodeError(f"{type(self).__name__} v{version}: {fault}")

    @classmethod
    def decode(cls, data: Buffer, version: int, offset: int = 0) -> Self:
        """Decode a body at `offset`; raises `ProtocolError` when it is malformed."""
        decoder = cls._decoders.get(version) or cls._compile_decoder(version)
        try:
            message: Self = decoder(data, offset)
        except _DECODE_ERRORS as error:
            raise cls._protocol_error(error, version) from error
        return message

    @classmethod
    def decode_in_slices(
        cls, data: Buffer, version: int, offset: int, elements_max: int
    ) -> Generator[None, None, Self]:
        """Decode a long body: yields after each slice, and returns the message.

        More than `elements_max` array elements and tagged fields are a `ProtocolError`.
        """
        decoder = cls._sliced_decoders.get(version)
        if decoder is None:
            decoder = compile_sliced_decoder(cls, version, cls.is_flexible(version))
            cls._sliced_decoders[version] = decoder
        try:
            message: Self = yield from decoder(data, offset, elements_max)
        except _DECODE_ERRORS as error:
            raise cls._protocol_error(error, version) from error
        return message

    @classmethod
    def _protocol_error(cls, error: Exception, version: int) -> ProtocolError:
        if isinstance(error, struct_module.error | IndexError):
            what = "ends too early"
        elif isinstance(error, UnicodeDecodeError):
            what = "a string is not UTF-8"
        else:
            what = str(error) if isinstance(error, ProtocolError) else repr(error)
        return ProtocolError(f"{cls.__name__} v{version}: {what}")

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return cls.first_flexible is not None and version >= cls.first_flexible

    @classmethod
    def _compile_encoder(cls, version: int) -> Encoder:
        if not cls.min_version <= version <= cls.max_version:
            raise EncodeError(f"{cls.__name__} has no version {version}")
        encoder = cls._encoders[version] = compile_encoder(cls, version, cls.is_flexible(version))
        return encoder

    @classmethod
    def _compile_decoder(cls, version: int) -> Decoder:
        if not cls.min_version <= version <= cls.max_version:
            raise ProtocolError(f"{cls.__name__} has no version {version}")
        decoder = cls._decoders[version] = compile_decoder(cls, version, cls.is_flexible(version))
        return decoder


class Request(Message):
    """A message from a client."""

    __slots__ = ()


class Response(Message):
    """A message from a broker."""

    __slots__ = ()


class Encoded(Response):
    """A response that is already encoded, for one version."""

    __slots__ = ("_kind", "_parts")

    def __init__(self, kind: type[Response], parts: list[Buffer]) -> None:
        self._kind = kind
        self._parts = parts

    @property
    def api_key(self) -> int:  # type: ignore[override]  # that of the encoded response
        """The API of the response."""
        return self._kind.api_key

    def is_flexible(self, version: int) -> bool:  # type: ignore[override]  # the same
        """Whether this version has compact lengths and tagged fields."""
        return self._kind.is_flexible(version)

    def encode_parts(self, version: int) -> list[Buffer]:
        """Return the encoded body."""
        return self._parts


@dataclass_transform(kw_only_default=True)
def struct(declaration: type[S]) -> type[S]:
    """Declare a struct inside messages, with slots, keyword arguments and defaults."""
    return declare(declaration)


@dataclass_transform(kw_only_default=True)
def request(api_key: int, *, versions: str, flexible: int | None) -> Callable[[type[M]], type[M]]:
    """Declare the request of an API in these versions, flexible from version `flexible` on."""
    return _message(api_key, versions, flexible)


@dataclass_transform(kw_only_default=True)
def response(api_key: int, *, versions: str, flexible: int | None) -> Callable[[type[M]], type[M]]:
    """Declare the response of an API in these versions, flexible from version `flexible` on."""
    return _message(api_key, versions, flexible)


def _message(api_key: int, versions: str, flexible: int | None) -> Callable[[type[M]], type[M]]:
    served = Versions.parse(versions)
    if served.last is None:
        raise ValueError(f"the versions of a message have an end: {versions!r}")
    last = served.last

    def decorate(declaration: type[M]) -> type[M]:
        message: type[M] = declare(declaration)
        message.api_key = api_key
        message.min_version = served.first
        message.max_version = last
        message.first_flexible = flexible
        message._encoders = {}
        message._decoders = {}
        message._sliced_encoders = {}
        message._sliced_decoders = {}
        return message

    return decorate


def _field(
    kind: str,
    versions: str,
    default: object,
    tag: int | None,
    *,
    nullable: bool | str = False,
    element: str | type | None = None,
    show: bool = True,
) -> Any:
    """Declare a field; typed as Any, so that it can be assigned to an attribute of any type."""
    if nullable is True:
        nullable = "0+"
    nulls = Versions.parse(nullable) if nullable else None
    return Field(kind, Versions.parse(versions), nulls, default, tag, element, show)


def int8(*, versions: str = "0+", default: int = 0, tag: int | None = None) -> Any:
    """A signed integer of one byte."""
    return _field("int8", versions, default, tag)


def int16(*, versions: str = "0+", default: int = 0, tag: int | None = None) -> Any:
    """A signed integer of two bytes."""
    return _field("int16", versions, default, tag)


def int32(*, versions: str = "0+", default: int = 0, tag: int | None = None) -> Any:
    """A signed integer of four bytes."""
    return _field("int32", versions, default, tag)


def int64(*, versions: str = "0+", default: int = 0, tag: int | None = None) -> Any:
    """A signed integer of eight bytes."""
    return _field("int64", versions, default, tag)


def uint16(*, versions: str = "0+", default: int = 0, tag: int | None = None) -> Any:
    """An unsigned integer of two bytes."""
    return _field("uint16", versions, default, tag)


def uint32(*, versions: str = "0+", default: int = 0, tag: int | None = None) -> Any:
    """An unsigned integer of four bytes."""
    return _field("uint32", versions, default, tag)


def float64(*, versions: str = "0+", default: float = 0.0, tag: int | None = None) -> Any:
    """A floating point number of eight bytes."""
    return _field("float64", versions, default, tag)


def boolean(*, versions: str = "0+", default: bool = False, tag: int | None = None) -> Any:
    """One byte: zero is false, anything else is true."""
    return _field("boolean", versions, default, tag)


def uuid(*, versions: str = "0+", tag: int | None = None) -> Any:
    """Sixteen raw bytes; all zero means none."""
    return _field("uuid", versions, ZERO_UUID, tag)


def string(
    *, versions: str = "0+", nullable: bool | str = False, default: str | None = "", tag: int | None = None
) -> Any:
    """UTF-8 text of at most 32767 bytes."""
    return _field("string", versions, default, tag, nullable=nullable)


def bytes_(
    *, versions: str = "0+", nullable: bool | str = False, default: bytes | None = b"", tag: int | None = None
) -> Any:
    """A short byte string, copied out of the frame; not shown by repr, because it may be a secret."""
    return _field("bytes", versions, default, tag, nullable=nullable, show=False)


def records(*, versions: str = "0+", nullable: bool = True, tag: int | None = None) -> Any:
    """Record batches, perhaps null; decoded as a view into the frame and sent without a copy."""
    return _field("records", versions, None if nullable else b"", tag, nullable=nullable, show=False)


def array(
    element: str | type,
    *,
    versions: str = "0+",
    nullable: bool | str = False,
    default: EllipsisType | None = ...,
    tag: int | None = None,
) -> Any:
    """A list of structs, or of the kind that `element` names, such as `"int32"`; empty by default."""
    if default is None:
        return _field("array", versions, None, tag, nullable=nullable, element=element)
    return _field("array", versions, [], tag, nullable=nullable, element=element)


def nested(
    element: type,
    *,
    versions: str = "0+",
    nullable: bool | str = False,
    default: EllipsisType | None = ...,
    tag: int | None = None,
) -> Any:
    """One struct inside another; by default a struct of defaults, or null with `default=None`."""
    if default is None:
        return _field("nested", versions, None, tag, nullable=nullable, element=element)
    return _field("nested", versions, ..., tag, nullable=nullable, element=element)
