"""Policies: what administrators decide for the whole cluster (ACLs, SCRAM users, quotas, configs).

The rules for the configs of groups and brokers are in ``dynamic_configs``.

A policy is a key and a value, and each is written as a whole: an ACL exists or not, a user has a credential
or not, an entity has a limit or not. So policies need no versions when two brokers change them at the same
time: for each key the later commit wins, and it leaves all other keys alone.

Keys and values are JSON, so that a ledger stores all kinds in one table and people can read it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec import json

from semel.core.facts import Put
from semel.core.security.acls import AclBinding
from semel.core.security.quotas import QuotaEntity
from semel.core.security.users import ScramCredential
from semel.core.types import Command, Decide, Decision, ErrorCode, Key, PolicyKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState

ACL: Final = "acl"
USER: Final = "user"
QUOTA: Final = "quota"
SECRET: Final = "secret"
SALTS: Final = PolicyKey(SECRET, "salts")
"""The secret from which the salts of unknown users are made: the same at every broker and every time."""
PRESENT: Final = "true"
"""The value of a policy that has no other value than to exist."""


def acl_key(binding: AclBinding) -> PolicyKey:
    """Return the key of an ACL, which contains the whole binding."""
    return PolicyKey(ACL, json.encode(binding).decode())


def acl_of(key: PolicyKey) -> AclBinding:
    """Return the ACL of a key."""
    return json.decode(key.name, type=AclBinding)


def user_key(user: str, mechanism: str) -> PolicyKey:
    """Return the key of the credential of a user."""
    return PolicyKey(USER, json.encode((user, mechanism)).decode())


def user_of(key: PolicyKey) -> tuple[str, str]:
    """Return the user and the mechanism of a key."""
    return json.decode(key.name, type=tuple[str, str])


def credential_policy(credential: ScramCredential) -> tuple[PolicyKey, str]:
    """Return the policy that gives a user this credential."""
    return user_key(credential.user, credential.mechanism), json.encode(credential).decode()


def credential_of(body: str) -> ScramCredential:
    """Return the credential of a user."""
    return json.decode(body, type=ScramCredential)


def quota_key(entity: QuotaEntity, limit: str) -> PolicyKey:
    """Return the key of one limit of an entity."""
    return PolicyKey(QUOTA, json.encode((entity, limit)).decode())


def quota_of(key: PolicyKey) -> tuple[QuotaEntity, str]:
    """Return the entity and the limit of a key."""
    return json.decode(key.name, type=tuple[QuotaEntity, str])


class AddAcl(Command[ErrorCode]):
    """Add an ACL. No change if it exists."""

    binding: AclBinding

    def keys(self) -> Iterable[Key]:
        """The ACL."""
        return (acl_key(self.binding),)


class RemoveAcl(Command[bool]):
    """Remove exactly this ACL. The answer is whether it existed."""

    binding: AclBinding

    def keys(self) -> Iterable[Key]:
        """The ACL."""
        return (acl_key(self.binding),)


class PutCredential(Command[ErrorCode]):
    """Add a credential of a user, or replace it."""

    credential: ScramCredential

    def keys(self) -> Iterable[Key]:
        """The credential."""
        return (user_key(self.credential.user, self.credential.mechanism),)


class RemoveCredential(Command[ErrorCode]):
    """Remove a credential of a user."""

    user: str
    mechanism: str

    def keys(self) -> Iterable[Key]:
        """The credential."""
        return (user_key(self.user, self.mechanism),)


class PutSecret(Command[ErrorCode]):
    """Set the secret for salts, unless it is set."""

    secret: str

    def keys(self) -> Iterable[Key]:
        """The secret."""
        return (SALTS,)


class AlterQuota(Command[ErrorCode]):
    """Set limits of an entity, or remove them (None)."""

    entity: QuotaEntity
    operations: tuple[tuple[str, float | None], ...]

    def keys(self) -> Iterable[Key]:
        """The limits."""
        return [quota_key(self.entity, name) for name, _ in self.operations]


class ConfirmPolicies(Command[None]):
    """Change nothing. Like every command here, it is answered when all brokers have the earlier changes."""

    def keys(self) -> Iterable[Key]:
        """None: the caller no longer knows which changes it confirms."""
        return ()


def changing(state: "BrokerState", wanted: Iterable[tuple[PolicyKey, str | None]]) -> tuple[Put, ...]:
    """Return facts for the policies that change. Setting one to its current value must not cost a commit."""
    return tuple(Put(key, body) for key, body in wanted if state.policies[key] != body)


def _add_acl(state: "BrokerState", command: AddAcl, now: int) -> Decision:
    return Decision(ErrorCode.NONE, changing(state, [(acl_key(command.binding), PRESENT)]))


def _remove_acl(state: "BrokerState", command: RemoveAcl, now: int) -> Decision:
    changes = changing(state, [(acl_key(command.binding), None)])
    return Decision(bool(changes), changes)


def _put_credential(state: "BrokerState", command: PutCredential, now: int) -> Decision:
    return Decision(ErrorCode.NONE, changing(state, [credential_policy(command.credential)]))


def _remove_credential(state: "BrokerState", command: RemoveCredential, now: int) -> Decision:
    changes = changing(state, [(user_key(command.user, command.mechanism), None)])
    return Decision(ErrorCode.NONE if changes else ErrorCode.RESOURCE_NOT_FOUND, changes)


def _put_secret(state: "BrokerState", command: PutSecret, now: int) -> Decision:
    present = state.policies[SALTS]
    return Decision(ErrorCode.NONE, changing(state, [(SALTS, present or command.secret)]))


def _alter_quota(state: "BrokerState", command: AlterQuota, now: int) -> Decision:
    wanted = [
        (quota_key(command.entity, name), None if value is None else json.encode(value).decode())
        for name, value in command.operations
    ]
    return Decision(ErrorCode.NONE, changing(state, wanted))


def _confirm(state: "BrokerState", command: ConfirmPolicies, now: int) -> Decision:
    return Decision(None)


DECIDE: dict[type, Decide] = {
    AddAcl: _add_acl,
    RemoveAcl: _remove_acl,
    PutCredential: _put_credential,
    RemoveCredential: _remove_credential,
    PutSecret: _put_secret,
    AlterQuota: _alter_quota,
    ConfirmPolicies: _confirm,
}
