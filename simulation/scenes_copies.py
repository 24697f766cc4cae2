"""Scenes about stale copies in memory: another broker has changed them, and no notice arrives in time."""

import asyncio
from typing import Any

from semel.core.groups.commands import DeleteGroup, DescribeGroup
from semel.core.groups.offsets import CommitOffsets, Committer, FetchOffsets
from semel.core.log.partition import AllocateProducerId
from semel.core.security.acls import AclBinding
from semel.core.security.policies import AddAcl, ConfirmPolicies, RemoveAcl
from semel.core.transactions.commands import CommitPending, EndTransaction, InitProducer
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey, PartitionKey
from simulation import virtual_time
from simulation.cluster import BrokerLife, ClusterWorld
from simulation.shared_membership import LEASE_SECONDS
from simulation.stage import (
    STEP,
    batch,
    check_visible,
    committed,
    given_by,
    in_cluster,
    met,
    named,
    open_transaction,
    partition_at,
    partition_of,
    record,
    until,
)


def lost_notice_of_a_join() -> None:
    """A write at the first broker opens a transaction. Its coordinator gets no notice, and must commit it."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        world.faults.odds["lost notice"] = 1.0
        key = partition_of(one)
        end = await open_transaction(two, named(world, two), one, key)
        given = await given_by(two, end)
        assert given.error is ErrorCode.NONE, "a transaction that was written cannot be committed"
        await check_visible(world, key)

    in_cluster(work)


def lost_notice_of_a_join_without_end() -> None:
    """As before, but the producer dies: the coordinator must abort it, so that readers proceed."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        world.faults.odds["lost notice"] = 1.0
        key, name = partition_of(one), named(world, two)
        given = await two.broker.ask(InitProducer(name, 100))
        await one.broker.ask(batch(name, key, given.producer_id))
        async with asyncio.timeout(30):
            while (await partition_at(one, key)).last_stable_offset < 2:
                await virtual_time.sleep(0.1)

    in_cluster(work)


def write_repeated_at_the_leader() -> None:
    """A broker that led a partition a moment ago commits a write to it, and dies before its notice.

    The write was accepted while that broker led the partition. Its client repeats it at the new leader, which
    already serves readers. If the leader acknowledges the write, it must show it.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        key = partition_of(one)
        write = record(key, await two.broker.ask(AllocateProducerId()))
        met((await partition_at(one, key)).high_watermark == 0)
        world.faults.odds["lost notice"] = 1.0
        two.broker.submit([write])
        await until(lambda: world.server.ledger.values[PartitionKey, key].high_watermark == 1)
        world._end(2, two.process)
        written = await one.broker.ask(write)
        met(written.error is ErrorCode.NONE and one.ownership.leads(key))
        seen = (await partition_at(one, key)).high_watermark
        assert seen == 1, "a reader does not see what was acknowledged"

    in_cluster(work)


def late_notice_of_a_deleted_group() -> None:
    """A notice arrives twice; its group is deleted before the second time."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        group = named(world, one)
        key = OffsetKey(group, "t", 0)
        world.faults.odds["repeated notice"] = 1.0
        await two.broker.ask(CommitOffsets(group, Committer(), ((key, CommittedOffset(5)),)))
        world.faults.odds.clear()
        met(await one.broker.ask(DeleteGroup(group)) is ErrorCode.NONE)
        met(await one.broker.ask(DescribeGroup(group)) is None)
        await virtual_time.sleep(1.1)
        assert await one.broker.ask(DescribeGroup(group)) is None, "a deleted group is there again"

    in_cluster(work)


def notices_in_another_order() -> None:
    """Two brokers commit offsets of one group, and the notice of the later commit arrives first."""

    async def work(world: ClusterWorld) -> None:
        one, two, three = world.everybody()
        group = named(world, one)
        keys = [OffsetKey(group, "t", index) for index in range(2)]
        ends = [
            await _offset_in_transaction(world, one, *each) for each in zip((two, three), keys, strict=True)
        ]
        world._cut.add(frozenset((1, 2)))
        two.broker.submit([ends[0]])
        await committed(world, ends[0])
        met((await given_by(three, ends[1])).error is ErrorCode.NONE)
        for _ in range(2):
            fetched = await one.broker.ask(FetchOffsets(group, offsets=(keys[1],), require_stable=True))
            found = [each and each.offset for each in fetched.offsets]
            assert found == [5], "an offset that was committed is not shown"
            assert keys[1] not in fetched.unstable, "an offset that was committed is said to be open"
            # By then the first notice has arrived, through the ledger.
            await virtual_time.sleep(0.5)

    in_cluster(work, brokers=3)


def right_removed_twice() -> None:
    """An ACL is removed at one broker, and its notice does not arrive. The removal is repeated at another.

    The second broker finds nothing to remove. When it answers so, the right must be gone at the third broker,
    too. The same holds for a removal by a filter, which matches nothing any more.
    """

    async def work(world: ClusterWorld) -> None:
        one, two, three = world.everybody()
        acl = AclBinding(2, 3, "orders", "User:billing", "*", 3, 3)
        removal = RemoveAcl(acl)
        for repeated in (removal, ConfirmPolicies()):
            await one.broker.ask(AddAcl(acl))
            met(all(acl in each.broker.policies.acls for each in (one, two, three)))
            world._cut.add(frozenset((1, 3)))
            removed = one.broker.submit([removal])
            while acl in two.broker.policies.acls:
                await virtual_time.sleep(STEP)
            met(acl in three.broker.policies.acls)
            met(not await two.broker.ask(repeated))
            assert acl not in three.broker.policies.acls, "a right that was taken away is still there"
            world._cut.clear()
            await removed

    in_cluster(work, brokers=3)


def right_removed_where_it_is_known() -> None:
    """As before, but the second broker has not received the notice, and still grants the right.

    The first broker waits for the answer to its notice, which never comes.
    """

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        acl = AclBinding(2, 3, "orders", "User:billing", "*", 3, 3)
        await one.broker.ask(AddAcl(acl))
        # At first, a broker looks up all policies with each renewal.
        await virtual_time.sleep(3 * LEASE_SECONDS)
        member: Any = one.broker.member
        member._sender._peers.send = lambda *message: asyncio.Event().wait()
        one.broker.submit([RemoveAcl(acl)])
        await until(lambda: acl not in one.broker.policies.acls)
        met(acl in two.broker.policies.acls)
        met(not await two.broker.ask(RemoveAcl(acl)))
        assert acl not in two.broker.policies.acls, "a broker grants a right that it said is gone"

    in_cluster(work)


def right_removed_before_it_is_known() -> None:
    """An ACL is added again at one broker, and removed at another, which has no notice of the addition."""

    async def work(world: ClusterWorld) -> None:
        one, two = world.everybody()
        acl = AclBinding(2, 3, "orders", "User:billing", "*", 3, 3)
        await two.broker.ask(AddAcl(acl))
        await two.broker.ask(RemoveAcl(acl))
        await virtual_time.sleep(3 * LEASE_SECONDS)
        world._cut.add(frozenset((1, 2)))
        one.broker.submit([AddAcl(acl)])
        await until(lambda: acl in one.broker.policies.acls)
        met(acl not in two.broker.policies.acls)
        await two.broker.ask(RemoveAcl(acl))
        world._cut.clear()
        await virtual_time.sleep(LEASE_SECONDS)
        granting = [each for each in (one, two) if acl in each.broker.policies.acls]
        assert not granting, "a right that was removed is there for ever"

    in_cluster(work)


async def _offset_in_transaction(
    world: ClusterWorld, group_owner: BrokerLife, coordinator: BrokerLife, key: OffsetKey
) -> EndTransaction:
    """Commit an offset in a transaction, and return the command that ends the transaction."""
    name = named(world, coordinator)
    given = await coordinator.broker.ask(InitProducer(name, 60_000))
    offsets = ((key, CommittedOffset(5)),)
    pending = CommitPending(name, given.producer_id, 0, key.group_id, Committer(), offsets, version=2)
    met(await group_owner.broker.ask(pending) == (ErrorCode.NONE,))
    return EndTransaction(name, given.producer_id, 0, True, 2)
