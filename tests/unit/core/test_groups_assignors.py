"""The assignors of KIP-848: every partition once, evenly, and as it was where that is even."""

from hypothesis import given
from hypothesis import strategies as st

from semel.core.groups.assignors import ASSIGNORS, assign_range, assign_uniform
from semel.core.groups.model import Assignment, TopicShape

T, U = TopicShape(b"t" * 16, 6), TopicShape(b"u" * 16, 3)


def wanted(**members: str) -> dict[str, frozenset[str]]:
    return {name: frozenset(topics) for name, topics in members.items()}


def test_range_gives_neighbours() -> None:
    target = assign_range(wanted(a="tu", b="tu"), {"t": T, "u": U}, {})
    assert target["a"] == {
        (T.topic_id, 0),
        (T.topic_id, 1),
        (T.topic_id, 2),
        (U.topic_id, 0),
        (U.topic_id, 1),
    }
    assert target["b"] == {(T.topic_id, 3), (T.topic_id, 4), (T.topic_id, 5), (U.topic_id, 2)}


def test_range_leaves_out_those_who_do_not_want_a_topic() -> None:
    target = assign_range(wanted(a="t", b="tu", c=""), {"t": T, "u": U}, {})
    assert [len(target[name]) for name in "abc"] == [3, 6, 0]


def test_uniform_moves_as_little_as_it_can() -> None:
    one = assign_uniform(wanted(a="t"), {"t": T}, {})
    two = assign_uniform(wanted(a="t", b="t"), {"t": T}, one)
    three = assign_uniform(wanted(a="t", b="t", c="t"), {"t": T}, two)
    assert two["a"] < one["a"]
    assert all(three[name] < two[name] for name in "ab")
    back = assign_uniform(wanted(a="t", c="t"), {"t": T}, three)
    assert all(back[name] > three[name] for name in "ac")


def test_uniform_keeps_a_member_that_has_one_more() -> None:
    before = {"a": frozenset({(T.topic_id, 0)}), "b": frozenset({(T.topic_id, 1), (T.topic_id, 2)})}
    topic = {"t": TopicShape(T.topic_id, 3)}
    assert assign_uniform(wanted(a="t", b="t"), topic, before) == before


def test_uniform_evens_out_when_members_want_different_topics() -> None:
    before = assign_uniform(wanted(a="t"), {"t": T, "u": U}, {})
    target = assign_uniform(wanted(a="t", b="tu"), {"t": T, "u": U}, before)
    assert [len(target[name]) for name in "ab"] == [5, 4]


@given(data=st.data(), name=st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_that_somebody_wants_is_assigned_once(data: st.DataObject, name: str) -> None:
    topics = {
        topic: TopicShape(topic.encode() * 16, data.draw(st.integers(0, 7)))
        for topic in data.draw(st.sets(st.sampled_from("abcd")))
    }
    previous: dict[str, Assignment] = {}
    for _ in range(data.draw(st.integers(1, 3))):
        members = data.draw(
            st.dictionaries(st.sampled_from("123456"), st.frozensets(st.sampled_from("abcde")), min_size=1)
        )
        target = ASSIGNORS[name](members, topics, previous)
        assert set(target) == set(members)
        owned = [each for assignment in target.values() for each in assignment]
        assert len(owned) == len(set(owned))
        assert set(owned) == {
            (shape.topic_id, partition)
            for topic, shape in topics.items()
            if any(topic in names for names in members.values())
            for partition in range(shape.partitions)
        }
        by_id = {shape.topic_id: topic for topic, shape in topics.items()}
        for member, assignment in target.items():
            assert {by_id[topic_id] for topic_id, _ in assignment} <= members[member]
        if name == "uniform" and len(set(members.values())) == 1:
            sizes = [len(assignment) for assignment in target.values()]
            assert max(sizes) - min(sizes) <= 1
            # Nobody loses a partition that fits into its share.
            share = len(owned) // len(members)
            for member, assignment in target.items():
                kept = previous.get(member, frozenset()) & set(owned)
                assert len(kept & assignment) >= min(len(kept), share)
        previous = target
