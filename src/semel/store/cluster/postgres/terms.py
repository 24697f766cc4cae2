"""Track the terms of a cluster: which one the ledger is in, and whether another server has begun a newer one.

A crash or a promotion of PostgreSQL ends a term. The next term begins in the ledger, and is noted in the
object store before anything is committed in it. The object store accepts each number once. So an old primary
that comes back after a failover cannot begin the term that the promoted standby has begun, whichever broker
asks: the object store is a witness apart from both servers.

`watch` checks at intervals whether the server still keeps what it confirms. The settings of a server may
change while it runs, and the cluster may go on at another server without it.
"""

import asyncio
import logging
from typing import Any, Final, Protocol

from semel.store.cluster.postgres.database import FLUSH, QUERY_PATIENCE_SECONDS, Database, patiently
from semel.store.cluster.postgres.sessions import UNSAFE
from semel.store.contract import LedgerDamaged, StoreBroken, StoreMisconfigured, StoreRefused

HAS_TERM: Final = """
    SELECT EXISTS (SELECT FROM terms WHERE term_id = $2 OR (term > $1 AND term_id = 'skipped'))
"""
"""Whether a ledger has this term, or an operator has declared that it need not."""


class Witness(Protocol):
    """Where terms are noted."""

    async def newest_term(self) -> tuple[int, str] | None:
        """Return the newest noted term and its id; None if no term is noted. OSError."""

    async def note_term(self, term: int, term_id: str) -> str:
        """Note a term unless it is noted already. Return the id that is noted. StoreRefused."""


class Terms:
    """The terms of one ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._witness: Witness | None = None

    async def begin(self) -> int:
        """Return the current term. Begin one if the server has lost the last one. StoreRefused."""

        async def work() -> Any:
            async with self._database.connection() as connection:
                term = await connection.fetchval("SELECT current_term()")
                found = await connection.fetchrow("SELECT * FROM terms WHERE term = $1", term)
                if found is not None and not found["is_noted"]:
                    # The broker that began it may not have waited for the standby. A standby without a noted
                    # term would be refused after a failover.
                    await connection.execute(FLUSH)
                return found

        row = await patiently(work, QUERY_PATIENCE_SECONDS)
        if row is None:
            raise LedgerDamaged("the ledger has lost the row of its term in terms: restore it")
        term, term_id, is_noted = row
        await self._note(term, term_id, is_noted)
        self._database.servers.learn(term, term_id)
        return int(term)

    async def have_noted(self, witness: Witness) -> None:
        """Note terms with this witness from now on. StoreMisconfigured if another server has a newer term.

        StoreBroken if a silent server may have it. StoreRefused.
        """
        self._witness = witness
        try:
            await self.begin()
        except LeftBehind as error:
            raise self._cannot_start(error) from None

    async def check(self, witness: Witness) -> None:
        """Raise StoreMisconfigured or StoreBroken if the witness has a newer term, of another server."""
        try:
            newest = await witness.newest_term()
        except OSError:
            return  # The witness is asked again before anything is written.
        if newest is not None and not await self._continues(*newest):
            raise self._cannot_start(LeftBehind.with_term(newest[0]))

    def _cannot_start(self, error: "LeftBehind") -> Exception:
        if silent := self._database.servers.silent:
            return StoreBroken(f"{error}. That may be at {', '.join(silent)}, where no server answers yet")
        return StoreMisconfigured(
            f"{error}. After a failover, give the address of the new primary, or of all servers. Only if the"
            " database was restored from a backup on purpose, see 'Restoring' in docs/cluster.md"
        )

    async def _note(self, term: int, term_id: str, is_noted: bool) -> None:
        if self._witness is None:
            return
        try:
            newest = await self._witness.newest_term()
            if not is_noted and (newest is None or await self._continues(*newest)):
                newest = term, await self._witness.note_term(term, term_id)
                await self._database.row("UPDATE terms SET is_noted = true WHERE term_id = $1", newest[1])
        except (OSError, StoreRefused) as error:
            if is_noted or term == 1:
                log.warning("whether another server has gone on is checked later: %s", error)
                return
            raise StoreRefused(
                f"the term {term} cannot be noted in the object store, so it is not known whether this is the"
                f" only server: {error}"
            ) from error
        if newest is not None and not await self._continues(*newest):
            self._database.servers.require(*newest)
            raise LeftBehind.with_term(newest[0])

    async def _continues(self, term: int, term_id: str) -> bool:
        """Whether the ledger has this term, or an operator has declared that it need not."""
        return bool(await self._database.value(HAS_TERM, term, term_id))


class LeftBehind(StoreRefused):
    """Another server has a term that this one lacks."""

    @classmethod
    def with_term(cls, term: int) -> "LeftBehind":
        """Return the error for this term."""
        return cls(
            f"this PostgreSQL server was left behind: the cluster has gone on with term {term} elsewhere"
        )


LOOK_SECONDS: Final = 1.0
"""As often as a lease is renewed by default."""
TERMS_EVERY: Final = 10
"""Looks at the settings per look at other hosts, and at the terms in the object store."""


async def watch(database: Database, terms: Terms) -> None:
    """Check the server until cancelled. StoreMisconfigured if it must not be used any more."""
    looks = 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        looks += 1
        try:
            database.servers.check_settings([name for (name,) in await database.fetch(UNSAFE)])
            if looks % TERMS_EVERY == 0:
                await database.servers.look_around()
                await terms.begin()
        except StoreRefused as refused:
            log.warning("whether this is still the right PostgreSQL server is checked later: %s", refused)


log = logging.getLogger("semel.store")
