"""Encode facts and batch locations for the WAL, which is read again only on the same machine.

A fact becomes an array of its fields, preceded by the name of its class (MessagePack). Decoding creates only
the classes listed here, with values of the declared types. Groups are encoded as the bytes that the ledger
holds.

``FORMAT`` identifies all of this: classes, fields and their types. Other formats are not read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Union, get_args, get_type_hints

from crc32c import crc32c
from msgspec import DecodeError, msgpack

from semel.core.data import Data
from semel.core.facts import DURABLE, GroupChanged
from semel.core.groups import ClassicGroup, ConsumerGroup, ShareGroup, unpack_group
from semel.core.types import Fact
from semel.store.contract import BatchLocation


class _GroupPacked(Data, tag="GroupChanged"):
    kind: str
    data: bytes


_AS_THEY_ARE: Final = frozenset(DURABLE) - {GroupChanged}
_KINDS: Final = (*(kind for kind in DURABLE if kind in _AS_THEY_ARE), _GroupPacked)
_FRAME: Final[Any] = tuple[list[Union[_KINDS]], list[BatchLocation]]  # type: ignore[valid-type]  # noqa: UP007
_DECODER: Final = msgpack.Decoder(_FRAME)


def _form(hint: Any) -> tuple[Any, ...]:
    """Describe classes and fields by name and type, identically in every version of Python."""
    if isinstance(hint, type) and issubclass(hint, Data):
        return hint.__name__, *((name, _form(each)) for name, each in get_type_hints(hint).items())
    return hint.__name__ if isinstance(hint, type) else "", *map(_form, get_args(hint))


FORMAT: Final = crc32c(repr(_form(_FRAME)).encode())


def pack_facts(facts: Sequence[Fact], locations: Sequence[BatchLocation]) -> bytes:
    """Encode these facts and the locations of their batches."""
    if not _AS_THEY_ARE.issuperset(map(type, facts)):
        facts = [fact if type(fact) in _AS_THEY_ARE else _packed(fact) for fact in facts]
    return _ENCODER.encode((facts, locations))


def unpack_facts(data: bytes) -> tuple[list[Fact], list[BatchLocation]]:
    """Decode facts and locations. ValueError if the bytes are something else."""
    try:
        facts, locations = _DECODER.decode(data)
        if any(min(location) < 0 for location in locations):
            raise ValueError("the frame has no valid locations")
        shaped = [_unpacked(fact) if type(fact) is _GroupPacked else fact for fact in facts]
    except (DecodeError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the frame has no valid facts: {error!r}") from error
    return shaped, locations


def _packed(fact: Fact) -> _GroupPacked:
    if type(fact) is GroupChanged and isinstance(fact.group, ClassicGroup | ConsumerGroup | ShareGroup):
        return _GroupPacked(fact.group.kind, fact.group.pack())
    raise TypeError(f"the WAL does not know {fact!r}")


def _plain(value: Any) -> Any:
    """Convert values that MessagePack does not know: the configs of a topic may be any mapping."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a fact holds a {type(value).__name__}, which the WAL does not know")


def _unpacked(packed: _GroupPacked) -> GroupChanged:
    return GroupChanged(unpack_group(packed.kind, packed.data))


_ENCODER: Final = msgpack.Encoder(enc_hook=_plain)
