"""What is forgotten when too much is loaded, and what is not."""

import pytest

from semel.core.groups.session import GroupSession
from semel.core.state import BrokerState
from semel.core.types import GroupKey, TopicKey, Transaction, TransactionKey, TransactionState

LIMIT = 16


def transaction(number: int, state: TransactionState = TransactionState.EMPTY) -> Transaction:
    return Transaction(f"{number:03}", number, 0, 60_000, state, deadline_ms=60_000)


def with_transactions(*, opened: int, others: int) -> BrokerState:
    """The open ones are the oldest."""
    state = BrokerState()
    for number in range(opened + others):
        kind = TransactionState.ONGOING if number < opened else TransactionState.COMPLETE_COMMIT
        value = transaction(number, kind)
        state.put(TransactionKey(value.transactional_id), value)
    return state


def test_the_oldest_go_and_an_eighth_more() -> None:
    state = BrokerState()
    for number in range(LIMIT):
        state.put(TopicKey(f"{number:03}"), None)
    assert state.evict(LIMIT) == 0
    state.put(TopicKey("last"), None)
    assert state.evict(LIMIT) == 1 + LIMIT // 8
    assert next(iter(state.topics)) == TopicKey("003")
    assert TopicKey("last") in state.topics


@pytest.mark.parametrize("opened", [1, LIMIT // 2, LIMIT, 5 * LIMIT])
def test_open_transactions_stay_and_the_others_are_bounded(opened: int) -> None:
    state = with_transactions(opened=opened, others=3 * LIMIT)
    assert state.evict(LIMIT) > 0
    found = [each for each in state.transactions.values() if each is not None]
    assert sum(each.state is TransactionState.ONGOING for each in found) == opened == len(state.ongoing)
    assert len(found) <= max(LIMIT, opened + LIMIT // 8)


def test_a_transaction_that_has_ended_may_go() -> None:
    state = with_transactions(opened=2 * LIMIT, others=0)
    assert state.evict(LIMIT) == 0
    for number in range(2 * LIMIT):
        ended = transaction(number, TransactionState.COMPLETE_ABORT)
        state.put(TransactionKey(ended.transactional_id), ended)
    assert state.evict(LIMIT) > 0
    assert len(state.transactions) <= LIMIT


def test_many_open_transactions_leave_some_room_for_others() -> None:
    """Or each of the others would be loaded for every tick in which it is needed."""
    state = with_transactions(opened=2 * LIMIT, others=LIMIT // 8)
    assert state.evict(LIMIT) == 0


def test_who_speaks_for_an_open_transaction_stays() -> None:
    """Or a late end of the transaction before would end it (found by simulated history 8215)."""
    state = with_transactions(opened=2, others=3 * LIMIT)
    for number in range(2 + 3 * LIMIT):
        state.latest_connections[f"{number:03}"] = state.latest_offset_connections[f"{number:03}"] = number
    state.evict(LIMIT)
    for latest_connections in (state.latest_connections, state.latest_offset_connections):
        assert list(latest_connections)[:2] == ["000", "001"]
        assert len(latest_connections) == LIMIT - LIMIT // 8
        assert list(latest_connections)[-1] == f"{1 + 3 * LIMIT:03}"


def test_groups_with_members_stay() -> None:
    state = BrokerState()
    for number in range(2 * LIMIT):
        state.put(GroupKey(f"{number:03}"), None)
    state.sessions["000"] = GroupSession()
    state.evict(LIMIT)
    assert GroupKey("000") in state.groups
    assert len(state.groups) <= LIMIT
