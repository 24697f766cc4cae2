"""Answers of a tick, and what happens right behind them."""

import asyncio
from typing import Any

from support.stores.commit_loop import Looping, append, create

from semel.broker.commit.pending_commands import PendingCommands
from semel.broker.commit.tick import REPLIES_AT_ONCE, Replies
from semel.store.contract import StoreFull


def pending(told: list[Any], name: str, *answers: Any) -> PendingCommands:
    made = PendingCommands(())
    made.then(lambda outcome: told.append((name, outcome)))
    made.answers += answers
    return made


async def test_what_waits_for_answers_happens_when_everyone_was_told() -> None:
    told: list[Any] = []
    replies = Replies()
    first = PendingCommands(())
    first.then(lambda outcome: replies.soon(lambda: told.append("behind")))
    replies.tell([first, pending(told, "second", 2)], [])
    assert told == [("second", [2]), "behind"]


async def test_outside_of_a_tick_it_happens_in_the_next_turn_of_the_event_loop() -> None:
    told: list[Any] = []
    Replies().soon(lambda: told.append("soon"))
    assert told == []
    await asyncio.sleep(0)
    assert told == ["soon"]


async def test_what_is_behind_the_answers_may_ask_for_more() -> None:
    """As a connection does that sends and then begins its next request, which is refused at once."""
    told: list[Any] = []
    replies = Replies()
    more = PendingCommands(())
    more.then(lambda outcome: replies.soon(lambda: replies.soon(lambda: told.append("later"))))
    replies.tell([more], [])
    assert told == []
    await asyncio.sleep(0)
    assert told == ["later"]


async def test_who_waits_is_told_by_the_reply_to_the_ticket() -> None:
    told: list[Any] = []
    replies = Replies()
    waiting = pending(told, "waiting", "at once")
    replies.park(7, waiting, len(waiting.answers))
    waiting.answers.append(None)
    replies.tell([waiting], [])
    assert told == []
    replies.tell([], [(8, "somebody else's"), (7, "at last")])
    assert told == [("waiting", ["at once", "at last"])]


async def test_commands_that_wait_are_not_kept_and_say_so_once() -> None:
    parked: list[str] = []
    waiting = PendingCommands([append()], when_parked=lambda: parked.append("waits"))
    Replies().park(7, waiting, 0)
    assert (parked, waiting.commands) == (["waits"], ())


async def test_of_many_who_waited_some_are_told_in_each_turn_of_the_event_loop() -> None:
    """A generation of a group with thousands of members begins: others are served in between."""
    told: list[Any] = []
    replies = Replies()
    tickets = range(3 * REPLIES_AT_ONCE)
    for ticket in tickets:
        waiting = pending(told, str(ticket))
        replies.park(ticket, waiting, len(waiting.answers))
        waiting.answers.append(None)
    replies.tell([], [(ticket, ticket) for ticket in tickets])
    turns = [len(told)]
    while len(told) < len(tickets):
        await asyncio.sleep(0)
        turns.append(len(told))
    assert turns == [REPLIES_AT_ONCE, 2 * REPLIES_AT_ONCE, 3 * REPLIES_AT_ONCE]
    assert told == [(str(ticket), [ticket]) for ticket in tickets]


async def test_without_room_everyone_is_told_once() -> None:
    told: list[Any] = []
    replies, full = Replies(), StoreFull("no room")
    both = pending(told, "both")
    replies.park(1, both, 0)
    replies.park(2, both, 1)
    replies.refuse([both, pending(told, "asks")], full)
    assert told == [("both", full), ("asks", full)]
    replies.tell([], [(1, "too late")])
    assert len(told) == 2


async def test_answers_leave_before_the_tick_puts_its_things_in_order() -> None:
    looping = Looping()
    looping.store.let.set()
    await looping.ask(create())
    ticks, loop = looping.metrics.ticks, looping.loop
    seen: list[int] = []
    loop.submit([append()]).then(lambda outcome: loop.soon(lambda: seen.append(looping.metrics.ticks)))
    await looping.ask(append())
    assert seen == [ticks]
    assert looping.metrics.ticks == ticks + 1
    await looping.settle()


async def test_a_loop_that_was_cancelled_can_still_be_asked() -> None:
    """Nobody answers, and nobody fails: the process ends anyway."""
    looping = Looping()
    await asyncio.sleep(0)
    looping.task.cancel()
    await asyncio.gather(looping.task, return_exceptions=True)
    looping.submit(append())
    assert looping.outcomes == []


async def test_a_client_that_always_has_another_request_lets_others_be_received() -> None:
    """Its frames are in memory: each answer starts the next request, and no commit has to wait."""
    looping = Looping()
    looping.store.let.set()
    await looping.ask(create())
    left, turns = 200, 0

    def again(outcome: object) -> None:
        nonlocal left
        left -= 1
        if left:
            looping.loop.submit([append()]).then(again)

    looping.loop.submit([append()]).then(again)
    while left:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100
    await looping.settle()
