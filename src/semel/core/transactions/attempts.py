"""Runs: what a pipeline needs and Kafka does not have. Several transactions with one outcome.

A pipeline's *driver* has a transactional id of its own. Every time it takes that id it begins a *run*, which
is named by the pair that it got. The tasks of a run write in transactions of their own, its *attempts*, and
the driver ends those that won, all at once, together with the offsets of its input:

- ``BeginAttempt`` gives an attempt its pair, if the run is still the driver's current one and has decided
  nothing. The attempt is open from then on, before it has written anything: so whoever looks for what a run
  has left, when it has decided or when the next one begins, finds all of it, and nothing of it can be opened
  later. Its id is used once.
- ``CommitTransactions`` commits transactions and offsets in one decision, or refuses all of them with the
  reason. Only the current run of the driver may send it.

A commit of several transactions is decided on a copy of the entities that it names, one end after another,
because an end has to see the ones before it: two of them may write markers to one partition. The copy is
thrown away, the facts are the decision.

Retries: an attempt that asks again gets the same pair, until it has written; what comes later is refused, so
that a request that was long under way does no harm to what it has begun. A group commit that comes again
finds its transactions committed by the pairs that it shows, writes the same offsets once more, and is
answered as the first was. A run decides once, so that undoes no later decision.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.core.data import Data
from semel.core.facts import TransactionChanged
from semel.core.offsets import CommitOffsets, Committer
from semel.core.transactions.beginning import init_producer
from semel.core.transactions.commands import (
    NO_CONNECTION,
    SUPERSEDED,
    EndTransaction,
    InitProducer,
    ProducerGiven,
    keys_of,
)
from semel.core.transactions.joining import join
from semel.core.transactions.model import check_pair, is_open, is_superseded, spoken
from semel.core.transactions.states import Event, becomes
from semel.core.types import (
    Buffer,
    ClusterKey,
    CommittedOffset,
    Decision,
    ErrorCode,
    Fact,
    GroupKey,
    Key,
    OffsetKey,
    PendingKey,
    TransactionKey,
    TransactionState,
)
from semel.wire.producer_id import ProducerIdAndEpoch

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class Producer(Data):
    """A transactional id and a pair of it."""

    transactional_id: str
    producer_id: int
    epoch: int


class BeginAttempt(Data):
    """A task attempt of a run begins. The answer is ``ProducerGiven``.

    No connection speaks for it by this: it outlives whoever writes it, and is ended by somebody else.
    """

    transactional_id: str
    driver: Producer
    """The transactional id of the driver, and the run: the pair that it got."""
    timeout_ms: int
    version: int = 2
    """The generation in which it is going to write."""

    def keys(self) -> Iterable[Key]:
        """Both ids, and the counter of producer ids."""
        return (
            TransactionKey(self.transactional_id),
            TransactionKey(self.driver.transactional_id),
            ClusterKey(),
        )


class CommitTransactions(Data):
    """Commit transactions and offsets together. Answered with ``TransactionsCommitted`` or ``SUPERSEDED``."""

    driver: Producer
    """Whoever decides, and its run."""
    transactions: tuple[Producer, ...]
    """By the pairs that wrote them. No id twice, and not the driver's."""
    group_id: str = ""
    offsets: tuple[tuple[OffsetKey, CommittedOffset], ...] = ()
    """Only partitions that exist; the time of the commit is filled in here."""
    metadata_chars_max: int = 4_096
    connection: int = NO_CONNECTION

    def keys(self) -> Iterable[Key]:
        """The ids, the group, and the counter of producer ids."""
        ids = [TransactionKey(each.transactional_id) for each in (self.driver, *self.transactions)]
        return (*ids, GroupKey(self.group_id), PendingKey(self.group_id), ClusterKey())

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """What the transactions touched."""
        return [key for each in self.transactions for key in keys_of(state, each.transactional_id)]


class TransactionsCommitted(Data):
    """The answer to ``CommitTransactions``: all of it is done, or nothing."""

    error: ErrorCode
    refused: tuple[tuple[str, ErrorCode], ...] = ()
    """The transactions that cannot be committed, and why."""


def begin_attempt(state: "BrokerState", command: BeginAttempt, now: int) -> Decision:
    """An attempt begins, if its run is the current one. It is open at once."""
    error = _check_run(state, command.driver)
    if error is ErrorCode.NONE and _has_decided(state, command.driver):
        # A copy of a task that Spark started when the others were nearly done: nobody would ever end it.
        error = ErrorCode.INVALID_TXN_STATE
    if error is not ErrorCode.NONE:
        return Decision(ProducerGiven(error))
    known = state.transactions[TransactionKey(command.transactional_id)]
    if known is not None:
        is_new = is_open(known) and not known.partitions and not known.groups
        if is_new and known.version == command.version:
            return Decision(ProducerGiven(ErrorCode.NONE, known.producer_id, known.epoch))
        return Decision(ProducerGiven(ErrorCode.INVALID_TXN_STATE))
    init = InitProducer(command.transactional_id, command.timeout_ms, timeout_max_ms=command.timeout_ms)
    decision = init_producer(state, init, now)
    if decision.answer.error is not ErrorCode.NONE:
        return decision
    facts = tuple(
        TransactionChanged(join(state, fact.transaction, now, version=command.version))
        if type(fact) is TransactionChanged
        else fact
        for fact in decision.facts
    )
    return decision.but(facts=facts)


def commit_transactions(state: "BrokerState", command: CommitTransactions, now: int) -> Decision:
    """All of them are committed, and the offsets with them; or nothing is, and who stood in the way."""
    driver = command.driver
    error = _check_run(state, driver)
    if error is not ErrorCode.NONE:
        return Decision(TransactionsCommitted(error))
    if is_superseded(state, driver.transactional_id, command.connection):
        return Decision(SUPERSEDED)
    draft = _draft(state, command)
    facts: list[Fact] = []
    batches: list[Buffer] = []
    refused: list[tuple[str, ErrorCode]] = []
    for each in command.transactions:
        known = draft.transactions[TransactionKey(each.transactional_id)]
        # It ends by the generation in which it was written, which is what a retry is recognised by.
        version = max(1, known.version) if known is not None else 1
        decision = draft.decide(_end(each, version), now)
        if decision.answer.error is not ErrorCode.NONE:
            refused.append((each.transactional_id, decision.answer.error))
        _take(draft, decision, facts, batches)
    if refused:
        return Decision(TransactionsCommitted(ErrorCode.INVALID_TXN_STATE, tuple(refused)))
    if command.offsets:
        decision = draft.decide(_offsets(command), now)
        error = next((each for each in decision.answer if each is not ErrorCode.NONE), ErrorCode.NONE)
        if error is not ErrorCode.NONE:
            return Decision(TransactionsCommitted(error))
        _take(draft, decision, facts, batches)
    facts += _decided(state, driver, now)
    facts += spoken(state, driver.transactional_id, command.connection)
    return Decision(TransactionsCommitted(ErrorCode.NONE), tuple(facts), tuple(batches))


def _has_decided(state: "BrokerState", driver: Producer) -> bool:
    known = state.transactions[TransactionKey(driver.transactional_id)]
    return known is not None and known.state is TransactionState.COMPLETE_COMMIT


def _decided(state: "BrokerState", driver: Producer, now: int) -> tuple[Fact, ...]:
    """The run is over. Whoever comes with the pair before it is not the one who committed."""
    known = state.transactions[TransactionKey(driver.transactional_id)]
    if known is None or known.state is not TransactionState.EMPTY:
        return ()
    ended = known.but(
        state=becomes(known.state, Event.COMMIT), last_epoch=-1, updated_ms=state.time_of_day(now)
    )
    return (TransactionChanged(ended),)


def _check_run(state: "BrokerState", driver: Producer) -> ErrorCode:
    """Whether this is the current run. Of no matter which term: taking an id is never answered early."""
    known = state.transactions[TransactionKey(driver.transactional_id)]
    return check_pair(known, ProducerIdAndEpoch(driver.producer_id, driver.epoch))


def _draft(state: "BrokerState", command: CommitTransactions) -> "BrokerState":
    """A state of its own, with the entities that the command names."""
    draft = type(state)(state.term)
    draft.clock_lag_ms = state.clock_lag_ms
    for key in (*command.keys(), *command.more_keys(state)):
        draft.put(key, state.tables[type(key)][key])
    return draft


def _take(draft: "BrokerState", decision: Decision, facts: list[Fact], batches: list[Buffer]) -> None:
    for fact in decision.facts:
        draft.apply(fact)
    facts += decision.facts
    batches += decision.batches


def _end(each: Producer, version: int) -> EndTransaction:
    return EndTransaction(
        each.transactional_id, each.producer_id, each.epoch, is_commit=True, version=version
    )


def _offsets(command: CommitTransactions) -> CommitOffsets:
    """As in a transaction: by nobody in particular, also while the group has members."""
    return CommitOffsets(
        command.group_id,
        Committer(),
        command.offsets,
        command.metadata_chars_max,
        is_transactional=True,
    )
