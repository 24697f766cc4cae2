"""How a project tests its own Kafka code with Semel: run it with `pytest examples/embedded_test.py`.

Installing semel is enough: its pytest plugin brings the fixture `semel_broker`. The code under test may use
any Kafka client; this one uses confluent-kafka.
"""

from confluent_kafka import Consumer, Producer  # type: ignore[import-untyped, unused-ignore]

from semel.embedded import Embedded


def shout(bootstrap_servers: str, source: str, target: str) -> None:
    """The code under test: copies a record in capital letters."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "shout", "auto.offset.reset": "earliest"}
    )
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    consumer.subscribe([source])
    try:
        message = consumer.poll(10)
        assert message is not None, "nothing arrived within ten seconds"
        producer.produce(target, (message.value() or b"").upper())
        producer.flush(10)
    finally:
        consumer.close()


def test_shout(semel_broker: Embedded) -> None:
    """A record goes in, and comes out louder."""
    servers = semel_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("whispers", b"hello")
    producer.flush(10)

    shout(servers, "whispers", "shouts")

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe(["shouts"])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None
    assert message.value() == b"HELLO"
