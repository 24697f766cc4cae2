"""Facts and places as bytes, for the journal: written by one process, read by the next on this machine.

A fact is a NamedTuple of plain values and of other NamedTuples. Each becomes a plain tuple that begins with
the number of its class, and Python's ``marshal`` does the rest: it knows nothing but plain values, so reading
can make nothing but the classes that are listed here. Groups travel as the bytes that the ledger holds.

``FORMAT`` names all of it: classes, fields, Python's format. Bytes of another format are not read.
"""

import marshal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from crc32c import crc32c

from semel.core.facts import DURABLE, BatchAppended, ProducerAdvanced
from semel.core.groups import ClassicGroup, ConsumerGroup, unpack_group
from semel.core.types import (
    CommittedOffset,
    Fact,
    OffsetKey,
    PartitionKey,
    PendingOffset,
    ProducerKey,
    ProducerState,
    Rewritten,
    SentBatch,
    Staged,
    Topic,
    Transaction,
    TransactionState,
)
from semel.store.interface import Place

_TUPLE: Final = 0
_STATE: Final = 1
_GROUP: Final = 2
_KINDS: Final[dict[int, Any]] = dict(
    enumerate(
        (
            *DURABLE,
            CommittedOffset,
            OffsetKey,
            PartitionKey,
            PendingOffset,
            ProducerKey,
            ProducerState,
            Rewritten,
            SentBatch,
            Staged,
            Topic,
            Transaction,
        ),
        start=_GROUP + 1,
    )
)
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}
_PLAIN: Final = frozenset((int, bool, str, bytes, type(None)))

FORMAT: Final = crc32c(
    repr(
        [(number, kind.__name__, kind._fields) for number, kind in _KINDS.items()] + [marshal.version]
    ).encode()
)


def pack_facts(facts: Sequence[Fact], places: Sequence[Place]) -> bytes:
    """These facts and the places of their batches."""
    return marshal.dumps(([_flat(fact) for fact in facts], [tuple(place) for place in places]))


def unpack_facts(data: bytes) -> tuple[list[Fact], list[Place]]:
    """The facts and places in these bytes. ValueError if they are something else."""
    try:
        facts, places = marshal.loads(data)
        return [_shaped(fact) for fact in facts], [_place(*place) for place in places]
    except (EOFError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"these are no facts: {error!r}") from error


def _place(chunk_id: int, position: int, length: int) -> Place:
    if not type(chunk_id) is type(position) is type(length) is int or min(chunk_id, position, length) < 0:
        raise ValueError("these are no places")
    return Place(chunk_id, position, length)


def _flat(value: Any) -> Any:
    quick = _QUICK.get(type(value))
    if quick is not None:
        return quick(value)
    number = _NUMBERS.get(type(value))
    if number is None:
        return _flat_other(value)
    return (number, *[each if type(each) in _PLAIN else _flat(each) for each in value])


def _flat_other(value: Any) -> Any:
    if type(value) is tuple:
        return (_TUPLE, *[each if type(each) in _PLAIN else _flat(each) for each in value])
    if type(value) is TransactionState:
        return (_STATE, int(value))
    if isinstance(value, ClassicGroup | ConsumerGroup):
        return (_GROUP, value.kind, value.pack())
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a fact holds a {type(value).__name__}, which the journal does not know")


def _shaped(value: Any) -> Any:
    if type(value) is not tuple:
        return value
    number, *rest = value
    other = _OTHERS.get(number)
    if other is not None:
        return other(rest)
    return _KINDS[number]._make([_shaped(each) for each in rest])


_OTHERS: Final[dict[int, Callable[[list[Any]], Any]]] = {
    _TUPLE: lambda values: tuple(_shaped(each) for each in values),
    _STATE: lambda values: TransactionState(values[0]),
    _GROUP: lambda values: unpack_group(*values),
}


def _flat_partition(key: PartitionKey) -> Any:
    return (_PARTITION, *key)


def _flat_appended(fact: BatchAppended) -> Any:
    return (_APPENDED, (_PARTITION, *fact[0]), *fact[1:])


def _flat_advanced(fact: ProducerAdvanced) -> Any:
    key, (epoch, batches, *rest, staged) = fact
    flat_staged = None if staged is None else (_STAGED, *staged)
    flat_batches = (_TUPLE, *[(_SENT, *batch) for batch in batches])
    return (_ADVANCED, (_PRODUCER, *key), (_PRODUCER_STATE, epoch, flat_batches, *rest, flat_staged))


_PARTITION: Final = _NUMBERS[PartitionKey]
_PRODUCER: Final = _NUMBERS[ProducerKey]
_PRODUCER_STATE: Final = _NUMBERS[ProducerState]
_SENT: Final = _NUMBERS[SentBatch]
_STAGED: Final = _NUMBERS[Staged]
_APPENDED: Final = _NUMBERS[BatchAppended]
_ADVANCED: Final = _NUMBERS[ProducerAdvanced]
_QUICK: Final[dict[type, Callable[[Any], Any]]] = {
    PartitionKey: _flat_partition,
    BatchAppended: _flat_appended,
    ProducerAdvanced: _flat_advanced,
}
"""The two facts that every batch has, without a look at the type of each value: a fifth of the time."""
