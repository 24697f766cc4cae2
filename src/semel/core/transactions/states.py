"""The states of a transactional id, as data: which events may happen in which state, and the next state.

The coordinator uses ``TRANSITIONS``, and the diagram in the docs is generated from it. ``ENDS`` defines the
result of EndTxn for each transaction version, as a table that can be compared with Kafka's row by row.

Kafka has three more states, in which a transaction is prepared and its markers are being written. Here one
ledger commit writes the outcome, all markers and all offsets, so these states are never visible.
"""

from enum import Enum
from typing import Final, NamedTuple

from semel.core.types import ErrorCode, TransactionState

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
COMMITTED = TransactionState.COMPLETE_COMMIT
ABORTED = TransactionState.COMPLETE_ABORT


class Event(Enum):
    """What happens to a transactional id. The value says what causes it."""

    INIT = "a producer initialises: InitProducerId"
    ADD = (
        "a partition or group is added: AddPartitionsToTxn, AddOffsetsToTxn, or the first write (version 2); "
        "an attempt of a run is open from the start: BeginAttempt"
    )
    COMMIT = "the producer commits: EndTxn; or a driver commits several transactions: CommitTransactions"
    ABORT = "the producer aborts: EndTxn"
    FENCE = "the broker aborts: timeout, new producer, lost connection, new term"
    HAND_OVER = "a new producer takes over a prepared transaction: InitProducerId with KeepPreparedTxn"
    FORGET = "the id expires: it was not used for transactional.id.expiration.ms"


class Transition(NamedTuple):
    """A state, an event, and the state that follows; None: the id is unknown."""

    state: TransactionState | None
    event: Event
    becomes: TransactionState | None


_ALL: Final = (
    Transition(None, Event.INIT, EMPTY),
    Transition(EMPTY, Event.INIT, EMPTY),
    Transition(EMPTY, Event.ADD, ONGOING),
    # The driver of a run, which has written nothing itself.
    Transition(EMPTY, Event.COMMIT, COMMITTED),
    # Version 2: a client aborts when it cannot know whether the broker has seen any part of a transaction.
    Transition(EMPTY, Event.ABORT, ABORTED),
    Transition(EMPTY, Event.FORGET, None),
    Transition(ONGOING, Event.ADD, ONGOING),
    Transition(ONGOING, Event.COMMIT, COMMITTED),
    Transition(ONGOING, Event.ABORT, ABORTED),
    Transition(ONGOING, Event.FENCE, ABORTED),
    Transition(ONGOING, Event.HAND_OVER, ONGOING),
    Transition(COMMITTED, Event.INIT, EMPTY),
    Transition(COMMITTED, Event.ADD, ONGOING),
    Transition(COMMITTED, Event.ABORT, ABORTED),
    Transition(COMMITTED, Event.FORGET, None),
    Transition(ABORTED, Event.INIT, EMPTY),
    Transition(ABORTED, Event.ADD, ONGOING),
    Transition(ABORTED, Event.ABORT, ABORTED),
    Transition(ABORTED, Event.FORGET, None),
)

TRANSITIONS: Final = {(each.state, each.event): each.becomes for each in _ALL}


def becomes(state: TransactionState | None, event: Event) -> TransactionState:
    """Return the next state. A KeyError is a bug: the event should have been refused before."""
    following = TRANSITIONS[state, event]
    assert following is not None
    return following


class Presented(Enum):
    """Which producer id and epoch EndTxn presents."""

    CURRENT = "the current one"
    BEFORE = "the previous one: a retry, because the answer was lost"


class End(Enum):
    """The result of EndTxn when it is not refused."""

    NOW = "the open transaction ends"
    EMPTY = "no transaction is open; only the epoch is incremented, which fences requests in flight"
    AGAIN = "the transaction has already ended this way, and the answer is repeated"


_STATE: Final = ErrorCode.INVALID_TXN_STATE
_FENCED: Final = ErrorCode.PRODUCER_FENCED
_CURRENT: Final = Presented.CURRENT
_BEFORE: Final = Presented.BEFORE

ENDS: Final[dict[tuple[int, TransactionState, Presented, bool], End | ErrorCode]] = {
    # version, state, epoch presented, commit?
    (1, EMPTY, _CURRENT, True): _STATE,
    (1, EMPTY, _CURRENT, False): _STATE,
    (1, ONGOING, _CURRENT, True): End.NOW,
    (1, ONGOING, _CURRENT, False): End.NOW,
    (1, COMMITTED, _CURRENT, True): End.AGAIN,
    (1, COMMITTED, _CURRENT, False): _STATE,
    (1, ABORTED, _CURRENT, True): _STATE,
    (1, ABORTED, _CURRENT, False): End.AGAIN,
    (2, EMPTY, _CURRENT, True): _STATE,
    (2, EMPTY, _CURRENT, False): End.EMPTY,
    (2, EMPTY, _BEFORE, True): _FENCED,
    (2, EMPTY, _BEFORE, False): _FENCED,
    (2, ONGOING, _CURRENT, True): End.NOW,
    (2, ONGOING, _CURRENT, False): End.NOW,
    (2, ONGOING, _BEFORE, True): _FENCED,
    (2, ONGOING, _BEFORE, False): _FENCED,
    (2, COMMITTED, _CURRENT, True): _STATE,
    (2, COMMITTED, _CURRENT, False): End.EMPTY,
    (2, COMMITTED, _BEFORE, True): End.AGAIN,
    (2, COMMITTED, _BEFORE, False): _STATE,
    (2, ABORTED, _CURRENT, True): _STATE,
    (2, ABORTED, _CURRENT, False): End.EMPTY,
    (2, ABORTED, _BEFORE, True): _STATE,
    (2, ABORTED, _BEFORE, False): End.AGAIN,
}
"""Version 1 has no previous epoch: an end does not bump it (EndTxn up to version 4)."""
