"""Quotas: list, set and remove the limits of users, client ids and addresses.

admin.quotas.alter(QuotaEntity(user="alice"), {"producer_byte_rate": 1_048_576})
admin.quotas.list(QuotaEntity(user="alice"))
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from semel.client.errors import check
from semel.client.net.cluster import Client
from semel.wire import messages as wire

DEFAULT: Final = ""
"""The name of the default entity. Its quota applies to all names without a quota of their own."""

_TYPES: Final = {"user": "user", "client_id": "client-id", "ip": "ip"}


class Match(IntEnum):
    """How a filter compares a name."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The entity that a quota limits. The quota does not depend on parts that are None; see `DEFAULT`."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> list[tuple[str, str | None]]:
        """Return the types and names as in the protocol, where the name None is the default."""
        named = [(kind, getattr(self, field)) for field, kind in _TYPES.items()]
        return [(kind, name or None) for kind, name in named if name is not None]

    def __str__(self) -> str:
        return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in self.parts())


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """The limits of an entity."""

    entity: QuotaEntity
    limits: Mapping[str, float]


class QuotaAdmin:
    """Quotas of a cluster. Reached as `Admin(client).quotas`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, like: QuotaEntity | None = None, *, strict: bool = False) -> list[ClientQuota]:
        """Return the quotas of the entities that contain these names; by default all.

        `strict` leaves out entities with further parts: a user matches, a user with a client id does not.
        """
        components = [
            wire.DescribeClientQuotasComponent(
                entity_type=kind, match_type=Match.DEFAULT if name is None else Match.EXACT, match=name
            )
            for kind, name in (like or QuotaEntity()).parts()
        ]
        response: wire.DescribeClientQuotasResponse = self._client.ask(
            wire.DescribeClientQuotasRequest(components=components, strict=strict)
        )
        check(response.error_code, "the quotas could not be listed", response.error_message)
        return [_quota(entry) for entry in response.entries or ()]

    def alter(
        self,
        entity: QuotaEntity,
        limits: Mapping[str, float] | None = None,
        *,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set limits of an entity and remove others, all or nothing. The remaining limits do not change."""
        ops = [wire.AlterClientQuotasOp(key=key, value=value) for key, value in (limits or {}).items()]
        ops += [wire.AlterClientQuotasOp(key=key, remove=True) for key in remove]
        parts = [
            wire.AlterClientQuotasEntity(entity_type=kind, entity_name=name) for kind, name in entity.parts()
        ]
        request = wire.AlterClientQuotasRequest(
            entries=[wire.AlterClientQuotasEntry(entity=parts, ops=ops)], validate_only=validate_only
        )
        # A limit is set to an absolute value, so a retry after a lost answer changes nothing.
        response: wire.AlterClientQuotasResponse = self._client.ask(request)
        for entry in response.entries:
            check(entry.error_code, f"the quota of {entity} was not changed", entry.error_message)


def _quota(entry: wire.DescribeClientQuotasEntry) -> ClientQuota:
    fields = {kind: field for field, kind in _TYPES.items()}
    names = {fields[part.entity_type]: part.entity_name or DEFAULT for part in entry.entity}
    return ClientQuota(QuotaEntity(**names), {limit.key: limit.value for limit in entry.values})
