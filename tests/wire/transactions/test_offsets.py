"""Consumer offsets inside transactions. Behaviours 82 to 92."""

from pathlib import Path
from typing import Any

import pytest
from support.brokers.peer import PEER
from support.clients.raw import RawClient
from support.clients.raw_groups import ClassicMember, ConsumerMember, commit_offset, join_request
from support.clients.raw_transactions import RawProducer, committed, describe, new_name, ours, soon

import semel
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    offsets,
    transactions,
)
from semel.wire.messages.groups import JoinGroupRequest

UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
NOTHING = (ErrorCode.NONE, -1)


@pytest.fixture
def group(client: RawClient) -> str:
    name = new_name("group")
    if PEER:
        # Elsewhere the group coordinator may need a moment, once.
        soon(lambda: client.ask(FindCoordinatorRequest(key=name, key_type=0), 2).error_code == 0)
        soon(
            lambda: (
                commit_offset(client, new_name("group"), "none", 0) != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            )
        )
    return name


def test_behaviour_82_offsets_count_when_the_transaction_commits(
    producer: RawProducer, topic: str, group: str
) -> None:
    client = producer.client
    producer.write_offset(group, topic, 3)
    assert committed(client, group, topic) == NOTHING
    producer.abort()
    soon(lambda: committed(client, group, topic, stable=True) == NOTHING)
    producer.write_offset(group, topic, 4)
    producer.commit()
    soon(lambda: committed(client, group, topic, stable=True) == (0, 4))


def test_behaviour_82_together_with_records_and_other_groups(
    producer: RawProducer, topic: str, group: str
) -> None:
    groups = [group, new_name("group"), new_name("group")]
    for number, each in enumerate(groups):
        producer.write(topic, b"v")
        producer.write_offset(each, topic, number)
    producer.commit()
    for number, each in enumerate(groups):
        soon(lambda each=each, number=number: committed(producer.client, each, topic) == (0, number))  # type: ignore[misc]  # a default: mypy infers no such lambda


def test_behaviour_83_a_reader_can_ask_for_stable_offsets(
    producer: RawProducer, topic: str, group: str
) -> None:
    client = producer.client
    assert commit_offset(client, group, topic, 1) == ErrorCode.NONE
    producer.write_offset(group, topic, 2)
    assert committed(client, group, topic) == (0, 1)
    assert committed(client, group, topic, stable=True) == UNSTABLE
    producer.commit()
    soon(lambda: committed(client, group, topic, stable=True) == (0, 2))


def test_behaviour_83_all_partitions_leaves_out_what_is_only_pending(
    producer: RawProducer, topic: str, group: str
) -> None:
    producer.write_offset(group, topic, 2)
    request = offsets.OffsetFetchRequest(
        groups=[offsets.OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=True
    )
    (answer,) = producer.client.ask(request, 8).groups
    assert (answer.error_code, answer.topics) == (ErrorCode.NONE, [])
    producer.abort()


def test_behaviour_84_members_of_a_classic_group_are_checked(
    producer: RawProducer, topic: str, group: str
) -> None:
    member = ClassicMember(producer.client, group)
    if producer.generation == 1:
        assert producer.add_offsets(group) == ErrorCode.NONE

    def send(**fields: Any) -> int:
        return producer.send_offset(group, topic, 1, **fields)

    known = {"generation_id": member.generation, "member_id": member.member_id}
    assert send(**known) == ErrorCode.NONE
    assert send(**{**known, "generation_id": member.generation - 1}) == ErrorCode.ILLEGAL_GENERATION
    assert send(**{**known, "generation_id": member.generation + 1}) == ErrorCode.ILLEGAL_GENERATION
    assert send(**{**known, "member_id": "nobody"}) == ErrorCode.UNKNOWN_MEMBER_ID
    assert send(**{**known, "group_instance_id": "nobody"}) == ErrorCode.UNKNOWN_MEMBER_ID
    assert send() == ErrorCode.NONE, "without member info, although the group has a member"
    producer.abort()


def test_behaviour_84_an_instance_of_another_member_is_fenced(
    producer: RawProducer, topic: str, group: str
) -> None:
    request = join_request(group)
    static = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=request.protocols,
        group_instance_id="one",
    )
    joined = producer.client.ask(static, 5)
    assert joined.error_code == ErrorCode.NONE
    if producer.generation == 1:
        producer.add_offsets(group)
    code = producer.send_offset(
        group, topic, 1, generation_id=joined.generation_id, member_id="other", group_instance_id="one"
    )
    assert code == ErrorCode.FENCED_INSTANCE_ID
    producer.abort()


def test_behaviour_84_members_of_a_consumer_group_are_checked(
    producer: RawProducer, topic: str, group: str
) -> None:
    member = ConsumerMember(producer.client, group, topic)
    if producer.generation == 1:
        producer.add_offsets(group)

    def send(**fields: Any) -> int:
        return producer.send_offset(group, topic, 1, **fields)

    assert send(generation_id=member.epoch, member_id=member.member_id) == ErrorCode.NONE
    assert send(generation_id=member.epoch + 1, member_id=member.member_id) == ErrorCode.ILLEGAL_GENERATION
    assert send(generation_id=member.epoch, member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert send() == ErrorCode.NONE
    producer.abort()


def test_behaviour_85_a_group_that_nobody_knows(producer: RawProducer, topic: str, group: str) -> None:
    if producer.generation == 1:
        producer.add_offsets(group)
    assert producer.send_offset(group, topic, 1, generation_id=5) == ErrorCode.ILLEGAL_GENERATION
    assert producer.send_offset(group, topic, 1) == ErrorCode.NONE
    producer.commit()
    soon(lambda: committed(producer.client, group, topic) == (0, 1))


@pytest.mark.parametrize(("version", "code"), [(0, 48), (1, 48), (2, 48), (3, 48), (4, 120)])
def test_behaviour_86_a_group_must_have_been_added(
    first: RawProducer, topic: str, group: str, version: int, code: int
) -> None:
    assert first.send_offset(group, topic, 1, version=version) == code
    assert describe(first.client, first.transactional_id).transaction_state == "Empty"
    assert first.add_offsets(group) == ErrorCode.NONE
    assert first.send_offset(group, topic, 1, version=version) == ErrorCode.NONE


def test_behaviour_86_or_writing_adds_it(second: RawProducer, topic: str, group: str) -> None:
    assert second.send_offset(group, topic, 1) == ErrorCode.NONE
    found = describe(second.client, second.transactional_id)
    assert [each.topic for each in found.topics] == ["__consumer_offsets"]
    assert len(found.topics[0].partitions) == 1


def test_behaviour_87_the_later_commit_wins_whatever_the_order_of_the_ends(
    producer: RawProducer, topic: str, group: str
) -> None:
    client = producer.client
    producer.write_offset(group, topic, 7)
    assert commit_offset(client, group, topic, 3) == ErrorCode.NONE
    producer.commit()
    soon(lambda: committed(client, group, topic, stable=True) == (0, 3))


def test_behaviour_87_also_between_two_transactions(client: RawClient, topic: str, group: str) -> None:
    earlier, later = RawProducer(client), RawProducer(client, generation=2)
    earlier.write_offset(group, topic, 1)
    later.write_offset(group, topic, 2)
    later.commit()
    assert committed(client, group, topic, stable=True) == UNSTABLE
    earlier.commit()
    soon(lambda: committed(client, group, topic, stable=True) == (0, 2))


def test_behaviour_87_an_aborted_one_in_between_does_not_count(
    client: RawClient, topic: str, group: str
) -> None:
    earlier, later = RawProducer(client), RawProducer(client, generation=2)
    earlier.write_offset(group, topic, 1)
    later.write_offset(group, topic, 2)
    later.abort()
    earlier.commit()
    soon(lambda: committed(client, group, topic, stable=True) == (0, 1))


def test_behaviour_88_deleted_offsets_do_not_come_back(producer: RawProducer, topic: str, group: str) -> None:
    client = producer.client
    assert commit_offset(client, group, topic, 1) == ErrorCode.NONE
    producer.write_offset(group, topic, 2)
    parts = [OffsetDeleteRequestPartition(partition_index=0)]
    request = OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=parts)]
    )
    answer = client.ask(request, 0)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert committed(client, group, topic, stable=True) == NOTHING
    producer.commit()
    soon(lambda: describe(client, producer.transactional_id).transaction_state == "CompleteCommit")
    assert committed(client, group, topic, stable=True) == NOTHING


def test_behaviour_88_nor_does_a_deleted_group(producer: RawProducer, topic: str, group: str) -> None:
    client = producer.client
    assert commit_offset(client, group, topic, 1) == ErrorCode.NONE
    producer.write_offset(group, topic, 2)
    (answer,) = client.ask(DeleteGroupsRequest(groups_names=[group]), 2).results
    assert answer.error_code == ErrorCode.NONE
    producer.commit()
    soon(lambda: describe(client, producer.transactional_id).transaction_state == "CompleteCommit")
    assert committed(client, group, topic, stable=True) == NOTHING


def test_behaviour_89_metadata_that_is_too_long_is_refused_alone(
    first: RawProducer, topic: str, group: str
) -> None:
    client = first.client
    assert first.add_offsets(group) == ErrorCode.NONE
    parts = [
        transactions.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata="m" * length
        )
        for length in (4_096, 4_097)
    ]
    request = transactions.TxnOffsetCommitRequest(
        transactional_id=first.transactional_id,
        group_id=group,
        producer_id=first.producer_id,
        producer_epoch=first.epoch,
        topics=[transactions.TxnOffsetCommitRequestTopic(name=topic, partitions=parts)],
    )
    answers = client.ask(request, 3).topics[0].partitions
    assert [each.error_code for each in answers] == [0, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    first.commit()
    soon(lambda: committed(client, group, topic) == (0, 1))


def test_behaviour_90_a_rebalance_does_not_refuse_them(producer: RawProducer, topic: str, group: str) -> None:
    client = producer.client
    joined = client.ask(join_request(group), 3)
    assert joined.error_code == ErrorCode.NONE, "now the leader's assignment is waited for"
    if producer.generation == 1:
        producer.add_offsets(group)
    member = {"generation_id": joined.generation_id, "member_id": joined.member_id}
    assert producer.send_offset(group, topic, 1, **member) == ErrorCode.NONE
    part = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    plain = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=joined.generation_id,
        member_id=joined.member_id,
        topics=[offsets.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )
    answer = client.ask(plain, 7).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    producer.commit()
    soon(lambda: committed(client, group, topic, stable=True) == (0, 1))


def test_behaviour_91_a_zombie_commits_nothing(producer: RawProducer, topic: str, group: str) -> None:
    producer.write_offset(group, topic, 1)
    newer = RawProducer(producer.client, producer.transactional_id, producer.generation)
    assert producer.send_offset(group, topic, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
    newer.write_offset(group, topic, 3)
    newer.commit()
    soon(lambda: committed(producer.client, group, topic, stable=True) == (0, 3))


@ours
@pytest.mark.parametrize("generation", [1, 2])
def test_behaviour_92_pending_offsets_survive_a_restart(tmp_path: Path, generation: int) -> None:
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        commit_offset(client, "g", "t", 1)
        producer = RawProducer(client, "id", generation)
        producer.write_offset("g", "t", 2)
        dropped = RawProducer(client, "dropped", generation)
        dropped.write_offset("h", "t", 2)
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert committed(client, "g", "t") == (0, 1)
        assert committed(client, "g", "t", stable=True) == UNSTABLE
        producer.client = dropped.client = client
        producer.commit()
        dropped.abort()
        assert committed(client, "g", "t", stable=True) == (0, 2)
        assert committed(client, "h", "t", stable=True) == NOTHING


def test_a_retry_inside_a_transaction_replaces_what_was_pending(
    producer: RawProducer, topic: str, group: str
) -> None:
    """Catalogue 88: the second one must not collide with the first."""
    producer.write_offset(group, topic, 1)
    producer.write_offset(group, topic, 1)
    producer.write_offset(group, topic, 2)
    producer.commit()
    soon(lambda: committed(producer.client, group, topic, stable=True) == (0, 2))


def test_pending_offsets_do_not_leak_into_the_next_transaction(
    producer: RawProducer, topic: str, group: str
) -> None:
    """Catalogue 83 and 88: nor may the next one's be taken by the end of this one."""
    client = producer.client
    for number in range(5):
        producer.write_offset(group, topic, number)
        if number % 2:
            producer.abort()
        else:
            producer.commit()
    soon(lambda: committed(client, group, topic, stable=True) == (0, 4))
