"""Clients take turns in the queue of the commit loop; what one of them asks keeps its order."""

from contextvars import copy_context

from hypothesis import given
from hypothesis import strategies as st
from support.stores.commit_loop import append

from semel.broker.commit.pending_commands import CLIENT, COMMANDS_MAX, FairQueue, PendingCommands
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.topics import CreateTopic
from semel.core.types import CommittedOffset, OffsetKey


def put(queue: FairQueue, client: int, commands: int = 1, *, is_held: bool = False) -> PendingCommands:
    def as_client() -> PendingCommands:
        CLIENT.set(client)
        pending = PendingCommands([append() for _ in range(commands)])
        pending.is_held = is_held
        queue.put(pending)
        return pending

    return copy_context().run(as_client)


def test_what_is_held_delays_only_later_requests_of_its_client() -> None:
    queue = FairQueue(bytes_max=1 << 20)
    early, held = put(queue, 1), put(queue, 1, is_held=True)
    behind, other = put(queue, 1), put(queue, 2)
    assert queue.take()[0] == [early, other]
    assert not queue
    assert queue.is_holding
    assert queue.take()[0] == []
    another = put(queue, 2)
    queue.release(held)
    assert queue.take()[0] == [another, held, behind]
    assert not queue.is_holding


def test_a_later_request_may_be_ready_before_an_earlier_one() -> None:
    queue = FairQueue(bytes_max=1 << 20)
    first, second = put(queue, 1, is_held=True), put(queue, 1, is_held=True)
    queue.release(second)
    assert not queue
    queue.release(first)
    assert queue.take()[0] == [first, second]


def test_a_single_request_is_in_the_next_tick_however_many_another_client_has() -> None:
    queue = FairQueue(bytes_max=1 << 20)
    for _ in range(3 * COMMANDS_MAX):
        put(queue, 1)
    late = put(queue, 2)
    taken, _ = queue.take()
    assert taken.index(late) == 1
    assert len(taken) == COMMANDS_MAX


def test_a_tick_holds_as_many_bytes_as_it_may_and_one_request_at_least() -> None:
    queue = FairQueue(bytes_max=1)
    first, second = put(queue, 1), put(queue, 2)
    assert queue.take() == ([first], first.room_bytes)
    assert queue.take() == ([second], second.room_bytes)
    assert not queue


def test_a_command_with_many_entries_weighs_as_much_as_many() -> None:
    """So that two clients that commit thousands of offsets are not in the same tick."""
    queue = FairQueue(bytes_max=1)
    offsets = tuple((OffsetKey("g", "t", at), CommittedOffset(1)) for at in range(10 * COMMANDS_MAX))
    large = [PendingCommands([CommitOffsets("g", Committer(), offsets, 1)]) for _ in range(2)]
    large.append(PendingCommands([CreateTopic("t", bytes(16), 10 * COMMANDS_MAX, {})]))
    for each in large:
        queue.put(each)
    assert [queue.take()[0] for _ in large] == [[each] for each in large]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 300)), max_size=60))
def test_all_are_taken_and_those_of_a_client_in_order(sizes: list[tuple[int, int]]) -> None:
    queue = FairQueue(bytes_max=1 << 20)
    pending: dict[int, list[PendingCommands]] = {}
    for client, commands in sizes:
        pending.setdefault(client, []).append(put(queue, client, commands))
    taken: list[PendingCommands] = []
    while queue:
        taken += queue.take()[0]
    for mine in pending.values():
        assert [each for each in taken if each in mine] == mine
    assert len(taken) == len(sizes)
