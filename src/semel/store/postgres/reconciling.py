"""Deletes objects that nobody needs, and compares the objects with the ledger.

Every object has a row before it is uploaded and until its deletion is confirmed (``chunks.sql``). An object
is deleted when it has been unused, or reserved without a commit, for ``semel.object.delete.delay.ms``: a
reader of another broker may have looked it up just before. The first step is a state after which no commit
can refer to it, so a late commit is refused instead of losing its bytes. An object that was reserved before a
time without any broker is kept for a day: the ledger may have been restored from the wrong backup.

An object without a row can still appear, if a delayed upload arrives after the deletion. And objects may
vanish, if somebody deletes them behind Semel's back. So the list of objects is compared with the ledger now
and then. Strangers are deleted, missing objects are reported and never forgotten.

What a chunk is in is never deleted, whatever the row of the object says. If that row is lost, it is written
again; an object without any chunk is kept, because the row of its chunk may be what is lost.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from semel.config import Settings
from semel.store.interface import LedgerDamaged, StoreRefused
from semel.store.objects import Listed, Objects
from semel.store.postgres.database import Database
from semel.store.postgres.roller import always

log = logging.getLogger("semel.store")

AT_ONCE: Final = 1_000
REPORTED_MAX: Final = 20
"""Missing objects that are named in the log."""
_LAST: Final = 2**63 - 1
ABANDONED_SECONDS: Final = 86_400.0
"""How long objects are kept that were reserved, but not committed, before a time without any broker.

If the ledger was restored from a backup, its last brokers may have committed them after the backup. A day is
time to notice that it was the wrong backup.
"""


class Reconciler:
    """Deletes and compares the objects of one cluster."""

    def __init__(self, database: Database, objects: Objects, settings: Settings) -> None:
        self._database = database
        self._objects = objects
        self._delay_seconds = settings.semel_object_delete_delay_ms / 1000
        self._interval_seconds = settings.semel_object_reconcile_interval_ms / 1000
        self.missing = 0
        """Objects that the ledger needs and the last listing lacks."""

    async def run(self, is_mine: Callable[[], bool] = always) -> None:
        """Reconcile until cancelled, whenever it is this broker's work."""
        while True:
            await asyncio.sleep(self._interval_seconds)
            if is_mine():
                try:
                    await self.reconcile_once()
                except (StoreRefused, OSError) as error:
                    log.warning("the objects cannot be compared with the ledger now: %s", error)

    async def delete_unused(self) -> list[int]:
        """Delete objects that nobody needs any more. Return their numbers."""
        deleted: list[int] = []
        while numbers := await self._condemned():
            try:
                await self._objects.delete(numbers)
            except StoreRefused as error:
                log.warning("%d unused objects are deleted later: %s", len(numbers), error)
                break
            # Forgotten only now that the object store has confirmed.
            await self._database.row(
                """
                DELETE FROM objects WHERE object_id = ANY ($1)
                AND NOT EXISTS (SELECT FROM chunks WHERE chunks.object_id = objects.object_id)
                """,
                numbers,
            )
            deleted += numbers
        return sorted(deleted)

    async def _condemned(self) -> list[int]:
        """Return objects that are to be deleted, and that no commit can refer to from now on."""
        async with self._database.transaction() as connection:
            # The clock was set back. That readers are given enough time is certain only if it begins anew.
            await connection.execute(
                """
                UPDATE objects SET since = clock_timestamp()
                WHERE state <> 'stored' AND since > clock_timestamp()
                """
            )
            rows = await connection.fetch(
                """
                UPDATE objects SET state = 'deleting'
                WHERE state <> 'stored' AND object_id IN (
                    SELECT object_id FROM objects
                    WHERE state = 'deleting'
                    OR since <= clock_timestamp() - make_interval(secs => $1)
                    AND state IN ('uploading', 'unused')
                    OR since <= clock_timestamp() - make_interval(secs => $3) AND state = 'abandoned'
                    ORDER BY since LIMIT $2
                )
                AND NOT EXISTS (SELECT FROM chunks WHERE chunks.object_id = objects.object_id)
                RETURNING object_id
                """,
                self._delay_seconds,
                AT_ONCE,
                ABANDONED_SECONDS,
            )
        return [number for (number,) in rows]

    async def reconcile_once(self) -> list[int]:
        """Compare the objects with the ledger. Return the numbers of strangers, which were deleted."""
        await self._report_idle()
        # Numbers that were not reserved when the listing begins are none of our business.
        last: int | None = await self._database.value("SELECT last_object FROM numbering")
        if last is None:
            raise LedgerDamaged("the ledger has lost the row of numbering")
        strangers: list[int] = []
        missing: list[int] = []
        after = 0
        async for page in self._objects.pages():
            needed, known = await self._between(after, page[-1].number)
            strangers += await self._delete_strangers(page, known, last + 1)
            missing += needed - {each.number for each in page}
            after = page[-1].number
        needed, _ = await self._between(after, _LAST)
        missing = await self._certainly([*missing, *needed])
        self.missing = len(missing)
        _report("object %s is gone from the object store, but the ledger needs it", missing)
        return strangers

    async def _report_idle(self) -> None:
        """Report objects that no chunk is in. They are kept, because their chunks may be what was lost.

        Whoever deletes the last chunk in an object also marks it as unused, so there are none.
        """
        rows = await self._database.fetch(
            """
            SELECT object_id FROM objects WHERE state = 'stored'
            AND NOT EXISTS (SELECT FROM chunks WHERE chunks.object_id = objects.object_id)
            ORDER BY object_id
            """
        )
        _report(
            "no chunk is in object %s: the ledger has lost a row of chunks; the object is kept",
            [number for (number,) in rows],
        )

    async def _between(self, after: int, last: int) -> tuple[set[int], set[int]]:
        """Return the objects that the ledger needs, and all that it knows, within these numbers."""
        rows = await self._database.fetch(
            "SELECT object_id, state FROM objects WHERE object_id > $1 AND object_id <= $2", after, last
        )
        return {number for number, state in rows if state == "stored"}, {number for number, _ in rows}

    async def _delete_strangers(self, page: list[Listed], known: set[int], end: int) -> list[int]:
        """Delete objects without a row. No commit can need them, because the row comes before the upload."""
        strange = {
            each.number: each.size
            for each in page
            if each.number not in known and each.number < end and each.age_seconds >= self._delay_seconds
        }
        restored = await self._restored(strange) if strange else set()
        strangers = [number for number in strange if number not in restored]
        if strangers:
            log.warning("%d objects that the ledger does not know are deleted", len(strangers))
            await self._objects.delete(strangers)
        return strangers

    async def _restored(self, strange: dict[int, int]) -> set[int]:
        """Write the rows of objects again that chunks are in: the rows were lost. Return their numbers."""
        rows = await self._database.fetch(
            """
            INSERT INTO objects
            SELECT number, size, 'stored', clock_timestamp()
            FROM unnest($1::bigint[], $2::bigint[]) AS strange (number, size)
            WHERE EXISTS (SELECT FROM chunks WHERE chunks.object_id = number)
            ON CONFLICT DO NOTHING RETURNING object_id
            """,
            list(strange),
            list(strange.values()),
        )
        restored = [number for (number,) in rows]
        _report("the ledger had lost the row of object %s, which was written again", restored)
        return set(restored)

    async def _certainly(self, numbers: list[int]) -> list[int]:
        """Return those that are still missing, and still needed: both may have changed since the listing."""
        suspects, rest = numbers[:AT_ONCE], numbers[AT_ONCE:]
        gone = [number for number in suspects if not await self._objects.has(number)] + rest
        rows = await self._database.fetch(
            "SELECT object_id FROM objects WHERE object_id = ANY ($1) AND state = 'stored' ORDER BY 1",
            gone,
        )
        return [number for (number,) in rows]


def _report(text: str, numbers: list[int]) -> None:
    """Log something of each of these objects, as long as they are few."""
    for number in numbers[:REPORTED_MAX]:
        log.error(text, f"{number:016x}")
    if len(numbers) > REPORTED_MAX:
        log.error("the same is true of %d other objects", len(numbers) - REPORTED_MAX)
