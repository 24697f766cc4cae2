"""One process writes a transaction, another decides over it: the outcome follows a note in another system.

python examples/prepared_transaction.py                  # with a broker of its own
python examples/prepared_transaction.py 127.0.0.1:9092   # with one that is running, of any kind

The broker aborts a prepared transaction when its timeout is over. Where it serves two-phase commit (on Semel
with transaction.two.phase.commit.enable) a producer with two_phase=True has no such timeout.
"""

import sys
import uuid
from contextlib import nullcontext

import semel
from semel.client import (
    Admin,
    Client,
    Consumer,
    NewTopic,
    PreparedTransaction,
    TransactionalProducer,
    end_transaction,
)


def write(bootstrap_servers: str, topic: str, text: bytes) -> str:
    """A process that writes, prepares and is gone. What is left is a note."""
    with Client(bootstrap_servers) as client:
        producer = TransactionalProducer(client, f"orders-{uuid.uuid4().hex[:8]}")
        producer.begin()
        producer.send(topic, text)
        prepared = producer.prepare()
        return str(prepared)


def decide(bootstrap_servers: str, note: str, *, commit: bool) -> None:
    """Another process, which has the note and knows the outcome. If it dies meanwhile, it does this again."""
    with Client(bootstrap_servers) as client:
        prepared = PreparedTransaction.parse(note)
        end_transaction(
            client, prepared.transactional_id, prepared.producer_id, prepared.epoch, commit=commit
        )


def main(bootstrap_servers: str) -> None:
    """Two transactions: one is committed, one is not."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    with Client(bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic(topic))
        apples = write(bootstrap_servers, topic, b"three apples")
        pears = write(bootstrap_servers, topic, b"a million pears")
        decide(bootstrap_servers, apples, commit=True)
        decide(bootstrap_servers, pears, commit=False)
        with Consumer(client, topic) as consumer:
            print("committed:", [record.value for record in consumer.read_to_end()])
        Admin(client).topics.delete(topic)


if __name__ == "__main__":
    broker = nullcontext() if len(sys.argv) > 1 else semel.embedded()
    with broker as embedded:
        main(sys.argv[1] if embedded is None else embedded.bootstrap_servers)
