"""Housekeeping whose store accepts no writes says so once in a while, and goes on."""

import logging

import pytest
from support.waiting import until_async

from semel.broker import housekeeping
from semel.broker.broker import Broker
from semel.config import Settings
from semel.store.interface import StoreRefused


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
