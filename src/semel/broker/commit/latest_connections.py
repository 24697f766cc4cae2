"""The transactional ids that each connection has used, to abort their transactions when it closes.

The core maps each id to its latest connection; this is the reverse map. It may list too many ids, because an
id stays here when another connection takes it over: the command that aborts checks again. It is bounded; the
transaction of an id that was dropped here is aborted later, by its timeout.
"""

from collections.abc import Iterable

from semel.core.facts import LatestConnectionChanged
from semel.core.types import Fact


class LatestConnections:
    """Maps a connection to the ids that it used."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._ids: dict[int, dict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def learn(self, facts: Iterable[Fact]) -> None:
        """Note the new latest connections among the facts."""
        for fact in facts:
            if type(fact) is LatestConnectionChanged and not fact.for_offsets:
                ids = self._ids.setdefault(fact.connection, {})
                if fact.transactional_id not in ids:
                    ids[fact.transactional_id] = None
                    self._count += 1
                    while self._count > self._ids_max:
                        self.gone(next(iter(self._ids)))

    def gone(self, connection: int) -> list[str]:
        """Remove a connection; returns its ids."""
        ids = self._ids.pop(connection, {})
        self._count -= len(ids)
        return list(ids)
