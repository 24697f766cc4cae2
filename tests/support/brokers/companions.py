"""Run two more brokers beside the broker of a test, over the same ledger.

``pytest --over cluster`` starts them for every broker that would keep its data in memory. The three divide
the shards, so clients meet several leaders and coordinators. A raw client that asks the wrong broker is
routed to the right one. In tests that depend on one connection, or that look into their broker, the
companions own nothing.
"""

import asyncio
import os
import threading
from dataclasses import replace
from typing import Any

import pytest

from semel.broker.broker import Broker
from semel.config import Settings
from semel.core.entities import SHARDS
from semel.server.listener import ListenerConfig
from semel.server.run import serve
from semel.server.server import Server
from semel.store.cluster.contract import SharedStore
from semel.store.opening import Remote, open_remote
from semel.wire.messages import MetadataRequest
from support.clients.raw import RawClient
from support.clients.routed import ELSEWHERE, RoutedClient, error_codes
from support.waiting import LIMIT_SECONDS, until_async

COUNT = 2
FIRST = 0
"""The id of the broker of the test."""
OF_ONE_BROKER = (
    "tests/wire/",
    # These tests have their broker compact at a moment of their choice: it must own what is compacted.
    "tests/client/test_commit_order_compaction.py",
    "tests/client/test_compaction_holds.py",
    "tests/client/test_own_share_consumer.py::test_a_compacted_topic",
    # These tests advance the clock of their broker: it must own what times out.
    "test_embedded.py::test_time_passes_when_a_test_says_so",
    "_transactions.py::test_a_transaction_that_takes_too_long_is_aborted",
    "test_own_transactions.py::test_after_a_timeout_the_producer_goes_on",
    *(
        f"test_own_share_consumer.py::{each}"
        for each in (
            "test_a_lock_ends_unless_it_is_renewed",
            "test_a_commit_makes_results_and_acknowledgements_true_together",
            "test_only_one_of_two_workers_that_had_the_same_record_can_commit",
            "test_a_prepared_transaction_holds_its_records_until_it_is_completed",
            "test_a_record_that_was_delivered_twice_has_one_result",
            "test_two_consumers_of_one_producer_have_one_result",
            "test_records_can_be_renewed_beside_the_marker_of_a_transaction",
        )
    ),
    "tests/spark/test_newest.py",
    "tests/spark/test_snapshot_compaction.py",
)
LONE = (
    "tests/client/test_several_brokers.py",
    "test_aiokafka.py::test_admin_of_topics",
    "test_confluent_admin.py::test_describe_cluster_and_topics",
    "test_embedded.py::test_it_starts_sooner_than_python_does",
    "test_kafka_python_admin.py::test_admin_of_the_cluster",
    "test_own_client.py::test_configs_of_topics_and_brokers",
)
LISTENERS = ("PLAINTEXT", "test", "SASL_PLAINTEXT")
"""The names of the listeners that brokers have in tests."""


class Companions:
    """Brokers on a thread of their own."""

    def __init__(self, place: Remote, settings: Settings, *, owns: bool) -> None:
        self._place = place
        self._settings = settings
        self._owns = owns
        self._servers: list[Server] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="companions", daemon=True)

    def start(self) -> None:
        self._thread.start()
        for _ in range(COUNT):
            assert self._ready.acquire(timeout=LIMIT_SECONDS), "a companion did not start"

    def stop(self) -> None:
        assert self._loop is not None
        for server in self._servers:
            self._loop.call_soon_threadsafe(server.request_stop)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        numbers = range(self._settings.node_id + 1, self._settings.node_id + 1 + COUNT)
        await asyncio.gather(*(self._serve_one(number) for number in numbers))

    async def _serve_one(self, node_id: int) -> None:
        listeners = [
            ListenerConfig(name, "127.0.0.1", 0, has_sasl=name.startswith("SASL")) for name in LISTENERS
        ]
        settings = replace(self._settings, node_id=node_id)

        def ready(server: Server) -> None:
            self._servers.append(server)
            asyncio.get_running_loop().create_task(self._joined(server))

        await serve(settings, listeners, self._place, ready=ready)

    async def _joined(self, server: Server) -> None:
        if not self._owns:
            await server.broker.store.membership.announce_leaving()  # type: ignore[union-attr]
        self._ready.release()


async def open_among(place: Remote, settings: Settings, *, shares: bool) -> SharedStore:
    """Open the store of a broker that has companions. They stop when it is closed."""
    store = await open_remote(place, settings)
    companions = Companions(place, settings, owns=shares)
    await asyncio.to_thread(companions.start)
    close = store.close

    async def close_all() -> None:
        await close()
        companions.stop()

    store.close = close_all  # type: ignore[method-assign]
    return store


def wait_for_shards(patch: pytest.MonkeyPatch) -> None:
    """Let a broker serve clients only once it owns shards, or all of them if its companions own nothing."""
    join = Broker.join

    async def joined(self: Broker, internal: tuple[str, int]) -> None:
        await join(self, internal)
        if self.node_id == FIRST and self.member is not None:
            wanted = SHARDS if is_about_one_connection() else 1
            await until_async(lambda: len(self.ownership.shards() or ()) >= wanted)

    patch.setattr(Broker, "join", joined)


def is_about_one_connection() -> bool:
    """Whether the current test depends on one connection, or looks into its broker."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    return any(each in test for each in OF_ONE_BROKER)


def is_about_a_lone_broker(test: str) -> bool:
    """Whether a test counts brokers, or arranges several brokers itself."""
    return any(each in test for each in LONE)


def follow_leaders(patch: pytest.MonkeyPatch) -> None:
    """Have raw clients ask the right broker if the connected one is not the leader or coordinator."""
    ask = RawClient.ask

    def routed(self: RawClient, request: Any, version: int) -> Any:
        answer = ask(self, request, version)
        if is_about_one_connection() or ELSEWHERE.isdisjoint(error_codes(answer)):
            return answer
        nodes = ask(self, MetadataRequest(topics=[]), 9).brokers
        with RoutedClient(",".join(f"{node.host}:{node.port}" for node in nodes)) as client:
            return client.ask(request, version)

    patch.setattr(RawClient, "ask", routed)
