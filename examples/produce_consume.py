"""Write three records and read them back.

python examples/produce_consume.py                  # with a broker of its own
python examples/produce_consume.py 127.0.0.1:9092   # with one that is running, of any kind
"""

import sys
import uuid
from contextlib import nullcontext

import semel
from semel.client import Admin, Client, Consumer, NewTopic, Producer


def main(bootstrap_servers: str) -> None:
    """Create a topic, write, read, delete the topic."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    with Client(bootstrap_servers) as client:
        admin = Admin(client)
        admin.topics.create(NewTopic(topic, partitions=2))

        with Producer(client) as producer:
            apples = producer.send(topic, b"three apples", key=b"customer-7", headers={"source": b"shop"})
            producer.send(topic, b"two pears", key=b"customer-8")
            producer.send(topic, b"one more apple", key=b"customer-7")
        # Leaving the block sent everything. From here on the records are on the broker's disk.
        delivered = apples.result()
        print(f"three apples are at offset {delivered.offset} of partition {delivered.partition}")

        with Consumer(client, topic) as consumer:
            for record in consumer.read_to_end():
                print(f"{record.partition}@{record.offset}", record.key, record.value, dict(record.headers))

        admin.topics.delete(topic)


if __name__ == "__main__":
    broker = nullcontext() if len(sys.argv) > 1 else semel.embedded()
    with broker as embedded:
        main(sys.argv[1] if embedded is None else embedded.bootstrap_servers)
