"""`semel.client` when the broker is away for a moment, between an answer and what the client must ask next.

A member that has just been given partitions asks for the names of their topics. If nobody can be reached
then, it waits as everywhere else; and what it was given, which the broker says only once, is not forgotten.
"""

import time
from collections.abc import Iterable

import pytest

import semel
from semel.client import BrokerUnreachable, Client, Consumer, Producer
from semel.client.consume.membership import ClassicMember, ConsumerMember
from semel.wire.messages import MetadataResponse


class WithoutMetadata(Client):
    """Nobody can be reached who knows about topics, for so many times."""

    away = 0

    def _metadata(self, topics: Iterable[str] | None, create: bool) -> MetadataResponse:
        if self.away:
            self.away -= 1
            raise BrokerUnreachable("the broker is away.")
        return super()._metadata(topics, create)


def first_value(consumer: Consumer) -> bytes | None:
    deadline = time.monotonic() + 30
    while not (records := consumer.poll(0.1)):
        assert time.monotonic() < deadline, "the partition was never read"
    return records[0].value


@pytest.mark.parametrize("member", [ConsumerMember, ClassicMember])
def test_a_member_waits_for_the_names_of_what_it_was_given(
    semel_broker: semel.Embedded, member: type[ClassicMember] | type[ConsumerMember]
) -> None:
    with WithoutMetadata(semel_broker.bootstrap_servers, timeout_s=10) as client:
        Producer(client).send("t", b"there").result()
        client.forget_topic("t")
        consumer = Consumer(client, group_id="g")
        consumer._member = member(client, "g", ["t"])
        client.away = 3
        assert first_value(consumer) == b"there"
        assert client.away == 0
        consumer.close()


def test_what_a_member_was_given_is_not_forgotten(semel_broker: semel.Embedded) -> None:
    with WithoutMetadata(semel_broker.bootstrap_servers, timeout_s=10) as client:
        Producer(client).send("t", b"there").result()
        client.forget_topic("t")
        consumer = Consumer(client, group_id="g")
        consumer._member = ConsumerMember(client, "g", ["t"])
        # Short, but long enough for a broker that asks a database before it answers.
        client.away, client.timeout_s = 1_000_000, 1
        with pytest.raises(BrokerUnreachable):
            first_value(consumer)
        client.away, client.timeout_s = 0, 10
        assert first_value(consumer) == b"there"
        consumer.close()


def test_a_member_says_what_it_has_without_asking_what_that_is(semel_broker: semel.Embedded) -> None:
    """A lost fetch makes the client forget the topic, and the next heartbeat is due at once.

    `make verify` had a consumer that could not go on after a kill right behind an assignment; this fits it.
    """
    with WithoutMetadata(semel_broker.bootstrap_servers, timeout_s=10) as client:
        Producer(client).send("t", b"there").result()
        member = ConsumerMember(client, "g", ["t"])
        deadline = time.monotonic() + 30
        while not member.poll(lambda partitions: None):
            assert time.monotonic() < deadline
        assert member.due_in_s == 0
        client.forget_topic("t")
        client.away = 1
        assert member.poll(lambda partitions: None) is None
        assert client.away == 1, "somebody was asked"
        client.away = 0
        member.leave()


def test_what_is_known_of_a_topic_is_used_while_nobody_knows_better(semel_broker: semel.Embedded) -> None:
    with WithoutMetadata(semel_broker.bootstrap_servers, timeout_s=10) as client:
        producer = Producer(client)
        producer.send("t", b"first").result()
        known, _ = client._topics["t"]
        client._topics["t"] = (known, time.monotonic() - 1e9)
        client.away = 1
        assert client.topic("t") is known
        client.away = 1
        assert producer.send("t", b"second").result().offset == 1
        client.away = 1
        with pytest.raises(BrokerUnreachable):
            client.topic("another")
