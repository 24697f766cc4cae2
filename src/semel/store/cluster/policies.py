"""Write policies of a cluster whose brokers do not run."""

from collections.abc import Mapping

from semel.core.types import PolicyKey
from semel.store.cluster.postgres.opening import open_database
from semel.store.cluster.postgres.texts import stored
from semel.store.contract import StoreRefused


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
