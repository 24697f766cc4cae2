"""Clients of Spark's Python processes: all of a driver are patient with a cluster that one has reached."""

import gc
import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.brokers.process import free_port

from semel.client import BrokerUnreachable, Client
from semel.embedded import Embedded
from semel.spark import clients
from semel.spark.option_reader import Address
from semel.spark.scratch import SCRATCH


@pytest.fixture
def address(semel_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Address:
    """A cluster, in a driver of its own."""
    scratch = tmp_path / "blockmgr-1"
    scratch.mkdir()
    monkeypatch.setenv(SCRATCH, str(scratch))
    monkeypatch.setattr(clients._clients, "known", clients._Known())
    return Address(semel_broker.bootstrap_servers, timeout_s=5.0, patience_s=60.0)


def reach(address: Address) -> None:
    clients.connect(address).describe(topics=())


def test_a_cluster_that_a_sibling_has_reached_is_known(address: Address) -> None:
    assert not clients.connect(address).is_known
    assert clients.connect(address).patience_s == 5.0
    sibling = multiprocessing.get_context("spawn").Process(target=reach, args=(address,))
    sibling.start()
    sibling.join()
    assert sibling.exitcode == 0
    assert clients.connect(address).is_known
    assert clients.connect(address).patience_s == 60.0
    assert clients.connect(replace(address, client_id="another")).is_known


def test_a_cluster_that_nobody_has_reached_is_not_waited_for(address: Address) -> None:
    reach(address)
    nobody = replace(address, bootstrap_servers=f"127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnreachable):
        reach(nobody)
    assert not clients.connect(nobody).is_known


def test_another_driver_has_to_reach_it_itself(
    address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(address)
    monkeypatch.setenv(SCRATCH, str(tmp_path / "blockmgr-2"))
    clients._clients.known.popitem()[1].close()
    assert not clients.connect(address).is_known
    reach(address)
    assert clients.connect(address).is_known, "also where the directory is missing"


def test_a_thread_has_a_client_of_its_own_which_is_closed_when_it_ends(address: Address) -> None:
    found: list[Client] = []

    def work() -> None:
        reach(address)
        found.append(clients.connect(address))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] is not clients.connect(address)
    gc.collect()
    assert not found[0]._connections
