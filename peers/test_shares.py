"""Share groups (KIP-932) with Apache Kafka's own client: against Semel, alone and as a cluster, and Kafka.

The scenarios are in java/SharePeer.java. Crashes of brokers and members are here.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess

from peers.brokers import Broker
from peers.programs import HERE, CannotBuild, Program, build_java
from peers.tools import Tools
from semel.client import Admin, Client, Producer

SCENARIOS = ["share", "release", "reject", "several", "closed", "transactions", "timeout", "renew"]
Start = Callable[[str], Program]


@pytest.fixture(scope="session")
def share_command(kafka_jars: str) -> list[str]:
    try:
        return build_java(kafka_jars, HERE / "java" / "SharePeer.java")
    except CannotBuild as error:
        pytest.skip(f"the Java client: {error}")


@pytest.fixture
def start(share_command: list[str], tmp_path: Path) -> Iterator[Start]:
    """Starts a program with a broker's address."""
    with ExitStack() as stack:

        def started(bootstrap: str) -> Program:
            log = tmp_path / f"{uuid.uuid4().hex}.log"
            return stack.enter_context(Program([*share_command, bootstrap], log))

        yield started


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_application(start: Start, broker: Broker, scenario: str) -> None:
    assert start(broker.bootstrap).ask(scenario) == "ok"


class World:
    """A separate broker, with a topic."""

    def __init__(self, process: BrokerProcess, tools: Tools) -> None:
        self.process = process
        self.tools = tools
        with Client(process.bootstrap) as client:
            Admin(client).topics.create("t")
            with Producer(client) as producer:
                for number in range(20):
                    producer.send("t", str(number).encode())


@pytest.fixture
def world(tmp_path: Path, kafka_jars: str) -> Iterator[World]:
    with BrokerProcess(tmp_path / "semel", "--set", "group.share.session.timeout.ms=6000") as process:
        yield World(process, Tools(kafka_jars, process.bootstrap))


def numbers(answer: str) -> list[int]:
    assert answer.startswith("ok"), answer
    return [int(each) for each in answer[2:].strip().split(",") if each]


def test_a_member_that_is_killed_loses_its_records_at_once(start: Start, world: World) -> None:
    holder = start(world.process.bootstrap)
    held = numbers(holder.ask("hold t g"))
    assert held
    holder.__exit__()
    # The lock would last 30 seconds; the end of the connection releases it.
    assert sorted(numbers(start(world.process.bootstrap).ask("consume t g 5"))) == list(range(20))


def test_what_was_acknowledged_survives_the_broker_and_the_rest_comes_again(
    start: Start, world: World
) -> None:
    first = numbers(start(world.process.bootstrap).ask("consume t g 3"))
    assert sorted(first) == list(range(20))
    with Client(world.process.bootstrap) as client, Producer(client) as producer:
        for number in range(20, 30):
            producer.send("t", str(number).encode())
    holder = start(world.process.bootstrap)
    assert numbers(holder.ask("hold t g"))
    world.process.kill()
    world.process.start()
    assert sorted(numbers(start(world.process.bootstrap).ask("consume t g 8"))) == list(range(20, 30))


def test_the_tool_for_share_groups(start: Start, world: World) -> None:
    numbers(start(world.process.bootstrap).ask("consume t g 3"))
    tools = world.tools
    assert "g" in tools.run("consumer.group.ShareGroupCommand", "--list").split()
    described = tools.run("consumer.group.ShareGroupCommand", "--describe", "--group", "g", "--offsets")
    row = next(line.split() for line in described.splitlines() if line.startswith("g "))
    assert row[:4] == ["g", "t", "0", "20"], described
    tools.run(
        "consumer.group.ShareGroupCommand",
        *("--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--execute"),
    )
    assert sorted(numbers(start(world.process.bootstrap).ask("consume t g 3"))) == list(range(20))
    tools.run("consumer.group.ShareGroupCommand", "--delete-offsets", "--group", "g", "--topic", "t")
    tools.run("consumer.group.ShareGroupCommand", "--delete", "--group", "g")
    assert "g" not in tools.run("consumer.group.ShareGroupCommand", "--list").split()
