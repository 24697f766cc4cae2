"""The brokers that share the simulated ledger: their rows, leases, shards and notices.

``Places`` has the operations of the server, each of which is one step. ``SimulatedMembership`` calls them for
one life of a broker; a call may be repeated, because its answer was lost.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from semel.store.cluster.contract import ClusterView, Peer, Shard
from semel.store.contract import StoreFenced
from simulation.shared_ledger import PRODUCER_SHIFT, LedgerServer, Notice, Row

LEASE_SECONDS: Final = 0.3
EPOCH_MS: Final = 1_700_000_000_000


class Link(Protocol):
    """The connection to the server."""

    async def ask(self, work: Callable[[], Any], patience: float) -> Any:
        """Run `work` at the server, at least once. Raises StoreRefused or StoreFenced."""


class Places:
    """The rows of brokers, the owners of shards, and the notices."""

    def __init__(self, server: LedgerServer) -> None:
        self._server = server

    def take(self, broker_id: int, life: int) -> float:
        """Take over the row of the last life. Return the seconds to wait before; 0 if it is done."""
        server, now = self._server, self._server.now()
        row = server.rows.get(broker_id)
        if row is None:
            slot = len(server.rows) + 1
            row = server.rows[broker_id] = Row(broker_id, slot, life, next_producer_id=slot << PRODUCER_SHIFT)
        elif row.life == life:
            return 0.0
        elif row.lease_until > now:
            return row.lease_until - now
        else:
            row.life = life
            row.epoch += 1
            self._drop(lambda notice: notice.to_broker == broker_id)
        row.lease_until = now + LEASE_SECONDS
        return 0.0

    def mine(self, broker_id: int, epoch: int) -> Row:
        """Return the row of a broker. StoreFenced if it was replaced."""
        row = self._server.rows[broker_id]
        if row.epoch != epoch:
            raise StoreFenced("another process took the place of the broker")
        return row

    def join(self, row: Row, endpoints: Mapping[str, tuple[str, int]], internal: tuple[str, int]) -> None:
        """Make a broker a member."""
        row.endpoints, row.internal = dict(endpoints), internal
        row.is_member, row.is_leaving = True, False
        row.lease_until = self._server.now() + LEASE_SECONDS

    def renew(self, row: Row) -> ClusterView:
        """Renew a lease, and return the state of the cluster."""
        server, now = self._server, self._server.now()
        row.lease_until = now + LEASE_SECONDS
        peers = [
            Peer(
                each.broker_id,
                each.epoch,
                each.endpoints,
                each.internal,
                None,
                each.lease_until > now,
                each.is_leaving,
            )
            for _, each in sorted(server.rows.items())
            if each.is_member
        ]
        notices = [
            (number, notice.body)
            for number, notice in server.notices.items()
            if (notice.to_broker, notice.to_epoch) == (row.broker_id, row.epoch)
        ]
        now_ms = EPOCH_MS + int(now * 1000)
        return ClusterView(peers, list(server.shards), notices, now_ms, now_ms)

    def take_over(self, dead: Peer, owners: Mapping[int, int]) -> bool:
        """Replace a broker whose lease is over."""
        server = self._server
        row = server.rows[dead.broker_id]
        if row.epoch != dead.epoch or row.lease_until > server.now():
            return False
        row.epoch += 1
        row.is_member = False
        self._drop(lambda notice: notice.to_broker == dead.broker_id)
        self.give(dead.broker_id, owners)
        self._abandon(dead.broker_id)
        return True

    def hand_over(self, giver: int, owners: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Give shards of a broker, and those without an owner, if they still have these epochs."""
        mine = {
            number
            for number, shard in enumerate(self._server.shards)
            if shard.owner in (giver, None) and shard.epoch == epochs.get(number)
        }
        self._give({number: owner for number, owner in owners.items() if number in mine})

    def give(self, giver: int, owners: Mapping[int, int]) -> None:
        """Give shards of a broker to members."""
        shards = self._server.shards
        self._give({each: owner for each, owner in owners.items() if shards[each].owner == giver != owner})

    def _give(self, owners: Mapping[int, int]) -> None:
        """Give shards to members that are not leaving."""
        rows, shards = self._server.rows, self._server.shards
        for number, owner in owners.items():
            row, shard = rows.get(owner), shards[number]
            if row is None or not row.is_member or row.is_leaving:
                continue
            shards[number] = Shard(owner, shard.epoch + 1)

    def leave(self, row: Row, owners: Mapping[int, int]) -> None:
        """Give all shards away, and end the lease."""
        row.is_member = False
        self.give(row.broker_id, owners)
        self._abandon(row.broker_id)
        self._drop(lambda notice: notice.to_broker == row.broker_id)
        self.end_lease(row)

    def end_lease(self, row: Row) -> None:
        """End the lease of a life that stops."""
        row.lease_until = min(row.lease_until, self._server.now())

    def _abandon(self, owner: int) -> None:
        shards = self._server.shards
        for number, shard in enumerate(shards):
            if shard.owner == owner:
                shards[number] = Shard(None, shard.epoch + 1)

    def leave_notice(self, peer: Peer, body: bytes) -> int:
        """Keep a notice, and return its number; 0 if the broker was replaced and does not need it."""
        if self._server.rows[peer.broker_id].epoch != peer.epoch:
            return 0
        return self._server.leave_notice(Notice(peer.broker_id, peer.epoch, body))

    def is_noticed(self, peer: Peer, number: int) -> bool:
        """Whether a broker has seen a notice, or will see it before it serves clients again."""
        row = self._server.rows[peer.broker_id]
        is_live = row.epoch == peer.epoch and row.lease_until > self._server.now()
        return number not in self._server.notices or not is_live

    def drop_notices(self, numbers: Iterable[int]) -> None:
        """Forget notices that were carried out."""
        for number in numbers:
            self._server.notices.pop(number, None)

    def _drop(self, is_gone: Callable[[Notice], bool]) -> None:
        notices = self._server.notices
        self._server.notices = {each: notice for each, notice in notices.items() if not is_gone(notice)}


class SimulatedMembership:
    """The membership of one life of a broker. Implements ``cluster.contract.Membership``."""

    lease_seconds = LEASE_SECONDS
    secret = b"simulated"

    def __init__(self, server: LedgerServer, link: Link, broker_id: int, epoch: int) -> None:
        self._server = server
        self._places = Places(server)
        self._link = link
        self.broker_id = broker_id
        self.epoch = epoch

    async def join(
        self, endpoints: Mapping[str, tuple[str, int]], internal: tuple[str, int], rack: str | None
    ) -> None:
        """Announce the addresses, and begin the lease."""
        await self._call(lambda row: self._places.join(row, endpoints, internal))

    async def renew(self, now_ms: int = 0) -> ClusterView:
        """Renew this broker's lease."""
        view: ClusterView = await self._call(self._places.renew)
        return view

    async def take_over(self, dead: Peer, owners: Mapping[int, int]) -> bool:
        """Fence a broker whose lease is over."""
        taken: bool = await self._call(
            lambda row: self._places.take_over(dead, owners), dead.broker_id, *owners.values()
        )
        return taken

    async def hand_over(self, owners: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Give own shards, and shards without an owner, to these brokers, if they still have these epochs."""
        await self._call(lambda row: self._places.hand_over(self.broker_id, owners, epochs), *owners.values())

    async def leave(self, owners: Mapping[int, int]) -> None:
        """Give all own shards away, and end the lease."""
        await self._call(lambda row: self._places.leave(row, owners), *owners.values())

    async def announce_leaving(self) -> None:
        """Tell the others to give this broker no more shards."""
        await self._call(lambda row: setattr(row, "is_leaving", True))

    async def leave_notice(self, peer: Peer, notice: bytes) -> int:
        """Leave a notice for a broker that cannot be reached."""
        number: int = await self._call(lambda row: self._places.leave_notice(peer, notice))
        return number

    async def is_noticed(self, peer: Peer, number: int) -> bool:
        """Whether the broker has seen the notice, or will see it before it serves clients again."""
        noticed: bool = await self._call(lambda row: self._places.is_noticed(peer, number), peer.broker_id)
        return noticed

    async def drop_notices(self, numbers: Sequence[int]) -> None:
        """Forget own notices, which were carried out."""
        await self._call(lambda row: self._places.drop_notices(numbers))

    async def _call(self, work: Callable[[Row], Any], *others: int) -> Any:
        """Call `work` with this broker's row, while neither it nor the others commit."""

        def checked() -> Any:
            return work(self._places.mine(self.broker_id, self.epoch))

        broker_ids = (self.broker_id, *others)
        return await self._link.ask(
            lambda: self._server.with_rows(object(), broker_ids, checked), self.lease_seconds
        )
