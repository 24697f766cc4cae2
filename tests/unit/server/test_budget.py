"""The byte budgets: who waits, who is let through, and that nobody waits for ever."""

from hypothesis import given
from hypothesis import strategies as st

from semel.server.budget import FETCH_SHARE_MIN_BYTES, RequestBudget, ResponseBudget


class Asker:
    def __init__(self) -> None:
        self.allowed = 0

    def budget_allows(self) -> None:
        self.allowed += 1


def test_within_the_limit_everyone_reads() -> None:
    budget = RequestBudget(100)
    assert budget.charge(Asker(), 60)
    assert budget.charge(Asker(), 40)


def test_over_the_limit_one_waits_until_bytes_come_back() -> None:
    budget = RequestBudget(100)
    busy, late = Asker(), Asker()
    assert budget.charge(busy, 90)
    budget.begin(busy)
    assert not budget.charge(late, 20)
    assert budget.is_waited_for
    budget.end(90)
    assert late.allowed == 1
    assert not budget.is_waited_for


def test_one_alone_may_always_go_on() -> None:
    budget = RequestBudget(100)
    alone = Asker()
    assert budget.charge(alone, 1_000)
    assert budget.charge(alone, 1_000)
    budget.begin(alone)
    assert not budget.charge(alone, 1)  # it has had its turn: its request is under way
    budget.end(2_000)
    assert alone.allowed >= 1


def test_when_the_chosen_one_leaves_the_next_is_let_through() -> None:
    budget = RequestBudget(100)
    first, second = Asker(), Asker()
    assert budget.charge(first, 200)
    assert not budget.charge(second, 200)
    budget.forget(first)
    budget.release(200)
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
    waiting, gone = Asker(), Asker()
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

    def __init__(self, budget: RequestBudget, frames: int) -> None:
        self.budget = budget
        self.left = frames
        self.pieces = 0
        self.is_reading = True

    def budget_allows(self) -> None:
        self.is_reading = True

    def step(self) -> bool:
        """Send one piece, if we may; a whole frame is begun and ended. Whether something happened."""
        if not self.is_reading or not self.left:
            return False
        self.pieces += 1
        if not self.budget.charge(self, 10):
            self.is_reading = False
        if self.pieces == 3:
            self.pieces = 0
            self.left -= 1
            self.budget.begin(self)
            self.budget.end(30)
        return True


@given(
    frames=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    order=st.lists(st.integers(0, 5), max_size=60),
    limit=st.integers(1, 60),
)
def test_there_is_never_a_standstill(frames: list[int], order: list[int], limit: int) -> None:
    """However the pieces of frames interleave, all of them get through, and all bytes come back."""
    budget = RequestBudget(limit)
    clients = [_Client(budget, count) for count in frames]
    for index in order:
        clients[index % len(clients)].step()
    while any(client.left for client in clients):
        went_on = [client.step() for client in clients]
        assert any(went_on), "nobody may read, and nothing is under way"
    assert budget.used == 0
