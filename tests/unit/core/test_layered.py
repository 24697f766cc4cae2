"""The mapping of groups is a dictionary in all but the price of a copy."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from semel.core.groups.layered import Layered, drop, put

STEPS = st.lists(st.tuples(st.sampled_from(["put", "drop"]), st.integers(0, 60), st.integers()), max_size=200)


@given(STEPS)
def test_it_is_what_a_dictionary_would_be_in_the_same_order_and_older_ones_stay(
    steps: list[tuple[str, int, int]],
) -> None:
    mapping: Mapping[int, int] = {}
    expected: dict[int, int] = {}
    versions: list[tuple[Mapping[int, int], dict[int, int]]] = []
    for what, key, value in steps:
        if what == "put":
            mapping = put(mapping, key, value)
            expected[key] = value
        else:
            mapping = drop(mapping, (key, -1))
            expected.pop(key, None)
        versions.append((mapping, dict(expected)))
    for seen, then in versions:
        assert list(seen.items()) == list(then.items())
        assert list(seen) == list(then)
        assert list(seen.values()) == list(then.values())
        assert len(seen) == len(then)
        assert seen == then
        assert all((key in seen, seen.get(key)) == (key in then, then.get(key)) for key in range(61))


def test_many_are_dropped_at_once() -> None:
    mapping: Mapping[int, int] = {}
    for key in range(200):
        mapping = put(mapping, key, key)
    assert list(drop(mapping, range(100))) == list(range(100, 200))
    assert drop(mapping, (-1,)) is mapping


def test_a_copy_of_a_large_one_is_small() -> None:
    """What is copied grows with the square root, not with the number of entries."""
    mapping: Mapping[int, int] = {}
    copied = 0
    for key in range(10_000):
        mapping = put(mapping, key, key)
        assert isinstance(mapping, Layered)
        copied += len(mapping._over)
    assert copied < 10_000 * 100
