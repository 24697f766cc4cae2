"""Large groups: what a join costs must not grow with the members that are there already."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.models.group_rules import GROUP, GroupRules

from semel.core.facts import Put
from semel.core.groups import ClassicGroup
from semel.core.groups.model import ClassicState
from semel.core.types import Command, Decision, ErrorCode

FEW, MANY = 200, 2_000
PROTOCOLS = (("range", b"x" * 200),)


class Measured(GroupRules):
    """Counts the bytes of groups that would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_written = 0

    def _snapshot(self) -> str:
        # That nothing is changed is checked elsewhere; here it would take all the time.
        return ""

    def _apply(self, command: Command[Any], decision: Decision) -> None:
        for fact in decision.facts:
            self.state.apply(fact)
            if isinstance(fact, Put) and isinstance(fact.value, ClassicGroup):
                self.bytes_written += len(fact.value.pack())


def classic(members: int) -> tuple[float, int]:
    """Processor time and bytes written for so many members to join and to sync."""
    groups = Measured()
    began = time.process_time()
    for number in range(members):
        given = groups.join(protocols=PROTOCOLS, new=f"m{number}")
        assert given.error is ErrorCode.MEMBER_ID_REQUIRED
        groups.join(given.member_id, protocols=PROTOCOLS, initial_delay_ms=1_000)
    while groups.classic.state is ClassicState.PREPARING:
        groups.tick(1_000)
    assert groups.classic.state is ClassicState.COMPLETING
    assert len(groups.classic.members) == members
    for member_id in reversed(list(groups.classic.members)):
        groups.sync(member_id, groups.classic.generation)
    assert groups.classic.state is ClassicState.STABLE
    return time.process_time() - began, groups.bytes_written


def modern(members: int) -> tuple[float, int]:
    """The same for a consumer group. It is written as a whole for every tick in which it changes."""
    groups = Measured()
    groups.make_topic("t", 100)
    began = time.process_time()
    for number in range(members):
        groups.now += 1
        assert groups.consumer_join(f"m{number}").error is ErrorCode.NONE
    return time.process_time() - began, 0


@pytest.mark.parametrize("joins", [classic, modern])
def test_joins_take_a_time_that_grows_with_the_members(joins: Callable[[int], tuple[float, int]]) -> None:
    few_seconds, few_bytes = min(joins(FEW) for _ in range(5))
    many_seconds, many_bytes = min(joins(MANY) for _ in range(2))
    more = MANY / FEW
    assert many_bytes <= few_bytes * more * 1.2
    # Four times as much as linear, because others use the processor too. The square would be ten times.
    assert many_seconds < few_seconds * more * 4


def test_a_member_that_says_too_much_of_itself_is_refused() -> None:
    groups = GroupRules()
    large = (("range", b"x" * 100),)
    assert groups.join(protocols=large, member_bytes_max=104).error is ErrorCode.INVALID_REQUEST
    assert groups.join(protocols=large, member_bytes_max=105).error is ErrorCode.MEMBER_ID_REQUIRED
    groups.make_topic("t", 1)
    assert groups.consumer_join("a", member_bytes_max=0).error is ErrorCode.INVALID_REQUEST


def test_a_group_takes_no_more_members_than_it_has_room_for() -> None:
    groups = GroupRules()
    for name in ("a", "b"):
        groups.join(name, new=name, requires_member_id=False)
        groups.enter(name)
    size = groups.state.sessions[GROUP].metadata_bytes
    assert size == sum(each.metadata_bytes for each in groups.classic.members.values())
    refused = groups.join(new="c", group_bytes_max=size)
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.join(new="c").error is ErrorCode.MEMBER_ID_REQUIRED


def test_a_consumer_group_takes_no_more_topics_than_it_has_room_for() -> None:
    groups = GroupRules()
    groups.make_topic("t", 1)
    assert groups.consumer_join("a", group_bytes_max=1).error is ErrorCode.NONE
    assert groups.consumer_join("b", group_bytes_max=1).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.consumer_join("a", group_bytes_max=1).error is ErrorCode.NONE
    groups.beat("a", -1)
    assert groups.consumer_join("b", group_bytes_max=1).error is ErrorCode.NONE


def test_members_that_joined_before_a_restart_join_again() -> None:
    """While a generation is prepared members come and go in memory; what was written is the one before."""
    groups = GroupRules()
    generation = groups.stable("a")
    groups.enter("b")
    assert set(groups.classic.members) == {"a", "b"}
    groups.restart()
    assert set(groups.classic.members) <= {"a", "b"}
    assert groups.join("c").error is ErrorCode.UNKNOWN_MEMBER_ID
    ticket = groups.join("a")
    groups.tick(300_000)
    answer = groups.joined(ticket) if isinstance(ticket, int) else ticket
    assert answer.generation > generation
