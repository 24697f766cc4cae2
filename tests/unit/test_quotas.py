"""Quotas: what can be set, whom a limit is for, which entities a filter finds, and the two APIs."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.in_memory import broker_in_memory, context

from semel.core.security.quotas import (
    CLIENT_LIMITS,
    DEFAULT,
    Limit,
    Match,
    Operations,
    Quota,
    QuotaEntity,
    QuotaRefused,
    Quotas,
    address,
    altered,
    check_operations,
    entity_of,
    filter_of,
)
from semel.core.types import ErrorCode
from semel.handlers.client_quotas import HANDLERS, alter_client_quotas, describe_client_quotas
from semel.store.contract import StoreFull
from semel.wire.messages.quotas import (
    AlterClientQuotasEntity,
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasComponent,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

RATE = "producer_byte_rate"
ALICE_APP = QuotaEntity("alice", "app")

# -- precedence -------------------------------------------------------------------------------------------

PRECEDENCE = [
    (QuotaEntity("alice", "app"), ALICE_APP),
    (QuotaEntity("alice", DEFAULT), ALICE_APP),
    (QuotaEntity("alice"), QuotaEntity("alice")),
    (QuotaEntity(DEFAULT, "app"), ALICE_APP),
    (QuotaEntity(DEFAULT, DEFAULT), ALICE_APP),
    (QuotaEntity(DEFAULT), QuotaEntity("alice")),
    (QuotaEntity(None, "app"), QuotaEntity(None, "app")),
    (QuotaEntity(None, DEFAULT), QuotaEntity(None, "app")),
]
"""Entities from the most to the least specific, and who shares a limit that comes from there."""


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_entity_decides(first: int) -> None:
    quotas = Quotas(Quota(entity, {RATE: at + 1}) for at, (entity, _) in enumerate(PRECEDENCE) if at >= first)
    assert quotas.limit(RATE, "alice", "app") == Limit(first + 1, PRECEDENCE[first][1])


@given(st.sets(st.sampled_from(range(len(PRECEDENCE)))))
def test_any_set_of_quotas_is_looked_up_in_this_order(present: set[int]) -> None:
    quotas = Quotas(Quota(PRECEDENCE[at][0], {RATE: at + 1}) for at in present)
    expected = Limit(min(present) + 1, PRECEDENCE[min(present)][1]) if present else None
    assert quotas.limit(RATE, "alice", "app") == expected


def test_each_limit_is_looked_up_on_its_own() -> None:
    quotas = Quotas([Quota(ALICE_APP, {RATE: 1}), Quota(QuotaEntity(DEFAULT), {"consumer_byte_rate": 2})])
    assert quotas.limit("consumer_byte_rate", "alice", "app") == Limit(2, QuotaEntity("alice"))
    assert quotas.limit(RATE, "alice", "other") is None
    assert quotas.limit("request_percentage", "alice", "app") is None


def test_a_client_without_an_id_cannot_evade_the_default() -> None:
    quotas = Quotas([Quota(QuotaEntity(None, DEFAULT), {RATE: 5})])
    for missing in (None, ""):
        assert quotas.limit(RATE, "alice", missing) == Limit(5, QuotaEntity(None, DEFAULT))


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1"])
def test_connection_rates_by_address(host: str) -> None:
    kind = "connection_creation_rate"
    quotas = Quotas([Quota(QuotaEntity(ip=DEFAULT), {kind: 5})])
    assert quotas.connection_rate(host) == Limit(5, QuotaEntity(ip="10.0.0.1"))
    quotas.set(QuotaEntity(ip="10.0.0.1"), kind, 7)
    assert quotas.connection_rate(host) == Limit(7, QuotaEntity(ip="10.0.0.1"))
    assert quotas.connection_rate("local") == Limit(5, QuotaEntity(ip="local"))
    assert quotas.connection_rate("fe80::1%eth0") == Limit(5, QuotaEntity(ip="fe80::1"))
    quotas.remove(QuotaEntity(ip=DEFAULT))
    assert quotas.connection_rate("local") is None


# -- validation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "entity"),
    [
        ([("user", "alice")], QuotaEntity("alice")),
        ([("user", None)], QuotaEntity(DEFAULT)),
        ([("client-id", "app"), ("user", None)], QuotaEntity(DEFAULT, "app")),
        ([("ip", None)], QuotaEntity(ip=DEFAULT)),
        ([("ip", "0:0:0:0:0:0:0:1")], QuotaEntity(ip="::1")),
    ],
)
def test_an_entity_is_read_from_types_and_names(parts: Any, entity: QuotaEntity) -> None:
    assert entity_of(parts) == entity
    assert entity_of(entity.parts()) == entity


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "empty"),
        ([("user", "")], "user"),
        ([("group", "g")], "group"),
        ([("user", "a"), ("user", "b")], "user"),
        ([("ip", "::1"), ("user", "a")], "user"),
        ([("ip", None), ("client-id", None)], "user"),
        ([("ip", "localhost")], "localhost"),
        ([("user", "a" * 1025)], "1024"),
        ([("client-id", "a" * 256)], "255"),
    ],
)
def test_an_entity_that_cannot_be(parts: Any, message: str) -> None:
    with pytest.raises(QuotaRefused, match=message) as refused:
        entity_of(parts)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("entity", "operations", "message"),
    [
        (ALICE_APP, (("producer_bytes", 1.0),), "producer_bytes"),
        (ALICE_APP, (("connection_creation_rate", 1.0),), "connection_creation_rate"),
        (QuotaEntity(ip="::1"), ((RATE, 1.0),), RATE),
        (ALICE_APP, ((RATE, 0.0),), " 0"),
        (ALICE_APP, (("request_percentage", -1.0),), " 0"),
        (ALICE_APP, (("request_percentage", float("nan")),), " 0"),
        (ALICE_APP, (("controller_mutation_rate", float("inf")),), " 0"),
        (ALICE_APP, ((RATE, 1.5),), RATE),
        (ALICE_APP, ((RATE, 1e19),), "at most"),
        (QuotaEntity(ip=DEFAULT), (("connection_creation_rate", 2.0**31),), "at most"),
        (ALICE_APP, ((RATE, 1.0), (RATE, None)), "twice"),
    ],
)
def test_limits_that_cannot_be_set(entity: QuotaEntity, operations: Operations, message: str) -> None:
    with pytest.raises(QuotaRefused, match=message):
        check_operations(entity, operations)


@pytest.mark.parametrize(
    ("entity", "operations"),
    [
        (ALICE_APP, ()),
        (ALICE_APP, ((RATE, 1.0), ("request_percentage", 0.5), ("controller_mutation_rate", 0.1))),
        (ALICE_APP, ((RATE, 1.0000001),)),
        (ALICE_APP, ((RATE, 2.0**63),)),
        (ALICE_APP, (("never_heard_of", None),)),
        (QuotaEntity(ip="::1"), (("connection_creation_rate", 2.0**31 - 1),)),
    ],
)
def test_limits_that_can_be_set(entity: QuotaEntity, operations: Operations) -> None:
    check_operations(entity, operations)  # It would raise QuotaRefused.


def test_addresses_have_one_spelling() -> None:
    assert address("::ffff:1.2.3.4") == address("1.2.3.4") == "1.2.3.4"
    assert address("2001:DB8::0") == "2001:db8::"
    assert address("1.2.3") is None


# -- merging and the index --------------------------------------------------------------------------------

names = st.sampled_from([None, DEFAULT, "a", "b"])
entities = st.builds(QuotaEntity, names, names, st.none()) | st.builds(
    lambda ip: QuotaEntity(ip=ip), st.sampled_from([DEFAULT, "1.1.1.1"])
)
values = st.none() | st.floats(min_value=1, max_value=1e6)
operations = st.dictionaries(st.sampled_from(CLIENT_LIMITS), values).map(lambda each: tuple(each.items()))


@given(operations, operations)
def test_merging_sets_and_removes_and_keeps_the_rest(first: Operations, second: Operations) -> None:
    quota = altered(ALICE_APP, None, first)
    expected = {key: value for key, value in {**dict(first), **dict(second)}.items() if value is not None}
    merged = altered(ALICE_APP, quota, second)
    assert (merged.limits if merged else {}) == expected
    assert merged is None or merged.entity == ALICE_APP
    assert altered(ALICE_APP, merged, second) == merged, "an alteration can be repeated"


@given(st.lists(st.tuples(entities, operations)))
def test_the_index_is_the_same_whatever_the_way_to_it(steps: list[tuple[QuotaEntity, Operations]]) -> None:
    model: dict[QuotaEntity, Quota] = {}
    one_by_one, whole = Quotas(), Quotas()
    for entity, changes in steps:
        for key, value in changes:
            one_by_one.set(entity, key, value)
        quota = altered(entity, model.get(entity), changes)
        if quota is None:
            model.pop(entity, None)
            whole.remove(entity)
        else:
            model[entity] = quota
            whole.add(quota)
    expected = [model[entity] for entity in sorted(model)]
    for quotas in (one_by_one, whole, Quotas(reversed(expected))):
        assert list(quotas) == expected
        assert len(quotas) == len(model)
        assert quotas.kinds == Quotas(expected).kinds
        for user, client_id, kind in product(("a", "c"), ("a", "c", None), CLIENT_LIMITS):
            assert quotas.limit(kind, user, client_id) == Quotas(expected).limit(kind, user, client_id)
    for entity in model:
        whole.remove(entity)
    assert (list(whole), whole.kinds) == ([], {})


def test_every_change_has_a_version_of_its_own() -> None:
    quotas = Quotas()
    seen = [quotas.version]
    for value in (1, 2, None):
        quotas.set(ALICE_APP, RATE, value)
        seen.append(quotas.version)
    assert len(set(seen)) == 4


@given(entities, entities, entities)
def test_entities_have_an_order(a: QuotaEntity, b: QuotaEntity, c: QuotaEntity) -> None:
    assert (a < b) + (b < a) + (a == b) == 1
    assert not (a < b < c) or a < c
    assert (hash(a) == hash(b)) or a != b


# -- filters ----------------------------------------------------------------------------------------------

EXACT, DEFAULT_MATCH, SPECIFIED = Match
ALL = [
    QuotaEntity(None, DEFAULT),
    QuotaEntity(None, "app"),
    QuotaEntity(DEFAULT),
    QuotaEntity("alice"),
    QuotaEntity("alice", DEFAULT),
    QuotaEntity("alice", "app"),
    QuotaEntity("bob"),
    QuotaEntity(ip=DEFAULT),
    QuotaEntity(ip="::1"),
]


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, range(9)),
        ([], True, []),
        ([("user", EXACT, "alice")], False, [3, 4, 5]),
        ([("user", EXACT, "alice")], True, [3]),
        ([("user", DEFAULT_MATCH, None)], False, [2]),
        ([("user", SPECIFIED, None)], False, range(2, 7)),
        ([("user", SPECIFIED, None)], True, [2, 3, 6]),
        ([("client-id", SPECIFIED, None)], True, [0, 1]),
        ([("client-id", DEFAULT_MATCH, None)], False, [0, 4]),
        ([("user", EXACT, "alice"), ("client-id", SPECIFIED, None)], True, [4, 5]),
        ([("user", EXACT, "")], False, []),
        ([("ip", SPECIFIED, None)], True, [7, 8]),
        ([("ip", EXACT, "0::1")], False, [8]),
        ([("ip", EXACT, "localhost")], False, []),
    ],
)
def test_filters(components: Any, strict: bool, found: Any) -> None:
    wanted = filter_of(components, strict=strict)
    assert [each for each in ALL if wanted.matches(each)] == [ALL[at] for at in found]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", EXACT, "a")], ErrorCode.INVALID_REQUEST),
        ([("group", EXACT, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", EXACT, "a"), ("user", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT_MATCH, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", SPECIFIED, None), ("user", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_cannot_be(components: Any, code: ErrorCode) -> None:
    with pytest.raises(QuotaRefused) as refused:
        filter_of(components, strict=False)
    assert refused.value.code == code


# -- the APIs ---------------------------------------------------------------------------------------------


def entry(entity: dict[str, str | None], **limits: float | None) -> AlterClientQuotasEntry:
    return AlterClientQuotasEntry(
        entity=[AlterClientQuotasEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            AlterClientQuotasOp(key=key, value=value or 0.0, remove=value is None)
            for key, value in limits.items()
        ],
    )


async def alter(
    broker: Any, *entries: AlterClientQuotasEntry, version: int = 1, validate_only: bool = False
) -> list[int]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    asked = AlterClientQuotasRequest.decode(request.encode(version), version)
    response = await alter_client_quotas(broker, asked, context(version))
    results = AlterClientQuotasResponse.decode(response.encode(version), version).entries
    assert [each.entity for each in results] == [each.entity for each in entries]
    assert all((each.error_message is None) == (each.error_code == 0) for each in results)
    return [each.error_code for each in results]


async def describe(broker: Any, *components: tuple[str, int, str | None], version: int = 1) -> Any:
    request = DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasComponent(entity_type=kind, match_type=match, match=name)
            for kind, match, name in components
        ]
    )
    response = await describe_client_quotas(broker, request, context(version))
    answer = DescribeClientQuotasResponse.decode(response.encode(version), version)
    if answer.entries is None:
        return answer.error_code
    return [
        (
            {each.entity_type: each.entity_name for each in found.entity},
            {each.key: each.value for each in found.values},
        )
        for found in answer.entries
    ]


@pytest.mark.parametrize("version", range(2))
async def test_quotas_are_set_described_and_removed(version: int) -> None:
    async with broker_in_memory() as broker:
        alice: dict[str, str | None] = {"user": "alice"}
        anyone: dict[str, str | None] = {"user": None, "client-id": None}
        assert await describe(broker, version=version) == []
        changes = [
            entry(alice, producer_byte_rate=10, request_percentage=0.5),
            entry(anyone, request_percentage=1),
        ]
        assert await alter(broker, *changes, version=version) == [0, 0]
        assert await describe(broker, version=version) == [
            (anyone, {"request_percentage": 1}),
            (alice, {"producer_byte_rate": 10, "request_percentage": 0.5}),
        ]
        assert await alter(broker, entry(alice, producer_byte_rate=None, unheard_of=None)) == [0]
        assert await describe(broker, ("user", EXACT, "alice")) == [(alice, {"request_percentage": 0.5})]
        assert await alter(broker, entry(alice, request_percentage=None), entry(alice)) == [0, 42]
        assert await describe(broker, ("user", EXACT, "alice")) == []
        assert await describe(broker, ("group", EXACT, "a")) == ErrorCode.UNSUPPORTED_VERSION


async def test_each_entry_is_answered_on_its_own() -> None:
    async with broker_in_memory() as broker:
        good = entry({"user": "alice"}, producer_byte_rate=10)
        changes = [entry({"user": ""}), good, entry({"user": "bob"}, producer_byte_rate=-1), good]
        assert await alter(broker, *changes, validate_only=True) == [42, 0, 42, 42]
        assert await describe(broker) == []
        assert await alter(broker, *changes) == [42, 0, 42, 42]
        assert await describe(broker) == [({"user": "alice"}, {"producer_byte_rate": 10})]


async def test_a_full_disk_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker:

        def refuse(commands: object) -> None:
            raise StoreFull("no room")

        monkeypatch.setattr(broker, "submit", refuse)
        good = entry({"user": "alice"}, producer_byte_rate=10)
        assert await alter(broker, good, entry({})) == [ErrorCode.KAFKA_STORAGE_ERROR, 42]
        assert await alter(broker, good, validate_only=True) == [0]


async def test_policies_are_bounded() -> None:
    async with broker_in_memory(semel_policies_max=2) as broker:
        assert await alter(broker, entry({"user": "a"}, producer_byte_rate=1, consumer_byte_rate=1)) == [0]
        more = entry({"user": "b"}, producer_byte_rate=1)
        assert await alter(broker, more) == [ErrorCode.POLICY_VIOLATION]
        assert await alter(broker, entry({"user": "a"}, producer_byte_rate=2)) == [0]
        assert await alter(broker, entry({"user": "a"}, producer_byte_rate=None), more) == [0, 0]


def test_both_apis_are_served() -> None:
    assert set(HANDLERS) == {48, 49}
