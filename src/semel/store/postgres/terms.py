"""The terms of a cluster: which one the ledger is in, and whether another server has gone on without it.

A crash or a promotion of PostgreSQL ends a term. The next one is begun in the ledger, and noted in the object
store before anything is committed in it. The object store takes each number once. So if the old primary comes
back after a failover, it cannot begin the term that the promoted standby has begun, whoever asks it: the
object store is a witness that is at neither of the servers.
"""

import logging
from typing import Any, Final, Protocol

from semel.store.interface import LedgerDamaged, StoreBroken, StoreMisconfigured, StoreRefused
from semel.store.postgres.database import FLUSH, QUERY_PATIENCE_SECONDS, Database, patiently

log = logging.getLogger("semel.store")

HAS_TERM: Final = """
    SELECT EXISTS (SELECT FROM terms WHERE term_id = $2 OR (term > $1 AND term_id = 'skipped'))
"""
"""Whether a ledger has this term, or an operator has said that it need not."""


class Witness(Protocol):
    """Where terms are noted."""

    async def newest_term(self) -> tuple[int, str] | None:
        """Return the newest term, and its id. OSError."""

    async def note_term(self, term: int, term_id: str) -> str:
        """Note a term if nobody has, and return the id that was noted. StoreRefused."""


class Terms:
    """The terms of one ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._witness: Witness | None = None

    async def begin(self) -> int:
        """Return the current term, which is begun if the server has lost the last one. StoreRefused."""

        async def work() -> Any:
            async with self._database.connection() as connection:
                term = await connection.fetchval("SELECT current_term()")
                found = await connection.fetchrow("SELECT * FROM terms WHERE term = $1", term)
                if found is not None and not found["is_noted"]:
                    # The wait of who began it may have been cancelled. If the standby lacked a term that is
                    # noted, it would be refused after a failover.
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
        """Have terms noted from now on. StoreMisconfigured if another server has gone on. StoreRefused."""
        self._witness = witness
        try:
            await self.begin()
        except LeftBehind as error:
            raise self._cannot_start(error) from None

    async def check(self, witness: Witness) -> None:
        """StoreMisconfigured or StoreBroken if another server has gone on, as far as the witness answers."""
        try:
            newest = await witness.newest_term()
        except OSError:
            return  # It is asked again before anything is written.
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
        """Whether the ledger has this term, or an operator has said that it need not."""
        return bool(await self._database.value(HAS_TERM, term, term_id))


class LeftBehind(StoreRefused):
    """Another server has a term that this one has not."""

    @classmethod
    def with_term(cls, term: int) -> "LeftBehind":
        """Say which term it is."""
        return cls(
            f"this PostgreSQL server was left behind: the cluster has gone on with term {term} elsewhere"
        )
