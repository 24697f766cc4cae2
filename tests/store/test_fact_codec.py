"""Facts as bytes: whatever the core can write comes back as it was."""

import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.core import facts
from semel.core.data import Data
from semel.core.entities import ENTITIES
from semel.core.groups import ClassicGroup, ConsumerGroup, Group
from semel.core.groups.model import ClassicMember, ClassicState
from semel.core.types import GroupKey, Topic
from semel.store.contract import BatchLocation
from semel.store.fact_codec import pack_facts, unpack_facts

numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=5)


def _classic(group_id: str, state: ClassicState, member_ids: list[str]) -> ClassicGroup:
    members = {
        each: ClassicMember(each, None, "c", "h", 1, 1, (("range", b"\0\xff"),)) for each in member_ids
    }
    return ClassicGroup(group_id, state=state, generation=5, members=members)


groups = st.one_of(
    st.tuples(texts, st.sampled_from(ClassicState), st.lists(texts, max_size=2)).map(
        lambda drawn: _classic(*drawn)
    ),
    st.tuples(texts, st.integers(0, 9)).map(lambda drawn: ConsumerGroup(drawn[0], epoch=drawn[1])),
)


def _values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that a field may hold, by what its type says."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Group:
        return groups
    if hint is facts.Put:
        return st.one_of(
            [
                st.tuples(_values(key), st.none() | _values(kind.value)).map(lambda drawn: facts.Put(*drawn))
                for key, kind in ENTITIES.items()
            ]
        )
    if hint is int:
        return numbers
    if hint is str:
        return texts
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(texts, texts, max_size=2)
    if isinstance(hint, type) and issubclass(hint, Data):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: _values(hints[name]) for name in hint.__struct_fields__})
    if arguments:
        return st.one_of([_values(each) for each in arguments])
    return st.from_type(hint)


any_fact = st.one_of([_values(kind) for kind in facts.DURABLE])
any_locations = st.lists(st.builds(BatchLocation, *[st.integers(0, 2**63 - 1)] * 3), max_size=3)


def _types(value: Any) -> Any:
    if isinstance(value, ClassicGroup | ConsumerGroup):
        return type(value)
    if isinstance(value, Data):
        value = value.values()
    return [_types(each) for each in value] if isinstance(value, tuple) else type(value)


@settings(deadline=None)
@given(st.lists(any_fact, max_size=6), any_locations)
def test_what_is_packed_comes_back(drawn: list[Any], locations: list[BatchLocation]) -> None:
    found, found_locations = unpack_facts(pack_facts(drawn, locations))
    assert (found, found_locations) == (drawn, locations)
    # Equal is not enough: an enum is equal to its number.
    assert [_types(each) for each in found] == [_types(each) for each in drawn]


@given(st.sampled_from(facts.DURABLE).flatmap(_values))
def test_bytes_hold_plain_values_only(drawn: Any) -> None:
    (fact,), _ = msgspec.msgpack.decode(pack_facts([drawn], []))
    assert fact[0] == type(drawn).__name__
    stack = [fact]
    while stack:
        value = stack.pop()
        if type(value) is list:
            stack += value
        else:
            assert type(value) in (int, bool, str, bytes, dict, type(None))


def test_configs_of_any_kind_of_mapping() -> None:
    topic = Topic("t", bytes(16), 1, MappingProxyType({"a": "b"}))
    ((created,), _) = unpack_facts(pack_facts([facts.TopicCreated(topic)], []))
    assert created == facts.TopicCreated(topic.but(configs={"a": "b"}))


def test_what_is_not_known_is_not_written() -> None:
    with pytest.raises(TypeError, match="object"):
        pack_facts([facts.Put(GroupKey("g"), cast(Any, object()))], [])
    with pytest.raises(TypeError, match="SessionChanged"):
        pack_facts([facts.SessionChanged("g", None)], [])


@pytest.mark.parametrize(
    "location", [(1, 2), (1, 2, -1), (1, 2, "3"), (1, (2,), 3), (1, 2, 3.0), (True, 2, 3), None]
)
def test_what_is_no_location_is_refused(location: Any) -> None:
    """Found by fuzzing: a WAL whose checksum is right and whose places are not."""
    with pytest.raises(ValueError, match="the frame has no valid"):
        unpack_facts(msgspec.msgpack.encode(([], [location])))
