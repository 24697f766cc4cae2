"""Add a user to a store that no broker uses, because the first user cannot authenticate to add itself."""

from pathlib import Path

from semel.config import Settings
from semel.core.facts import Put
from semel.core.security.policies import credential_policy
from semel.core.security.users import ScramCredential
from semel.store.opening import SCHEMA, check_packages, open_store


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
    from semel.store.cluster.policies import put_policies

    return await put_policies(address, SCHEMA, dict([credential_policy(credential)])) > 0
