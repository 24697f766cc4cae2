"""Audit of changes: one line on the logger ``semel.audit`` for each thing that a request has changed.

`audited` wraps the handlers of the APIs that administrators use. A line names the principal, its address and
the change. It contains no values of configs, which may be secret.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from semel.broker.broker import Broker
from semel.core.security.acls import Operation, PatternType, Permission, ResourceType
from semel.handlers.context import Handler, RequestContext
from semel.handlers.users import BY_NUMBER
from semel.wire.api_key import ApiKey
from semel.wire.messages import APIS

log = logging.getLogger("semel.audit")

LINES_MAX: Final = 100
"""Lines per request. The last line says how many more changes there were."""
NAME_CHARS_MAX: Final = 249

Changes = Iterator[str]

PERIOD_MS: Final = 10_000
REMEMBERED_MAX: Final = 1_000


class RecentLines:
    """The lines of the last ten seconds. They are not logged again: a repeated request changes nothing."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], int] = {}

    def is_new(self, line: tuple[str, ...], now: int) -> bool:
        """Whether this line was not logged in the last ten seconds. Remembers it."""
        written = self._written.pop(line, None)
        if len(self._written) >= REMEMBERED_MAX:
            del self._written[next(iter(self._written))]
        is_old = written is None or now - written >= PERIOD_MS
        self._written[line] = now if is_old or written is None else written
        return is_old


def _recent_lines(broker: Broker) -> RecentLines:
    return RecentLines()


def audited(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Wrap the handlers, so that their changes are logged."""
    return {key: _audited(key, handler) if key in CHANGES else handler for key, handler in handlers.items()}


def _audited(key: int, handler: Handler) -> Handler:
    changes_of, api = CHANGES[key], APIS[key].name

    async def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
        response = await handler(broker, request, context)
        if not getattr(request, "validate_only", False):
            record(broker, api, list(changes_of(request, response)), context)
        return response

    return handle


def record(broker: Broker, api: str, changes: list[str], context: RequestContext) -> None:
    """Count and log what a request has changed."""
    if not changes:
        return
    broker.metrics.administrative_changes += len(changes)
    lines = broker.kept(_recent_lines)
    changes = [each for each in changes if lines.is_new((context.principal, api, each), broker.now())]
    for number, change in enumerate(changes[:LINES_MAX], 1):
        fields = {
            "api": api,
            "what": change,
            "principal": context.principal,
            "client": context.client_host,
            "client_id": context.client_id,
            "listener": context.listener,
        }
        if number == LINES_MAX and len(changes) > LINES_MAX:
            fields["more"] = str(len(changes) - LINES_MAX)
        log.info("changed", extra={"fields": fields})


def _short(name: str | None) -> str:
    return (name or "")[:NAME_CHARS_MAX]


def _topics(request: Any, response: Any) -> Changes:
    for each in response.topics:
        if not each.error_code:
            yield f"created topic {_short(each.name)}"


def _deleted_topics(request: Any, response: Any) -> Changes:
    for each in response.responses:
        if not each.error_code:
            yield f"deleted topic {_short(each.name)}"


def _partitions(request: Any, response: Any) -> Changes:
    for each in response.results:
        if not each.error_code:
            yield f"added partitions to topic {_short(each.name)}"


def _records(request: Any, response: Any) -> Changes:
    for topic in response.topics:
        for each in topic.partitions:
            if not each.error_code:
                where = f"{_short(topic.name)}-{each.partition_index}"
                yield f"deleted records of {where} before {each.low_watermark}"


def _configs(request: Any, response: Any) -> Changes:
    # A repeated resource is answered once, with an error.
    asked = {(each.resource_type, each.resource_name): each.configs for each in request.resources}
    for each in response.responses:
        if not each.error_code:
            kind = {2: "topic", 4: "broker", 32: "group"}.get(each.resource_type, "resource")
            configs = asked[each.resource_type, each.resource_name]
            names = ", ".join(_short(config.name) for config in configs)
            name = _short(each.resource_name) or "<default>"
            yield f"changed configs of {kind} {name}: {names}"


def _groups(request: Any, response: Any) -> Changes:
    for each in response.results:
        if not each.error_code:
            yield f"deleted group {_short(each.group_id)}"


def _offsets(request: Any, response: Any) -> Changes:
    for topic in response.topics:
        for each in topic.partitions:
            if not (response.error_code or each.error_code):
                where = f"{_short(topic.name)}-{each.partition_index}"
                yield f"deleted the offset of group {_short(request.group_id)} on {where}"


def _features(request: Any, response: Any) -> Changes:
    if not response.error_code:
        for each in request.feature_updates:
            yield f"changed feature {_short(each.feature)} to {each.max_version_level}"


def _markers(request: Any, response: Any) -> Changes:
    # Markers of the same producer are answered together.
    outcomes: dict[int, set[str]] = {}
    for asked in request.markers:
        outcome = "committed" if asked.transaction_result else "aborted"
        outcomes.setdefault(asked.producer_id, set()).add(outcome)
    for each in response.markers:
        said = " or ".join(sorted(outcomes[each.producer_id]))
        for topic in each.topics:
            for partition in topic.partitions:
                if not partition.error_code:
                    where = f"{_short(topic.name)}-{partition.partition_index}"
                    yield f"{said} the transaction of producer {each.producer_id} on {where}"


def _acl(verb: str, acl: Any, pattern_type: int) -> str:
    kind, pattern = ResourceType(acl.resource_type).name, PatternType(pattern_type).name
    right = f"{Permission(acl.permission_type).name} {Operation(acl.operation).name}"
    who, host = _short(acl.principal), _short(acl.host)
    return f"{verb} ACL {right} on {kind} {pattern} {_short(acl.resource_name)} for {who} from {host}"


def _added_acls(request: Any, response: Any) -> Changes:
    for asked, each in zip(request.creations, response.results, strict=True):
        if not each.error_code:
            yield _acl("added", asked, asked.resource_pattern_type)


def _removed_acls(request: Any, response: Any) -> Changes:
    for result in response.filter_results:
        for each in result.matching_acls:
            if not each.error_code:
                yield _acl("removed", each, each.pattern_type)


def _users(request: Any, response: Any) -> Changes:
    verbs = dict.fromkeys((each.name for each in request.deletions), "removed")
    changed = {each.name: each for each in (*request.deletions, *request.upsertions)}
    for each in response.results:
        if not each.error_code:
            mechanism = BY_NUMBER[changed[each.user].mechanism]
            yield f"{verbs.get(each.user, 'set')} {mechanism} of user {_short(each.user)}"


def _quotas(request: Any, response: Any) -> Changes:
    for asked, each in zip(request.entries, response.entries, strict=True):
        if not each.error_code:
            parts = ((part.entity_type, part.entity_name) for part in asked.entity)
            who = ", ".join(f"{kind} {'<default>' if name is None else _short(name)}" for kind, name in parts)
            limits = ", ".join(f"{_short(op.key)}={'none' if op.remove else op.value}" for op in asked.ops)
            yield f"changed quotas of {who}: {limits}"


CHANGES: Final[dict[int, Callable[[Any, Any], Changes]]] = {
    ApiKey.CREATE_TOPICS: _topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.DELETE_RECORDS: _records,
    ApiKey.WRITE_TXN_MARKERS: _markers,
    ApiKey.CREATE_ACLS: _added_acls,
    ApiKey.DELETE_ACLS: _removed_acls,
    ApiKey.ALTER_CONFIGS: _configs,
    ApiKey.CREATE_PARTITIONS: _partitions,
    ApiKey.DELETE_GROUPS: _groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs,
    ApiKey.OFFSET_DELETE: _offsets,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.UPDATE_FEATURES: _features,
}
"""What the requests of an API have changed, by its key."""
