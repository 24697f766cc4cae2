"""Where records go: partitions in topics of four, because that is what the mock cluster gives to each."""

from bench import mock
from bench.subjects import Subject
from bench.workloads import Place


def topics_of(name: str, partitions: int) -> dict[str, int]:
    """As many topics as so many partitions need."""
    count = -(-partitions // mock.PARTITIONS)
    return {f"{name}-{at}": mock.PARTITIONS for at in range(count)}


def places(subject: Subject, name: str, partitions: int, **configs: str) -> list[Place]:
    """So many partitions, created if need be. The same name gives the same ones again."""
    topics = topics_of(name, partitions)
    subject.create(topics, **configs)
    found = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
    return found[:partitions]
