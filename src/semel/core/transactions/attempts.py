"""Runs: several transactions with one outcome. Pipelines need them; Kafka does not have them.

The *driver* of a pipeline has a transactional id of its own. Each InitProducerId for it starts a *run*, which
is identified by the producer id and epoch that the driver got. The tasks of a run write in transactions of
their own, its *attempts*. The driver commits the successful attempts together with its input offsets:

- ``BeginAttempt`` gives an attempt its producer id and epoch, if the run is the driver's current one and has
  not committed yet. The attempt is open from then on, before it has written anything. So a search for the
  open attempts of a run, after its commit or when the next run starts, finds all of them, and none can be
  opened later. The transactional id of an attempt is used once.
- ``CommitTransactions`` commits transactions and offsets in one decision, or refuses all of them with the
  reasons. Only the current run of the driver may send it.

A commit of several transactions is decided on a copy of its entities, one transaction after another, because
each has to see the ones before it: two of them may write markers to one partition. The copy is discarded; the
facts are the decision.

Retries: a repeated BeginAttempt gets the same producer id and epoch until the attempt has written. After that
it is refused, so that a delayed request does not harm the open attempt. A repeated CommitTransactions finds
its transactions committed by the epochs it presents, writes the same offsets once more, and gets the same
answer. A run commits once, so this cannot undo a later commit.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.core import types
from semel.core.data import Data
from semel.core.facts import Put
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.transactions import commands
from semel.core.transactions.beginning import init_producer
from semel.core.transactions.joining import join
from semel.core.transactions.model import check_is_current, is_open, is_superseded, note_connection
from semel.core.transactions.states import Event, becomes
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.errors import ErrorCode

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class Producer(Data):
    """A transactional id with a producer id and epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


class BeginAttempt(types.Command["commands.ProducerGiven"]):
    """Start a task attempt of a run. The answer is ``ProducerGiven``.

    This sets no latest connection: an attempt outlives its writer, and the driver ends it.
    """

    transactional_id: str
    driver: Producer
    """The transactional id of the driver, and the run: the producer id and epoch that the driver got."""
    timeout_ms: int
    version: int = 2
    """The transaction version in which the attempt will write."""

    def keys(self) -> Iterable[types.Key]:
        """Both transactional ids, and the counter of producer ids."""
        return (
            types.TransactionKey(self.transactional_id),
            types.TransactionKey(self.driver.transactional_id),
            types.ClusterKey(),
        )


class TransactionsCommitted(Data):
    """The answer to ``CommitTransactions``: everything was committed, or nothing."""

    error: ErrorCode
    refused: tuple[tuple[str, ErrorCode], ...] = ()
    """The transactions that cannot be committed, and why."""


class CommitTransactions(types.Command[TransactionsCommitted | commands.Superseded]):
    """Commit transactions and offsets together. The answer is ``TransactionsCommitted`` or ``SUPERSEDED``."""

    driver: Producer
    """The driver and its run."""
    transactions: tuple[Producer, ...]
    """With the producer ids and epochs that wrote them. Each transactional id once, without the driver's."""
    group_id: str = ""
    offsets: tuple[tuple[types.OffsetKey, types.CommittedOffset], ...] = ()
    """Only partitions that exist. The decision fills in the commit time."""
    metadata_chars_max: int = 4_096
    connection: int = commands.NO_CONNECTION

    def keys(self) -> Iterable[types.Key]:
        """The transactional ids, the group, and the counter of producer ids."""
        ids = [types.TransactionKey(each.transactional_id) for each in (self.driver, *self.transactions)]
        return (*ids, types.GroupKey(self.group_id), types.PendingKey(self.group_id), types.ClusterKey())

    def more_keys(self, state: "BrokerState") -> Iterable[types.Key]:
        """Everything that the transactions touched."""
        return [key for each in self.transactions for key in commands.keys_of(state, each.transactional_id)]


def begin_attempt(state: "BrokerState", command: BeginAttempt, now: int) -> types.Decision:
    """Start an attempt if its run is the current one. The attempt is open at once."""
    error = _check_run(state, command.driver)
    if error is ErrorCode.NONE and _has_decided(state, command.driver):
        # A speculative copy of a task, started when the run was nearly done: nothing would ever end it.
        error = ErrorCode.INVALID_TXN_STATE
    if error is not ErrorCode.NONE:
        return types.Decision(commands.ProducerGiven(error))
    known = state.transactions[types.TransactionKey(command.transactional_id)]
    if known is not None:
        is_new = is_open(known) and not (known.partitions or known.groups or known.shares)
        if is_new and known.version == command.version:
            return types.Decision(commands.ProducerGiven(ErrorCode.NONE, known.producer_id, known.epoch))
        return types.Decision(commands.ProducerGiven(ErrorCode.INVALID_TXN_STATE))
    init = commands.InitProducer(
        command.transactional_id, command.timeout_ms, timeout_max_ms=command.timeout_ms
    )
    decision = init_producer(state, init, now)
    if decision.answer.error is not ErrorCode.NONE:
        return decision
    facts = tuple(
        Put.of(join(state, fact.value, now, version=command.version))
        if type(fact) is Put and isinstance(fact.value, types.Transaction)
        else fact
        for fact in decision.facts
    )
    return decision.but(facts=facts)


def commit_transactions(state: "BrokerState", command: CommitTransactions, now: int) -> types.Decision:
    """Commit all transactions and the offsets, or none of them and return the reasons."""
    driver = command.driver
    error = _check_run(state, driver)
    if error is not ErrorCode.NONE:
        return types.Decision(TransactionsCommitted(error))
    if is_superseded(state, driver.transactional_id, command.connection):
        return types.Decision(commands.SUPERSEDED)
    draft = _draft(state, command)
    has_decided = _has_decided(state, driver)
    facts: list[types.Fact] = []
    batches: list[types.Buffer] = []
    refused: list[tuple[str, ErrorCode]] = []
    for each in command.transactions:
        known = draft.transactions[types.TransactionKey(each.transactional_id)]
        # End the transaction in the version in which it was written, so that a retry is recognised.
        version = max(1, known.version) if known is not None else 1
        if has_decided and known is not None and is_open(known):
            # A run commits once. After that only a retry is accepted, and its transactions are committed.
            refused.append((each.transactional_id, ErrorCode.INVALID_TXN_STATE))
            continue
        decision = draft.decide(_end(each, version), now)
        if decision.answer.error is not ErrorCode.NONE:
            refused.append((each.transactional_id, decision.answer.error))
        _take(draft, decision, facts, batches)
    if refused:
        return types.Decision(TransactionsCommitted(ErrorCode.INVALID_TXN_STATE, tuple(refused)))
    if command.offsets:
        decision = draft.decide(_offsets(command), now)
        error = next((each for each in decision.answer if each is not ErrorCode.NONE), ErrorCode.NONE)
        if error is not ErrorCode.NONE:
            return types.Decision(TransactionsCommitted(error))
        _take(draft, decision, facts, batches)
    facts += _decided(state, driver, now)
    facts += note_connection(state, driver.transactional_id, command.connection)
    return types.Decision(TransactionsCommitted(ErrorCode.NONE), tuple(facts), tuple(batches))


def _has_decided(state: "BrokerState", driver: Producer) -> bool:
    known = state.transactions[types.TransactionKey(driver.transactional_id)]
    return known is not None and known.state is types.TransactionState.COMPLETE_COMMIT


def _decided(state: "BrokerState", driver: Producer, now: int) -> tuple[types.Fact, ...]:
    """Mark the run as committed. The previous epoch is no longer a retry: its holder did not commit."""
    known = state.transactions[types.TransactionKey(driver.transactional_id)]
    if known is None or known.state is not types.TransactionState.EMPTY:
        return ()
    ended = known.but(
        state=becomes(known.state, Event.COMMIT), last_epoch=-1, updated_ms=state.time_of_day(now)
    )
    return (Put.of(ended),)


def _check_run(state: "BrokerState", driver: Producer) -> ErrorCode:
    """Check that this is the current run, of any term: InitProducerId is flushed before its answer."""
    known = state.transactions[types.TransactionKey(driver.transactional_id)]
    return check_is_current(known, ProducerIdAndEpoch(driver.producer_id, driver.epoch))


def _draft(state: "BrokerState", command: CommitTransactions) -> "BrokerState":
    """Return a separate state with the entities that the command names."""
    draft = type(state)(state.term)
    draft.clock_lag_ms = state.clock_lag_ms
    for key in (*command.keys(), *command.more_keys(state)):
        draft.put(key, state.tables[type(key)][key])
    return draft


def _take(
    draft: "BrokerState", decision: types.Decision, facts: list[types.Fact], batches: list[types.Buffer]
) -> None:
    draft.apply(*decision.facts)
    facts += decision.facts
    batches += decision.batches


def _end(each: Producer, version: int) -> commands.EndTransaction:
    return commands.EndTransaction(
        each.transactional_id, each.producer_id, each.epoch, is_commit=True, version=version
    )


def _offsets(command: CommitTransactions) -> CommitOffsets:
    """Return the commit of offsets: as in a transaction, it names no member even if the group has some."""
    return CommitOffsets(
        command.group_id,
        Committer(),
        command.offsets,
        command.metadata_chars_max,
        is_transactional=True,
    )
