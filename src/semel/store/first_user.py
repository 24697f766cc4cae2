"""Add a user to a store that no broker uses, because the first user cannot authenticate to add itself."""

from pathlib import Path

from semel.config import Settings
from semel.core.security.policies import PutCredential
from semel.core.security.users import ScramCredential
from semel.core.state import BrokerState
from semel.core.types import Fact
from semel.store.opening import SCHEMA, check_packages, open_store


async def put_in_directory(path: Path, credential: ScramCredential) -> bool:
    """Add a user to a data directory, which is created if missing. StoreLocked, StoreBroken.

    Return whether the user had a password, which is replaced.
    """
    store = await open_store(path, Settings())
    try:
        (key,) = PutCredential(credential).keys()
        (present,) = await store.ledger.load([key])
        await store.commit(_facts(credential, present), ())
        return present is not None
    finally:
        await store.close()


async def put_in_ledger(address: str, credential: ScramCredential) -> bool:
    """Add a user to the ledger of a cluster. StoreRefused, StoreBroken.

    Return whether the user had a password, which is replaced.
    """
    check_packages()
    from semel.store.cluster.policies import put_policies

    policies = {fact.key: fact.value for fact in _facts(credential, None)}
    return await put_policies(address, SCHEMA, policies) > 0


def _facts(credential: ScramCredential, present: str | None) -> tuple[Fact, ...]:
    """Decide the facts as a broker does."""
    command = PutCredential(credential)
    state = BrokerState()
    for key in command.keys():  # noqa: SIM118  it is not a mapping
        state.put(key, present)
    return state.decide(command, 0).facts
