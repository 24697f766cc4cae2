"""Add a user to a store that no broker uses, because the first user cannot authenticate to add itself."""

from collections.abc import Mapping
from pathlib import Path

from semel.config import Settings
from semel.core.facts import Put
from semel.core.security.policies import credential_policy
from semel.core.security.users import ScramCredential
from semel.core.types import PolicyKey
from semel.store.cluster.postgres.database import stored
from semel.store.cluster.postgres.opening import open_database
from semel.store.contract import StoreRefused
from semel.store.opening import SCHEMA, check_packages, open_store


async def put_policies(address: str, schema: str, changes: Mapping[PolicyKey, str | None]) -> int:
    """Write policies to a ledger, and create its tables if there are none. StoreRefused, StoreBroken.

    Return how many of the policies existed before. No broker may run, because it would not notice.
    """
    database = await open_database(address, schema, 1)
    try:
        if await database.value(
            "SELECT count(*) FROM brokers WHERE is_member AND lease_until > clock_timestamp()"
        ):
            raise StoreRefused("brokers of this cluster are running; add the user through one (--bootstrap)")
        present = 0
        for policy, body in changes.items():
            key = policy.kind, stored(policy.name)
            present += await database.value(
                "SELECT count(*) FROM policies WHERE kind = $1 AND name = $2", *key
            )
            stored_body = None if body is None else stored(body)
            await database.value("SELECT write_policy($1, $2, $3)", *key, stored_body)
        return present
    finally:
        await database.close()


async def put_in_directory(path: Path, credential: ScramCredential) -> bool:
    """Add a user to a data directory, which is created if missing. StoreLocked, StoreBroken.

    Return whether the user had a password, which is replaced.
    """
    store = await open_store(path, Settings())
    try:
        key, body = credential_policy(credential)
        (present,) = await store.ledger.load([key])
        await store.commit([Put(key, body)], ())
        return present is not None
    finally:
        await store.close()


async def put_in_ledger(address: str, credential: ScramCredential) -> bool:
    """Add a user to the ledger of a cluster. StoreRefused, StoreBroken.

    Return whether the user had a password, which is replaced.
    """
    check_packages()
    from semel.store.first_user import put_policies

    return await put_policies(address, SCHEMA, dict([credential_policy(credential)])) > 0
