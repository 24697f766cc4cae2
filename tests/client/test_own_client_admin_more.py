"""The client's view of sizes, documented configs, many transactions at once, and what a reset would do."""

import pytest
from support.clients.confluent import Fresh

from semel.client import Admin, Client, NewTopic, Producer, ResourceType, TransactionalProducer
from semel.client.admin import blocking
from semel.client.admin.group_offsets import reset_targets
from semel.client.admin.topics import log_directories, partition_sizes
from semel.client.admin.transactions import describe_transactions


@pytest.fixture
def topic(client: Client, fresh: Fresh) -> str:
    name: str = fresh("topic")
    Admin(client).topics.create(NewTopic(name, 2))
    with Producer(client) as producer:
        for number in range(10):
            producer.send(name, b"x" * 1000, partition=number % 2)
    return name


def test_sizes_of_partitions_and_directories(client: Client, topic: str) -> None:
    sizes = partition_sizes(client, [topic])
    assert set(sizes) == {(topic, 0), (topic, 1)}
    assert all(size > 1000 for size in sizes.values())
    assert partition_sizes(client, []) == {}
    assert [each.node_id for each in log_directories(client)] == [
        each.node_id for each in client.describe(topics=()).nodes
    ]


def test_configs_have_documentation_if_it_is_asked_for(client: Client, topic: str) -> None:
    configs = Admin(client).configs
    asked = configs.describe(ResourceType.TOPIC, topic, documented=True)
    assert all(each.documentation for each in asked if each.name == "retention.ms")
    assert not any(each.documentation for each in configs.of_topic(topic))


def test_many_transactions_are_described_at_once(client: Client, topic: str, fresh: Fresh) -> None:
    names = [fresh("id") for _ in range(5)]
    for name in names:
        producer = TransactionalProducer(client, name)
        producer.begin()
        producer.send(topic, b"x", partition=0)
        producer.flush()
    found = describe_transactions(client, [*names, "never-used", names[0]])
    assert set(found) == set(names)
    assert {each.state for each in found.values()} == {"Ongoing"}
    assert found[names[0]].partitions == ((topic, 0),)
    for name in names:
        assert blocking.open_of(client, name).transactional_id == name
        Admin(client).transactions.fence(name)
        with pytest.raises(blocking.NotOpen):
            blocking.open_of(client, name)


def test_what_a_reset_would_do(client: Client, topic: str) -> None:
    keys = [(topic, 0), (topic, 1)]
    before = {keys[0]: 2}
    assert reset_targets(client, keys, before, to_earliest=True) == {keys[0]: 0, keys[1]: 0}
    assert reset_targets(client, keys, before) == {keys[0]: 5, keys[1]: 5}
    assert reset_targets(client, keys, before, to_offset=3) == {keys[0]: 3, keys[1]: 3}
    assert reset_targets(client, keys, before, shift_by=2) == {keys[0]: 4, keys[1]: 2}
    assert reset_targets(client, keys, before, shift_by=-9) == {keys[0]: 0, keys[1]: 0}
    assert reset_targets(client, keys, before, time_ms=0) == {keys[0]: 0, keys[1]: 0}
    assert reset_targets(client, keys, before, time_ms=1 << 50) == {keys[0]: 5, keys[1]: 5}
