"""Delete objects that are not needed, and compare the objects with the ledger.

Every object has a row before it is uploaded and until its deletion is confirmed (``chunks.sql``). An object
is deleted when it has been unused, or reserved without a commit, for ``semel.object.delete.delay.ms``,
because a reader of another broker may have looked it up just before. The object first gets a state in which
no commit can refer to it, so a late commit is refused instead of losing its bytes. An object that was
reserved before a time without any broker is kept for a day: the ledger may have been restored from the wrong
backup.

An object without a row, a *stranger*, can still appear if a delayed upload arrives after the deletion. And
objects vanish if another program deletes them. So the list of objects is compared with the ledger at
intervals. Strangers are deleted. Missing objects are reported, and keep their rows.

An object with a chunk is never deleted, whatever its row says. If its row is lost, it is written again. An
object in use without any chunk is kept, because the row of its chunk may be what is lost.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from semel.config import Settings
from semel.store.cluster.bytes.objects import Listed, Objects
from semel.store.cluster.bytes.roller import always
from semel.store.cluster.postgres.database import Database
from semel.store.contract import LedgerDamaged, StoreRefused

log = logging.getLogger("semel.store")

AT_ONCE: Final = 1_000
REPORTED_MAX: Final = 20
"""Objects that a report names in the log."""
_LAST: Final = 2**63 - 1
ABANDONED_SECONDS: Final = 86_400.0
"""How long objects are kept that were reserved, but not committed, before a time without any broker.

If the ledger was restored from a backup, its last brokers may have committed them after the backup. A day
leaves time to notice that it was the wrong backup.
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
        """Reconcile at intervals until cancelled, while the job is this broker's."""
        while True:
            await asyncio.sleep(self._interval_seconds)
            if is_mine():
                try:
                    await self.reconcile_once()
                except (StoreRefused, OSError) as error:
                    log.warning("the objects cannot be compared with the ledger now: %s", error)

    async def delete_unused(self) -> list[int]:
        """Delete objects that are not needed any more. Return their numbers."""
        deleted: list[int] = []
        while numbers := await self._condemned():
            try:
                await self._objects.delete(numbers)
            except StoreRefused as error:
                log.warning("%d unused objects are deleted later: %s", len(numbers), error)
                break
            # Delete the rows only now, after the object store has confirmed.
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
        """Mark objects to delete, so that no commit can refer to them any more. Return their numbers."""
        async with self._database.transaction() as connection:
            # If the clock was set back, begin the delay anew, so that readers certainly have enough time.
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
        """Compare the objects with the ledger, and delete strangers. Return their numbers."""
        await self._report_idle()
        # Ignore objects whose numbers were not reserved when the listing began.
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
        """Report objects in use without any chunk. They are kept: the rows of their chunks may be lost.

        Otherwise there are none, because deleting the last chunk of an object also marks it as unused.
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
        """Return the objects in a range of numbers: those that the ledger needs, and all that it knows."""
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
        """Write the lost rows of objects that have chunks again. Return the numbers of these objects."""
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
        """Return the objects still missing and still needed. Both may have changed since the listing."""
        suspects, rest = numbers[:AT_ONCE], numbers[AT_ONCE:]
        gone = [number for number in suspects if not await self._objects.has(number)] + rest
        rows = await self._database.fetch(
            "SELECT object_id FROM objects WHERE object_id = ANY ($1) AND state = 'stored' ORDER BY 1",
            gone,
        )
        return [number for (number,) in rows]


def _report(text: str, numbers: list[int]) -> None:
    """Log a line for each object, up to ``REPORTED_MAX``, and the number of the others."""
    for number in numbers[:REPORTED_MAX]:
        log.error(text, f"{number:016x}")
    if len(numbers) > REPORTED_MAX:
        log.error("the same is true of %d other objects", len(numbers) - REPORTED_MAX)
