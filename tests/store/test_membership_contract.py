"""What every store that several brokers share must do with leases, shards and notices.

The suite knows no implementation: it runs on each entry of ``SHARED_STORES`` (conftest).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.waiting import until_async

from semel.core.entities import ABSENT, SHARDS
from semel.core.facts import Put
from semel.core.types import Transaction, TransactionKey
from semel.store.cluster.contract import Peer, Shard
from semel.store.contract import StoreFenced, StoreLocked

LEASE = 0.4
"""Seconds, where a test waits for it. Elsewhere a lease is long."""
PATIENCE = 30.0
"""What happens in time if it happens at all, also on a busy machine."""


@asynccontextmanager
async def joined(shared_stores: Any, count: int = 2) -> AsyncIterator[list[Any]]:
    stores = [await shared_stores.open(broker_id) for broker_id in range(count)]
    try:
        for store in stores:
            await join(store)
        yield stores
    finally:
        for store in stores:
            await store.close()


async def join(store: Any) -> None:
    number = store.membership.broker_id
    await store.membership.join(
        {"plain": (f"host{number}", 9092)}, (f"inside{number}", 9990), f"rack{number}"
    )


async def peer_of(store: Any, broker_id: int) -> Peer:
    peers: Sequence[Peer] = (await store.membership.renew()).peers
    return next(each for each in peers if each.broker_id == broker_id)


async def give(store: Any, owners: dict[int, int]) -> None:
    """Hand shards over as they are now."""
    shards = (await store.membership.renew()).shards
    await store.membership.hand_over(owners, {each: shards[each].epoch for each in owners})


def changed(producer_id: int) -> Put:
    return Put.of(Transaction("t", producer_id, 0, 1))


# -- members ----------------------------------------------------------------------------------------------


async def test_brokers_see_those_that_have_joined(shared_stores: Any) -> None:
    one, other = await shared_stores.open(3), await shared_stores.open(1)
    assert (await one.membership.renew()).peers == []
    await join(one)
    (peer,) = (await other.membership.renew()).peers
    assert peer == Peer(3, one.membership.epoch, {"plain": ("host3", 9092)}, ("inside3", 9990), "rack3", True)
    await join(other)
    view = await one.membership.renew()
    assert [(each.broker_id, each.is_live) for each in view.peers] == [(1, True), (3, True)]
    assert view.shards == [Shard(None, 0)] * SHARDS
    assert view.notices == []
    await other.membership.announce_leaving()
    assert (await peer_of(one, 1)).is_leaving
    await other.membership.leave({})
    assert [each.broker_id for each in (await one.membership.renew()).peers] == [3]
    await one.close()
    await other.close()


async def test_all_brokers_of_a_cluster_know_one_secret(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        assert len(one.membership.secret) == 32
        assert one.membership.secret == other.membership.secret


async def test_the_time_is_that_of_the_ledger(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        times = [(await store.membership.renew()).time_of_day_ms for store in (one, other, one)]
        assert times == sorted(times)
        assert abs(times[0] - time.time() * 1000) < 60_000


async def test_a_lease_is_over_if_it_is_not_renewed(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        await shared_stores.expire(0)
        peer = await peer_of(other, 0)
        assert not peer.is_live
        # Nobody took its place, so it goes on.
        await one.commit([changed(1)], [])
        await one.membership.renew()
        assert await peer_of(other, 0) == peer._replace(is_live=True)


async def test_a_broker_that_never_joins_can_commit(shared_stores: Any) -> None:
    store = await shared_stores.open(0, 0.1)
    await asyncio.sleep(0.2)
    assert await store.commit([changed(1)], []) > 0
    await store.close()


# -- the same broker again --------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_broker_that_stopped_starts_again_at_once(shared_stores: Any, leaves: bool) -> None:
    epochs = []
    for _ in range(2):
        async with asyncio.timeout(PATIENCE / 2), joined(shared_stores, 1) as (store,):
            epochs.append(store.membership.epoch)
            if leaves:
                await store.membership.leave({})
    assert epochs[0] < epochs[1]


async def test_a_broker_that_was_killed_starts_again_when_its_lease_is_over(shared_stores: Any) -> None:
    killed = await shared_stores.open(0, LEASE)
    await join(killed)
    await give(killed, {5: 0})
    await killed.commit([changed(1)], [])
    await shared_stores.kill(killed)
    store = await asyncio.wait_for(shared_stores.open(0, LEASE), PATIENCE)
    view = await store.membership.renew()
    assert view.shards[5] == Shard(0, 1)
    await store.close()


async def test_two_brokers_with_one_id(shared_stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await shared_stores.open(0)
    await join(store)
    # The first one renews its lease while the second waits for the end of it.
    shared_stores.instead_of_waiting(monkeypatch, store.membership.renew)
    with pytest.raises(StoreLocked, match="broker 0 at inside0:9990"):
        await shared_stores.open(0)
    await store.commit([changed(1)], [])
    await store.close()


async def test_a_broker_whose_place_was_taken_can_do_nothing(shared_stores: Any) -> None:
    old = await shared_stores.open(0)
    await join(old)
    peer = await peer_of(old, 0)
    await shared_stores.expire(0)
    new = await shared_stores.open(0)
    membership = old.membership
    for call in (
        old.commit([changed(1)], []),
        membership.renew(),
        membership.join({}, ("", 0), None),
        membership.hand_over({}, {}),
        membership.leave({}),
        membership.announce_leaving(),
        membership.take_over(peer, {}),
        membership.leave_notice(peer, b""),
        membership.is_noticed(peer, 1),
        membership.drop_notices([1]),
    ):
        with pytest.raises(StoreFenced):
            await call
    assert (await new.load([TransactionKey("t")]))[0].version == ABSENT
    await old.close()
    assert (await new.membership.renew()).peers[0].is_live, "closing the old one does not end the new lease"
    await new.close()


# -- the clock of the ledger is set -----------------------------------------------------------------------


async def test_a_broker_that_was_killed_starts_again_although_the_clock_was_set_back(
    shared_stores: Any,
) -> None:
    killed = await shared_stores.open(0, LEASE)
    await join(killed)
    await shared_stores.kill(killed)
    await shared_stores.set_clock(-600)
    store = await asyncio.wait_for(shared_stores.open(0, LEASE), PATIENCE)
    assert store.membership.epoch > killed.membership.epoch
    await store.close()


async def test_a_broker_that_was_killed_is_shown_as_dead_although_the_clock_was_set_back(
    shared_stores: Any,
) -> None:
    """The last broker: nobody else notices."""
    killed = await shared_stores.open(0, 60.0)
    await join(killed)
    assert (await shared_stores.shown()) == [(0, "live")]
    await shared_stores.kill(killed)
    await shared_stores.set_clock(-600)
    assert (await shared_stores.shown()) == [(0, "dead")]


async def test_a_broker_that_stopped_starts_at_once_although_the_clock_was_set_back(
    shared_stores: Any,
) -> None:
    async with joined(shared_stores, 1):
        pass
    await shared_stores.set_clock(-600)
    store = await asyncio.wait_for(shared_stores.open(0), PATIENCE / 2)
    await store.close()


async def test_a_dead_broker_is_replaced_although_the_clock_was_set_back(shared_stores: Any) -> None:
    dead = await shared_stores.open(9, LEASE)
    async with joined(shared_stores, 1) as (one,):
        await join(dead)
        peer = await peer_of(one, 9)
        number = await one.membership.leave_notice(peer, b"notice")
        await shared_stores.kill(dead)
        await shared_stores.set_clock(-600)

        async def is_dead() -> bool:
            return not (await peer_of(one, 9)).is_live

        await until_async(is_dead, PATIENCE)
        assert await one.membership.is_noticed(peer, number)
        assert await one.membership.take_over(peer, {})


async def test_a_broker_that_renews_its_lease_is_not_replaced_because_the_clock_was_set_ahead(
    shared_stores: Any,
) -> None:
    """It still serves readers, so nobody may take its shards, or take it for told."""
    async with joined(shared_stores) as (one, other):
        peer = await peer_of(one, 1)
        number = await one.membership.leave_notice(peer, b"notice")
        await shared_stores.set_clock(600)
        assert (await peer_of(one, 1)).is_live
        assert not await one.membership.is_noticed(peer, number)
        assert not await one.membership.take_over(peer, {})
        await other.membership.renew()


async def test_brokers_count_deadlines_alike_although_the_clock_is_set(shared_stores: Any) -> None:
    """The deadline of a transaction is in the ledger, and another broker may have to find it passed."""
    long_ago, far_ahead = 1_000_000, 9_000_000_000_000
    async with joined(shared_stores, 3) as (one, other, third):
        for before in (long_ago, far_ahead):
            # Its clock has begun before the other was set.
            assert (await one.membership.renew(before)).now_ms >= long_ago
            assert (await other.membership.renew()).now_ms == before
        # Time does not go back where deadlines are counted, also if nobody is left.
        await one.membership.leave({})
        await third.membership.leave({})
        assert (await other.membership.renew()).now_ms == far_ahead


async def test_deadlines_are_counted_from_the_time_of_day_if_nobody_else_runs(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        await one.membership.renew(1_000_000)
        await one.membership.leave({})
        view = await other.membership.renew()
        assert 0 <= view.now_ms - view.time_of_day_ms < 60_000


async def test_a_lease_is_as_long_as_its_owner_wants(shared_stores: Any) -> None:
    """semel.lease.ms of another broker, which may be shorter, does not count."""
    slow = await shared_stores.open(9, 600.0)
    hasty = await shared_stores.open(1)
    await join(slow)
    await join(hasty)
    peer = await peer_of(hasty, 9)
    shared_stores.pass_time(hasty, 300.0)
    assert (await peer_of(hasty, 9)).is_live
    assert not await hasty.membership.take_over(peer, {})
    await slow.close()
    await hasty.close()


# -- shards -----------------------------------------------------------------------------------------------


async def test_shards_are_handed_over_by_their_owner(shared_stores: Any) -> None:
    async with joined(shared_stores, 3) as (one, other, third):
        await give(one, dict.fromkeys(range(SHARDS), 0))
        assert (await other.membership.renew()).shards == [Shard(0, 1)] * SHARDS
        # What others own stays. An owner may give a shard to itself, which counts as a change.
        await give(other, dict.fromkeys(range(SHARDS), 1))
        await give(one, {0: 0, 1: 1, 2: 2})
        await give(third, {1: 2, 2: 1})
        shards = (await other.membership.renew()).shards
        assert shards[:4] == [Shard(0, 2), Shard(1, 2), Shard(1, 3), Shard(0, 1)]


async def test_a_hand_over_that_is_late_does_not_happen(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        await give(one, {0: 0, 1: 0})
        seen = {0: 1, 1: 1}
        # It takes the first for lost, and makes sure that nothing comes of it.
        await one.membership.hand_over({0: 0, 1: 0}, seen)
        await one.membership.hand_over({0: 1, 1: 1}, seen)
        assert (await other.membership.renew()).shards[:2] == [Shard(0, 2), Shard(0, 2)]


async def test_shards_whose_owner_has_changed_since_are_not_handed_over(shared_stores: Any) -> None:
    async with joined(shared_stores, 3) as (one, other, third):
        seen = dict.fromkeys(range(4), 0)
        # The first two are its own by then. The third had an owner, and has none again.
        await other.membership.hand_over({0: 0, 1: 0, 2: 2}, seen)
        await third.membership.leave({})
        await one.membership.hand_over(dict.fromkeys(range(4), 1), seen)
        shards = (await one.membership.renew()).shards
        assert shards[:4] == [Shard(0, 1), Shard(0, 1), Shard(None, 2), Shard(1, 1)]


async def test_a_broker_that_leaves_does_not_give_away_shards_without_an_owner(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        await one.membership.leave({0: 1})
        assert (await other.membership.renew()).shards[0] == Shard(None, 0)


async def test_shards_are_given_to_members_only(shared_stores: Any) -> None:
    async with joined(shared_stores, 3) as (one, other, third):
        await give(one, {0: 0, 1: 0})
        await other.membership.leave({})
        await third.membership.announce_leaving()
        await give(one, {0: 1, 1: 2, 2: 7})
        assert (await one.membership.renew()).shards[:3] == [Shard(0, 1), Shard(0, 1), Shard(None, 0)]


async def test_a_broker_that_leaves_gives_its_shards_away(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        await give(one, dict.fromkeys(range(4), 0))
        await give(other, {4: 1})
        await one.membership.leave({0: 1, 1: 1, 2: 0, 4: 0})
        shards = (await other.membership.renew()).shards
        assert shards[:5] == [Shard(1, 2), Shard(1, 2), Shard(None, 2), Shard(None, 2), Shard(1, 1)]


async def test_the_shards_of_a_dead_broker_are_taken(shared_stores: Any) -> None:
    dead = await shared_stores.open(9)
    async with joined(shared_stores) as (one, other):
        await join(dead)
        await give(dead, dict.fromkeys(range(4), 9))
        await give(other, {4: 1})
        peer = await peer_of(one, 9)
        assert not await one.membership.take_over(peer, {0: 0}), "it lives"
        assert (await one.membership.renew()).shards[0] == Shard(9, 1)
        await shared_stores.expire(9)
        assert await one.membership.take_over(peer, {0: 0, 1: 1, 2: 7, 4: 0})
        view = await other.membership.renew()
        assert [each.broker_id for each in view.peers] == [0, 1]
        assert view.shards[:5] == [Shard(0, 2), Shard(1, 2), Shard(None, 2), Shard(None, 2), Shard(1, 1)]
        assert not await other.membership.take_over(peer, {0: 1}), "it was replaced already"
        for call in (dead.commit([changed(1)], []), dead.membership.renew(), join(dead)):
            with pytest.raises(StoreFenced):
                await call
    await dead.close()
    again = await shared_stores.open(9)
    await join(again)
    assert [each.broker_id for each in (await again.membership.renew()).peers if each.is_live] == [9]
    await again.close()


async def test_a_broker_that_wakes_up_after_it_was_replaced_writes_nothing(shared_stores: Any) -> None:
    """It slept with locks."""
    dead = await shared_stores.open(9)
    async with joined(shared_stores, 1) as (one,):
        await join(dead)
        key = TransactionKey("t")
        ((_, version),) = await dead.load([key], locks=True)
        await shared_stores.expire(9)
        assert await one.membership.take_over(await peer_of(one, 9), {})
        with pytest.raises(StoreFenced):
            await dead.commit([changed(1)], [], expected={key: version})
        assert (await one.load([key]))[0].version == ABSENT
        await asyncio.wait_for(one.commit([changed(2)], [], expected={key: ABSENT}), PATIENCE)
    await dead.close()


async def test_a_commit_at_the_moment_of_a_replacement_happens_before_it_or_not_at_all(
    shared_stores: Any,
) -> None:
    async with joined(shared_stores, 1) as (one,):
        for number in range(5):
            dead = await shared_stores.open(10 + number)
            await join(dead)
            peer = await peer_of(one, 10 + number)
            await shared_stores.expire(10 + number)
            done: Any
            is_taken: Any
            done, is_taken = await asyncio.gather(
                dead.commit([changed(number)], []),
                one.membership.take_over(peer, {}),
                return_exceptions=True,
            )
            assert is_taken is True
            ((value, version),) = await one.load([TransactionKey("t")])
            if isinstance(done, StoreFenced):
                assert value is None or value.producer_id != number
            else:
                assert (value.producer_id, version) == (number, done)
            with pytest.raises(StoreFenced):
                await dead.commit([changed(99)], [])
            await dead.close()


async def test_brokers_that_replace_one_another_do_not_wait_forever(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        peers = [await peer_of(one, 0), await peer_of(one, 1)]
        for broker_id in (0, 1):
            await shared_stores.expire(broker_id)
        results = await asyncio.gather(
            one.membership.take_over(peers[1], {}),
            other.membership.take_over(peers[0], {}),
            return_exceptions=True,
        )
        assert {True} < {each if isinstance(each, bool) else type(each) for each in results}
        assert any(isinstance(each, StoreFenced) for each in results)


# -- notices ----------------------------------------------------------------------------------------------


async def test_a_notice_is_found_with_the_next_renewal(shared_stores: Any) -> None:
    async with joined(shared_stores, 3) as (one, other, third):
        peer = await peer_of(one, 1)
        numbers = [await one.membership.leave_notice(peer, body) for body in (b"first", b"second")]
        assert [await one.membership.is_noticed(peer, each) for each in numbers] == [False, False]
        view = await other.membership.renew()
        assert view.notices == list(zip(numbers, (b"first", b"second"), strict=True))
        assert not await one.membership.is_noticed(peer, numbers[0]), "it has not carried it out"
        assert (await third.membership.renew()).notices == []
        await third.membership.drop_notices(numbers)
        await other.membership.drop_notices(numbers[:1])
        assert [await one.membership.is_noticed(peer, each) for each in numbers] == [True, False]
        assert (await other.membership.renew()).notices == [(numbers[1], b"second")]


async def test_nobody_waits_for_a_broker_whose_lease_is_over(shared_stores: Any) -> None:
    slow = await shared_stores.open(9)
    async with joined(shared_stores, 1) as (one,):
        await join(slow)
        peer = await peer_of(one, 9)
        number = await one.membership.leave_notice(peer, b"notice")
        assert not await one.membership.is_noticed(peer, number)
        await shared_stores.expire(9)
        assert await one.membership.is_noticed(peer, number)
        # It was not replaced: it finds the notice before it serves anybody again.
        assert (await slow.membership.renew()).notices == [(number, b"notice")]
    await slow.close()


async def test_a_broker_that_was_replaced_needs_no_notice(shared_stores: Any) -> None:
    dead = await shared_stores.open(9)
    async with joined(shared_stores, 1) as (one,):
        await join(dead)
        peer = await peer_of(one, 9)
        number = await one.membership.leave_notice(peer, b"notice")
        await shared_stores.expire(9)
        assert await one.membership.take_over(peer, {})
        assert await one.membership.is_noticed(peer, number)
        late = await one.membership.leave_notice(peer, b"late")
        assert await one.membership.is_noticed(peer, late)
        await dead.close()
        again = await shared_stores.open(9)
        assert (await again.membership.renew()).notices == []
        await again.close()


async def test_a_broker_that_has_left_or_restarted_needs_no_notice(shared_stores: Any) -> None:
    async with joined(shared_stores) as (one, other):
        peer = await peer_of(one, 1)
        number = await one.membership.leave_notice(peer, b"notice")
        await other.membership.leave({})
        assert await one.membership.is_noticed(peer, number)
        again = await shared_stores.open(1)
        await join(again)
        number = await one.membership.leave_notice(await peer_of(one, 1), b"notice")
        assert (await again.membership.renew()).notices == [(number, b"notice")]
        await again.close()
