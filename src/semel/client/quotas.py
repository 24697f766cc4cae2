"""Quotas: list the limits of users, client ids and addresses, set and remove them.

admin.quotas.alter(QuotaEntity(user="alice"), {"producer_byte_rate": 1_048_576})
admin.quotas.list(QuotaEntity(user="alice"))
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from semel.client.cluster import Client
from semel.client.errors import check
from semel.wire.messages.quotas import (
    AlterClientQuotasEntity,
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasComponent,
    DescribeClientQuotasEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

DEFAULT: Final = ""
"""The name of the default, which stands for all that have no quota of their own."""

_TYPES: Final = {"user": "user", "client_id": "client-id", "ip": "ip"}


class Match(IntEnum):
    """How a filter compares a name."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Whom a quota is for. None: the quota does not depend on it. `DEFAULT`: all without an own quota."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> list[tuple[str, str | None]]:
        """Types and names as the protocol has them: there, None is the default."""
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
        """Return the quotas of entities that have these names; by default all.

        `strict` leaves out entities that have others too: those of a user without those of its client ids.
        """
        components = [
            DescribeClientQuotasComponent(
                entity_type=kind, match_type=Match.DEFAULT if name is None else Match.EXACT, match=name
            )
            for kind, name in (like or QuotaEntity()).parts()
        ]
        response: DescribeClientQuotasResponse = self._client.ask(
            DescribeClientQuotasRequest(components=components, strict=strict)
        )
        check(response.error_code, "the quotas could not be listed", response.error_message)
        return [_quota(each) for each in response.entries or ()]

    def alter(
        self,
        entity: QuotaEntity,
        limits: Mapping[str, float] | None = None,
        *,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set limits of an entity and remove others. All or nothing, and the rest stays as it is."""
        ops = [AlterClientQuotasOp(key=key, value=value) for key, value in (limits or {}).items()]
        ops += [AlterClientQuotasOp(key=key, remove=True) for key in remove]
        parts = [AlterClientQuotasEntity(entity_type=kind, entity_name=name) for kind, name in entity.parts()]
        request = AlterClientQuotasRequest(
            entries=[AlterClientQuotasEntry(entity=parts, ops=ops)], validate_only=validate_only
        )
        # Every limit is set as a whole, so a retry after a lost answer changes nothing.
        response: AlterClientQuotasResponse = self._client.ask(request)
        for each in response.entries:
            check(each.error_code, f"the quota of {entity} was not changed", each.error_message)


def _quota(entry: DescribeClientQuotasEntry) -> ClientQuota:
    fields = {kind: field for field, kind in _TYPES.items()}
    names = {fields[each.entity_type]: each.entity_name or DEFAULT for each in entry.entity}
    return ClientQuota(QuotaEntity(**names), {each.key: each.value for each in entry.values})
