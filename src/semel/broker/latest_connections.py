"""Which transactional ids a connection spoke for, for the moment when it is gone.

The core knows the newest connection of each id; this is the other way round. It may say too much, because an
id stays here when another connection takes it over: the command that aborts looks again. It is bounded, and
an id that is forgotten here is only aborted later, by its timeout.
"""

from collections.abc import Iterable

from semel.core.facts import LatestConnectionChanged
from semel.core.types import Fact


class LatestConnections:
    """Connection to the ids it spoke for."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._ids: dict[int, dict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def learn(self, facts: Iterable[Fact]) -> None:
        """See who speaks now."""
        for fact in facts:
            if type(fact) is LatestConnectionChanged and not fact.for_offsets:
                ids = self._ids.setdefault(fact.connection, {})
                if fact.transactional_id not in ids:
                    ids[fact.transactional_id] = None
                    self._count += 1
                    while self._count > self._ids_max:
                        self.gone(next(iter(self._ids)))

    def gone(self, connection: int) -> list[str]:
        """The ids of a connection, which is forgotten."""
        ids = self._ids.pop(connection, {})
        self._count -= len(ids)
        return list(ids)
