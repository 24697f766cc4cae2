"""UpdateFeatures, and what ApiVersions says afterwards."""

from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory
from support.clients.transactional import send

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.store.contract import StoreFull
from semel.wire.messages.configs import FeatureUpdateKey, UpdateFeaturesRequest
from semel.wire.messages.metadata import ApiVersionsRequest

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


async def features(broker: Broker) -> tuple[int, dict[str, int]]:
    """The epoch, and the finalized levels."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = await send(broker, request, 4)
    levels = {each.name: each.max_version_level for each in response.finalized_features}
    return response.finalized_features_epoch, levels


async def update(broker: Broker, version: int = 2, *, validate_only: bool = False, **updates: Any) -> Any:
    keys = [FeatureUpdateKey(feature=name.replace("_", "."), **fields) for name, fields in updates.items()]
    request = UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only)
    return await send(broker, request, version)


def level(level: int, kind: int = UPGRADE) -> dict[str, int]:
    return {"max_version_level": level, "upgrade_type": kind}


@pytest.mark.parametrize("version", range(3))
async def test_the_generation_of_transactions_can_change_while_clients_work(version: int) -> None:
    async with broker_in_memory() as broker:
        first, levels = await features(broker)
        assert levels["transaction.version"] == 2
        down = {"max_version_level": 1}
        down |= {"allow_downgrade": True} if version == 0 else {"upgrade_type": SAFE_DOWNGRADE}
        answer = await update(broker, version, transaction_version=down)
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        results = [(each.feature, each.error_code) for each in answer.results]
        assert results == ([("transaction.version", 0)] if version < 2 else [])
        second, levels = await features(broker)
        assert levels["transaction.version"] == 1
        assert second > first, "or clients would not take it over"
        up = {"max_version_level": 2} | ({} if version == 0 else {"upgrade_type": UPGRADE})
        assert (await update(broker, version, transaction_version=up)).error_code == ErrorCode.NONE
        third, levels = await features(broker)
        assert (levels["transaction.version"], third > second) == (2, True)


async def test_level_0_is_not_shown_and_the_same_level_is_no_change() -> None:
    async with broker_in_memory() as broker:
        before = await features(broker)
        assert (await update(broker, transaction_version=level(2))).error_code == ErrorCode.NONE
        assert (await update(broker, group_version=level(1))).error_code == ErrorCode.NONE
        assert await features(broker) == before
        answer = await update(broker, transaction_version=level(0, UNSAFE_DOWNGRADE))
        assert answer.error_code == ErrorCode.NONE
        assert "transaction.version" not in (await features(broker))[1]


@pytest.mark.parametrize(
    "updates",
    [
        {"no_such_feature": level(1)},
        {"transaction_version": level(3)},
        {"transaction_version": level(-1, SAFE_DOWNGRADE)},
        {"transaction_version": level(1)},
        {"transaction_version": level(1, 0)},
        {"transaction_version": level(1, 4)},
        {"group_version": level(0, SAFE_DOWNGRADE)},
        {"metadata_version": level(31)},
        {"transaction_version": level(0, SAFE_DOWNGRADE), "no_such_feature": level(1)},
    ],
)
@pytest.mark.parametrize("version", [1, 2])
async def test_what_cannot_be_is_refused_and_nothing_changes(version: int, updates: Any) -> None:
    async with broker_in_memory() as broker:
        before = await features(broker)
        answer = await update(broker, version, **updates)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "feature" in answer.error_message
        assert answer.results == []
        assert await features(broker) == before


async def test_an_upgrade_must_not_be_called_a_downgrade() -> None:
    async with broker_in_memory() as broker:
        await update(broker, transaction_version=level(0, SAFE_DOWNGRADE))
        answer = await update(broker, transaction_version=level(1, SAFE_DOWNGRADE))
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION


async def test_validating_changes_nothing() -> None:
    async with broker_in_memory() as broker:
        before = await features(broker)
        answer = await update(broker, validate_only=True, transaction_version=level(1, SAFE_DOWNGRADE))
        assert answer.error_code == ErrorCode.NONE
        assert await features(broker) == before
        wrong = await update(broker, validate_only=True, transaction_version=level(9))
        assert wrong.error_code == ErrorCode.INVALID_UPDATE_VERSION


async def test_on_a_full_disk_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker:
        before = await features(broker)

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        answer = await update(broker, 1, transaction_version=level(1, SAFE_DOWNGRADE))
        assert (answer.error_code, answer.results) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        monkeypatch.undo()
        assert await features(broker) == before
