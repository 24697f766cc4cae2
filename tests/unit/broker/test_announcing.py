"""Notices reach the owners of shards, also if these change meanwhile."""

import asyncio
from typing import Any

from support.waiting import LIMIT_SECONDS

from semel.broker.cluster.announcing import DONE, NoticeSender, unpack_notices
from semel.broker.cluster.notice import Notice
from semel.broker.cluster.shard_ownership import ShardOwnership
from semel.core.entities import SHARDS
from semel.store.cluster.contract import ClusterView, Peer, Shard

SENDER, FIRST, NEXT = 0, 1, 2
NOTICE = Notice((), (), 7, ())


def view(owner: int) -> ClusterView:
    peers = [
        Peer(each, 1, {"x": ("host", each)}, ("host", each), None, True, False)
        for each in (SENDER, FIRST, NEXT)
    ]
    return ClusterView(peers, [Shard(owner, 1)] * SHARDS, (), 0, 0)


class Ledger:
    """Notices that are left here are found at once."""

    def __init__(self) -> None:
        self.left: list[int] = []

    async def leave_notice(self, peer: Peer, message: bytes) -> int:
        self.left.append(peer.broker_id)
        return len(self.left)

    async def is_noticed(self, peer: Peer, number: int) -> bool:
        return True


class Peers:
    """The first broker does not answer."""

    def __init__(self) -> None:
        self.taken: list[int | None] = []

    async def send(self, peer: Peer, message: bytes) -> bytes:
        if peer.broker_id == FIRST:
            raise ConnectionError("no answer")
        self.taken += [shard for shard, _ in unpack_notices(message)]
        return DONE

    def close(self) -> None:
        pass


async def test_a_notice_that_a_former_owner_finds_in_the_ledger_is_sent_on() -> None:
    """It had given the shard away before the commit, as the sender did not know."""
    ledger, peers, ownership = Ledger(), Peers(), ShardOwnership(SENDER)
    ownership.update(view(FIRST))
    membership: Any = ledger
    sender = NoticeSender(membership, ownership, peers)

    async def look() -> None:
        while True:
            await sender.look_again.wait()
            sender.look_again.clear()
            number = sender.view_begins()
            ownership.update(view(NEXT))
            sender.viewed(number)

    looking = asyncio.create_task(look())
    await asyncio.wait_for(sender.announce({5: NOTICE}), LIMIT_SECONDS)
    looking.cancel()
    assert ledger.left == [FIRST]
    assert peers.taken == [5]
