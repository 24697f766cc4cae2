"""Every step that the small world (``small_world``) can take from a state.

A step is a name and a function that changes a copy of the world. An event whose time makes no difference is
not a step of its own: a client sends its request when the broker begins with it, and readers read every
partition all the time, so that its leader publishes the oldest value that it may publish.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from semel.broker.cluster.notice import Notice
from semel.broker.commit.pending_commands import PendingCommands
from semel.broker.commit.tick import Tick
from semel.core.types import ErrorCode
from semel.store.contract import StoreFenced
from simulation.small_world import (
    BROKERS,
    ENGINE,
    PARTITIONS,
    Announcement,
    Client,
    Job,
    Member,
    World,
    run,
)

Step = tuple[str, Callable[[World], None]]


def steps(world: World) -> Iterator[Step]:
    """Return what can happen next."""
    for name, client in world.clients.items():
        yield from _of_client(world, name, client)
    for broker, member in world.members.items():
        if member.epoch:
            yield from _of_broker(world, broker, member)
        else:
            yield f"{broker} restarts", partial(_restart, broker=broker)
    yield from _of_cluster(world)


def _member(world: World, broker: int) -> Member:
    """Replace a broker by a copy that the step may change, and return the copy."""
    member = world.members[broker] = world.members[broker].copy()
    return member


# -- clients ----------------------------------------------------------------------------------------------


def _of_client(world: World, name: str, client: Client) -> Iterator[Step]:
    if client.is_over:
        return
    if client.asked is not None:
        if world.lost:
            # The client may repeat its request, or abort, while the broker is still at work.
            yield f"{name} gives up", lambda after: _give_up(after, name, aborts=False)
            if not client.request(name).is_end:
                yield f"{name} aborts", lambda after: _give_up(after, name, aborts=True)
        return
    shard = client.request(name).shard
    for broker, member in world.members.items():
        # Other brokers answer NOT_LEADER_OR_FOLLOWER or NOT_COORDINATOR.
        if member.is_serving and member.job is None and shard in member.adopted:
            yield f"{name} asks {broker}", partial(_load, broker=broker, name=name)


def _give_up(world: World, name: str, *, aborts: bool) -> None:
    world.lost -= 1
    _unanswered(world, name)
    if aborts:
        world.clients[name] = world.clients[name]._replace(aborts=True)


def _unanswered(world: World, name: str) -> None:
    client = world.clients[name]
    # The attempt counts only while an answer to an earlier request may still arrive.
    is_expected = any(
        name in (member.job and member.job.client, *(each.client for each in member.announcing))
        for member in world.members.values()
    )
    world.clients[name] = client._replace(asked=None, attempt=client.attempt + 1 if is_expected else 0)


def _answered(world: World, name: str, answer: Any) -> None:
    client = world.clients[name]
    # A client that was fenced, or whose transaction was aborted, stops.
    is_over = answer.error is not ErrorCode.NONE or client.request(name).is_end
    world.clients[name] = client._replace(
        at=client.at + 1, asked=None, is_over=is_over, answers=(*client.answers, answer)
    )


# -- one broker -------------------------------------------------------------------------------------------


def _of_broker(world: World, broker: int, member: Member) -> Iterator[Step]:
    if member.job is None:
        if member.is_serving:
            gained = [shard for shard, owner in world.owners.items() if owner == broker]
            if new := frozenset(gained) - member.adopted:
                yield f"{broker} adopts", lambda after: _adopt(after, broker, new)
        elif world.epochs[broker] == member.epoch:
            yield f"{broker} renews", lambda after: _renew(after, broker)
    else:
        yield f"{broker} commits", lambda after: _commit(after, broker)
    for number, announcement in enumerate(member.announcing):
        yield from _of_announcement(world, broker, number, announcement)
    if world.crashes:
        yield f"{broker} crashes", lambda after: _crash(after, broker, is_fault=True)
    if world.lapses and member.is_serving:
        yield f"the lease of {broker} ends", lambda after: _lapse(after, broker)


def _load(world: World, broker: int, name: str) -> None:
    member = _member(world, broker)
    client = world.clients[name] = world.clients[name]._replace(asked=broker)
    request = client.request(name)
    loop = ENGINE.seated(world, broker)
    run(loop._load([PendingCommands([request.command])]))
    member.job = Job(name, request, client.attempt, tuple(loop._reads))


def _commit(world: World, broker: int) -> None:
    member = _member(world, broker)
    job = member.job
    assert job is not None
    loop = ENGINE.seated(world, broker)
    loop._reads = dict.fromkeys(job.reads)
    pending = PendingCommands([job.request.command])
    try:
        tick: Tick = run(loop._commit(loop._decide([pending])))
    except StoreFenced:
        _crash(world, broker)
        return
    if tick.durable:
        loop._publish_all(tick)
    loop._answer(tick)
    member.job = None
    # No answer waits for the other notices. Their arrival must not matter, so here they never arrive.
    announcement = Announcement(job.client, job.attempt, pending.answers[0], *loop.answered)
    if announcement.left or _is_awaited(world, announcement):
        member.announcing = (*member.announcing, announcement)


def _is_awaited(world: World, announcement: Announcement) -> bool:
    client = world.clients[announcement.client]
    return client.asked is not None and client.attempt == announcement.attempt


def _adopt(world: World, broker: int, shards: frozenset[int]) -> None:
    member = _member(world, broker)
    run(ENGINE.seated(world, broker).adopt(shards))
    member.adopted |= shards


def _renew(world: World, broker: int) -> None:
    member = _member(world, broker)
    loop = ENGINE.seated(world, broker)
    inbox, member.inbox = member.inbox, ()
    for notice in inbox:
        run(loop.forget_copies() if notice is None else loop.take_notices([notice]))
    member.is_serving = True


def read(world: World) -> None:
    """Read the partitions that their serving leaders have not published, so that they publish them."""
    for broker, member in world.members.items():
        if member.is_serving:
            for key in PARTITIONS:
                if ENGINE.shard(key) in member.adopted and key not in member.published:
                    _member(world, broker).published[key] = world.ledger.values[type(key), key]


def _crash(world: World, broker: int, *, is_fault: bool = False) -> None:
    world.crashes -= is_fault
    world.members[broker] = Member(epoch=0, is_serving=False, sequence=world.members[broker].sequence)
    for name, client in world.clients.items():
        if client.asked == broker:
            _unanswered(world, name)
    _forgotten(world, broker)


def _lapse(world: World, broker: int) -> None:
    world.lapses -= 1
    _member(world, broker).is_serving = False


# -- notices ----------------------------------------------------------------------------------------------


def _of_announcement(world: World, broker: int, number: int, announcement: Announcement) -> Iterator[Step]:
    name = announcement.client
    if not announcement.left:
        before = world.members[broker].announcing[:number]
        if not any(each.left and each.keys & announcement.reads for each in before):
            yield f"{broker} answers {name}", lambda after: _answer(after, broker, number)
        return
    for at, (shard, _) in enumerate(announcement.left):
        # A former owner answers that it is not the owner, which changes nothing.
        owner = world.owners[shard]
        # A broker takes a notice between two ticks.
        if owner is None or owner == broker or world.members[owner].job is None:
            yield f"{broker} tells {owner}", partial(_tell, broker=broker, number=number, at=at)


def _answer(world: World, broker: int, number: int) -> None:
    member = _member(world, broker)
    announcement = member.announcing[number]
    member.announcing = member.announcing[:number] + member.announcing[number + 1 :]
    if _is_awaited(world, announcement):
        _answered(world, announcement.client, announcement.answer)


def _tell(world: World, broker: int, number: int, at: int) -> None:
    """Deliver a notice to the owner of a shard. If there is none, the next owner loads after the commit."""
    member = _member(world, broker)
    announcement = member.announcing[number]
    shard, notice = announcement.left[at]
    owner = world.owners[shard]
    # If the owner is down, its lease is over, and the next owner loads after the commit.
    if owner is not None and owner != broker and world.members[owner].epoch:
        _bring(world, owner, notice)
    left = announcement.left[:at] + announcement.left[at + 1 :]
    others = member.announcing
    member.announcing = (*others[:number], announcement._replace(left=left), *others[number + 1 :])


def _bring(world: World, owner: int, notice: Notice) -> None:
    receiver = _member(world, owner)
    if receiver.is_serving:
        run(ENGINE.seated(world, owner).take_notices([notice]))
    else:
        # The notice is left in the ledger, and carried out before the lease is renewed.
        receiver.inbox = (*receiver.inbox, notice)


# -- the cluster ------------------------------------------------------------------------------------------


def _of_cluster(world: World) -> Iterator[Step]:
    if world.distrusted is None:
        for broker, member in world.members.items():
            is_owner = broker in world.owners.values()
            if (
                is_owner
                and not member.is_serving
                and world.epochs[broker] in (member.epoch, member.epoch or -1)
            ):
                yield f"{broker} is replaced", partial(_replace, dead=broker)
        return
    shards, left = world.distrusted
    for broker in left:
        if world.members[broker].job is None:
            yield f"{broker} forgets", partial(_forget, broker=broker)
    if not left and any(member.is_serving for member in world.members.values()):
        yield "shards are divided", lambda after: _divide(after, shards)


def _replace(world: World, dead: int) -> None:
    world.epochs[dead] += 1
    shards = frozenset(shard for shard, owner in world.owners.items() if owner == dead)
    world.owners.update(dict.fromkeys(shards, None))
    _distrust(world, shards, dead)


def _distrust(world: World, shards: frozenset[int], dead: int) -> None:
    alive = frozenset(broker for broker in BROKERS if world.members[broker].epoch and broker != dead)
    before = world.distrusted[0] if world.distrusted else frozenset()
    world.distrusted = (before | shards, alive)


def _forget(world: World, broker: int) -> None:
    member = _member(world, broker)
    if member.is_serving:
        run(ENGINE.seated(world, broker).forget_copies())
    else:
        member.inbox = (*member.inbox, None)
    _forgotten(world, broker)


def _forgotten(world: World, broker: int) -> None:
    if world.distrusted is not None:
        shards, left = world.distrusted
        world.distrusted = (shards, left - {broker})


def _divide(world: World, shards: frozenset[int]) -> None:
    owner = min(broker for broker, member in world.members.items() if member.is_serving)
    world.owners.update(dict.fromkeys(shards, owner))
    world.distrusted = None


def _restart(world: World, broker: int) -> None:
    """Begin another life. The shards of the last one are divided like those of any dead broker."""
    world.epochs[broker] += 1
    sequence = world.members[broker].sequence
    world.members[broker] = Member(epoch=world.epochs[broker], sequence=sequence)
    shards = frozenset(shard for shard, owner in world.owners.items() if owner == broker)
    if shards:
        world.owners.update(dict.fromkeys(shards, None))
        _distrust(world, shards, broker)
