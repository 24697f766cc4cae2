"""Where records go: partitions in topics of four, the number that the mock cluster gives to each topic."""

from bench import mock
from bench.subjects import Subject
from bench.workloads import Place


def topics_of(name: str, partitions: int) -> dict[str, int]:
    """Return as many topics as this number of partitions needs."""
    count = -(-partitions // mock.PARTITIONS)
    return {f"{name}-{at}": mock.PARTITIONS for at in range(count)}


def places(subject: Subject, name: str, partitions: int, **configs: str) -> list[Place]:
    """Return this many partitions, created if needed. The same name gives the same ones again."""
    topics = topics_of(name, partitions)
    subject.create(topics, **configs)
    found = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
    return found[:partitions]
