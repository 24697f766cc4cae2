"""Runs librdkafka's in-memory mock cluster in its own process: prints its address, ends with its input."""

import sys

from confluent_kafka import Producer

PARTITIONS = 4
"""Partitions of every topic. The mock cluster has no CreateTopics: a topic exists once it is requested."""


def main() -> None:
    carrier = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock:9092", "log_level": 0})
    broker = next(iter(carrier.list_topics(timeout=10).brokers.values()))
    print(f"{broker.host}:{broker.port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
