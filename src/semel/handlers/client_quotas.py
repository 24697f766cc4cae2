"""DescribeClientQuotas, AlterClientQuotas. The rules are in `semel.core.security.quotas`."""

from semel.broker.broker import Broker
from semel.core.security import quotas
from semel.core.security.policies import AlterQuota
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import ALTER_CONFIGS, CLUSTER_DENIED, DESCRIBE_CONFIGS, MESSAGES, rights_of
from semel.store.contract import StoreRefused
from semel.wire.api_key import ApiKey
from semel.wire.messages.quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    DescribeClientQuotasEntity,
    DescribeClientQuotasEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasValue,
)


async def describe_client_quotas(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """DescribeClientQuotas v0–v1: the quotas whose entities match a filter.

    Behaviour: all components must match; a strict filter excludes entities that also have other types. A
        filter without components matches all entities, or none if it is strict. Right: DescribeConfigs
        Cluster.
    Versions:  v1 flexible.
    Differs:   the response is sorted. A filter may spell an IP address in any way.
    """
    if not rights_of(broker, request, context).cluster(DESCRIBE_CONFIGS):
        return DescribeClientQuotasResponse(error_code=CLUSTER_DENIED, error_message=None, entries=None)
    components = [(each.entity_type, each.match_type, each.match) for each in request.components]
    try:
        wanted = quotas.filter_of(components, strict=request.strict)
    except quotas.QuotaRefused as refused:
        return DescribeClientQuotasResponse(error_code=refused.code, error_message=str(refused), entries=None)
    found = [_described(each) for each in broker.policies.quotas if wanted.matches(each.entity)]
    return DescribeClientQuotasResponse(error_message=None, entries=found)


def _described(quota: quotas.Quota) -> DescribeClientQuotasEntry:
    return DescribeClientQuotasEntry(
        entity=[
            DescribeClientQuotasEntity(entity_type=entity_type, entity_name=name)
            for entity_type, name in quota.entity.parts()
        ],
        values=[
            DescribeClientQuotasValue(key=key, value=value) for key, value in sorted(quota.limits.items())
        ],
    )


async def alter_client_quotas(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """AlterClientQuotas v0–v1: set and remove limits, or only validate the changes.

    Behaviour: each entry succeeds or fails independently, and those that succeed are one commit. Removing a
        limit that is not set succeeds. Right: AlterConfigs Cluster.
    Versions:  v1 flexible.
    Differs:   an ip entity must be an IP address, not a host name. If two entries have the same entity, the
        first is processed and the second refused; Kafka refuses both.
    """
    if not rights_of(broker, request, context).cluster(ALTER_CONFIGS):
        message = MESSAGES[CLUSTER_DENIED]
        return AlterClientQuotasResponse(
            entries=[
                AlterClientQuotasResult(error_code=CLUSTER_DENIED, error_message=message, entity=each.entity)
                for each in request.entries
            ]
        )
    results: list[AlterClientQuotasResult] = []
    commands: dict[quotas.QuotaEntity, AlterQuota] = {}
    accepted: list[AlterClientQuotasResult] = []
    for entry in request.entries:
        result = AlterClientQuotasResult(entity=entry.entity, error_message=None)
        results.append(result)
        try:
            command = _command(entry)
            if command.entity in commands:
                raise quotas.QuotaRefused("The request has another entry for the same entity.")
        except quotas.QuotaRefused as refused:
            result.error_code, result.error_message = refused.code, str(refused)
            continue
        commands[command.entity] = command
        accepted.append(result)
    if commands and not request.validate_only:
        answers = await _alter(broker, list(commands.values()))
        for result, answer in zip(accepted, answers, strict=True):
            result.error_code, result.error_message = answer
    return AlterClientQuotasResponse(entries=results)


def _command(entry: AlterClientQuotasEntry) -> AlterQuota:
    entity = quotas.entity_of((each.entity_type, each.entity_name) for each in entry.entity)
    operations: quotas.Operations = tuple(
        (each.key, None if each.remove else each.value) for each in entry.ops
    )
    quotas.check_operations(entity, operations)
    return AlterQuota(entity, operations)


async def _alter(broker: Broker, commands: list[AlterQuota]) -> list[tuple[ErrorCode, str | None]]:
    """Submit the changes for one tick; returns an error for each."""
    if not broker.policies.has_room(_new_limits(broker, commands)):
        message = "There are too many policies (semel.policies.max)."
        return [(ErrorCode.POLICY_VIOLATION, message)] * len(commands)
    try:
        return [(answer, None) for answer in await broker.submit(commands)]
    except StoreRefused as refused:
        return [(ErrorCode.KAFKA_STORAGE_ERROR, refused.client_message)] * len(commands)


def _new_limits(broker: Broker, commands: list[AlterQuota]) -> int:
    """By how much the number of limits would grow."""
    more = 0
    for each in commands:
        quota = broker.policies.quotas.get(each.entity)
        limits = {} if quota is None else quota.limits
        more += sum((value is not None) - (key in limits) for key, value in each.operations)
    return more


HANDLERS: dict[int, Handler] = {
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
}
