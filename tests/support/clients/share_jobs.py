"""Jobs in the partitions of a topic, and a share group whose members work on them."""

import uuid

from semel.client import Admin, Client, Consumer, Producer, ShareConsumer, ShareRecord
from support.waiting import LIMIT_SECONDS, until

PARTITIONS = 6
WAIT_SECONDS = LIMIT_SECONDS


def new_group(client: Client) -> str:
    name = f"workers-{uuid.uuid4().hex[:8]}"
    # Deliveries that end in an abort count towards the limit.
    configs = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "10"}
    Admin(client).configs.alter_group(name, values=configs)
    return name


def put(client: Client, topic: str, count: int = PARTITIONS) -> set[bytes]:
    values = [b"%s %d" % (topic.encode(), number) for number in range(count)]
    with Producer(client) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % PARTITIONS)
    return set(values)


def taken(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    records: list[ShareRecord] = []

    def have_come() -> bool:
        records.extend(consumer.poll(0.5))
        return len(records) >= count

    until(have_come, what=f"{count} records")
    assert len(records) == count
    return records


def results(client: Client, topic: str) -> list[bytes | None]:
    with Consumer(client, topic) as consumer:
        return [record.value for record in consumer.read_to_end()]
