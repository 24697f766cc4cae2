"""UpdateFeatures: change the level of a feature while the broker runs.

One feature can change: ``transaction.version``, the generation of transactions that clients use. Both
generations are served at any level. ApiVersions carries the level; clients adopt a new one because every
change increments the epoch of the features.
"""

from enum import IntEnum

from semel.broker.broker import Broker
from semel.broker.features import FEATURES, TRANSACTION_VERSION, finalized_levels
from semel.core.transactions.commands import ChangeFeature
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import ALTER, CLUSTER_DENIED, MESSAGES, rights_of
from semel.store.contract import StoreRefused
from semel.wire.api_key import ApiKey
from semel.wire.messages.configs import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


class Direction(IntEnum):
    """The upgrade type of an update, numbered as in Kafka."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


async def update_features(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """UpdateFeatures v0–v2: change the levels of features, all or none.

    Behaviour: INVALID_UPDATE_VERSION for a feature or a level that does not exist, and for a lower level
        without a downgrade type. Clients get the new level with their next ApiVersions.
    Versions:  v0 a flag for downgrades · v1 kinds of downgrade, validate only · v2 one result for all.
    Differs:   only transaction.version can change; the other features stay at their levels.
    """
    if not rights_of(broker, request, context).cluster(ALTER):
        return UpdateFeaturesResponse(error_code=CLUSTER_DENIED, error_message=MESSAGES[CLUSTER_DENIED])
    levels = finalized_levels(broker.cluster, extensions=broker.settings.semel_extensions_enable)
    updates = {each.feature: each for each in request.feature_updates}
    for update in updates.values():
        problem = _problem(update, levels, context.version)
        if problem:
            what = f"Invalid update version {update.max_version_level} for feature {update.feature[:100]}."
            return UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=f"{what} {problem}"
            )
    error = ErrorCode.NONE
    wanted = updates.get(TRANSACTION_VERSION)
    if wanted is not None and not request.validate_only:
        try:
            error = await broker.ask(ChangeFeature(wanted.max_version_level))
        except StoreRefused:
            error = ErrorCode.KAFKA_STORAGE_ERROR
    results = [UpdatableFeatureResult(feature=name, error_message=None) for name in updates]
    return UpdateFeaturesResponse(
        error_code=error, error_message=None, results=[] if error or context.version >= 2 else results
    )


def _problem(update: FeatureUpdateKey, levels: dict[str, int], version: int) -> str | None:
    """The error message for an invalid update; None if it is valid."""
    feature = next((each for each in FEATURES if each.name == update.feature in levels), None)
    if feature is None:
        return "There is no such feature here."
    kind = update.upgrade_type
    if version == 0:
        kind = Direction.SAFE_DOWNGRADE if update.allow_downgrade else Direction.UPGRADE
    if kind not in set(Direction):
        return "The controller does not support the given upgrade type."
    level, current = update.max_version_level, levels[feature.name]
    if not feature.min_level <= level <= feature.max_level:
        return f"Levels are {feature.min_level} to {feature.max_level}."
    if level != current and feature.name != TRANSACTION_VERSION:
        return f"This feature stays at {current}."
    if level < current and kind == Direction.UPGRADE:
        return "Can't downgrade the version of this feature without setting the upgrade type to a downgrade."
    if level > current and kind != Direction.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


HANDLERS: dict[int, Handler] = {ApiKey.UPDATE_FEATURES: update_features}
