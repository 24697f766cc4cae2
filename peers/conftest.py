"""Brokers and programs for the session. What cannot be built here is skipped, with the reason."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.servers.postgres import why_not

from peers.brokers import Broker, run_cluster, run_kafka, run_semel
from peers.programs import CannotBuild, Program, build_go, build_java, fetch_kafka
from peers.tools import Tools


@pytest.fixture(scope="session")
def kafka_jars() -> str:
    """The class path of Apache Kafka."""
    try:
        return fetch_kafka()
    except CannotBuild as error:
        pytest.skip(f"Apache Kafka and its clients: {error}")


@pytest.fixture(scope="session")
def java_command(kafka_jars: str) -> list[str]:
    try:
        return build_java(kafka_jars)
    except CannotBuild as error:
        pytest.skip(f"the Java client: {error}")


@pytest.fixture(scope="session")
def go_command() -> list[str]:
    try:
        return build_go()
    except CannotBuild as error:
        pytest.skip(f"franz-go: {error}")


@pytest.fixture(scope="session")
def semel_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with run_semel(tmp_path_factory.mktemp("semel")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_broker(kafka_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with run_kafka(kafka_jars, tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def cluster_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with run_cluster(tmp_path_factory.mktemp("cluster")) as broker:
        yield broker


@pytest.fixture(scope="session", params=["semel", "cluster", "kafka"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Semel, alone and as a cluster of three, and Apache Kafka, which sets the standard for Semel."""
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Program]]:
    """The running programs, by client and broker."""
    running: dict[tuple[str, str], Program] = {}
    yield running
    with ExitStack() as stack:
        for each in running.values():
            stack.enter_context(each)


@pytest.fixture(params=["java", "go"])
def client(request: pytest.FixtureRequest) -> str:
    """The name of the client that a test uses."""
    name: str = request.param
    return name


@pytest.fixture
def program(
    client: str,
    broker: Broker,
    programs: dict[tuple[str, str], Program],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Program:
    """The client's program, connected to the broker."""
    key = (client, broker.name)
    if key not in programs:
        command: list[str] = request.getfixturevalue(f"{client}_command")
        log = tmp_path_factory.mktemp("logs") / f"{client}-{broker.name}.log"
        programs[key] = Program([*command, broker.bootstrap], log)
    return programs[key]


@pytest.fixture
def tools(kafka_jars: str, broker: Broker) -> Tools:
    return Tools(kafka_jars, broker.bootstrap)
