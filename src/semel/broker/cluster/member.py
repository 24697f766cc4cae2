"""Keeps a broker in its cluster: renews the lease, adopts shards, gives shards away, replaces dead brokers.

Every renewal returns the newest view of the cluster, with the notices that other brokers deposited in the
ledger for this one. The broker applies these before it extends its lease, so it never serves data that a
notice has made obsolete.

A broker may die after a commit and before it sends the notices. If a client then repeats its request at the
next owner, that owner confirms it, while other brokers still have old copies. So the shards of a dead broker
stay without an owner until all other brokers have forgotten their copies (``_divide``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from semel.broker.catalog import Catalog
from semel.broker.clock import Clock
from semel.broker.cluster.announcing import DONE, FORGET, LOOK, NOT_OWNER, NoticeSender, unpack_notices
from semel.broker.cluster.commit_loop import SharedCommitLoop
from semel.broker.cluster.shard_ownership import ShardOwnership
from semel.broker.metrics import Metrics
from semel.broker.policies import Policies
from semel.store.cluster.contract import ClusterView, Membership, SharedStore
from semel.store.contract import StoreRefused

log = logging.getLogger("semel.cluster")

LOOK_SECONDS: Final = 10.0
"""How often to search for open transactions whose notices were lost, so that they time out."""
LOOK_SHARE: Final = 100
"""The search reads every transactional id, so it takes at most one part in so many of the time."""
LOOK_SECONDS_MAX: Final = 60.0
"""But it is made this often in any case: it may have taken long because PostgreSQL was away."""


ANNOUNCE_SECONDS: Final = 0.1
"""How long to wait for notices in flight before shards are given away. The broker commits nothing meanwhile,
and two brokers may wait for each other. So after a timeout the broker tries again later and waits twice as
long: brokers that cannot reach each other find their notices only in the ledger."""
CLOCK_SECONDS_MAX: Final = 10.0
"""A larger error of the clock is logged: it confuses object stores, certificates and readers of logs."""


class ClusterMember:
    """Use ``join``, then ``run`` as a task, then ``leave``."""

    def __init__(
        self,
        membership: Membership,
        ownership: ShardOwnership,
        sender: NoticeSender,
        loop: SharedCommitLoop,
        catalog: Catalog,
        policies: Policies,
        clock: Clock,
    ) -> None:
        self._membership = membership
        self._ownership = ownership
        self._sender = sender
        self._loop = loop
        self._catalog = catalog
        self._policies = policies
        self._clock = clock
        self._joined_at = 0.0
        self._patient_until = 0.0
        """No broker is replaced before: the ledger was unavailable, and others must renew their leases."""
        self._is_clock_wrong = False
        self._is_leaving = False
        self._renewing = asyncio.Lock()
        self._dividing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_at = 0.0
        self._announce_seconds = ANNOUNCE_SECONDS
        self._is_known = False
        """Whether the other brokers have forgotten all copies from before this start of the broker."""
        self._doubtful: frozenset[int] = frozenset()
        """Shards whose hand-over the ledger has not confirmed. It may still take effect, so they are served
        only after another hand-over, perhaps to this broker, which changes their epochs."""
        self.received = 0
        """Messages that other brokers sent or deposited in the ledger for this one."""

    @property
    def secret(self) -> bytes:
        """A secret that only the brokers of this cluster know."""
        return self._membership.secret

    @property
    def is_serving(self) -> bool:
        """Whether the lease runs."""
        return self._ownership.is_serving()

    async def join(
        self, endpoints: Mapping[str, tuple[str, int]], internal: tuple[str, int], rack: str | None
    ) -> None:
        """Announce the addresses, and adopt the first shards."""
        await self._membership.join(endpoints, internal, rack)
        self._joined_at = self._ownership.clock()
        await self._renew()
        self._patient_until = self._joined_at
        while self._dividing is not None:
            await asyncio.wait((self._dividing,), timeout=self._interval)
            await self._renew()
        self._sender.look()

    @property
    def _interval(self) -> float:
        return self._membership.lease_seconds / 3

    async def run(self) -> None:
        """Renew the lease until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(self._interval):
                    await self._sender.look_again.wait()
            self._sender.look_again.clear()
            try:
                await self._renew()
                self._start_looking()
            except StoreRefused as refused:
                log.warning("the lease cannot be renewed: %s", refused)

    def _start_looking(self) -> None:
        """Search for open transactions in the background: a long commit must not delay the renewal."""
        if self._looking is not None and self._looking.done():
            looked, self._looking = self._looking, None
            looked.result()
        if self._looking is None and self._ownership.clock() >= self._look_at:
            self._look_at = self._ownership.clock() + LOOK_SECONDS
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            took = await self._loop.look_for_open_transactions()
            pause = min(took * LOOK_SHARE, LOOK_SECONDS_MAX)
            self._look_at = max(self._look_at, self._ownership.clock() + pause)
        except StoreRefused as refused:
            log.warning("open transactions are looked for later: %s", refused)

    async def receive(self, message: bytes) -> bytes:
        """Answer a message of another broker. Raises ValueError if it is malformed."""
        if message == LOOK:
            self._sender.look_again.set()
            return DONE
        if message == FORGET:
            await self._forget()
            return DONE
        notices = unpack_notices(message)
        mine = self._ownership.shards() | self._ownership.given()
        if any(shard is not None and shard not in mine for shard, _ in notices):
            self._sender.look_again.set()
            return NOT_OWNER
        await self._loop.take_notices([notice for _, notice in notices])
        self.received += 1
        return DONE

    async def leave(self) -> None:
        """Give all shards to other brokers, which serve them when this returns, or soon after."""
        async with self._renewing:
            self._is_leaving = True
            # This hand-over cannot be tried again later.
            self._announce_seconds = self._membership.lease_seconds / 2
            try:
                await self._membership.announce_leaving()
                shards = self._ownership.shards()
                owners = self._ownership.best_owners(shards, without=self._ownership.node_id)
                await self._give_away(shards, owners, self._leave)
            except StoreRefused as refused:
                log.warning("the shards of this broker are divided when its lease is over: %s", refused)

    async def _leave(self, owners: Mapping[int, int]) -> None:
        try:
            await self._membership.leave(owners)
        finally:
            # Even without an answer: the ledger may have recorded that this broker has left.
            self._loop.left()

    async def stop(self) -> None:
        """Cancel everything that waits for other brokers, or for the ledger."""
        tasks = [each for each in (self._dividing, self._looking) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.unannounced.stop()
        await self._sender.stop()

    # -- one renewal --------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        async with self._renewing:
            if self._is_leaving:
                return
            sent_at, number = self._ownership.clock(), self._sender.view_begins()
            view = await self._membership.renew(self._clock.now() if self._clock.is_following else 0)
            if self._patient_until and not self._ownership.is_serving():
                self._patient_until = self._ownership.clock() + self._membership.lease_seconds
            if view.notices:
                await self._carry_out(view)
            self._clock.follow(view.time_of_day_ms, view.now_ms)
            self._compare_clocks()
            if sent_at - self._joined_at < 2 * self._membership.lease_seconds:
                # Others may not know this broker yet and send it no notices of changed topics and policies.
                self._catalog.clear()
                await self._policies.load()
            self._ownership.update(view)
            self._ownership.serve_until(sent_at + self._membership.lease_seconds)
            await self._adopt()
            self._sender.viewed(number)
            if sent_at >= self._patient_until:
                await self._replace_the_dead(view)
            try:
                await self._balance()
            except StoreRefused as refused:
                log.warning("shards are given to other brokers later: %s", refused)
            self._start_dividing()

    def _compare_clocks(self) -> None:
        seconds = self._clock.seconds_ahead()
        was_wrong, self._is_clock_wrong = self._is_clock_wrong, abs(seconds) > CLOCK_SECONDS_MAX
        if self._is_clock_wrong and not was_wrong:
            where = "ahead of" if seconds > 0 else "behind"
            log.warning(
                "the clock of this machine is %.0f s %s that of PostgreSQL, which all brokers go by",
                *(abs(seconds), where),
            )
        elif was_wrong and not self._is_clock_wrong:
            log.warning("the clock of this machine is right again")

    async def _carry_out(self, view: ClusterView) -> None:
        for _, message in view.notices:
            if message == FORGET:
                await self._forget()
                continue
            try:
                await self._loop.take_notices([notice for _, notice in unpack_notices(message)])
            except ValueError as error:
                # From another version of Semel: its entities are not known, so no copy in memory is trusted.
                log.warning("all copies in memory are forgotten: %s", error)
                await self._forget()
        await self._membership.drop_notices([number for number, _ in view.notices])
        self.received += len(view.notices)

    async def _forget(self) -> None:
        await self._loop.forget_copies()
        self._catalog.clear()
        await self._policies.load()

    async def _adopt(self) -> None:
        given, adopted = self._ownership.given(), self._ownership.shards()
        if lost := adopted - given:
            log.warning("%d shards have another owner", len(lost))
            await self._release(lost)
        self._doubtful &= given
        if (gained := given - adopted - self._doubtful) and self._is_known:
            await self._loop.adopt(gained)
            self._ownership.adopt(gained)
            log.info("this broker owns %d more shards, %d in all", len(gained), len(given))

    async def _give_away(
        self,
        shards: Collection[int],
        owners: Mapping[int, int],
        commit: Callable[[Mapping[int, int]], Awaitable[None]],
    ) -> None:
        async def give_away() -> None:
            # The next owner may confirm a repeated request, so other brokers need the notices before.
            await self._wait_for_notices()
            self._ownership.release(shards)
            self._doubtful |= frozenset(shards)
            await commit(owners)
            self._doubtful -= frozenset(shards)
            self._ownership.moved(owners)

        await self._loop.release(give_away)
        self._sender.look()

    async def _wait_for_notices(self) -> None:
        # Half a lease is enough for others to find notices in the ledger, and leaves time to renew this one.
        longer = min(2 * self._announce_seconds, self._membership.lease_seconds / 2)
        seconds, self._announce_seconds = self._announce_seconds, longer
        await self._loop.unannounced.wait(seconds)
        self._announce_seconds = ANNOUNCE_SECONDS

    async def _release(self, shards: Collection[int]) -> None:
        """Stop serving shards that the ledger has given to another broker already."""

        async def release() -> None:
            self._ownership.release(shards)

        await self._loop.release(release)

    async def _replace_the_dead(self, view: ClusterView) -> None:
        for peer in view.peers:
            is_dead = not peer.is_live and peer.broker_id != self._ownership.node_id
            if is_dead and await self._membership.take_over(peer, {}):
                log.warning("broker %d has not renewed its lease and was replaced", peer.broker_id)
                self._sender.look_again.set()
                self._sender.look()

    async def _balance(self) -> None:
        """Give shards to the brokers that should own them."""
        best = self._ownership.best_owners(self._ownership.shards() | self._doubtful)
        moves = {
            shard: owner
            for shard, owner in best.items()
            if owner != self._ownership.node_id or shard in self._doubtful
        }
        if moves:
            epochs = self._ownership.epochs(moves)
            await self._give_away(moves, moves, lambda owners: self._membership.hand_over(owners, epochs))
            self._sender.look_again.set()

    def _start_dividing(self) -> None:
        """Assign unowned shards in the background, so that waiting for others does not delay the renewal."""
        dividing, unowned = self._dividing, self._ownership.unowned()
        if dividing is not None and dividing.done():
            self._dividing = None
            # Raises StoreFenced, for example.
            dividing.result()
        if self._dividing is None and (unowned or not self._is_known):
            self._dividing = asyncio.get_running_loop().create_task(self._divide(unowned))

    async def _divide(self, unowned: Mapping[int, int]) -> None:
        """Assign shards without an owner, once all brokers have forgotten their old copies.

        Other brokers do the same. A shard that got an owner meanwhile keeps it: this broker may serve it.
        """
        try:
            await asyncio.gather(self._sender.forget(), self._forget())
            if owners := self._ownership.best_owners(unowned):
                await self._membership.hand_over(owners, unowned)
            self._is_known = True
        except StoreRefused as refused:
            log.warning("shards without an owner cannot be given away: %s", refused)
        self._sender.look_again.set()
        self._sender.look()


def register(
    metrics: Metrics,
    ownership: ShardOwnership,
    sender: NoticeSender,
    loop: SharedCommitLoop,
    member: ClusterMember,
    store: SharedStore,
) -> None:
    """Register the metrics of shards, leases, notices, conflicts and the shared ledger."""
    gauge, counter = metrics.gauge, metrics.counter
    gauge("shards_owned", "Shards that this broker serves.", lambda: len(ownership.shards()))
    gauge("shards_without_owner", "Shards that no broker owns.", lambda: len(ownership.unowned()))
    gauge("live_brokers", "Brokers whose lease runs, this one included.", lambda: len(ownership.nodes()))
    gauge(
        "lease_seconds", "How long the lease of this broker runs; 0 if it is over.", ownership.lease_seconds
    )
    gauge(
        "waiting_answers",
        "Committed ticks that are answered when other brokers have their notices.",
        lambda: len(loop.unannounced),
    )
    gauge(
        "oldest_snapshot_seconds",
        "Age of the oldest snapshot that others hold in PostgreSQL; 0 if none, or if it is not known.",
        lambda: store.oldest_snapshot.seconds,
        lambda: {"holder": store.oldest_snapshot.holder},
    )
    gauge(
        "oldest_snapshot_transactions",
        "Transactions since the oldest snapshot that others hold in PostgreSQL; 0 if there is none.",
        lambda: store.oldest_snapshot.transactions,
        lambda: {"holder": store.oldest_snapshot.holder},
    )
    counter(
        "conflicts",
        "Ticks decided again, because another broker had changed what they read.",
        lambda: loop.conflicts,
    )
    counter("notices_sent", "Messages with notices that other brokers have taken.", lambda: sender.sent)
    counter("notices_left", "Messages with notices left in the ledger.", lambda: sender.left)
    counter("notices_received", "Messages with notices of other brokers.", lambda: member.received)
    counter("lost_rows", "How often a row was met that the ledger has lost.", lambda: store.lost_rows)
