"""Implement ``cluster.contract.Membership`` for the brokers that share a ledger in PostgreSQL.

Each method calls one function of the database (``membership.sql``), which checks that this broker was not
replaced.

The ledger has a row for each shard. A shard whose row is lost counts as one without an owner, so every broker
stops serving it with its next renewal, or when its lease is over. A broker that has missed the row for longer
than a lease writes it again: no broker serves the shard then.

**Places.** The place of a process in the ledger is the row of its broker, with a new epoch. A process that
starts takes the place of the last one with the same id. It waits until the lease of that one is over. After a
clean stop, it is over at once. Otherwise PostgreSQL's clock decides; if it was set back, the lease is over
when a whole lease has passed since it was first seen. If the lease is renewed meanwhile, two processes have
the same id.

**Leases.** Whether the lease of another broker is over is decided by this broker's monotonic clock. A broker
serves for one lease after it has sent a renewal. If another broker has seen a renewal in the ledger, and
finds no later one when it looks again a whole lease afterwards, the lease is over, because the renewal was
sent before it was seen. So setting PostgreSQL's clock does no harm.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from semel.core.entities import SHARDS
from semel.store.cluster.contract import ClusterView, Peer, Shard, lease_clock
from semel.store.cluster.postgres.database import Database
from semel.store.contract import StoreLocked

LEASE_RUNS: Final = "lease_until > clock_timestamp() AND lease_until <= clock_timestamp() + lease"
"""Whether the lease of a row of ``brokers`` runs, for a single look on which no safety depends.

Uses PostgreSQL's clock. If that was set back, a lease that ends later than a whole lease from now was not
renewed since. So a live broker may be taken for dead until its next renewal, or a dead one for live for a
lease.
"""


class _Renewal(NamedTuple):
    """The newest renewal that was seen of a broker."""

    epoch: int
    number: int
    over_at: float


class Leases:
    """What one broker knows about the leases of others."""

    def __init__(self, clock: Callable[[], float] = lease_clock) -> None:
        self.clock = clock
        self._renewals: dict[int, _Renewal] = {}

    def saw(self, broker_id: int, epoch: int, number: int, lease_seconds: float) -> None:
        """Note the last renewal of a broker, which was just read from the ledger."""
        known = self._renewals.get(broker_id)
        if known is None or known[:2] != (epoch, number):
            self._renewals[broker_id] = _Renewal(epoch, number, self.clock() + lease_seconds)

    def over(self, broker_id: int, epoch: int, asked_at: float) -> int | None:
        """Return the renewal whose lease is over, if the ledger has no later one. None if it may still run.

        ``asked_at`` must be a time before the ledger was asked: if this process was paused, the answer is
        older than it seems.
        """
        known = self._renewals.get(broker_id)
        is_over = known is not None and known.epoch == epoch and known.over_at <= asked_at
        return known.number if known is not None and is_over else None


_ABANDON: Final = f"""
    UPDATE objects SET state = 'abandoned', since = clock_timestamp()
    WHERE state = 'uploading' AND NOT EXISTS (SELECT FROM brokers WHERE {LEASE_RUNS})
"""
"""No broker lives that could still commit these objects (``reconciling``). If one lives after all, because
PostgreSQL's clock was set, its commit is refused, and the client sends the records again."""


class BrokerSlot(NamedTuple):
    """The row of a broker, as this process took it."""

    broker_id: int
    slot: int
    epoch: int
    session: int
    sequence: int


async def take_place(database: Database, broker_id: int, lease_seconds: float) -> BrokerSlot:
    """Take the place of the last process with this id, and begin a lease. StoreLocked, StoreRefused."""
    await database.row(_ABANDON)
    instance = os.urandom(16)
    lease = timedelta(seconds=lease_seconds)
    seen: int | None = None
    over_at = 0.0
    while True:
        over = seen if seen is not None and over_at <= lease_clock() else None
        row = await database.row("SELECT * FROM take_place($1, $2, $3, $4)", broker_id, instance, lease, over)
        is_taken, slot, epoch, session, sequence, renewals, whole_seconds, seconds_left, internal = row
        if is_taken:
            return BrokerSlot(broker_id, slot, epoch, session, sequence)
        if seen not in (None, renewals):
            raise StoreLocked(
                f"another process runs as broker {broker_id}{_address(internal)}:"
                " stop it, or give this one another node.id"
            )
        if seen is None:
            seen, over_at = renewals, lease_clock() + whole_seconds
            seconds_left = min(seconds_left, whole_seconds)
            log.warning("waiting %.1f s for the lease of the last broker %d", seconds_left, broker_id)
        await asyncio.sleep(max(min(seconds_left, over_at - lease_clock()), 0.001))


def _address(internal: str) -> str:
    host, port = json.loads(internal)
    return f" at {host}:{port}" if host else ""


log = logging.getLogger("semel.store")

EPOCHS_AHEAD: Final = 1_000
"""How far the epoch of a shard whose row was lost jumps ahead of all others. It is certainly new, because all
shards change about equally often."""


class PostgresMembership:
    """The membership of this process."""

    def __init__(self, database: Database, place: BrokerSlot, lease_seconds: float, secret: bytes) -> None:
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
