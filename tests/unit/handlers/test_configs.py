"""Configs through the handlers: describe, alter, alter by steps."""

import pytest
from support.brokers.in_memory import broker_in_memory, context, make_topic

from semel.broker.broker import Broker
from semel.config import READ_ONLY, Settings
from semel.core.configs import APPEND, DELETE, SET, SUBTRACT
from semel.core.dynamic_configs import BROKER
from semel.core.topic_configs import TOPIC_CONFIGS, problem
from semel.core.types import ErrorCode
from semel.handlers.config_entries import broker_entries
from semel.handlers.configs import TOPIC, alter_configs, describe_configs, incremental_alter_configs
from semel.store.contract import StoreFull
from semel.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 1, 4, 5


async def describe(
    broker: Broker, kind: int, name: str, *names: str, version: int = 4, **flags: bool
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(names) or None
    )
    request = DescribeConfigsRequest(resources=[resource], **flags)
    response = await describe_configs(broker, request, context(version))
    [result] = DescribeConfigsResponse.decode(response.encode(version), version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def config(broker: Broker, name: str, **flags: bool) -> DescribeConfigsResourceResult:
    [found] = (await describe(broker, TOPIC, "a", name, **flags)).configs
    return found


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_configs_shows_every_config_of_a_topic(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", retention_ms="5")
        result = await describe(broker, TOPIC, "a", version=version)
        assert result.error_code == ErrorCode.NONE
        assert {each.name for each in result.configs} == set(TOPIC_CONFIGS)
        shown = {each.name: (each.value, each.config_source) for each in result.configs}
        assert shown["retention.ms"] == ("5", TOPIC_SOURCE)
        assert shown["segment.bytes"] == ("1073741824", DEFAULT_SOURCE)
        assert not any(each.is_sensitive or each.synonyms for each in result.configs)
        assert [each.name for each in result.configs if each.read_only] == ["semel.visibility"]
        kinds = {each.name: each.config_type for each in result.configs}
        if version >= 3:
            assert (kinds["preallocate"], kinds["compression.type"], kinds["segment.bytes"]) == (1, 2, 3)
            assert (kinds["retention.ms"], kinds["min.cleanable.dirty.ratio"]) == (5, 6)
            assert kinds["cleanup.policy"] == 7


async def test_describe_configs_filters_by_name_and_leaves_out_what_does_not_exist() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        result = await describe(broker, TOPIC, "a", "retention.ms", "no.such.config")
        assert [each.name for each in result.configs] == ["retention.ms"]


async def test_kip_226_a_value_comes_from_the_topic_else_the_broker_else_the_default() -> None:
    async with broker_in_memory(log_retention_ms=77) as broker:
        await make_topic(broker, "a", retention_ms="5")
        await make_topic(broker, "b")
        own = await config(broker, "retention.ms", include_synonyms=True)
        assert (own.value, own.config_source) == ("5", TOPIC_SOURCE)
        assert [(each.name, each.value, each.source) for each in own.synonyms] == [
            ("retention.ms", "5", TOPIC_SOURCE),
            ("log.retention.ms", "77", STATIC_SOURCE),
            ("log.retention.ms", "604800000", DEFAULT_SOURCE),
        ]
        [inherited] = (await describe(broker, TOPIC, "b", "retention.ms")).configs
        assert (inherited.value, inherited.config_source) == ("77", STATIC_SOURCE)
        plain = await config(broker, "max.message.bytes", include_synonyms=True)
        assert (plain.value, plain.config_source) == ("1048588", DEFAULT_SOURCE)
        assert [(each.name, each.source) for each in plain.synonyms] == [
            ("message.max.bytes", DEFAULT_SOURCE)
        ]


async def test_kip_569_documentation_is_given_when_asked_for() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        assert (await config(broker, "retention.ms")).documentation is None
        assert (await config(broker, "retention.ms", include_documentation=True)).documentation
        inert = await config(broker, "segment.ms", include_documentation=True)
        assert "changes nothing" in (inert.documentation or "")


FACTS = {
    "broker.id": "0",
    "listeners": "",
    "advertised.listeners": "plain://broker.example:9092",
    "log.dirs": "memory",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
}
"""What tools look for, and what no setting says here."""


async def test_describe_configs_of_the_broker() -> None:
    async with broker_in_memory(num_partitions=4) as broker:
        result = await describe(broker, BROKER, "0", include_synonyms=True, include_documentation=True)
        shown = {each.name: each for each in result.configs}
        assert set(shown) == set(Settings.names()) | FACTS.keys()
        assert {name: shown[name].value for name in FACTS} == FACTS
        assert {each.name for each in result.configs if each.read_only} == READ_ONLY.keys() | FACTS.keys()
        assert all(each.documentation for each in result.configs)
        assert (shown["num.partitions"].value, shown["num.partitions"].config_source) == ("4", STATIC_SOURCE)
        assert [each.value for each in shown["num.partitions"].synonyms] == ["4", "1"]
        enable = shown["auto.create.topics.enable"]
        assert (enable.value, enable.config_type, enable.config_source) == ("false", 1, DEFAULT_SOURCE)
        assert (await describe(broker, BROKER, "")).configs == []


async def test_no_setting_that_is_a_secret_is_shown() -> None:
    async with broker_in_memory() as broker:
        for entry in broker_entries(broker):
            if entry.is_sensitive:
                assert entry.value is None
                assert all(each.value is None for each in entry.synonyms)


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/good", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", ErrorCode.INVALID_REQUEST),
        (BROKER, "zero", ErrorCode.INVALID_REQUEST),
        (8, "0", ErrorCode.INVALID_REQUEST),
        (16, "m", ErrorCode.INVALID_REQUEST),
        (32, "", ErrorCode.INVALID_REQUEST),
        (32, "x" * 2_000, ErrorCode.INVALID_REQUEST),
        (0, "a", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_describe_configs_refuses(kind: int, name: str, error: ErrorCode) -> None:
    async with broker_in_memory() as broker:
        result = await describe(broker, kind, name)
        assert result.error_code == error
        assert result.error_message
        assert result.configs == []


async def alter(broker: Broker, request: AlterConfigsRequest, version: int = 2) -> list[tuple[str, int]]:
    response = await alter_configs(broker, request, context(version))
    decoded = AlterConfigsResponse.decode(response.encode(version), version)
    return [(each.resource_name, each.error_code) for each in decoded.responses]


def whole(kind: int, name: str, **configs: str | None) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


async def configs_of(broker: Broker, name: str) -> dict[str, str]:
    topic = await broker.catalog.topic(name)
    assert topic is not None
    return dict(topic.configs)


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", retention_ms="5", flush_ms="6")
        request = AlterConfigsRequest(resources=[whole(TOPIC, "a", retention_bytes="7")])
        assert await alter(broker, request, version) == [("a", ErrorCode.NONE)]
        assert await configs_of(broker, "a") == {"retention.bytes": "7"}


async def test_alter_configs_each_resource_by_itself() -> None:
    async with broker_in_memory() as broker:
        for name in ("a", "b", "c"):
            await make_topic(broker, name, flush_ms="1")
        request = AlterConfigsRequest(
            resources=[
                whole(TOPIC, "a", retention_ms="5"),
                whole(TOPIC, "b", retention_ms="long"),
                whole(TOPIC, "missing", retention_ms="5"),
                whole(TOPIC, "c", retention_ms=None),
                whole(BROKER, "0", node_id="5"),
            ]
        )
        expected = [
            ("a", ErrorCode.NONE),
            ("b", ErrorCode.INVALID_CONFIG),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("c", ErrorCode.INVALID_REQUEST),
            ("0", ErrorCode.INVALID_REQUEST),
        ]
        request.validate_only = True
        assert await alter(broker, request) == expected
        assert await configs_of(broker, "a") == {"flush.ms": "1"}
        request.validate_only = False
        assert await alter(broker, request) == expected
        assert await configs_of(broker, "a") == {"retention.ms": "5"}
        assert await configs_of(broker, "b") == {"flush.ms": "1"}
        assert await configs_of(broker, "c") == {"flush.ms": "1"}


Step = tuple[str, int, str | None]


async def steps(
    broker: Broker,
    name: str,
    *operations: Step,
    kind: int = TOPIC,
    version: int = 1,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    resource = IncrementalAlterConfigsAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsAlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    response = await incremental_alter_configs(broker, request, context(version))
    [result] = IncrementalAlterConfigsResponse.decode(response.encode(version), version).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", range(2))
async def test_kip_339_all_four_operations(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", retention_ms="5", flush_ms="6")
        done = await steps(
            broker,
            "a",
            ("retention.ms", SET, "9"),
            ("flush.ms", DELETE, None),
            ("cleanup.policy", APPEND, "compact"),
            version=version,
        )
        assert done == (ErrorCode.NONE, None)
        assert await configs_of(broker, "a") == {"retention.ms": "9", "cleanup.policy": "delete,compact"}
        done = await steps(broker, "a", ("cleanup.policy", SUBTRACT, "delete"), version=version)
        assert done == (ErrorCode.NONE, None)
        assert (await config(broker, "cleanup.policy")).value == "compact"


@pytest.mark.parametrize(
    ("operations", "error", "says"),
    [
        ([("retention.msec", SET, "1")], ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG, "retention.ms"),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "not LIST"),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST, "Null value"),
        ([("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST, "operation 4"),
        ([("retention.ms", -1, "1")], ErrorCode.INVALID_REQUEST, "operation -1"),
        ([("flush.ms", SET, "1"), ("flush.ms", DELETE, None)], ErrorCode.INVALID_REQUEST, "duplicate"),
    ],
)
async def test_incremental_alter_configs_refuses(operations: list[Step], error: ErrorCode, says: str) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        code, message = await steps(broker, "a", ("segment.ms", SET, "5"), *operations)
        assert code == error
        assert says in (message or "")
        assert await configs_of(broker, "a") == {}


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/good", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_REQUEST),
        (BROKER, "0", ErrorCode.INVALID_CONFIG),
        (BROKER, "", ErrorCode.INVALID_CONFIG),
        (BROKER, "1", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (32, "group", ErrorCode.INVALID_CONFIG),
        (32, "", ErrorCode.INVALID_REQUEST),
        (8, "0", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_incremental_alter_configs_of_what_has_none(kind: int, name: str, error: ErrorCode) -> None:
    async with broker_in_memory() as broker:
        code, message = await steps(broker, name, ("retention.ms", SET, "1"), kind=kind)
        assert code == error
        assert message


async def test_incremental_alter_configs_validates_only_and_refuses_the_same_resource_twice() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        assert (await steps(broker, "a", ("flush.ms", SET, "1"), validate_only=True))[0] == ErrorCode.NONE
        assert await configs_of(broker, "a") == {}
        resource = IncrementalAlterConfigsAlterConfigsResource(resource_type=TOPIC, resource_name="a")
        request = IncrementalAlterConfigsRequest(resources=[resource, resource])
        response = await incremental_alter_configs(broker, request, context(1))
        assert [each.error_code for each in response.responses] == [ErrorCode.INVALID_REQUEST]


async def test_visibility_is_what_it_was_when_the_topic_was_made() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", semel_visibility="journal", retention_ms="5")
        await make_topic(broker, "b")
        shown = await config(broker, "semel.visibility")
        assert (shown.value, shown.read_only) == ("journal", True)
        for name, step in (
            ("a", ("semel.visibility", SET, "marker")),
            ("a", ("semel.visibility", DELETE, None)),
            ("b", ("semel.visibility", SET, "journal")),
        ):
            code, message = await steps(broker, name, step)
            assert code == ErrorCode.INVALID_CONFIG
            assert "semel.visibility can only be set when a topic is created" in (message or "")
        assert await steps(broker, "a", ("semel.visibility", SET, "journal")) == (ErrorCode.NONE, None)
        assert await steps(broker, "b", ("semel.visibility", SET, "marker")) == (ErrorCode.NONE, None)
        replaced = AlterConfigsRequest(resources=[whole(TOPIC, "a", flush_ms="6")])
        assert await alter(broker, replaced) == [("a", ErrorCode.NONE)]
        assert await configs_of(broker, "a") == {"semel.visibility": "journal", "flush.ms": "6"}


async def test_a_change_is_in_force_for_producers_when_it_is_answered() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        await steps(broker, "a", ("max.message.bytes", SET, "100"))
        topic = await broker.catalog.topic("a")
        assert topic is not None
        assert broker.catalog.limits(topic).max_message_bytes == 100


async def test_a_full_disk_is_a_retriable_answer_to_alter(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        assert (await steps(broker, "a", ("flush.ms", SET, "1")))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert await configs_of(broker, "a") == {}


@pytest.mark.parametrize("name", TOPIC_CONFIGS)
def test_every_default_is_a_valid_value(name: str) -> None:
    row = TOPIC_CONFIGS[name]
    assert row.doc
    # A list may be empty by default.
    assert row.default == "" or problem(name, row.default) is None
    assert not row.setting or row.setting in Settings.names()
