"""Random transactions over two partitions: every page, in every order, shows what a perfect reader would."""

import random
import threading
from collections.abc import Iterator

import pytest

import semel
from semel.client import Admin, Client, NewTopic, Producer, TransactionalProducer
from semel.console.messages.asking import Ask, resolve
from semel.console.messages.filters import Filter
from semel.console.messages.limits import ScanLimits
from semel.console.messages.reading import MarkedRecord, Reader
from semel.console.messages.scanning import Reason, Scan

WRITERS = 4


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with semel.embedded() as broker, Client(broker.bootstrap_servers) as made:
        yield made


def write(client: Client, topic: str, chance: random.Random) -> dict[str, str]:
    """Write for a while, leave some transactions open, and return the mark of each value."""
    Admin(client).topics.create(NewTopic(topic, 2))
    marks: dict[str, str] = {}
    writers = [TransactionalProducer(client, f"{topic}-{number}") for number in range(WRITERS)]
    open_values: list[list[str]] = [[] for _ in writers]
    for writer in writers:
        writer.init()
    for step in range(120):
        number = chance.randrange(WRITERS + 1)
        value = f"v{step}"
        if number == WRITERS:
            with Producer(client) as producer:
                producer.send(topic, value.encode(), partition=chance.randrange(2))
            marks[value] = "plain"
            continue
        writer = writers[number]
        if open_values[number] and chance.random() < 0.3:
            is_commit = chance.random() < 0.5
            (writer.commit if is_commit else writer.abort)()
            marks.update(dict.fromkeys(open_values[number], "committed" if is_commit else "aborted"))
            open_values[number] = []
            continue
        if not open_values[number]:
            writer.begin()
        writer.send(topic, value.encode(), partition=chance.randrange(2))
        writer.flush()
        open_values[number].append(value)
        marks[value] = "open"
    return marks


def pages(client: Client, topic: str, query: dict[str, str], chance: random.Random) -> Iterator[MarkedRecord]:
    """All records, read in pages of random size that continue each other."""
    ask: Ask | None = Ask.of(query)
    while ask is not None:
        asked = resolve(client, topic, ask)
        reader = Reader(client, topic, asked.bounds, committed=ask.committed)
        limits = ScanLimits(chance.randint(1, 30), 10_000, 1 << 30, 60)
        scan: Scan[MarkedRecord] = Scan(
            reader, asked.ranges, Filter(ask.q), lambda each: each, limits, ask.order, threading.Event()
        )
        for rows in scan.rounds():
            yield from rows
        ask = None if scan.reason is Reason.END else ask.continued(scan.left)
        if ask is not None and not ask.left:
            ask = None


@pytest.mark.parametrize("seed", range(6))
def test_pages_show_what_a_perfect_reader_sees(client: Client, seed: int) -> None:
    chance = random.Random(seed)
    topic = f"random-{seed}"
    marks = write(client, topic, chance)
    for order in ("newest", "oldest"):
        found = list(pages(client, topic, {"isolation": "uncommitted", "order": order}, chance))
        values = [(each.record.value or b"").decode() for each in found]
        assert sorted(values) == sorted(marks), order
        assert {value: each.mark.value for value, each in zip(values, found, strict=True)} == marks
        for partition in (0, 1):
            offsets = [each.offset for each in found if each.partition == partition]
            assert offsets == sorted(offsets, reverse=order == "newest")
        stable = {n: each.stable for n, each in resolve(client, topic, Ask()).bounds.items()}
        wanted = {
            value
            for value, each in zip(values, found, strict=True)
            if each.mark != "aborted" and each.offset < stable[each.partition]
        }
        committed = list(pages(client, topic, {"order": order}, chance))
        assert {(each.record.value or b"").decode() for each in committed} == wanted
        assert len(committed) == len(wanted)
    aborted = list(pages(client, topic, {"isolation": "uncommitted", "q": "is:aborted"}, chance))
    assert len(aborted) == sum(mark == "aborted" for mark in marks.values())
