"""Policies: ACLs, users, quotas and configs as they were last committed, in memory for every request.

There are few of them, all brokers need all of them, and a decision must not wait. So they are not cached like
other entities: all are loaded at the start, and every commit that changes one is published here.

In a cluster, a change is answered when every broker has it (`catch_up`), so a revoked right is revoked
everywhere. That also holds if the answer is lost, the client repeats the request at another broker, and this
one finds nothing to change: before it answers, all brokers, itself included, look up everything
(`notice.is_confirming`). Changes are decided by what the ledger has, not by a copy.

`DynamicConfigs` has the configs of groups and brokers, and the settings that follow from them: ``settings``
are those in force at this broker, and ``changed`` is called with new ones, for components that keep copies.
"""

from collections.abc import Callable, Mapping
from typing import Final

from semel.config import Settings, in_force, principals
from semel.core.dynamic_configs import ALL_BROKERS, BROKER, CONFIG, GROUP, config_of, value_of
from semel.core.groups import Migration
from semel.core.groups.configs import SETTINGS, GroupTimeouts, ShareConfigs, share_configs, timeouts
from semel.core.security.acls import Acls, Rights
from semel.core.security.policies import ACL, QUOTA, SALTS, USER, acl_of, credential_of, quota_of, user_key
from semel.core.security.quotas import Quotas
from semel.core.security.users import ScramCredential
from semel.core.types import PolicyKey
from semel.store.contract import Ledger

_NONE: Final[Mapping[str, str]] = {}


class DynamicConfigs:
    """The configs of all groups and brokers."""

    def __init__(self, static: Settings) -> None:
        self.static: Final = static
        """The settings at the start of the broker."""
        self.settings = static
        """The settings in force."""
        self.changed: Callable[[Settings], None] = lambda settings: None
        """Called with new settings."""
        self._own: Final = str(static.node_id)
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._group_limits = _group_limits(static)

    def of(self, kind: int, resource: str) -> Mapping[str, str]:
        """The configs that were set for a resource."""
        return self._configs.get((kind, resource), _NONE)

    def of_broker(self) -> Mapping[str, str]:
        """The configs that were set for this broker alone."""
        return self.of(BROKER, self._own)

    def of_all_brokers(self) -> Mapping[str, str]:
        """The configs that were set for all brokers."""
        return self.of(BROKER, ALL_BROKERS)

    def resources(self, kind: int) -> list[str]:
        """The resources of a kind that have configs."""
        return sorted(name for each, name in self._configs if each == kind)

    @property
    def group_limits(self) -> Mapping[str, int]:
        """The settings that the configs of groups depend on."""
        return self._group_limits

    def group(self, group_id: str) -> GroupTimeouts:
        """The timeouts of a group of the consumer protocol."""
        return timeouts(self.of(GROUP, group_id), self._group_limits)

    def share_group(self, group_id: str) -> ShareConfigs:
        """The configs of a share group."""
        return share_configs(self.of(GROUP, group_id), self._group_limits)

    def set(self, kind: int, resource: str, name: str, value: str | None) -> None:
        """Apply a committed change of one config; the value None removes it."""
        configs = self._configs.setdefault((kind, resource), {})
        if value is None:
            configs.pop(name, None)
        else:
            configs[name] = value
        if not configs:
            del self._configs[kind, resource]
        if kind == BROKER and resource in (ALL_BROKERS, self._own):
            self.settings = in_force(self.static, self.of_all_brokers(), self.of_broker())
            self._group_limits = _group_limits(self.settings)
            self.changed(self.settings)


def _group_limits(settings: Settings) -> dict[str, int]:
    return {name: settings.value(name) for name in SETTINGS}


def migration_of(settings: Settings) -> Migration:
    """Return which changes of a group's protocol the settings allow."""
    policy = settings.group_consumer_migration_policy
    return Migration.by_policy(policy, settings.group_max_size, settings.group_consumer_max_size)


PRINCIPALS_MAX: Final = 10_000
"""Principals whose decisions are remembered."""


class Policies:
    """What administrators have decided for the whole cluster."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger = ledger
        self._bodies: dict[PolicyKey, str] = {}
        self._suspected: set[PolicyKey] = set()
        self._suspects_all = False
        self._changes = 0
        self.acls = Acls()
        self.credentials: dict[PolicyKey, ScramCredential] = {}
        self.quotas = Quotas()
        self.configs = DynamicConfigs(settings)
        self.has_authorizer: Final = settings.semel_authorizer == "acl"
        self.changed: Callable[[PolicyKey], None] = lambda key: None
        """Called after every change."""
        self._super_users: Final = principals(settings.super_users)
        self._if_none_found = settings.allow_everyone_if_no_acl_found
        self._all = Rights(None, "", "")
        self._rights: dict[tuple[str, str], Rights] = {}

    def __len__(self) -> int:
        """The number of policies."""
        return len(self._bodies)

    def has_room(self, more: int) -> bool:
        """Whether this many policies may be added. Changing and removing policies is always allowed."""
        return more <= 0 or len(self) + more <= self.configs.settings.semel_policies_max

    def rights(self, principal: str, host: str) -> Rights:
        """What a principal at a host may do."""
        if not self.has_authorizer or principal in self._super_users:
            return self._all
        known = self._rights.get((principal, host))
        if known is None:
            if len(self._rights) >= PRINCIPALS_MAX:
                self._rights.clear()
            known = self._rights[principal, host] = Rights(
                self.acls, principal, host, if_none_found=self._if_none_found
            )
        return known

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        """The credential of a user."""
        return self.credentials.get(user_key(user, mechanism))

    @property
    def salt_secret(self) -> bytes:
        """Secret for the salts of unknown users; empty before the first listener with SASL was started."""
        return self._bodies.get(SALTS, "").encode()

    # -- changes ------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load all policies."""
        while True:
            before = self._changes
            loaded: dict[PolicyKey, str] = {}
            after: PolicyKey | None = None
            while page := await self._ledger.policies(after=after):
                loaded.update(page)
                after = page[-1][0]
            if before == self._changes:
                break
        self._suspected.clear()
        self._suspects_all = False
        for key in self._bodies.keys() - loaded.keys():
            self._set(key, None)
        for key, body in loaded.items():
            self._set(key, body)

    def change(self, key: PolicyKey, body: str | None) -> None:
        """Publish what this broker has committed."""
        self._changes += 1
        self._set(key, body)

    def suspect(self, key: PolicyKey) -> None:
        """Note that another broker has changed a policy. See `catch_up`."""
        self._changes += 1
        self._suspected.add(key)

    def suspect_all(self) -> None:
        """Note that another broker may have changed any policy."""
        self._changes += 1
        self._suspects_all = True

    async def catch_up(self) -> None:
        """Load the policies that other brokers have changed. Raises StoreRefused if the ledger refuses."""
        if self._suspects_all:
            await self.load()
        while keys := tuple(self._suspected):
            before = self._changes
            values = await self._ledger.load(keys)
            if before != self._changes:
                # The loaded values may be older than those published meanwhile.
                continue
            self._suspected.clear()
            for key, body in zip(keys, values, strict=True):
                self._set(key, body)

    def _set(self, key: PolicyKey, body: str | None) -> None:
        before = self._bodies.get(key)
        if before == body:
            return
        if body is None:
            del self._bodies[key]
        else:
            self._bodies[key] = body
        if key.kind == ACL:
            (self.acls.remove if body is None else self.acls.add)(acl_of(key))
            self._rights.clear()
        elif key.kind == USER:
            if body is None:
                self.credentials.pop(key, None)
            else:
                self.credentials[key] = credential_of(body)
        elif key.kind == QUOTA:
            entity, limit = quota_of(key)
            self.quotas.set(entity, limit, None if body is None else float(body))
        elif key.kind == CONFIG:
            self.configs.set(*config_of(key), None if body is None else value_of(body))
        self.changed(key)
