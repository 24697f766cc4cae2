"""`semel.embedded` and the pytest plugin: quick to start, nothing left behind, errors told."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import semel
from semel.client import (
    Admin,
    Client,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
    TransactionAborted,
    TransactionalProducer,
)
from semel.config import UnknownSetting

NOTHING_BEHIND = """
import os, socket, threading
from pathlib import Path
import semel
from semel.client import Client, Consumer, Producer

def open_files():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that lists the folder
            continue
    return found

with semel.embedded():
    pass  # what the first one loads stays loaded
threads, files = set(threading.enumerate()), open_files()
with semel.embedded() as broker, Client(broker.bootstrap_servers) as client:
    with Producer(client) as producer:
        producer.send("t", b"hello")
    with Consumer(client, "t") as consumer:
        assert [record.value for record in consumer.read_to_end()] == [b"hello"]
    port = broker.port
assert set(threading.enumerate()) == threads, threading.enumerate()
assert open_files() == files, open_files()
assert list(Path.cwd().iterdir()) == []
with socket.create_server(("127.0.0.1", port)):
    pass  # the port is free again
"""


def test_a_broker_in_memory_serves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """In a process of its own: threads and files of other tests are not ours to count."""
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_BEHIND], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_it_starts_sooner_than_python_does() -> None:
    """The best of five of each, because the machine may have other things to do."""

    def start_broker() -> None:
        with semel.embedded():
            pass

    def start_python() -> None:
        subprocess.run([sys.executable, "-c", "import semel.client"], check=True, timeout=60)

    def best(start: Callable[[], None]) -> float:
        took = []
        for _ in range(5):
            began = time.monotonic()
            start()
            took.append(time.monotonic() - began)
        return min(took)

    assert best(start_broker) < best(start_python)


def test_a_directory_keeps_its_records(tmp_path: Path) -> None:
    for number in range(3):
        with (
            semel.embedded(tmp_path / "data") as broker,
            Client(broker.bootstrap_servers) as client,
            Producer(client) as producer,
        ):
            assert producer.send("t", b"%d" % number).result().offset == number
    with (
        semel.embedded(tmp_path / "data") as broker,
        Client(broker.bootstrap_servers) as client,
        Consumer(client, "t") as consumer,
    ):
        assert [record.value for record in consumer.read_to_end()] == [b"0", b"1", b"2"]


def test_a_directory_in_use_is_an_error_that_says_so(tmp_path: Path) -> None:
    with semel.embedded(tmp_path), pytest.raises(semel.EmbeddedError, match="in use"):
        semel.embedded(tmp_path).start()


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with semel.embedded() as broker, pytest.raises(semel.EmbeddedError, match="cannot listen"):
        semel.embedded(port=broker.port).start()
    assert not [thread for thread in threading.enumerate() if thread.name == "semel broker"]


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(UnknownSetting, match=r"num\.partitions"):
        semel.embedded(settings={"num.partition": 3}).start()


def test_settings_are_kafkas_and_win_over_the_defaults() -> None:
    settings = {"num.partitions": "3", "auto.create.topics.enable": False}
    with semel.embedded(settings=settings) as broker, Client(broker.bootstrap_servers) as client:
        with Producer(client) as producer, pytest.raises(KafkaError, match="'typo'"):
            producer.send("typo", b"")
        assert Admin(client).topics.create("t")[0].partitions == 3


def test_start_and_close_without_with() -> None:
    broker = semel.embedded()
    with pytest.raises(semel.EmbeddedError, match="not running"):
        _ = broker.bootstrap_servers
    assert broker.start() is broker
    with pytest.raises(semel.EmbeddedError, match="already running"):
        broker.start()
    broker.close()
    broker.close()
    with pytest.raises(semel.EmbeddedError, match="not running"):
        _ = broker.port
    with broker:
        assert broker.port > 0


def test_what_stops_the_broker_is_told_to_the_caller() -> None:
    broker = semel.embedded().start()
    reason = OSError("the disk is on fire")
    assert broker._loop is not None
    assert broker._server is not None
    assert broker._thread is not None
    broker._loop.call_soon_threadsafe(broker._server.fail, reason)
    broker._thread.join(10)
    with pytest.raises(semel.EmbeddedError, match="stopped after a failure"):
        _ = broker.bootstrap_servers
    with pytest.raises(semel.EmbeddedError, match="the disk is on fire") as raised:
        broker.close()
    assert raised.value.__cause__ is reason


def test_an_error_of_the_caller_is_not_hidden() -> None:
    def work() -> None:
        with semel.embedded() as broker:
            assert broker._loop is not None
            assert broker._server is not None
            broker._loop.call_soon_threadsafe(broker._server.fail, OSError("broken"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_two_brokers_at_once() -> None:
    with semel.embedded() as one, semel.embedded() as two:
        with Client(one.bootstrap_servers) as client:
            Admin(client).topics.create(NewTopic("only-here"))
        with Client(two.bootstrap_servers) as client:
            assert Admin(client).topics.all() == []


def test_importing_semel_and_the_plugin_loads_no_broker() -> None:
    heavy = [
        "asyncio",
        "apsw",
        "typer",
        "rich",
        "uvloop",
        "semel.wire",
        "semel.server",
        "semel.broker",
        "semel.client",
    ]
    code = "import sys, semel, {}; print([name for name in {!r} if name in sys.modules])"
    for module, allowed in (("semel.embedded", []), ("semel.pytest_plugin", ["rich", "asyncio"])):
        program = code.format(module, [name for name in heavy if name not in allowed])
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
        )
        assert ran.stdout.strip() == "[]", module


def test_the_fixture_is_a_fresh_broker_for_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import pytest
from semel.client import Admin, Client, KafkaError, Producer

@pytest.mark.parametrize("time", [1, 2])
def test_fresh(semel_broker, time):
    with Client(semel_broker.bootstrap_servers) as client:
        assert Admin(client).topics.all() == []
        with Producer(client) as producer:
            producer.send("t", b"x")

@pytest.mark.semel_settings({"auto.create.topics.enable": False, "num.partitions": 2})
def test_settings(semel_broker):
    with Client(semel_broker.bootstrap_servers) as client:
        assert Admin(client).topics.create("t")[0].partitions == 2

def test_shared(semel_session_broker):
    assert semel_session_broker.port

def test_shared_again(semel_session_broker):
    assert semel_session_broker.port
"""
    )
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "pytest",
        "-q",
        "--strict-markers",
        "-p",
        "no:cacheprovider",
        "test_it.py",
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout


def test_time_passes_when_a_test_says_so(semel_broker: semel.Embedded) -> None:
    """A day of retention and a timeout of a minute, without waiting."""
    with Client(semel_broker.bootstrap_servers) as client:
        Admin(client).topics.create(
            NewTopic("old", configs={"retention.ms": "86400000"}), NewTopic("results")
        )
        with Producer(client) as producer:
            producer.send("old", b"yesterday's")
        slow = TransactionalProducer(client, "slow", transaction_timeout_ms=60_000)
        slow.init()
        slow.begin()
        slow.send("results", b"late")
        slow.flush()
        with Consumer(client, "old") as consumer:
            assert len(list(consumer.read_to_end())) == 1
            semel_broker.advance(30)
            assert Admin(client).transactions.describe("slow").state == "Ongoing"
            semel_broker.advance(30)
            with pytest.raises(TransactionAborted):
                slow.commit()
            semel_broker.advance(86_400)
            with Producer(client) as producer:
                offset = producer.send("old", b"today's").result().offset
        with Consumer(client, "old") as consumer:
            assert [record.offset for record in consumer.read_to_end()] == [offset]


def test_time_cannot_be_moved_back_or_without_a_broker(semel_broker: semel.Embedded) -> None:
    with pytest.raises(ValueError, match="-1 seconds"):
        semel_broker.advance(-1)
    with pytest.raises(semel.EmbeddedError, match="not running"):
        semel.embedded().advance(1)
