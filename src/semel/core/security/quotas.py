"""Quotas: Kafka's rules for the limits of clients, as pure functions and one index.

A quota belongs to an entity: a user, a client id, both together, or the address of a client. Each of them may
also be the default, which stands for all names without a quota of their own. A quota has one or more limits.

| limit | of | counts |
| --- | --- | --- |
| ``producer_byte_rate`` | user, client id | bytes of Produce requests per second |
| ``consumer_byte_rate`` | user, client id | bytes of Fetch responses per second |
| ``request_percentage`` | user, client id | time for which requests occupy the broker, 100 is one core |
| ``controller_mutation_rate`` | user, client id | partitions created and deleted per second |
| ``connection_creation_rate`` | address | connections accepted per second |

Each limit is looked up on its own: the most specific entity that has this limit decides. All clients of that
entity share the limit. A default is not shared: each user, client id or address gets the full amount.

`semel.server.throttling` measures the rates.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

from semel.core.data import Data
from semel.core.names import CLIENT_ID_CHARS_MAX, ID_CHARS_MAX
from semel.wire.errors import ErrorCode

DEFAULT: Final = ""
"""The name of the default. Kafka refuses empty names, so no user, client or address has it."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
_FIELDS: Final = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}
_CHARS_MAX: Final = {USER: ID_CHARS_MAX, CLIENT_ID: CLIENT_ID_CHARS_MAX, IP: ID_CHARS_MAX}

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

CLIENT_LIMITS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
"""The limits of users and client ids."""
IP_LIMITS: Final = (CONNECTION_CREATION_RATE,)
"""The limits of addresses."""

_INTEGERS: Final = {
    PRODUCER_BYTE_RATE: float(2**63 - 1),
    CONSUMER_BYTE_RATE: float(2**63 - 1),
    CONNECTION_CREATION_RATE: float(2**31 - 1),
}
"""The limits that must be whole numbers, and the largest values that the protocol allows."""
_FRACTION_MAX: Final = 1e-6
"""A smaller fraction is a rounding error of floats and is ignored."""

Operations: TypeAlias = tuple[tuple[str, float | None], ...]
"""Limits to set; None removes a limit."""


class QuotaRefused(Exception):
    """A request about quotas is invalid."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class QuotaEntity(Data):
    """What a quota applies to. None: any value. `DEFAULT`: all values without a quota of their own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __lt__(self, other: "QuotaEntity") -> bool:
        """Order by user, client id, address. Absent parts come first, then the default, then names."""
        return self._place() < other._place()

    def _place(self) -> list[tuple[bool, str]]:
        return [(each is not None, each or "") for each in self.values()]

    def named(self, entity_type: str) -> str | None:
        """Return the name of one type of entity."""
        name: str | None = getattr(self, _FIELDS[entity_type])
        return name

    def parts(self) -> list[tuple[str, str | None]]:
        """Return types and names as in the protocol, where None is the default."""
        named = [(each, self.named(each)) for each in _FIELDS]
        return [(each, name or None) for each, name in named if name is not None]


class Quota(Data):
    """The limits of an entity; at least one."""

    entity: QuotaEntity
    limits: Mapping[str, float]


class Limit(NamedTuple):
    """One limit, and the entity whose traffic is counted together against it."""

    value: float
    shared_by: QuotaEntity


# -- valid entities and limits --------------------------------------------------------------------------


def address(text: str) -> str | None:
    """Return the canonical form of an address (IPv4-mapped IPv6 as IPv4, no zone); None if it is invalid."""
    try:
        parsed = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return str(mapped or parsed)


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity that a request describes by types and names (None: the default).

    A user and a client id can be combined; an address stands alone. Raises QuotaRefused if it is invalid.
    """
    names: dict[str, str] = {}
    for entity_type, name in parts:
        if entity_type not in _FIELDS:
            raise QuotaRefused(f"Unknown type of quota entity: {entity_type[:100]!r}.")
        if entity_type in names:
            raise QuotaRefused(f"The quota entity has more than one {entity_type}.")
        if name == "":
            raise QuotaRefused(f"The {entity_type} of a quota cannot be empty.")
        if name is not None and len(name) > _CHARS_MAX[entity_type]:
            raise QuotaRefused(f"The {entity_type} has more than {_CHARS_MAX[entity_type]} characters.")
        names[entity_type] = DEFAULT if name is None else name
    if not names:
        raise QuotaRefused("The quota entity is empty.")
    if IP in names:
        if len(names) > 1:
            raise QuotaRefused("A quota of an ip cannot be one of a user or client-id too.")
        names[IP] = _checked_address(names[IP])
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def _checked_address(name: str) -> str:
    if name == DEFAULT:
        return name
    usual = address(name)
    if usual is None:
        raise QuotaRefused(f"{name[:100]!r} is not an IP address.")
    return usual


def check_operations(entity: QuotaEntity, operations: Operations) -> None:
    """Raise QuotaRefused if these limits cannot be set for the entity. Any limit can be removed."""
    known = CLIENT_LIMITS if entity.ip is None else IP_LIMITS
    seen: set[str] = set()
    for key, value in operations:
        if key in seen:
            raise QuotaRefused(f"The quota {key[:100]} is there twice.")
        seen.add(key)
        if value is None:
            continue
        if key not in known:
            raise QuotaRefused(f"Unknown quota {key[:100]!r}. Possible here: {', '.join(known)}.")
        _check_value(key, value)


def _check_value(key: str, value: float) -> None:
    # Kafka lets NaN and infinity pass. Neither is a limit, and JSON cannot express them.
    if not value > 0 or not isfinite(value):
        raise QuotaRefused(f"The quota {key} must be a number greater than 0.")
    largest = _INTEGERS.get(key)
    if largest is None:
        return
    if value > largest:
        raise QuotaRefused(f"The quota {key} can be {largest:.0f} at most.")
    if value % 1.0 > _FRACTION_MAX:
        raise QuotaRefused(f"The quota {key} must be a whole number.")


def altered(entity: QuotaEntity, quota: Quota | None, operations: Operations) -> Quota | None:
    """Return the quota of an entity after these operations; None if no limit remains."""
    limits = dict(quota.limits) if quota is not None else {}
    for key, value in operations:
        if value is None:
            limits.pop(key, None)
        else:
            limits[key] = value
    return Quota(entity, limits) if limits else None


# -- filters of quotas to describe ----------------------------------------------------------------------


class Match(IntEnum):
    """How a component of a filter is compared, with Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class QuotaFilter(Data):
    """Entities to describe. Each component is a type of entity, a `Match` and a name."""

    components: tuple[tuple[str, int, str | None], ...]
    strict: bool
    """Whether to exclude entities that have types which the filter does not name."""

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether the filter matches an entity."""
        if self.strict and len(entity.parts()) != len(self.components):
            return False
        return all(_matches(match, name, entity.named(each)) for each, match, name in self.components)


def _matches(match: int, wanted: str | None, name: str | None) -> bool:
    if match == Match.SPECIFIED:
        return name is not None
    if match == Match.DEFAULT:
        return name == DEFAULT
    # An empty name is invalid, and must not find the default.
    return bool(wanted) and name == wanted


def filter_of(components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> QuotaFilter:
    """Return the filter that a request describes. Raises QuotaRefused if it is invalid."""
    checked: dict[str, tuple[str, int, str | None]] = {}
    for entity_type, match, name in components:
        if not entity_type:
            raise QuotaRefused("A type of quota entity is empty.")
        if entity_type in checked:
            raise QuotaRefused(f"The filter has the type {entity_type} more than once.")
        if entity_type not in _FIELDS:
            raise QuotaRefused(
                f"Unknown type of quota entity: {entity_type[:100]!r}.", ErrorCode.UNSUPPORTED_VERSION
            )
        if match not in set(Match):
            raise QuotaRefused(f"Unknown match type {match}.")
        if (name is None) == (match == Match.EXACT):
            needs = "needs a name" if name is None else "cannot have a name"
            raise QuotaRefused(f"Match type {Match(match).name} {needs}.")
        if entity_type == IP and name is not None:
            name = address(name) or name
        checked[entity_type] = (entity_type, match, name)
    if IP in checked and len(checked) > 1:
        raise QuotaRefused("A filter for an ip cannot be combined with one for a user or client-id.")
    return QuotaFilter(tuple(checked.values()), strict)


# -- the limits that apply to a client ------------------------------------------------------------------


class Quotas:
    """All quotas, indexed for lookups."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._entities: dict[QuotaEntity, dict[str, float]] = {}
        self.kinds: dict[str, dict[QuotaEntity, float]] = {}
        """The limits by kind, then by entity. A kind without limits is absent, which is quick to check."""
        self.version = 0
        """Incremented with every change."""
        for each in quotas:
            self.add(each)

    def __iter__(self) -> Iterator[Quota]:
        """All quotas, in order."""
        for entity in sorted(self._entities):
            yield Quota(entity, dict(self._entities[entity]))

    def __len__(self) -> int:
        return len(self._entities)

    def get(self, entity: QuotaEntity) -> Quota | None:
        """Return the quota of exactly this entity."""
        limits = self._entities.get(entity)
        return None if limits is None else Quota(entity, dict(limits))

    def add(self, quota: Quota) -> None:
        """Add a quota, or replace the one of its entity."""
        self.remove(quota.entity)
        for kind, value in quota.limits.items():
            self.set(quota.entity, kind, value)

    def remove(self, entity: QuotaEntity) -> None:
        """Remove the quota of an entity; no change if there is none."""
        for kind in tuple(self._entities.get(entity, ())):
            self.set(entity, kind, None)

    def set(self, entity: QuotaEntity, kind: str, value: float | None) -> None:
        """Set one limit of an entity, or remove it (None)."""
        self.version += 1
        _set_in(self._entities, entity, kind, value)
        _set_in(self.kinds, kind, entity, value)

    def limit(self, kind: str, user: str, client_id: str | None) -> Limit | None:
        """Return the limit that applies to a client, and the entity that shares it. None: unlimited.

        A client without an id gets the default of client ids, and shares it with all others without one.
        In Kafka such a client has no quota, so that any client could evade its quota.
        """
        limits = self.kinds.get(kind)
        if not limits:
            return None
        client = client_id or DEFAULT
        both, of_user, of_client = QuotaEntity(user, client), QuotaEntity(user), QuotaEntity(None, client)
        for entity, shared_by in (
            (both, both),
            (QuotaEntity(user, DEFAULT), both),
            (of_user, of_user),
            (QuotaEntity(DEFAULT, client), both),
            (QuotaEntity(DEFAULT, DEFAULT), both),
            (QuotaEntity(DEFAULT), of_user),
            (of_client, of_client),
            (QuotaEntity(None, DEFAULT), of_client),
        ):
            value = limits.get(entity)
            if value is not None:
                return Limit(value, shared_by)
        return None

    def connection_rate(self, host: str) -> Limit | None:
        """Return the limit of connections from an address. None: unlimited."""
        limits = self.kinds.get(CONNECTION_CREATION_RATE)
        if not limits:
            return None
        own = QuotaEntity(ip=address(host) or host)
        value = limits.get(own, limits.get(QuotaEntity(ip=DEFAULT)))
        return None if value is None else Limit(value, own)


# Any: users and clients may be None, for the default.
def _set_in(table: dict[Any, dict[Any, float]], outer: object, inner: object, value: float | None) -> None:
    """Set one value of a table of tables, or remove it together with an inner table that becomes empty."""
    if value is not None:
        table.setdefault(outer, {})[inner] = value
    elif outer in table:
        table[outer].pop(inner, None)
        if not table[outer]:
            del table[outer]
