"""Implement ``cluster.contract.Membership`` for the brokers that share a ledger in PostgreSQL.

Each method calls one function of the database (``membership.sql``), which checks that this broker was not
replaced. ``leases`` decides whether other brokers live.

The ledger has a row for each shard. A shard whose row is lost counts as one without an owner, so every broker
stops serving it with its next renewal, or when its lease is over. A broker that has missed the row for longer
than a lease writes it again: no broker serves the shard then.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from semel.core.entities import SHARDS
from semel.store.cluster.contract import ClusterView, Peer, Shard
from semel.store.cluster.leases import Leases
from semel.store.cluster.place import Place
from semel.store.cluster.postgres.database import Database

log = logging.getLogger("semel.store")

EPOCHS_AHEAD: Final = 1_000
"""How far the epoch of a shard whose row was lost jumps ahead of all others. It is certainly new, because all
shards change about equally often."""


class PostgresMembership:
    """The membership of this process."""

    def __init__(self, database: Database, place: Place, lease_seconds: float, secret: bytes) -> None:
        self._database = database
        self._lease = timedelta(seconds=lease_seconds)
        self.broker_id = place.broker_id
        self.epoch = place.epoch
        self.lease_seconds = lease_seconds
        self.secret = secret
        self._leases = Leases()
        self._lost: dict[int, float] = {}
        """Shards without a row, and when this broker first missed it."""

    async def join(
        self, endpoints: Mapping[str, tuple[str, int]], internal: tuple[str, int], rack: str | None
    ) -> None:
        """Announce the addresses, and begin the lease."""
        await self._call("join_cluster", self._lease, json.dumps(endpoints), json.dumps(internal), rack)

    async def renew(self, now_ms: int = 0) -> ClusterView:
        """Renew this broker's lease. Return the state of the cluster."""
        asked_at = self._leases.clock()
        # An answer that takes longer than a lease is of no use.
        row = await self._database.row_within(
            self.lease_seconds,
            "SELECT * FROM renew_lease($1, $2, $3, $4)",
            self.broker_id,
            self.epoch,
            self._lease,
            now_ms,
        )
        members, owners, epochs, numbers, bodies, time_of_day_ms, shared_now_ms = row
        shards = [Shard(owner, epoch) for owner, epoch in zip(owners or (), epochs or (), strict=True)]
        if self._lost or len(shards) != SHARDS:
            shards = await self._whole()
        return ClusterView(
            [self._peer(each, asked_at) for each in members or ()],
            shards,
            list(zip(numbers or (), bodies or (), strict=True)),
            time_of_day_ms,
            shared_now_ms,
        )

    async def _whole(self) -> list[Shard]:
        """Return all shards, even those without a row. Write rows again that were missed for a lease."""
        rows = await self._database.fetch("SELECT shard, owner, epoch FROM shards")
        found = {number: Shard(owner, epoch) for number, owner, epoch in rows}
        now = time.monotonic()
        before = self._lost
        self._lost = {number: before.get(number, now) for number in range(SHARDS) if number not in found}
        if new := self._lost.keys() - before.keys():
            log.error(
                "the ledger has lost the rows of %d shards (%s): their partitions, groups and transactional"
                " ids are not served until the rows are written again, after a lease. What else is lost,"
                " 'semel cluster check' tells",
                *(len(new), ", ".join(map(str, sorted(new)[:10]))),
            )
        due = [number for number, since in self._lost.items() if now - since > self.lease_seconds]
        if due:
            await self._database.row(
                """
                INSERT INTO shards
                SELECT number, NULL, (SELECT coalesce(max(epoch), 0) FROM shards) + $2
                FROM unnest($1::integer[]) AS number ON CONFLICT DO NOTHING
                """,
                due,
                EPOCHS_AHEAD,
            )
            log.warning("the rows of %d shards were written again", len(due))
        return [found.get(number, Shard(None, 0)) for number in range(SHARDS)]

    async def take_over(self, dead: Peer, owners: Mapping[int, int]) -> bool:
        """Fence a broker whose lease is over, and give its shards to new owners. False if it lives."""
        over = self._leases.over(dead.broker_id, dead.epoch, self._leases.clock())
        (is_taken,) = await self._call("take_over", dead.broker_id, dead.epoch, over, *_columns(owners))
        return bool(is_taken)

    async def hand_over(self, owners: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Give own shards, and those without an owner, to these brokers, if the shards have these epochs."""
        await self._call("hand_over", *_columns(owners), [epochs[shard] for shard in owners])

    async def leave(self, owners: Mapping[int, int]) -> None:
        """Give all own shards away, or leave them without an owner, and end the lease."""
        await self._call("leave_cluster", *_columns(owners))

    async def announce_leaving(self) -> None:
        """Ask other brokers to give this one no more shards."""
        await self._call("announce_leaving")

    async def leave_notice(self, peer: Peer, notice: bytes) -> int:
        """Write a notice to the ledger for a broker that cannot be reached. Return its number."""
        (number,) = await self._call("leave_notice", peer.broker_id, peer.epoch, notice)
        return int(number)

    async def is_noticed(self, peer: Peer, number: int) -> bool:
        """Whether the broker has seen the notice, or will see it before it serves clients again."""
        over = self._leases.over(peer.broker_id, peer.epoch, self._leases.clock())
        row = await self._call("is_noticed", peer.broker_id, peer.epoch, over, number)
        is_noticed, renewals, lease_seconds = row
        if not is_noticed:
            self._leases.saw(peer.broker_id, peer.epoch, renewals, lease_seconds)
        return bool(is_noticed)

    async def drop_notices(self, numbers: Sequence[int]) -> None:
        """Delete notices to this broker, which were carried out."""
        await self._call("drop_notices", list(numbers))

    def _peer(self, row: Any, asked_at: float) -> Peer:
        broker_id, epoch, endpoints, internal, rack, renewals, lease_seconds, is_leaving = row
        self._leases.saw(broker_id, epoch, renewals, lease_seconds)
        is_live = lease_seconds > 0 and self._leases.over(broker_id, epoch, asked_at) is None
        addresses = {name: (host, port) for name, (host, port) in json.loads(endpoints).items()}
        host, port = json.loads(internal)
        return Peer(broker_id, epoch, addresses, (host, port), rack, is_live, is_leaving)

    async def _call(self, function: str, *arguments: Any) -> Any:
        marks = ", ".join(f"${number}" for number in range(1, len(arguments) + 3))
        query = f"SELECT * FROM {function}({marks})"
        return await self._database.row(query, self.broker_id, self.epoch, *arguments)


def _columns(owners: Mapping[int, int]) -> tuple[list[int], list[int]]:
    return list(owners), list(owners.values())
