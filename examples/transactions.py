"""Read, transform and write, exactly once: a worker dies, another takes over, and nothing counts twice.

python examples/transactions.py                  # with a broker of its own
python examples/transactions.py 127.0.0.1:9092   # with one that is running, of any kind
"""

import sys
import uuid
from contextlib import nullcontext

import semel
from semel.client import Admin, Client, Consumer, NewTopic, Producer, TransactionalProducer


class Died(Exception):
    """What happens to the first worker."""


def copy_in_capitals(client: Client, source: str, target: str, *, dies_at: int | None = None) -> None:
    """The result and the position in the source are one transaction, for every record."""
    worker = TransactionalProducer(client, f"capitals-of-{source}")
    with worker, Consumer(client, source, group_id=f"from-{source}", auto_commit=False) as consumer:
        for record in consumer.read_to_end():
            with worker.transaction():
                worker.send(target, (record.value or b"").upper())
                if record.offset == dies_at:
                    raise Died
                position = {(source, record.partition): record.offset + 1}
                worker.send_offsets(position, consumer.group_metadata())


def main(bootstrap_servers: str) -> None:
    """Write ten words, let two workers copy them, and read what came of it."""
    name = uuid.uuid4().hex[:8]
    source, target = f"words-{name}", f"capitals-{name}"
    with Client(bootstrap_servers) as client:
        admin = Admin(client)
        admin.topics.create(NewTopic(source), NewTopic(target))
        with Producer(client) as producer:
            for number in range(10):
                producer.send(source, b"word %d" % number)

        try:
            copy_in_capitals(client, source, target, dies_at=5)
        except Died:
            print("the first worker died with its sixth word written and not committed")
        copy_in_capitals(client, source, target)

        with Consumer(client, target) as consumer:
            found = [record.value for record in consumer.read_to_end()]
        print(f"{len(found)} words were copied, {len(set(found))} of them different")

        admin.groups.delete(f"from-{source}")
        admin.topics.delete(source, target)


if __name__ == "__main__":
    broker = nullcontext() if len(sys.argv) > 1 else semel.embedded()
    with broker as embedded:
        main(sys.argv[1] if embedded is None else embedded.bootstrap_servers)
