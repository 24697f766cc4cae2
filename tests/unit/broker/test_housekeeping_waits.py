"""When housekeeping waits: for a store that accepts no writes, and between two slow counts."""

import asyncio
import logging

import pytest
from support.waiting import until_async

from semel.broker.broker import Broker
from semel.broker.upkeep import housekeeping
from semel.config import Settings
from semel.store.contract import StoreRefused


async def test_a_store_that_accepts_no_writes_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[bool] = []

    async def refused(self: housekeeping.Housekeeping) -> None:
        tries.append(True)
        raise StoreRefused("no room")

    async def has_tried() -> bool:
        return len(tries) > 5

    monkeypatch.setattr(housekeeping, "GROUP_TICK_MS", 10)
    monkeypatch.setattr(housekeeping.Housekeeping, "_groups", refused)
    broker = await Broker.open(Settings(), None)
    with caplog.at_level(logging.WARNING, "semel.housekeeping"):
        await until_async(has_tried)
    await broker.close()
    assert [each.getMessage() for each in caplog.records] == [
        "housekeeping waits until the store accepts writes: no room"
    ]


async def test_counting_takes_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long in a ledger in which an old snapshot keeps all versions of rows."""

    async def slow(self: Broker) -> None:
        await asyncio.sleep(0.1)

    broker = await Broker.open(Settings(), None)
    made = housekeeping.Housekeeping(broker)
    (counts,) = (each for each in made.rounds if each.name == "counts")
    assert counts.interval_ms(broker.settings) == housekeeping.COUNT_MS
    monkeypatch.setattr(Broker, "count", slow)
    await counts.run()
    await broker.close()
    assert counts.interval_ms(broker.settings) >= 99 * housekeeping.COUNT_SHARE
    # PostgreSQL was away for nine seconds.
    made._count_ms = 9_000
    assert counts.interval_ms(broker.settings) == housekeeping.COUNT_MS_MAX
