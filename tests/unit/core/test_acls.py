"""The rules of ACLs, by example and against the rules as Kafka states them."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.security.acls import (
    IMPLYING,
    AclBinding,
    AclFilter,
    Acls,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rights,
)

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def acl(
    name: str,
    operation: Operation = READ,
    permission: Permission = ALLOW,
    principal: str = "User:ann",
    host: str = "*",
    pattern: PatternType = LITERAL,
    kind: ResourceType = TOPIC,
) -> AclBinding:
    return AclBinding(kind, pattern, name, principal, host, operation, permission)


def may(acls: Iterable[AclBinding], operation: Operation, name: str, **asked: str) -> bool:
    return Acls(acls).allow(
        asked.get("principal", "User:ann"), asked.get("host", "h"), operation, TOPIC, name
    )


@pytest.mark.parametrize(
    ("acls", "operation", "name", "expected"),
    [
        ([], READ, "t", False),
        ([acl("t")], READ, "t", True),
        ([acl("t")], READ, "tt", False),
        ([acl("t")], WRITE, "t", False),
        ([acl("t", kind=GROUP)], READ, "t", False),
        ([acl("*")], READ, "t", True),
        ([acl("t", pattern=PREFIXED)], READ, "tt", True),
        ([acl("t", pattern=PREFIXED)], READ, "t", True),
        ([acl("tt", pattern=PREFIXED)], READ, "t", False),
        ([acl("*", pattern=PREFIXED)], READ, "t", False),
        ([acl("*", pattern=PREFIXED)], READ, "*t", True),
        ([acl("t", principal="User:*")], READ, "t", True),
        ([acl("t", principal="User:bob")], READ, "t", False),
        ([acl("t", host="h")], READ, "t", True),
        ([acl("t", host="g")], READ, "t", False),
        ([acl("t", ALL)], WRITE, "t", True),
        ([acl("t"), acl("t", READ, DENY)], READ, "t", False),
        ([acl("t"), acl("*", ALL, DENY)], READ, "t", False),
        ([acl("t"), acl("", ALL, DENY, pattern=PREFIXED)], READ, "t", False),
        ([acl("t"), acl("t", READ, DENY, host="g")], READ, "t", True),
        ([acl("t"), acl("t", READ, DENY, "User:bob")], READ, "t", True),
        ([acl("t")], DESCRIBE, "t", True),
        ([acl("t", Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, "t", True),
        ([acl("t", Operation.ALTER_CONFIGS)], DESCRIBE, "t", False),
        # To deny what implies Describe does not deny Describe.
        ([acl("t", WRITE), acl("t", READ, DENY)], DESCRIBE, "t", True),
        ([acl("t", WRITE), acl("t", DESCRIBE, DENY)], DESCRIBE, "t", False),
    ],
)
def test_a_request_is_decided_by_all_acls_that_match(
    acls: list[AclBinding], operation: Operation, name: str, expected: bool
) -> None:
    assert may(acls, operation, name) is expected


def test_removing_one_acl_keeps_the_denies_cve_2024_27309() -> None:
    """Kafka forgot that a resource had ACLs, or denied ones, when one of several was removed."""
    acls = Acls([acl("t"), acl("t", READ, DENY, "User:bob"), acl("t", READ, ALLOW, "User:bob")])
    acls.remove(acl("t"))
    assert not acls.allow("User:bob", "h", READ, TOPIC, "t", if_none_found=True)
    assert not acls.allow("User:ann", "h", READ, TOPIC, "t", if_none_found=True)
    acls.remove(acl("t", READ, DENY, "User:bob"))
    assert acls.allow("User:bob", "h", READ, TOPIC, "t")
    assert not acls.allow("User:ann", "h", READ, TOPIC, "t", if_none_found=True)
    acls.remove(acl("t", READ, ALLOW, "User:bob"))
    assert acls.allow("User:ann", "h", READ, TOPIC, "t", if_none_found=True)


def test_what_no_acl_mentions() -> None:
    acls = Acls([acl("t", principal="User:bob")])
    assert acls.allow("User:ann", "h", READ, TOPIC, "other", if_none_found=True)
    assert not acls.allow("User:ann", "h", READ, TOPIC, "t", if_none_found=True)
    assert not acls.allow("User:ann", "h", READ, TOPIC, "other")


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([acl("t", WRITE)], True),
        ([acl("t", READ)], False),
        ([acl("t", WRITE), acl("t", WRITE, DENY)], False),
        ([acl("t", WRITE), acl("u", WRITE, DENY)], True),
        ([acl("t", WRITE), acl("t", WRITE, DENY, pattern=PREFIXED)], False),
        ([acl("t", WRITE, pattern=PREFIXED), acl("t", WRITE, DENY)], True),
        ([acl("tt", WRITE, pattern=PREFIXED), acl("t", WRITE, DENY, pattern=PREFIXED)], False),
        ([acl("*", WRITE), acl("t", WRITE, DENY, pattern=PREFIXED)], True),
        ([acl("*", WRITE), acl("*", WRITE, DENY)], False),
        ([acl("t", ALL), acl("*", ALL, DENY, "User:bob")], True),
    ],
)
def test_whether_there_could_be_a_topic_to_write_to(acls: list[AclBinding], expected: bool) -> None:
    assert Acls(acls).allow_any("User:ann", "h", WRITE, TOPIC) is expected


names = st.text("ab*", max_size=3)
bindings = st.builds(
    AclBinding,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from([LITERAL, PREFIXED]),
    names,
    st.sampled_from(["User:ann", "User:bob", "User:*"]),
    st.sampled_from(["*", "h", "g"]),
    st.sampled_from([READ, WRITE, DESCRIBE, ALL, Operation.ALTER_CONFIGS]),
    st.sampled_from([ALLOW, DENY]),
)


def as_kafka_states_it(acls: Iterable[AclBinding], operation: Operation, name: str, default: bool) -> bool:
    about = [
        each
        for each in acls
        if each.resource_type == TOPIC
        and (
            (each.pattern_type == LITERAL and each.resource_name in (name, "*"))
            or (each.pattern_type == PREFIXED and name.startswith(each.resource_name))
        )
    ]
    mine = [each for each in about if each.principal in ("User:ann", "User:*") and each.host in ("h", "*")]
    if any(each.permission == DENY and each.operation in (operation, ALL) for each in mine):
        return False
    implying = (operation, ALL, *IMPLYING.get(operation, ()))
    if any(each.permission == ALLOW and each.operation in implying for each in mine):
        return True
    return default and not about


@given(
    st.lists(bindings, max_size=8),
    st.lists(bindings, max_size=4),
    st.sampled_from([READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS]),
    names,
    st.booleans(),
)
def test_the_index_decides_like_a_list(
    kept: list[AclBinding], removed: list[AclBinding], operation: Operation, name: str, default: bool
) -> None:
    acls = Acls([*kept, *removed])
    for each in removed:
        acls.remove(each)
        acls.remove(each)
    left = set(kept) - set(removed)
    assert set(acls) == left
    decided = acls.allow("User:ann", "h", operation, TOPIC, name, if_none_found=default)
    assert decided is as_kafka_states_it(left, operation, name, default)


@given(st.lists(bindings, max_size=6), st.sampled_from([READ, WRITE]))
def test_who_may_write_somewhere_may_write_to_a_topic(acls: list[AclBinding], operation: Operation) -> None:
    """If any name is allowed, `allow_any` says so."""
    tried = ["", *(a + b + c for a in "ab*" for b in ("", *"ab*") for c in ("", *"abc*"))]
    somewhere = any(Acls(acls).allow("User:ann", "h", operation, TOPIC, name) for name in tried)
    assert Acls(acls).allow_any("User:ann", "h", operation, TOPIC) or not somewhere


def test_filters() -> None:
    every = AclFilter(ResourceType.ANY, PatternType.ANY, None, None, None, Operation.ANY, Permission.ANY)
    literal, prefix, star = acl("orders"), acl("ord", pattern=PREFIXED), acl("*")
    assert all(every.matches(each) for each in (literal, prefix, star))
    match = every.but(pattern_type=PatternType.MATCH, resource_name="orders")
    assert all(match.matches(each) for each in (literal, prefix, star))
    assert not match.but(resource_name="other").matches(literal)
    exact = every.but(pattern_type=LITERAL, resource_name="orders")
    assert [exact.matches(each) for each in (literal, prefix, star)] == [True, False, False]
    assert not every.but(resource_type=GROUP).matches(literal)
    assert not every.but(principal="User:bob").matches(literal)
    assert not every.but(host="h").matches(literal)
    assert not every.but(operation=WRITE).matches(literal)
    assert not every.but(permission=DENY).matches(literal)


def test_rights_are_remembered_and_bounded() -> None:
    acls = Acls([acl("t")])
    rights = Rights(acls, "User:ann", "h")
    assert rights.may(READ, TOPIC, "t")
    for number in range(3_000):
        assert not rights.may(READ, TOPIC, f"other-{number}")
    assert not rights.may(READ, TOPIC, "x" * 30_000)
    assert len(rights._known) <= 1_001
    assert all(len(name) <= 249 for _, _, name in rights._known)
    assert rights.operations(TOPIC, "t") == 1 << READ | 1 << DESCRIBE
    assert Rights(None, "", "").may(WRITE, TOPIC, "t")
