"""Announcing: bring the notices of a commit to the owners of what it changed.

A notice is sent to the owner directly. If the owner does not answer, the notice is left in the ledger, where
the owner finds it when it renews its lease, before it serves anybody again. If another broker owns the shard
meanwhile, the notice goes there.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from msgspec import DecodeError, msgpack

from semel.broker.notice import Notice, Notices, Recipient, pack_notice, unpack_notice
from semel.broker.shard_ownership import ShardOwnership
from semel.store.interface import StoreRefused
from semel.store.sharing import Membership, Peer

log = logging.getLogger("semel.cluster")

DONE: Final = b"done"
NOT_OWNER: Final = b"not owner"
LOOK: Final = b"look"
"""A message without notices: the shards have new owners."""
FORGET: Final = b"forget"
"""Another: a broker has died, perhaps before it told what it had committed."""
PAUSE_SECONDS: Final = 0.02
PAUSE_MAX_SECONDS: Final = 0.25


class Peers(Protocol):
    """The way to other brokers."""

    async def send(self, peer: Peer, message: bytes) -> bytes:
        """Return the answer of a broker. OSError, TimeoutError if there is none."""

    def close(self) -> None:
        """Close the connections."""


def pack_notices(notices: Notices) -> bytes:
    """Encode notices and their recipients as one message."""
    return _ENCODER.encode([(recipient, pack_notice(notice)) for recipient, notice in notices.items()])


def unpack_notices(message: bytes) -> list[tuple[Recipient, Notice]]:
    """Decode a message. ValueError if it is something else."""
    try:
        return [(recipient, unpack_notice(data)) for recipient, data in _DECODER.decode(message)]
    except DecodeError as error:
        raise ValueError(f"not a message of notices: {error}") from error


class NoPeers:
    """The way to other brokers for one that has none: notices are left in the ledger."""

    async def send(self, peer: Peer, message: bytes) -> bytes:
        """Refuse."""
        raise ConnectionError("this broker has no connections to others")

    def close(self) -> None:
        """Nothing to close."""


class NoticeSender:
    """Implements the ``Announcer`` of the commit loop."""

    def __init__(self, membership: Membership, ownership: ShardOwnership, peers: Peers) -> None:
        self._membership = membership
        self._ownership = ownership
        self._peers = peers
        # In the order in which they began, so that they always end in the same order.
        self._background: dict[asyncio.Task[None], None] = {}
        self.look_again = asyncio.Event()
        """Set if the view of the cluster seems to be old."""
        self._new_view = asyncio.Event()
        self.sent = 0
        """Messages with notices that other brokers have taken."""
        self.left = 0
        """Messages with notices that had to be left in the ledger."""
        self._views_begun = self._views_done = 0

    def view_begins(self) -> int:
        """Return the number of a view that is requested now."""
        self._views_begun += 1
        return self._views_begun

    def viewed(self, number: int) -> None:
        """There is a new view of the cluster."""
        self._views_done = number
        self._new_view.set()
        self._new_view = asyncio.Event()

    # -- notices ------------------------------------------------------------------------------------------

    async def announce(self, notices: Notices) -> None:
        """Return when every recipient has its notice, or will have it before it serves anybody."""
        jobs: list[Coroutine[Any, Any, None]] = []
        if (for_all := notices.get(None)) is not None:
            jobs.append(self._to_all(pack_notices({None: for_all})))
        to_owners = {shard: notice for shard, notice in notices.items() if shard is not None}
        if to_owners:
            jobs.append(self._to_owners(to_owners))
        await asyncio.gather(*jobs)

    def announce_later(self, notices: Notices) -> None:
        """Send notices that nobody waits for. They may get lost."""
        by_owner = self._by_owner({shard: each for shard, each in notices.items() if shard is not None})
        for peer, some in by_owner:
            if peer is not None and peer.is_live:
                self._later(self._try(peer, pack_notices(some)))

    def look(self) -> None:
        """Tell the other brokers that shards have new owners. They would find out by themselves, later."""
        for peer in self._ownership.others():
            if peer.is_live:
                self._later(self._try(peer, LOOK))

    async def forget(self) -> None:
        """Return when no other broker has a copy that is older than this call, or will before it serves."""
        await asyncio.gather(*(self._reach(peer, FORGET) for peer in self._ownership.others()))

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)

    async def stop(self) -> None:
        """Cancel what is under way, and close the connections."""
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
            # A broker may have joined, and loaded what is old now, since the last view.
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
        """Notices by the owners of their shards; None is this broker, or nobody."""
        groups: dict[int | None, Notices] = {}
        for shard, notice in notices.items():
            groups.setdefault(self._ownership.owner(shard), {})[shard] = notice
        return [
            (None if owner is None or owner == self._ownership.node_id else self._ownership.peer(owner), some)
            for owner, some in groups.items()
        ]

    async def _bring(self, peer: Peer | None, notices: Notices, *, is_newer: bool) -> bool:
        """Whether the owner has the notices, or will have them in time. If not, there is another owner.

        ``is_newer``: the view of the cluster is newer than the commit.
        """
        if peer is None:
            # A future owner loads everything after this commit. So did this broker, if it is the owner now.
            return is_newer
        message = pack_notices(notices)
        answer = await self._try(peer, message) if peer.is_live else None
        if answer is None:
            await self._leave(peer, message)
            # It takes from the ledger also what it does not own any more.
            await self._look_again()
            known = self._ownership.peer(peer.broker_id)
            is_owner = all(
                shard is None or self._ownership.owner(shard) == peer.broker_id for shard in notices
            )
            return is_owner and known is not None and known.epoch == peer.epoch
        return answer == DONE

    async def _reach(self, peer: Peer, message: bytes) -> None:
        """Bring a message to one broker; if it is replaced meanwhile, its successor needs no message."""
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
        """Leave a message in the ledger, and wait until the broker has it, is replaced, or serves nobody."""
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
