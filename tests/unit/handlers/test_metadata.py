"""Who we are, what we can do, which topics there are. Numbers: docs/behaviours.md."""

import asyncio

import pytest
from support.brokers.in_memory import HOST, PORT, broker_in_memory, context, make_topic

from semel.core.types import ErrorCode
from semel.handlers import HANDLERS
from semel.handlers.cluster import describe_cluster, find_coordinator
from semel.handlers.metadata import api_versions, describe_topic_partitions, metadata
from semel.store.contract import StoreFull
from semel.wire.messages import APIS
from semel.wire.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    PartitionsTopicRequest,
)

INT_MIN = -(2**31)
ID = b"\x01" * 16


async def versions(
    version: int, name: str = "librdkafka", software: str = "2.16.0-rc1"
) -> ApiVersionsResponse:
    async with broker_in_memory() as broker:
        request = ApiVersionsRequest(client_software_name=name, client_software_version=software)
        response = await api_versions(broker, request, context(version))
    # What a handler answers must be encodable in the version it is for; an unknown one is answered in 0.
    sent = version if 0 <= version <= 4 else 0
    return ApiVersionsResponse.decode(response.encode(sent), sent)


def ranges(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}


@pytest.mark.parametrize("version", [5, 9, 32_767, -1])
async def test_093_unknown_api_versions_version_is_answered_with_35_and_the_range_of_api_versions(
    version: int,
) -> None:
    response = await versions(version)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    # Alone: with the whole list franz-go goes on as if there were no features, and does not ask again.
    assert ranges(response) == {18: (0, 4)}


async def test_094_version_3_lists_no_feature_that_begins_at_level_0_and_version_4_does() -> None:
    old, new = await versions(3), await versions(4)
    assert all(each.min_version > 0 for each in old.supported_features)
    levels = {each.name: (each.min_version, each.max_version) for each in new.supported_features}
    assert levels["transaction.version"] == (0, 2)
    assert levels["group.version"] == (0, 1)


async def test_095_produce_is_advertised_from_0_and_what_is_not_served_is_not_advertised() -> None:
    advertised = ranges(await versions(4))
    assert advertised[0] == (0, 13)
    assert set(advertised) == {0, *HANDLERS}
    for key, (low, high) in advertised.items():
        assert high <= APIS[key].max_version
        assert low == APIS[key].min_version or key == 0


async def test_098_init_producer_id_6_is_not_advertised() -> None:
    assert ranges(await versions(4))[22] == (0, 5)


@pytest.mark.parametrize("version", [3, 4])
async def test_46_finalized_features_tell_clients_to_use_the_second_generation_of_transactions(
    version: int,
) -> None:
    response = await versions(version)
    assert response.finalized_features_epoch >= 0
    levels = {
        each.name: (each.min_version_level, each.max_version_level) for each in response.finalized_features
    }
    ours = {name for name in levels if name.startswith("semel.")}
    kafkas = {name: level for name, level in levels.items() if name not in ours}
    assert kafkas == {
        "metadata.version": (30, 30),
        "group.version": (1, 1),
        "share.version": (1, 1),
        "transaction.version": (2, 2),
    }
    assert levels["semel.snapshot"] == (3, 3)


@pytest.mark.parametrize("version", range(5))
async def test_every_version_of_api_versions_lists_the_same_apis(version: int) -> None:
    response = await versions(version)
    assert response.error_code == ErrorCode.NONE
    assert set(ranges(response)) == {0, *HANDLERS}


@pytest.mark.parametrize(
    ("name", "software"), [("", "1"), ("a", ""), ("-a", "1"), ("a", "1-"), ("a b", "1"), ("a\n", "1")]
)
async def test_kip_511_software_names_have_a_form(name: str, software: str) -> None:
    assert (await versions(3, name, software)).error_code == ErrorCode.INVALID_REQUEST


async def ask_metadata(broker: object, version: int, request: MetadataRequest) -> MetadataResponse:
    response = await metadata(broker, request, context(version))  # type: ignore[arg-type]
    return MetadataResponse.decode(response.encode(version), version)


def named(*names: str | None) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


def by_name(topics: list[MetadataResponseTopic]) -> dict[str | None, int]:
    return {each.name: each.error_code for each in topics}


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_all_topics_in_every_version(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "b", 2)
        await make_topic(broker, "a")
        response = await ask_metadata(broker, version, MetadataRequest(topics=None if version else []))
    assert [(each.node_id, each.host, each.port) for each in response.brokers] == [(0, HOST, PORT)]
    assert [each.name for each in response.topics] == ["a", "b"]
    partitions = response.topics[1].partitions
    assert [each.partition_index for each in partitions] == [0, 1]
    assert all(each.leader_id == 0 for each in partitions)
    assert all(each.replica_nodes == each.isr_nodes == [0] for each in partitions)
    if version >= 1:
        assert response.controller_id == 0
    if version >= 2:
        assert response.cluster_id
    if version >= 7:
        assert partitions[0].leader_epoch == 0
    if version >= 10:
        assert response.topics[0].topic_id == b"a".ljust(16, b".")


async def test_metadata_of_no_topics_from_version_1() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        response = await ask_metadata(broker, 1, MetadataRequest(topics=[]))
    assert response.topics == []
    assert len(response.brokers) == 1


async def test_metadata_by_name() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        response = await ask_metadata(
            broker, 9, MetadataRequest(topics=named("a", "missing", "no/good", "a"))
        )
        assert by_name(response.topics) == {
            "a": ErrorCode.NONE,
            "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "no/good": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert len(response.topics) == 3
        assert await broker.catalog.topic("missing") is None


async def test_metadata_by_id() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a")
        wanted = [MetadataRequestTopic(topic_id=each, name=None) for each in (topic.topic_id, ID)]
        response = await ask_metadata(broker, 12, MetadataRequest(topics=wanted))
        assert by_name(response.topics) == {"a": ErrorCode.NONE, None: ErrorCode.UNKNOWN_TOPIC_ID}
        assert response.topics[1].topic_id == ID
        # Versions 10 and 11 have the field, and Kafka serves it from 12.
        response = await ask_metadata(broker, 11, MetadataRequest(topics=wanted))
        assert {each.error_code for each in response.topics} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize(("setting", "wish"), [(False, True), (True, False), (False, False)])
async def test_topics_are_not_made_unless_both_sides_want_it(setting: bool, wish: bool) -> None:
    async with broker_in_memory(auto_create_topics_enable=setting) as broker:
        request = MetadataRequest(topics=named("new"), allow_auto_topic_creation=wish)
        response = await ask_metadata(broker, 4, request)
        assert by_name(response.topics) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert await broker.catalog.topic("new") is None


@pytest.mark.parametrize("version", [0, 3, 4, 13])
async def test_topics_are_made_when_both_sides_want_it(version: int) -> None:
    async with broker_in_memory(auto_create_topics_enable=True, num_partitions=3) as broker:
        request = MetadataRequest(topics=named("new", "no/good", "other"), allow_auto_topic_creation=True)
        response = await ask_metadata(broker, version, request)
        assert by_name(response.topics) == {
            "new": ErrorCode.NONE,
            "no/good": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "other": ErrorCode.NONE,
        }
        assert len(response.topics[0].partitions) == 3
        found = await broker.catalog.topic("new")
        assert found is not None
        assert found.partitions == 3


async def test_two_clients_that_make_the_same_topic_at_once_see_one_topic() -> None:
    async with broker_in_memory(auto_create_topics_enable=True) as broker:
        request = MetadataRequest(topics=named("new"))
        both = await asyncio.gather(*(ask_metadata(broker, 12, request) for _ in range(2)))
        assert both[0].topics == both[1].topics
        assert both[0].topics[0].error_code == ErrorCode.NONE


async def test_one_request_makes_a_bounded_number_of_topics() -> None:
    async with broker_in_memory(
        auto_create_topics_enable=True, num_partitions=2, semel_partitions_per_topic_max=4
    ) as broker:
        response = await ask_metadata(broker, 12, MetadataRequest(topics=named("a", "b", "c")))
        assert by_name(response.topics) == {"a": 0, "b": 0, "c": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_metadata_on_a_full_disk_makes_no_topic_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory(auto_create_topics_enable=True) as broker:

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        response = await ask_metadata(broker, 12, MetadataRequest(topics=named("new")))
        assert by_name(response.topics) == {"new": ErrorCode.KAFKA_STORAGE_ERROR}


async def test_kip_430_authorized_operations_are_told_only_when_asked() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        plain = await ask_metadata(broker, 10, MetadataRequest(topics=named("a")))
        assert plain.topics[0].topic_authorized_operations == INT_MIN
        assert plain.cluster_authorized_operations == INT_MIN
        asking = MetadataRequest(
            topics=named("a", "missing"),
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        full = await ask_metadata(broker, 10, asking)
        assert full.topics[0].topic_authorized_operations == 0b1101_1111_1000
        assert full.topics[1].topic_authorized_operations == 0b1101_1111_1000, "also of one that is missing"
        assert full.cluster_authorized_operations == 0b1_1111_1010_0000


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(version: int) -> None:
    async with broker_in_memory(node_id=4) as broker:
        response = await describe_cluster(broker, DescribeClusterRequest(), context(version))
        assert response.encode(version)
        assert response.error_code == ErrorCode.NONE
        assert response.cluster_id == broker.cluster_id
        assert response.controller_id == 4
        assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [(4, HOST, PORT)]
        assert response.cluster_authorized_operations == INT_MIN


async def test_describe_cluster_knows_one_type_of_endpoint() -> None:
    async with broker_in_memory() as broker:
        controllers = await describe_cluster(broker, DescribeClusterRequest(endpoint_type=2), context(1))
        assert controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
        nothing = await describe_cluster(broker, DescribeClusterRequest(endpoint_type=3), context(1))
        assert nothing.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        asking = DescribeClusterRequest(include_cluster_authorized_operations=True)
        assert (await describe_cluster(broker, asking, context(1))).cluster_authorized_operations > 0


def pages(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, list[int]]]:
    return [(each.name, [part.partition_index for part in each.partitions]) for each in response.topics]


async def test_describe_topic_partitions_goes_on_where_the_cursor_says() -> None:
    async with broker_in_memory() as broker:
        for name in ("c", "a", "b"):
            await make_topic(broker, name, 2)
        seen = []
        cursor: Cursor | None = None
        while True:
            request = DescribeTopicPartitionsRequest(response_partition_limit=3, cursor=cursor)
            response = await describe_topic_partitions(broker, request, context(0))
            response = DescribeTopicPartitionsResponse.decode(response.encode(0), 0)
            seen.append(pages(response))
            cursor = response.next_cursor
            if cursor is None:
                break
        assert seen == [[("a", [0, 1]), ("b", [0])], [("b", [1]), ("c", [0, 1])]]


async def test_describe_topic_partitions_stops_between_topics_too() -> None:
    async with broker_in_memory() as broker:
        for name in ("a", "b"):
            await make_topic(broker, name, 2)
        request = DescribeTopicPartitionsRequest(response_partition_limit=2)
        response = await describe_topic_partitions(broker, request, context(0))
        assert pages(response) == [("a", [0, 1])]
        assert response.next_cursor == Cursor(topic_name="b", partition_index=0)


async def test_describe_topic_partitions_by_name() -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", 1)
        names = [PartitionsTopicRequest(name=name) for name in ("missing", "a", "no/good", "a")]
        request = DescribeTopicPartitionsRequest(topics=names)
        response = await describe_topic_partitions(broker, request, context(0))
        assert {each.name: each.error_code for each in response.topics} == {
            "a": ErrorCode.NONE,
            "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "no/good": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert response.topics[0].topic_id == topic.topic_id
        assert response.next_cursor is None
        # A page has one partition at least, and what follows a full page waits for the next.
        request.response_partition_limit = -1
        response = await describe_topic_partitions(broker, request, context(0))
        assert pages(response) == [("a", [0])]
        assert response.next_cursor == Cursor(topic_name="missing", partition_index=0)


async def test_describe_topic_partitions_with_a_cursor_that_leads_nowhere() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", 1)
        request = DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="a", partition_index=7))
        assert pages(await describe_topic_partitions(broker, request, context(0))) == [("a", [])]
        request.cursor = Cursor(topic_name="b", partition_index=0)
        assert pages(await describe_topic_partitions(broker, request, context(0))) == []
        request = DescribeTopicPartitionsRequest(
            topics=[PartitionsTopicRequest(name="a")], cursor=Cursor(topic_name="a", partition_index=-1)
        )
        refused = await describe_topic_partitions(broker, request, context(0))
        assert [each.error_code for each in refused.topics] == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("key_type", [0, 1])
async def test_103_every_version_of_find_coordinator_leads_to_the_same_node(
    version: int, key_type: int
) -> None:
    async with broker_in_memory(node_id=3) as broker:
        request = FindCoordinatorRequest(key="k", key_type=key_type, coordinator_keys=["k", "ключ"])
        response = await find_coordinator(broker, request, context(version))
        response = type(response).decode(response.encode(version), version)
    if version >= 4:
        assert [(each.key, each.node_id, each.host, each.port) for each in response.coordinators] == [
            ("k", 3, HOST, PORT),
            ("ключ", 3, HOST, PORT),
        ]
        assert all(each.error_code == ErrorCode.NONE for each in response.coordinators)
    else:
        assert (response.node_id, response.host, response.port) == (3, HOST, PORT)
        assert response.error_code == ErrorCode.NONE


@pytest.mark.parametrize("key_type", [2, 3, -1])
async def test_there_is_no_coordinator_of_share_groups(key_type: int) -> None:
    async with broker_in_memory() as broker:
        request = FindCoordinatorRequest(key="k", key_type=key_type, coordinator_keys=["k"])
        old = await find_coordinator(broker, request, context(3))
        assert (old.error_code, old.node_id) == (ErrorCode.INVALID_REQUEST, -1)
        new = await find_coordinator(broker, request, context(6))
        assert [(each.error_code, each.node_id) for each in new.coordinators] == [
            (ErrorCode.INVALID_REQUEST, -1)
        ]
