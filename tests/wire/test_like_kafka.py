"""What Apache Kafka 4.3 answers to the same bytes, where a careful reading of the protocol does not tell.

Every expectation here was observed on Kafka itself, and can be observed again: SEMEL_PEER names a broker to
hold the tests against (one node of Kafka 4.3 with group.initial.rebalance.delay.ms=0). Where Semel differs on
purpose, the handler's docstring says so and there is no test here.
"""

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.peer import PEER, broker_or_peer
from support.clients.raw import KEEPS_RECORDS, NOW, RawClient, batch
from support.waiting import until

from semel.wire.errors import ErrorCode
from semel.wire.messages import configs, fetch, groups, metadata, offsets, produce, topics, transactions
from semel.wire.records import Record, encode_batch

TOPIC_OPERATIONS = 3_576
GROUP_OPERATIONS = 3_400
UNASKED = -(2**31)
TOPIC_RESOURCE, SET, SUBTRACT = 2, 0, 3

_run = uuid.uuid4().hex[:8]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with broker_or_peer({"group.initial.rebalance.delay.ms": 0} | KEEPS_RECORDS) as address:
        yield address


def new_name(kind: str = "like") -> str:
    return f"{kind}-{_run}-{next(_numbers)}"


def make(client: RawClient, partitions: int = 1, **configs: str) -> str:
    """A new topic, with configs by their names with underscores."""
    name = new_name()
    created = create(client, name, num_partitions=partitions, configs=configs)
    assert created.error_code == ErrorCode.NONE, created
    if PEER:
        until(lambda: client.fetch(name).error_code == ErrorCode.NONE, what="a leader")
    return name


def create(
    client: RawClient,
    name: str,
    *,
    num_partitions: int = 1,
    replication_factor: int = 1,
    configs: dict[str, str] | None = None,
    validate_only: bool = False,
) -> Any:
    given = [
        topics.CreatableTopicConfig(name=each.replace("_", "."), value=value)
        for each, value in (configs or {}).items()
    ]
    topic = topics.CreatableTopic(
        name=name, num_partitions=num_partitions, replication_factor=replication_factor, configs=given
    )
    return client.ask(topics.CreateTopicsRequest(topics=[topic], validate_only=validate_only), 7).topics[0]


def named(*names: str) -> list[metadata.MetadataRequestTopic]:
    return [metadata.MetadataRequestTopic(name=each) for each in names]


def topic_id(client: RawClient, name: str) -> bytes:
    request = metadata.MetadataRequest(topics=named(name), allow_auto_topic_creation=False)
    found: bytes = client.ask(request, 12).topics[0].topic_id
    return found


# Produce.


def test_a_duplicate_on_a_topic_with_the_brokers_time_is_answered_with_the_first_time(
    client: RawClient,
) -> None:
    topic = make(client, message_timestamp_type="LogAppendTime")
    producer_id = client.new_producer()
    records = batch(0, 3, producer_id=producer_id, producer_epoch=0)
    first = client.produce(topic, records)
    assert first.log_append_time_ms > NOW
    # Time has to pass, or the clock could say the same by chance.
    until(
        lambda: client.produce(topic, batch()).log_append_time_ms > first.log_append_time_ms,
        what="a later millisecond",
    )
    again = client.produce(topic, records)
    assert (again.base_offset, again.log_append_time_ms) == (first.base_offset, first.log_append_time_ms)
    wanted = transactions.ProducersTopicRequest(name=topic, partition_indexes=[0])
    (state,) = (
        client.ask(transactions.DescribeProducersRequest(topics=[wanted]), 0)
        .topics[0]
        .partitions[0]
        .active_producers
    )
    assert (state.producer_id, state.last_timestamp) == (producer_id, first.log_append_time_ms)


def test_a_duplicate_on_a_topic_with_create_time_is_answered_with_the_records_time(client: RawClient) -> None:
    topic = make(client)
    records = batch(0, producer_id=client.new_producer(), producer_epoch=0)
    assert client.produce(topic, records).log_append_time_ms == -1
    assert client.produce(topic, records).log_append_time_ms == NOW


def test_that_a_topic_is_unknown_matters_more_than_wrong_acks(client: RawClient) -> None:
    assert client.produce(make(client), batch(), acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    unknown = client.produce(new_name(), batch(), acks=2)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_transactional_batch_without_an_id_refuses_the_whole_request(client: RawClient) -> None:
    topic = make(client, partitions=2)
    transactional = encode_batch(
        [Record(0, NOW, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    parts = [
        produce.PartitionProduceData(index=index, records=each)
        for index, each in enumerate((batch(), transactional))
    ]
    request = produce.ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[produce.TopicProduceData(name=topic, partition_data=parts)]
    )
    answers = client.ask(request, 9).responses[0].partition_responses
    unauthorized = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert sorted((each.index, each.error_code) for each in answers) == [(0, unauthorized), (1, unauthorized)]
    assert client.fetch(topic).high_watermark == 0, "nothing of it was appended"


# Fetch, and where in the log.


@pytest.mark.parametrize(
    ("epoch", "fetched", "ended"),
    [
        (-5, ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH),
        (-1, ErrorCode.NONE, ErrorCode.NONE),
        (0, ErrorCode.NONE, ErrorCode.NONE),
        (1, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_kip_320_only_fetch_takes_every_epoch_below_zero_for_none(
    client: RawClient, epoch: int, fetched: int, ended: int
) -> None:
    topic = make(client)
    (described,) = client.ask(
        metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)]), 9
    ).topics
    if epoch >= 0:
        # In a cluster, leaders have come and gone before.
        epoch += described.partitions[0].leader_epoch
    wanted = fetch.FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=1)
    request = fetch.FetchRequest(max_wait_ms=0, topics=[fetch.FetchTopic(topic=topic, partitions=[wanted])])
    assert client.ask(request, 11).responses[0].partitions[0].error_code == fetched
    part = fetch.OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=0)
    topics = [fetch.OffsetForLeaderTopic(topic=topic, partitions=[part])]
    answer = client.ask(fetch.OffsetForLeaderEpochRequest(topics=topics), 4)
    assert answer.topics[0].partitions[0].error_code == ended


def test_records_can_be_deleted_when_the_topic_has_no_cleanup_policy(client: RawClient) -> None:
    def delete(topic: str) -> tuple[int, int]:
        part = topics.DeleteRecordsPartition(partition_index=0, offset=1)
        request = topics.DeleteRecordsRequest(
            topics=[topics.DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=10_000
        )
        answer = client.ask(request, 2).topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    kept = make(client, cleanup_policy="")
    client.produce(kept, batch())
    assert delete(kept) == (ErrorCode.NONE, 1)
    assert delete(make(client, cleanup_policy="compact")) == (ErrorCode.POLICY_VIOLATION, -1)
    both = make(client, cleanup_policy="compact,delete")
    assert delete(both) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


# Metadata.


@pytest.mark.parametrize("version", [10, 11])
def test_before_version_12_a_topic_id_refuses_the_whole_request(client: RawClient, version: int) -> None:
    topic = make(client)
    by_id = metadata.MetadataRequestTopic(name=None, topic_id=topic_id(client, topic))
    answer = client.ask(metadata.MetadataRequest(topics=[by_id, *named(topic)]), version)
    assert [(each.error_code, each.name) for each in answer.topics] == [
        (ErrorCode.INVALID_REQUEST, ""),
        (ErrorCode.INVALID_REQUEST, topic),
    ]
    assert answer.topics[0].topic_id == by_id.topic_id
    assert answer.brokers == []


@pytest.mark.parametrize("version", [8, 10, 13])
def test_operations_are_told_of_a_topic_that_is_missing_too(client: RawClient, version: int) -> None:
    request = metadata.MetadataRequest(
        topics=named(make(client), new_name()),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    topics = client.ask(request, version).topics
    assert [each.topic_authorized_operations for each in topics] == [TOPIC_OPERATIONS] * 2


@pytest.mark.parametrize("endpoint_type", [0, 3])
def test_an_endpoint_type_that_is_unknown_is_not_repeated(client: RawClient, endpoint_type: int) -> None:
    answer = client.ask(metadata.DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert (answer.error_code, answer.endpoint_type) == (ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, 1)


def test_a_page_begins_at_a_topic_that_is_asked_for(client: RawClient) -> None:
    first, second = make(client), make(client)

    def page(cursor: str, *names: str) -> list[tuple[str, int, int]]:
        request = metadata.DescribeTopicPartitionsRequest(
            topics=[metadata.PartitionsTopicRequest(name=each) for each in names],
            cursor=metadata.Cursor(topic_name=cursor, partition_index=0),
        )
        topics = client.ask(request, 0).topics
        return [(each.name, each.error_code, each.topic_authorized_operations) for each in topics]

    assert page(second, first, second) == [(second, ErrorCode.NONE, TOPIC_OPERATIONS)]
    assert page(second, first) == [(first, ErrorCode.INVALID_REQUEST, UNASKED)]
    gone = f"{first}-"
    unknown = (gone, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TOPIC_OPERATIONS)
    assert page(gone, first, gone) == [unknown], "a topic may be deleted between two pages"


# Topics and their configs.


def test_a_wrong_name_or_a_topic_that_exists_matters_more_than_a_wrong_number(client: RawClient) -> None:
    assert create(client, "a/b", num_partitions=0).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert create(client, "a/b", replication_factor=0).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    topic = make(client)
    assert create(client, topic, num_partitions=0).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert create(client, topic, replication_factor=0).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert create(client, topic, configs={"foo": "1"}).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert create(client, new_name(), num_partitions=0).error_code == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        *(("compression_gzip_level", value, ErrorCode.NONE) for value in ("-1", "1", "9")),
        *(("compression_gzip_level", value, ErrorCode.INVALID_CONFIG) for value in ("-2", "10")),
        *(("compression_lz4_level", value, ErrorCode.NONE) for value in ("1", "17")),
        *(("compression_lz4_level", value, ErrorCode.INVALID_CONFIG) for value in ("0", "18")),
        *(("compression_zstd_level", value, ErrorCode.NONE) for value in ("-131072", "22")),
        *(("compression_zstd_level", value, ErrorCode.INVALID_CONFIG) for value in ("-131073", "23")),
        *(("cleanup_policy", value, ErrorCode.NONE) for value in ("", " ", "delete,delete")),
        *(("cleanup_policy", value, ErrorCode.INVALID_CONFIG) for value in (",", "none")),
        ("retention_bytes", "-2", ErrorCode.NONE),
        ("retention_ms", "-2", ErrorCode.INVALID_CONFIG),
        ("remote_storage_enable", "FALSE", ErrorCode.NONE),
        ("remote_storage_enable", "true", ErrorCode.INVALID_CONFIG),
    ],
)
def test_which_values_configs_may_have(client: RawClient, name: str, value: str, error: int) -> None:
    assert create(client, new_name(), configs={name: value}, validate_only=True).error_code == error


def test_the_last_cleanup_policy_may_be_taken_away_and_tiers_not_turned_on(client: RawClient) -> None:
    topic = make(client)

    def alter(name: str, operation: int, value: str) -> int:
        config = configs.IncrementalAlterConfigsAlterableConfig(
            name=name, config_operation=operation, value=value
        )
        resource = configs.IncrementalAlterConfigsAlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[config]
        )
        code: int = (
            client.ask(configs.IncrementalAlterConfigsRequest(resources=[resource]), 1)
            .responses[0]
            .error_code
        )
        return code

    assert alter("cleanup.policy", SUBTRACT, "delete") == ErrorCode.NONE
    assert alter("remote.storage.enable", SET, "true") == ErrorCode.INVALID_CONFIG


# Groups.


def join_request(group: str) -> groups.JoinGroupRequest:
    return groups.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def join(client: RawClient, group: str) -> Any:
    """The only member of a new classic group; version 3 needs no second round for the member id."""
    request = join_request(group)
    retriable = (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
    answers: list[Any] = []

    def is_ready() -> bool:
        answers.append(client.ask(request, 3))
        return answers[-1].error_code not in retriable

    until(is_ready, what="a coordinator")
    assert answers[-1].error_code == ErrorCode.NONE
    return answers[-1]


def test_sync_group_must_name_the_protocol_from_version_5_on(client: RawClient) -> None:
    group = new_name("group")
    joined = join(client, group)

    def sync(version: int, **fields: Any) -> int:
        request = groups.SyncGroupRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, **fields
        )
        code: int = client.ask(request, version).error_code
        return code

    assert sync(5) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync(5, protocol_type="consumer", protocol_name="other") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync(5, protocol_type="consumer", protocol_name="range") == ErrorCode.NONE
    assert sync(4) == ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 5, 6])
def test_operations_are_told_of_groups(client: RawClient, version: int) -> None:
    known, unknown = new_name("group"), new_name("group")
    join(client, known)
    request = groups.DescribeGroupsRequest(groups=[known, unknown], include_authorized_operations=True)
    told = {each.group_id: each.authorized_operations for each in client.ask(request, version).groups}
    assert told == {known: GROUP_OPERATIONS, unknown: UNASKED if version >= 6 else GROUP_OPERATIONS}


def test_offsets_are_deleted_only_in_partitions_that_exist(client: RawClient) -> None:
    group, topic = new_name("group"), make(client)
    join(client, new_name("group"))
    part = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    commit = offsets.OffsetCommitRequest(
        group_id=group, topics=[offsets.OffsetCommitRequestTopic(name=topic, partitions=[part])]
    )
    client.ask(commit, 8)

    def delete(group: str, *indexes: int) -> tuple[int, list[int]]:
        parts = [offsets.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        request = offsets.OffsetDeleteRequest(
            group_id=group, topics=[offsets.OffsetDeleteRequestTopic(name=topic, partitions=parts)]
        )
        answer = client.ask(request, 0)
        return answer.error_code, [each.error_code for top in answer.topics for each in top.partitions]

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(group, 9, -1) == (ErrorCode.NONE, [unknown, unknown])
    assert delete(group, 0) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert delete(group, 0) == (ErrorCode.NONE, [ErrorCode.NONE]), "a retry is no error"
    assert delete("", 0) == (ErrorCode.INVALID_GROUP_ID, [])
    assert delete(new_name("group"), 0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


@pytest.mark.parametrize("field", ["group_id", "member_id", "instance_id", "rack_id"])
def test_kip_848_names_of_blanks_are_refused(client: RawClient, field: str) -> None:
    join(client, new_name("group"))
    fields: dict[str, Any] = {"group_id": new_name("group"), "member_id": str(uuid.uuid4()), field: "  "}
    request = groups.ConsumerGroupHeartbeatRequest(
        **fields, rebalance_timeout_ms=1_000, subscribed_topic_names=[], topic_partitions=[]
    )
    assert client.ask(request, 1).error_code == ErrorCode.INVALID_REQUEST


def test_kip_848_a_member_without_an_expression_has_an_empty_one(client: RawClient) -> None:
    group = new_name("group")
    join(client, new_name("group"))
    request = groups.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=str(uuid.uuid4()),
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[make(client)],
        topic_partitions=[],
    )
    assert client.ask(request, 1).error_code == ErrorCode.NONE
    known, unknown = client.ask(groups.ConsumerGroupDescribeRequest(group_ids=[group, ""]), 1).groups
    if known.group_id != group:
        known, unknown = unknown, known
    assert [each.subscribed_topic_regex for each in known.members] == [""]
    assert unknown.error_code == ErrorCode.INVALID_GROUP_ID


def test_a_members_assignment_is_shown_while_the_group_rebalances(client: RawClient, bootstrap: str) -> None:
    group = new_name("group")
    joined = join(client, group)
    assignment = groups.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
    sync = groups.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[assignment],
    )
    assert client.ask(sync, 3).assignment == b"mine"
    with RawClient(bootstrap) as other:
        other.send(join_request(group), 3)

        def described() -> Any:
            return client.ask(groups.DescribeGroupsRequest(groups=[group]), 5).groups[0]

        until(lambda: described().group_state == "PreparingRebalance", what="a rebalance")
        assert sorted((each.member_metadata, each.member_assignment) for each in described().members) == [
            (b"", b""),
            (b"", b"mine"),
        ]


def test_kip_848_what_a_member_is_told_to_give_up_is_still_its_own(client: RawClient) -> None:
    group, topic = new_name("group"), make(client, partitions=2)
    join(client, new_name("group"))

    def beat(member_id: str, epoch: int, **fields: Any) -> Any:
        request = groups.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=epoch, **fields
        )
        answer = client.ask(request, 1)
        assert answer.error_code == ErrorCode.NONE
        return answer

    joining = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic], "topic_partitions": []}
    first = beat("first", 0, **joining)
    owned = first.assignment.topic_partitions
    assert len(owned[0].partitions) == 2
    beat("second", 0, **joining)

    def is_told() -> bool:
        # Kafka makes new assignments a moment later.
        told = beat("first", first.member_epoch, topic_partitions=owned).assignment
        return told is not None and len(told.topic_partitions[0].partitions) == 1

    until(is_told, what="the order to give a partition up")
    described = client.ask(groups.ConsumerGroupDescribeRequest(group_ids=[group]), 1).groups[0]
    shown = {
        each.member_id: [
            sum(len(one.partitions) for one in side.topic_partitions)
            for side in (each.assignment, each.target_assignment)
        ]
        for each in described.members
    }
    assert shown == {"first": [2, 1], "second": [0, 1]}
