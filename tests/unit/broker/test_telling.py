"""Answers of a tick, and what happens right behind them."""

import asyncio
from typing import Any

from support.looping import Looping, append, create

from semel.broker.asked import Asked
from semel.broker.telling import REPLIES_AT_ONCE, Telling
from semel.store.interface import StoreFull


def asked(told: list[Any], name: str, *answers: Any) -> Asked:
    made = Asked((), lambda outcome: told.append((name, outcome)))
    made.answers += answers
    return made


async def test_what_waits_for_answers_happens_when_everyone_was_told() -> None:
    told: list[Any] = []
    telling = Telling()
    first = Asked((), lambda outcome: telling.soon(lambda: told.append("behind")))
    telling.tell([first, asked(told, "second", 2)], [])
    assert told == [("second", [2]), "behind"]


async def test_outside_of_a_tick_it_happens_in_the_next_turn_of_the_event_loop() -> None:
    told: list[Any] = []
    Telling().soon(lambda: told.append("soon"))
    assert told == []
    await asyncio.sleep(0)
    assert told == ["soon"]


async def test_what_is_behind_the_answers_may_ask_for_more() -> None:
    """As a connection does that sends and then begins its next request, which is refused at once."""
    told: list[Any] = []
    telling = Telling()
    more = Asked((), lambda outcome: telling.soon(lambda: telling.soon(lambda: told.append("later"))))
    telling.tell([more], [])
    assert told == []
    await asyncio.sleep(0)
    assert told == ["later"]


async def test_who_waits_is_told_by_the_reply_to_the_ticket() -> None:
    told: list[Any] = []
    telling = Telling()
    waiting = asked(told, "waiting", "at once")
    telling.park(7, waiting)
    waiting.answers.append(None)
    telling.tell([waiting], [])
    assert told == []
    telling.tell([], [(8, "somebody else's"), (7, "at last")])
    assert told == [("waiting", ["at once", "at last"])]


async def test_of_many_who_waited_some_are_told_in_each_turn_of_the_event_loop() -> None:
    """A generation of a group with thousands of members begins: others are served in between."""
    told: list[Any] = []
    telling = Telling()
    tickets = range(3 * REPLIES_AT_ONCE)
    for ticket in tickets:
        waiting = asked(told, str(ticket))
        telling.park(ticket, waiting)
        waiting.answers.append(None)
    telling.tell([], [(ticket, ticket) for ticket in tickets])
    turns = [len(told)]
    while len(told) < len(tickets):
        await asyncio.sleep(0)
        turns.append(len(told))
    assert turns == [REPLIES_AT_ONCE, 2 * REPLIES_AT_ONCE, 3 * REPLIES_AT_ONCE]
    assert told == [(str(ticket), [ticket]) for ticket in tickets]


async def test_without_room_everyone_is_told_once() -> None:
    told: list[Any] = []
    telling, full = Telling(), StoreFull("no room")
    both = asked(told, "both")
    telling.park(1, both)
    telling.park(2, both)
    telling.refuse([both, asked(told, "asks")], full)
    assert told == [("both", full), ("asks", full)]
    telling.tell([], [(1, "too late")])
    assert len(told) == 2


async def test_answers_leave_before_the_tick_puts_its_things_in_order() -> None:
    looping = Looping()
    looping.store.let.set()
    await looping.ask(create())
    ticks, loop = looping.metrics.ticks, looping.loop
    seen: list[int] = []
    loop.submit([append()], lambda outcome: loop.soon(lambda: seen.append(looping.metrics.ticks)))
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
