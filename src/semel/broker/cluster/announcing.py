"""Sends the notices of a commit to the owners of the entities that it changed, and delays answers until then.

A notice is sent to the owner directly. If the owner does not answer, the sender deposits the notice in the
ledger. The owner reads it there when it renews its lease, before it serves clients again. If the shard gets
another owner meanwhile, the notice goes to that broker.

The answers to a commit wait until other brokers have its notices. A later tick that read one of the entities
of such a commit is answered after it: its client must not learn what other brokers do not know yet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final, Protocol

from msgspec import DecodeError, msgpack

from semel.broker.cluster.notice import Notice, Notices, Recipient, pack_notice, unpack_notice
from semel.broker.cluster.shard_ownership import ShardOwnership
from semel.broker.commit.pending_commands import Work
from semel.core.types import Key
from semel.store.cluster.contract import Membership, Peer
from semel.store.contract import StoreRefused

CATCH_UP_SECONDS: Final = 0.1
"""How long to wait before the ledger is queried again. Without the ledger nothing can be confirmed."""


class Announcer(Protocol):
    """Sends notices to other brokers."""

    async def announce(self, notices: Notices) -> None:
        """Return when every recipient has its notice, or will have it before it serves clients."""

    def announce_later(self, notices: Notices) -> None:
        """Send notices in the background. No answer waits for them, and they may be lost."""


class Unannounced:
    """Commits whose notices are in flight."""

    def __init__(self, announcer: Announcer, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._announcer = announcer
        self._catch_up = catch_up
        """Loads into this broker what it is about to confirm. Raises StoreRefused."""
        self._by_key: dict[Key, asyncio.Task[None]] = {}
        """Entities whose owners do not have the notice of the newest commit yet."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.fatal: Callable[[BaseException], None] = _raise

    def __len__(self) -> int:
        return len(self._tasks)

    def answer(
        self, reads: Iterable[Key], notices: Notices, revealing: Iterable[Key], answer: Callable[[], None]
    ) -> None:
        """Announce a commit, then answer; at once if there is nothing to wait for.

        A later tick that reads one of the ``revealing`` entities is answered after this one.
        """
        earlier = {self._by_key[key] for key in reads if key in self._by_key}
        if not notices and not earlier:
            answer()
            return
        task = asyncio.get_running_loop().create_task(self._answer_later(notices, earlier, answer))
        self._tasks[task] = None
        keys = list(revealing)
        self._by_key.update(dict.fromkeys(keys, task))
        task.add_done_callback(lambda _: self._ended(keys, task))

    async def _answer_later(
        self, notices: Notices, earlier: "Collection[asyncio.Task[None]]", answer: Callable[[], None]
    ) -> None:
        if notices:
            await self._announcer.announce(notices)
            await self._know()
        if earlier:
            await asyncio.wait(earlier)
        answer()

    async def _know(self) -> None:
        while True:
            try:
                return await self._catch_up()
            except StoreRefused:
                await asyncio.sleep(CATCH_UP_SECONDS)

    def _ended(self, keys: Iterable[Key], task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        for key in keys:
            if self._by_key.get(key) is task:
                del self._by_key[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fatal(error)

    async def wait(self, seconds: float) -> None:
        """Wait until other brokers have all notices. Raises StoreRefused if that takes longer."""
        if self._tasks:
            _, waiting = await asyncio.wait(self._tasks, timeout=seconds)
            if waiting:
                raise StoreRefused("other brokers do not know the latest commits yet")

    async def stop(self) -> None:
        """Cancel the answers that wait, because this broker ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _raise(error: BaseException) -> None:
    raise error


log = logging.getLogger("semel.cluster")

DONE: Final = b"done"
NOT_OWNER: Final = b"not owner"
LOOK: Final = b"look"
"""Message without notices: shards have new owners, so the recipient renews its view of the cluster."""
FORGET: Final = b"forget"
"""Message without notices: the recipient forgets its copies. A broker has died, perhaps before it sent the
notices of its last commits."""
PAUSE_SECONDS: Final = 0.02
PAUSE_MAX_SECONDS: Final = 0.25


class Peers(Protocol):
    """Connections to other brokers."""

    async def send(self, peer: Peer, message: bytes) -> bytes:
        """Send a message and return the broker's answer. Raises OSError or TimeoutError if there is none."""

    def close(self) -> None:
        """Close the connections."""


def pack_notices(notices: Notices) -> bytes:
    """Encode notices and their recipients as one message."""
    return _ENCODER.encode([(recipient, pack_notice(notice)) for recipient, notice in notices.items()])


def unpack_notices(message: bytes) -> list[tuple[Recipient, Notice]]:
    """Decode a message. Raises ValueError if it is not a message of notices."""
    try:
        return [(recipient, unpack_notice(data)) for recipient, data in _DECODER.decode(message)]
    except DecodeError as error:
        raise ValueError(f"not a message of notices: {error}") from error


class NoPeers:
    """``Peers`` of a broker without connections to others: all its notices go through the ledger."""

    async def send(self, peer: Peer, message: bytes) -> bytes:
        """Raise ConnectionError."""
        raise ConnectionError("this broker has no connections to others")

    def close(self) -> None:
        """Do nothing."""


class NoticeSender:
    """Implements the ``Announcer`` of the commit loop."""

    def __init__(self, membership: Membership, ownership: ShardOwnership, peers: Peers) -> None:
        self._membership = membership
        self._ownership = ownership
        self._peers = peers
        # A dictionary keeps the order in which tasks began, so that they always end in the same order.
        self._background: dict[asyncio.Task[None], None] = {}
        self.look_again = asyncio.Event()
        """Set when the view of the cluster may be old. ``ClusterMember.run`` then renews it at once."""
        self._new_view = asyncio.Event()
        self.sent = 0
        """Messages that other brokers have accepted, without those that only say ``LOOK``."""
        self.left = 0
        """Messages deposited in the ledger, because their recipient was not live or did not answer."""
        self._views_begun = self._views_done = 0

    def view_begins(self) -> int:
        """Return the number of the view that the caller is about to request."""
        self._views_begun += 1
        return self._views_begun

    def viewed(self, number: int) -> None:
        """Note that the view with this number has arrived, and wake the tasks that wait for it."""
        self._views_done = number
        self._new_view.set()
        self._new_view = asyncio.Event()

    # -- notices ------------------------------------------------------------------------------------------

    async def announce(self, notices: Notices) -> None:
        """Return when every recipient has its notice, or will have it before it serves clients."""
        jobs: list[Work[None]] = []
        if (for_all := notices.get(None)) is not None:
            jobs.append(self._to_all(pack_notices({None: for_all})))
        to_owners = {shard: notice for shard, notice in notices.items() if shard is not None}
        if to_owners:
            jobs.append(self._to_owners(to_owners))
        await asyncio.gather(*jobs)

    def announce_later(self, notices: Notices) -> None:
        """Send notices in the background. No answer waits for them, and they may be lost."""
        by_owner = self._by_owner({shard: each for shard, each in notices.items() if shard is not None})
        for peer, some in by_owner:
            if peer is not None and peer.is_live:
                self._later(self._try(peer, pack_notices(some)))

    def look(self) -> None:
        """Tell the other brokers that shards have new owners. Their next renewal would show it, too."""
        for peer in self._ownership.others():
            if peer.is_live:
                self._later(self._try(peer, LOOK))

    async def forget(self) -> None:
        """Return when all other brokers have forgotten older copies, or will before they serve clients."""
        await asyncio.gather(*(self._reach(peer, FORGET) for peer in self._ownership.others()))

    def _later(self, work: Work[Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)

    async def stop(self) -> None:
        """Cancel all background sends and close the connections."""
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.close()

    async def _to_all(self, message: bytes) -> None:
        reached: set[tuple[int, int]] = set()
        is_newer = False
        while True:
            others = [
                each for each in self._ownership.others() if (each.broker_id, each.epoch) not in reached
            ]
            if is_newer and not others:
                return
            await asyncio.gather(*(self._reach(peer, message) for peer in others))
            reached.update((each.broker_id, each.epoch) for each in others)
            # A broker that joined since the last view may have loaded entities from before this commit.
            await self._look_again()
            is_newer = True

    async def _to_owners(self, notices: dict[int, Notice]) -> None:
        left = notices
        is_newer = False
        while left:
            groups = self._by_owner(left)
            done = await asyncio.gather(
                *(self._bring(peer, some, is_newer=is_newer) for peer, some in groups)
            )
            others = [some for (_, some), is_done in zip(groups, done, strict=True) if not is_done]
            left = {shard: notices[shard] for some in others for shard in some if shard is not None}
            if left:
                await self._look_again()
                is_newer = True

    def _by_owner(self, notices: dict[int, Notice]) -> list[tuple[Peer | None, Notices]]:
        """Group notices by the owner of their shard; None stands for this broker, or for no owner."""
        groups: dict[int | None, Notices] = {}
        for shard, notice in notices.items():
            groups.setdefault(self._ownership.owner(shard), {})[shard] = notice
        return [
            (None if owner is None or owner == self._ownership.node_id else self._ownership.peer(owner), some)
            for owner, some in groups.items()
        ]

    async def _bring(self, peer: Peer | None, notices: Notices, *, is_newer: bool) -> bool:
        """Deliver notices to an owner. True if it has them, or will have them before it serves clients.

        If False, the shards may have another owner, and the caller needs a newer view of the cluster.
        ``is_newer``: the current view is newer than the commit.
        """
        if peer is None:
            # A future owner loads the entities after this commit. This broker did so, if it is the owner now.
            return is_newer
        message = pack_notices(notices)
        answer = await self._try(peer, message) if peer.is_live else None
        if answer is None:
            await self._leave(peer, message)
            # The broker takes notices from the ledger even if it no longer owns the shards, so check that.
            await self._look_again()
            known = self._ownership.peer(peer.broker_id)
            is_owner = all(
                shard is None or self._ownership.owner(shard) == peer.broker_id for shard in notices
            )
            return is_owner and known is not None and known.epoch == peer.epoch
        return answer == DONE

    async def _reach(self, peer: Peer, message: bytes) -> None:
        """Deliver a message to one broker. If it is replaced meanwhile, its successor needs no message."""
        if not peer.is_live or await self._try(peer, message) is None:
            await self._leave(peer, message)

    async def _try(self, peer: Peer, message: bytes) -> bytes | None:
        try:
            answer = await self._peers.send(peer, message)
            self.sent += message != LOOK and answer == DONE
            return answer
        except (OSError, TimeoutError) as error:
            log.info("broker %d does not answer: %s", peer.broker_id, error)
            return None

    async def _leave(self, peer: Peer, message: bytes) -> None:
        """Deposit a message in the ledger. Returns when the broker has it, is replaced, or cannot serve."""
        number: int | None = None
        pause = PAUSE_SECONDS
        while True:
            try:
                if number is None:
                    number = await self._membership.leave_notice(peer, message)
                    self.left += 1
                if await self._membership.is_noticed(peer, number):
                    return
            except StoreRefused as refused:
                log.info("a notice for broker %d waits for the ledger: %s", peer.broker_id, refused)
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_SECONDS)

    async def _look_again(self) -> None:
        """Wait for a view of the cluster that is newer than this call."""
        wanted = self._views_begun + 1
        while self._views_done < wanted:
            new_view = self._new_view
            self.look_again.set()
            await new_view.wait()


_ENCODER: Final = msgpack.Encoder()
_DECODER: Final = msgpack.Decoder(list[tuple[Recipient, bytes]])
