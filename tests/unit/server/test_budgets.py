"""The byte budgets: who waits, who is let through, and that nobody waits for ever."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from semel.server.budgets import FETCH_SHARE_MIN_BYTES, RequestBudget, ResponseBudget


class RequestOwner:
    def __init__(self, *, has_half_frame: bool = True) -> None:
        self.allowed = 0
        self.has_half_frame = has_half_frame

    def budget_allows(self) -> None:
        self.allowed += 1


@dataclass
class Request:
    size: int


def test_within_the_limit_everyone_reads() -> None:
    budget = RequestBudget(100)
    assert budget.charge(RequestOwner(has_half_frame=False), 25)
    assert budget.charge(RequestOwner(has_half_frame=False), 25)


def test_over_half_of_the_limit_only_those_wait_that_hold_more_than_their_share() -> None:
    budget = RequestBudget(100)
    greedy, modest = RequestOwner(has_half_frame=False), RequestOwner(has_half_frame=False)
    assert not budget.charge(greedy, 60)
    assert budget.charge(modest, 20)
    assert not budget.charge(modest, 10)  # half of the limit, between two, is 25 for each
    budget.release(modest, 10)
    assert (greedy.allowed, modest.allowed) == (0, 1)
    budget.release(greedy, 30)
    assert greedy.allowed == 1


def test_over_the_limit_one_waits_until_bytes_come_back() -> None:
    budget = RequestBudget(100)
    busy, late = RequestOwner(), RequestOwner(has_half_frame=False)
    assert budget.charge(busy, 90)
    budget.begin(busy, is_produce=True)
    assert not budget.charge(late, 20)
    assert budget.is_waited_for
    budget.end(busy, 90)
    assert late.allowed == 1
    assert not budget.is_waited_for


def test_one_half_frame_may_always_go_on_to_its_end() -> None:
    budget = RequestBudget(100)
    alone, other = RequestOwner(), RequestOwner()
    assert budget.charge(alone, 1_000)
    assert budget.charge(alone, 1_000)
    assert not budget.charge(other, 10)
    budget.begin(alone, is_produce=True)
    assert not budget.charge(alone, 1)  # it has had its turn
    assert other.allowed == 0  # and the next has to wait until its bytes come back
    budget.end(alone, 2_000)
    assert other.allowed == 1


def test_a_client_without_a_half_frame_is_not_the_one_to_wait_for() -> None:
    """It may have nothing more to say, and everyone would wait for it."""
    budget = RequestBudget(100)
    silent, half = RequestOwner(has_half_frame=False), RequestOwner()
    assert not budget.charge(silent, 200)
    assert budget.charge(half, 10)
    assert silent.allowed == 0


def test_a_request_that_is_charged_less_makes_room_for_others() -> None:
    budget = RequestBudget(100)
    waits, producer = RequestOwner(has_half_frame=False), RequestOwner(has_half_frame=False)
    request = Request(size=20)
    budget.charge(waits, 20)
    assert not budget.recharge(waits, request, 200)
    assert not budget.charge(producer, 10)
    assert budget.recharge(waits, request, 5)
    assert (request.size, budget.used, producer.allowed) == (5, 15, 1)


def test_a_parked_fetch_is_not_waited_for() -> None:
    budget = RequestBudget(100)
    consumer, producer = RequestOwner(), RequestOwner()
    assert budget.charge(consumer, 200)
    assert not budget.charge(producer, 200)
    budget.begin(consumer, is_produce=False)
    assert producer.allowed == 1


def test_when_the_chosen_one_leaves_the_next_is_let_through() -> None:
    budget = RequestBudget(100)
    first, second = RequestOwner(), RequestOwner()
    assert budget.charge(first, 200)
    assert not budget.charge(second, 200)
    budget.forget(first)
    budget.release(first, 200)
    assert second.allowed == 1


def test_when_the_chosen_one_leaves_its_request_is_still_waited_for() -> None:
    budget = RequestBudget(100)
    first, second = RequestOwner(), RequestOwner()
    assert budget.charge(first, 200)
    assert not budget.charge(second, 200)
    budget.begin(first, is_produce=True)
    budget.forget(first)
    assert second.allowed == 0
    budget.end(first, 200)
    assert second.allowed == 1


def test_a_fetch_gets_its_share_but_never_nothing() -> None:
    budget = ResponseBudget(1_000_000)
    assert budget.fetch_share() == 1_000_000
    budget.fetches = 3
    assert budget.fetch_share() == 250_000
    budget.change(2_000_000)
    assert budget.exceeded
    assert budget.fetch_share() == FETCH_SHARE_MIN_BYTES


def test_whoever_waits_for_responses_is_called_when_they_are_sent() -> None:
    budget = ResponseBudget(100)
    budget.change(150)
    waiting, gone = RequestOwner(), RequestOwner()
    budget.wait(waiting)
    budget.wait(gone)
    budget.forget(gone)
    budget.change(-10)
    assert waiting.allowed == 0
    budget.change(-60)
    assert (waiting.allowed, gone.allowed) == (1, 0)
    assert not budget.is_waited_for


class _Client:
    """A client that sends frames of three pieces, as far as it is read from."""

    def __init__(self, budget: RequestBudget, frames: int, *, is_producer: bool) -> None:
        self.budget = budget
        self.left = frames
        self.pieces = 0
        self.is_producer = is_producer
        self.is_reading = True
        self.in_flight = 0

    @property
    def has_half_frame(self) -> bool:
        return self.pieces > 0

    def budget_allows(self) -> None:
        self.is_reading = True

    def send(self) -> bool:
        """Send one piece, if we may; a whole frame is begun. Whether something happened."""
        if not self.is_reading or not self.left:
            return False
        self.pieces = (self.pieces + 1) % 3
        if not self.budget.charge(self, 10):
            self.is_reading = False
        if not self.pieces:
            self.left -= 1
            self.in_flight += 1
            self.budget.begin(self, is_produce=self.is_producer)
        return True

    def answer(self) -> bool:
        """What was begun is answered, at some time."""
        if not self.in_flight:
            return False
        self.in_flight -= 1
        self.budget.end(self, 30)
        return True


@given(
    frames=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=6),
    order=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=80),
    limit=st.integers(1, 60),
)
def test_there_is_never_a_standstill(
    frames: list[tuple[int, bool]], order: list[tuple[int, bool]], limit: int
) -> None:
    """However pieces and answers interleave, all frames get through, and all bytes come back.

    Only Produce has to be answered for that. Others may be parked, unless they alone hold half of the limit.
    """
    budget = RequestBudget(limit)
    clients = [_Client(budget, count, is_producer=is_producer) for count, is_producer in frames]
    for index, is_answer in order:
        client = clients[index % len(clients)]
        client.answer() if is_answer else client.send()
    while any(client.left for client in clients):
        went_on = [client.send() or (client.is_producer and client.answer()) for client in clients]
        parked_bytes = sum(30 * client.in_flight for client in clients if not client.is_producer)
        assert any(went_on) or 2 * parked_bytes > limit, "nobody may go on"
        if not any(went_on):
            assert any([client.answer() for client in clients])  # noqa: C419  all of them, not the first
    while any([client.answer() for client in clients]):  # noqa: C419  all of them, not the first
        pass
    assert budget.used == 0
