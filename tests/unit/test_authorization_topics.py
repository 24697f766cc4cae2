"""What principals see of topics, and which of them they can change."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.brokers.guarded import ROOT, Guarded, guarded_broker
from support.brokers.in_memory import make_topic
from support.models.rights import ALTER, CREATE, DELETE, DESCRIBE, DESCRIBE_CONFIGS, READ, Right

from semel.core.security.acls import CLUSTER_NAME, Operation, PatternType, ResourceType
from semel.core.types import ErrorCode
from semel.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from semel.wire.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    PartitionsTopicRequest,
)
from semel.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

OK, DENIED = ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNKNOWN, INVALID = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST
NO_BITS = -(2**31)
NO_ID = bytes(16)
CREATES = Right(CREATE, ResourceType.CLUSTER, CLUSTER_NAME)


def on(name: str, operation: Operation = DESCRIBE) -> Right:
    return Right(operation, ResourceType.TOPIC, name)


def bits(*operations: Operation) -> int:
    return sum(1 << each for each in operations)


@asynccontextmanager
async def topics(*names: str, **settings: Any) -> AsyncIterator[Guarded]:
    async with guarded_broker(**settings) as it:
        for name in names:
            await make_topic(it.broker, name, 2)
        yield it


# -- Metadata ---------------------------------------------------------------------------------------------


def metadata(*names: str, creates: bool = False, **fields: Any) -> MetadataRequest:
    wanted = [MetadataRequestTopic(name=each) for each in names] or None
    return MetadataRequest(**{"topics": wanted, "allow_auto_topic_creation": creates, **fields})


def seen(response: MetadataResponse) -> dict[str | None, int]:
    return {each.name: each.error_code for each in response.topics}


@pytest.mark.parametrize("version", [0, 1, 9, 13])
async def test_a_list_of_all_topics_has_those_that_may_be_described(version: int) -> None:
    async with topics("a", "b", "c") as it:
        everything = metadata(topics=[] if version == 0 else None)
        assert seen(await it.ask(3, everything, version)) == {}
        await it.allow(on("a"), on("c", READ))
        assert seen(await it.ask(3, everything, version)) == {"a": OK, "c": OK}
        await it.allow(on("", DESCRIBE)._replace(name="b"), pattern=PatternType.PREFIXED)
        assert seen(await it.ask(3, everything, version)) == {"a": OK, "b": OK, "c": OK}
        assert seen(await it.ask(3, everything, version, ROOT)) == {"a": OK, "b": OK, "c": OK}


async def test_the_bits_of_one_client_are_not_those_of_another() -> None:
    async with topics("a") as it:
        await it.allow(on("a", READ))
        wanted = metadata(topics=None, include_topic_authorized_operations=True)
        all_bits = (await it.ask(3, wanted, 13, ROOT)).topics[0].topic_authorized_operations
        (topic,) = (await it.ask(3, wanted, 13)).topics
        assert topic.topic_authorized_operations == bits(READ, DESCRIBE)
        assert (await it.ask(3, wanted, 13, ROOT)).topics[0].topic_authorized_operations == all_bits
        (topic,) = (await it.ask(3, metadata("a", include_topic_authorized_operations=True), 13)).topics
        assert topic.topic_authorized_operations == bits(READ, DESCRIBE)
        (topic,) = (await it.ask(3, metadata("a"), 13)).topics
        assert topic.topic_authorized_operations == NO_BITS


async def test_the_bits_of_the_cluster_are_for_those_who_may_describe_it() -> None:
    async with topics() as it:
        wanted = metadata(include_cluster_authorized_operations=True)
        assert (await it.ask(3, wanted, 10)).cluster_authorized_operations == 0
        await it.allow(CREATES, CREATES._replace(operation=DESCRIBE))
        assert (await it.ask(3, wanted, 10)).cluster_authorized_operations == bits(CREATE, DESCRIBE)
        assert (await it.ask(3, metadata(), 10)).cluster_authorized_operations == NO_BITS


async def test_a_denied_name_is_not_told_whether_it_exists() -> None:
    async with topics("a", "b") as it:
        await it.allow(on("a"))
        wanted = metadata("b", "missing", "not/valid", "a", include_topic_authorized_operations=True)
        response = await it.ask(3, wanted, 13)
        assert seen(response) == {"a": OK, "b": DENIED, "missing": DENIED, "not/valid": DENIED}
        for each in response.topics[1:]:
            assert (each.topic_id, each.is_internal, each.partitions) == (NO_ID, False, [])
            assert each.topic_authorized_operations == NO_BITS


async def test_a_denied_id_is_not_told_its_name() -> None:
    async with topics("a") as it:
        known, unknown = b"a" + b"." * 15, b"?" * 16
        by_id = [MetadataRequestTopic(name=None, topic_id=each) for each in (known, unknown)]
        response = await it.ask(3, metadata(topics=by_id), 12)
        answers = {each.topic_id: (each.error_code, each.name) for each in response.topics}
        assert answers == {known: (DENIED, None), unknown: (ErrorCode.UNKNOWN_TOPIC_ID, None)}


async def test_missing_topics_are_created_for_those_who_may() -> None:
    async with topics("a") as it:
        await it.allow(*map(on, ("a", "b", "c")), on("b", CREATE))
        assert seen(await it.ask(3, metadata("a", "b", "c", "d"), 9)) == {
            "a": OK,
            "b": UNKNOWN,
            "c": UNKNOWN,
            "d": DENIED,
        }
        response = await it.ask(3, metadata("a", "b", "c", "d", creates=True), 9)
        assert seen(response) == {"a": OK, "b": OK, "c": DENIED, "d": DENIED}
        assert [each.name for each in await it.broker.catalog.all()] == ["a", "b"]
        await it.allow(CREATES)
        assert seen(await it.ask(3, metadata("c", creates=True), 9)) == {"c": OK}


async def test_nothing_is_created_without_the_setting() -> None:
    async with topics(auto_create_topics_enable=False) as it:
        await it.allow(on("a"))
        assert seen(await it.ask(3, metadata("a", creates=True), 9)) == {"a": UNKNOWN}


# -- DescribeTopicPartitions ------------------------------------------------------------------------------


def partitions(
    *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[PartitionsTopicRequest(name=each) for each in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def pages(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, int, int]]:
    return [(each.name, each.error_code, len(each.partitions)) for each in response.topics]


async def test_pages_of_partitions_have_no_denied_topics() -> None:
    async with topics("a", "b", "c", "d") as it:
        assert pages(await it.ask(75, partitions(), 0)) == []
        await it.allow(on("a"), on("c", READ), on("d"))
        response = await it.ask(75, partitions(limit=3), 0)
        assert pages(response) == [("a", OK, 2), ("c", OK, 1)]
        assert response.topics[1].topic_authorized_operations == bits(READ, DESCRIBE)
        next_page = (response.next_cursor.topic_name, response.next_cursor.partition_index)
        assert next_page == ("c", 1)
        assert pages(await it.ask(75, partitions(cursor=next_page), 0)) == [("c", OK, 1), ("d", OK, 2)]
        # A cursor in a topic that may not be described, any more.
        assert pages(await it.ask(75, partitions(cursor=("b", 1)), 0)) == [("c", OK, 2), ("d", OK, 2)]


async def test_named_topics_that_may_not_be_described_are_refused() -> None:
    async with topics("a", "b", "c") as it:
        await it.allow(on("c"))
        response = await it.ask(75, partitions("a", "b", "c", cursor=("b", 1)), 0)
        assert pages(response) == [("c", OK, 2), ("b", DENIED, 0)]
        assert response.topics[1].topic_authorized_operations == NO_BITS
        assert pages(await it.ask(75, partitions("a"), 0)) == [("a", DENIED, 0)]
        invalid = await it.ask(75, partitions("a", cursor=("b", 0)), 0)
        assert pages(invalid) == [("a", INVALID, 0)]


# -- changes ----------------------------------------------------------------------------------------------


def created(*names: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=each, num_partitions=1, replication_factor=1) for each in names]
    )


async def test_configs_of_a_new_topic_are_for_those_who_may_describe_them() -> None:
    async with topics() as it:
        await it.allow(on("a", CREATE), on("b", CREATE), on("b", DESCRIBE_CONFIGS))
        response = await it.ask(19, created("a", "b", "c", "d", "d"), 7)
        answers = {each.name: each for each in response.topics}
        errors = {name: each.error_code for name, each in answers.items()}
        assert errors == {"a": OK, "b": OK, "c": DENIED, "d": INVALID}
        a, b = answers["a"], answers["b"]
        assert a.topic_id != NO_ID
        assert (a.topic_config_error_code, a.num_partitions, a.replication_factor, a.configs) == (
            DENIED,
            -1,
            -1,
            [],
        )
        assert (b.topic_config_error_code, b.num_partitions, b.replication_factor) == (OK, 1, 1)
        assert b.configs
        assert (answers["c"].error_message, answers["c"].topic_config_error_code) == (
            "Authorization failed.",
            OK,
        )


async def test_only_those_who_may_describe_a_topic_are_told_that_it_does_not_exist() -> None:
    async with topics("a", "b", "c") as it:
        await it.allow(on("a", DELETE), on("b"), on("seen"))
        names = ["a", "b", "c", "seen", "unseen", "twice", "twice"]
        response = await it.ask(20, DeleteTopicsRequest(topic_names=names), 5)
        assert {each.name: each.error_code for each in response.responses} == {
            "a": OK,
            "b": DENIED,
            "c": DENIED,
            "seen": UNKNOWN,
            "unseen": DENIED,
            "twice": INVALID,
        }
        assert [each.name for each in await it.broker.catalog.all()] == ["b", "c"]
        ids = {name: (await it.broker.catalog.topic(name)).topic_id for name in ("b", "c")}  # type: ignore[union-attr]
        states = [DeleteTopicState(name=None, topic_id=each) for each in (*ids.values(), b"?" * 16)]
        response = await it.ask(20, DeleteTopicsRequest(topics=states), 6)
        assert {each.topic_id: (each.name, each.error_code) for each in response.responses} == {
            ids["b"]: ("b", DENIED),
            ids["c"]: (None, DENIED),
            b"?" * 16: (None, ErrorCode.UNKNOWN_TOPIC_ID),
        }


async def test_if_topics_cannot_be_deleted_at_all_that_comes_first() -> None:
    async with topics("a", delete_topic_enable=False) as it:
        response = await it.ask(20, DeleteTopicsRequest(topic_names=["a"]), 5)
        assert response.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED


async def test_partitions_of_repeated_and_denied_topics() -> None:
    async with topics("a", "b", "c") as it:
        await it.allow(on("a", ALTER))
        wanted = [
            CreatePartitionsTopic(name=each, count=3, assignments=None) for each in ("a", "b", "c", "c")
        ]
        response = await it.ask(37, CreatePartitionsRequest(topics=wanted), 3)
        answers = {each.name: (each.error_code, each.error_message is None) for each in response.results}
        assert answers == {"a": (OK, True), "b": (DENIED, True), "c": (INVALID, False)}


async def test_configs_of_brokers_topics_and_groups() -> None:
    async with topics("a", "b") as it:
        await it.allow(on("a", Operation.ALTER_CONFIGS))
        wanted = [(2, "a"), (2, "b"), (4, "0"), (8, "0"), (16, "m"), (32, "g"), (99, "?")]
        described = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=kind, resource_name=name) for kind, name in wanted
            ]
        )
        response = await it.ask(32, described, 4)
        cluster, group = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
        expected = [OK, DENIED, cluster, cluster, cluster, group, INVALID]
        answers = {(each.resource_type, each.resource_name): each.error_code for each in response.results}
        assert answers == dict(zip(wanted, expected, strict=True))
        change = [IncrementalAlterConfigsAlterableConfig(name="retention.ms", value="1000")]
        altered = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsAlterConfigsResource(
                    resource_type=kind, resource_name=name, configs=change
                )
                for kind, name in wanted
            ]
        )
        response = await it.ask(44, altered, 1)
        answers = {(each.resource_type, each.resource_name): each.error_code for each in response.responses}
        assert answers == dict(zip(wanted, expected, strict=True))
