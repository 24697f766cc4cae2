"""Encode facts and batch locations for the WAL, which is read again only on the same machine.

A fact becomes an array of its fields, preceded by the name of its class (MessagePack). Decoding creates only
the classes listed here, with values of the declared types. Groups are encoded as the bytes that the ledger
holds.

``FORMAT`` identifies all of this: classes, fields and their types. Other formats are not read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Union, get_args, get_type_hints

from crc32c import crc32c
from msgspec import DecodeError, Raw, msgpack

from semel.core.data import Data
from semel.core.entities import ENTITIES
from semel.core.facts import DURABLE, Put
from semel.core.groups import Group, unpack_group
from semel.core.types import Fact, GroupKey
from semel.store.contract import BatchLocation


class _PutPacked(Data, tag="Put"):
    """A ``Put`` whose value is decoded when its key is known."""

    key: Union[tuple(ENTITIES)]  # type: ignore[valid-type]  # noqa: UP007
    value: Raw


class _GroupPacked(Data):
    kind: str
    data: bytes


_DURABLE: Final = frozenset(DURABLE)
_VALUES: Final = {kind: _GroupPacked if kind is GroupKey else each.value for kind, each in ENTITIES.items()}
_VALUE_DECODERS: Final = {kind: msgpack.Decoder(value | None) for kind, value in _VALUES.items()}
_KINDS: Final = (*(kind for kind in DURABLE if kind is not Put), _PutPacked)
_FRAME: Final[Any] = tuple[list[Union[_KINDS]], list[BatchLocation]]  # type: ignore[valid-type]  # noqa: UP007
_DECODER: Final = msgpack.Decoder(_FRAME)


def _form(hint: Any) -> tuple[Any, ...]:
    """Describe classes and fields by name and type, identically in every version of Python."""
    if isinstance(hint, type) and issubclass(hint, Data):
        return hint.__name__, *((name, _form(each)) for name, each in get_type_hints(hint).items())
    return hint.__name__ if isinstance(hint, type) else "", *map(_form, get_args(hint))


FORMAT: Final = crc32c(repr((_form(_FRAME), [_form(value) for value in _VALUES.values()])).encode())


def pack_facts(facts: Sequence[Fact], locations: Sequence[BatchLocation]) -> bytes:
    """Encode these facts and the locations of their batches."""
    if not _DURABLE.issuperset(map(type, facts)):
        raise TypeError(f"the WAL does not know all of {facts!r}")
    packed = [_packed(fact) if type(fact) is Put and type(fact.key) is GroupKey else fact for fact in facts]
    return _ENCODER.encode((packed, locations))


def unpack_facts(data: bytes) -> tuple[list[Fact], list[BatchLocation]]:
    """Decode facts and locations. ValueError if the bytes are something else."""
    try:
        facts, locations = _DECODER.decode(data)
        if any(min(location) < 0 for location in locations):
            raise ValueError("the frame has no valid locations")
        return [_unpacked(fact) if type(fact) is _PutPacked else fact for fact in facts], locations
    except (DecodeError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the frame has no valid facts: {error!r}") from error


def _packed(fact: Put) -> Put | _PutPacked:
    """Encode the group as the ledger does."""
    if not isinstance(fact.value, Group):
        return fact
    return _PutPacked(fact.key, Raw(_ENCODER.encode(_GroupPacked(fact.value.kind, fact.value.pack()))))


def _unpacked(packed: _PutPacked) -> Put:
    value = _VALUE_DECODERS[type(packed.key)].decode(packed.value)
    return Put(packed.key, unpack_group(value.kind, value.data) if isinstance(value, _GroupPacked) else value)


def _plain(value: Any) -> Any:
    """Convert values that MessagePack does not know: the configs of a topic may be any mapping."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a fact holds a {type(value).__name__}, which the WAL does not know")


_ENCODER: Final = msgpack.Encoder(enc_hook=_plain)
