"""Queue workers that are exactly-once: some die with a job half done, and every job has one result.

python examples/queue_worker.py                  # with a broker of its own
python examples/queue_worker.py 127.0.0.1:9092   # with a Semel that is running
"""

import sys
import uuid
from contextlib import nullcontext

import semel
from semel.client import Admin, Client, Consumer, NewTopic, Producer, ShareConsumer, TransactionalProducer


class Died(Exception):
    """What happens to a worker now and then."""


def work(bootstrap_servers: str, name: str, *, dies: bool) -> None:
    """Take jobs until there are none. Their results and their acknowledgements are one transaction."""
    with (
        Client(bootstrap_servers) as client,
        TransactionalProducer(client, f"worker-{name}") as producer,
        ShareConsumer(client, f"workers-{name}", f"jobs-{name}") as consumer,
    ):
        while jobs := consumer.poll(1.0, max_records=10):
            with producer.transaction():
                for job in jobs:
                    producer.send(f"results-{name}", b"done: " + (job.value or b""))
                producer.acknowledge(consumer, *jobs)
                if dies:
                    raise Died


def main(bootstrap_servers: str) -> None:
    """Queue thirty jobs, let workers do them, and look at the results."""
    name = uuid.uuid4().hex[:8]
    with Client(bootstrap_servers) as client:
        admin = Admin(client)
        admin.topics.create(NewTopic(f"jobs-{name}"), NewTopic(f"results-{name}"))
        admin.configs.alter_group(f"workers-{name}", values={"share.auto.offset.reset": "earliest"})
        with Producer(client) as producer:
            for number in range(30):
                producer.send(f"jobs-{name}", b"job %d" % number)

        for dies in (True, True, False):
            try:
                work(bootstrap_servers, name, dies=dies)
            except Died:
                print("a worker died with ten results written and ten jobs acknowledged")

        with Consumer(client, f"results-{name}") as consumer:
            found = [record.value for record in consumer.read_to_end()]
        print(f"30 jobs have {len(found)} results, {len(set(found))} of them different")

        admin.groups.delete(f"workers-{name}")
        admin.topics.delete(f"jobs-{name}", f"results-{name}")


if __name__ == "__main__":
    broker = nullcontext() if len(sys.argv) > 1 else semel.embedded()
    with broker as embedded:
        main(sys.argv[1] if embedded is None else embedded.bootstrap_servers)
