"""The transaction coordinator: the decisions on commands to add, end, abort and describe.

It combines the rules of ``states`` (transitions) and ``model`` (which producer and connection may act). A
command is decided in one step with all its consequences (``ending``), so no request has to wait: an
InitProducerId that finds an open transaction aborts it and is answered at once.

Retries: a client may send every request twice, because the answer may be lost.

- InitProducerId with the current epoch: the retry presents the previous epoch and gets the same answer;
- adding: partitions and groups that are in the transaction stay in it;
- ending: version 2 recognises the previous epoch; version 1 repeats the answer until the state changes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.core.facts import EndReason, FeatureChanged, LatestConnectionChanged, Put
from semel.core.transactions import commands, model
from semel.core.transactions.ending import Ending
from semel.core.transactions.joining import join
from semel.core.transactions.states import ENDS, TRANSITIONS, End, Event, Presented
from semel.core.transactions.update import TransactionUpdate
from semel.core.types import (
    Cluster,
    ClusterKey,
    Decision,
    ErrorCode,
    ProducerKey,
    ProducerState,
    Transaction,
    TransactionKey,
)
from semel.wire.batch import ProducerIdAndEpoch

if TYPE_CHECKING:
    from semel.core.state import BrokerState

FEATURE_LEVELS = range(3)
"""The levels of transaction.version: 0 and 1 are version 1, 2 is KIP-890."""


def add_partitions(state: "BrokerState", command: commands.AddPartitions, now: int) -> Decision:
    """Add partitions by request."""
    return _add(
        state,
        command,
        lambda known: join(
            state,
            known,
            now,
            partitions=command.partitions,
            version=command.version,
            block_max_ms=command.block_max_ms,
        ),
    )


def add_offsets(state: "BrokerState", command: commands.AddOffsets, now: int) -> Decision:
    """Add a group by request."""
    return _add(state, command, lambda known: join(state, known, now, group_id=command.group_id, version=1))


def _add(
    state: "BrokerState",
    command: commands.AddPartitions | commands.AddOffsets,
    grow: Callable[[Transaction], Transaction],
) -> Decision:
    transactional_id = command.transactional_id
    transaction = state.transactions[TransactionKey(transactional_id)]
    error = model.check_may_write(state, transaction, ProducerIdAndEpoch(command.producer_id, command.epoch))
    if error is not ErrorCode.NONE:
        return Decision(error)
    assert transaction is not None
    if model.is_superseded(state, transactional_id, command.connection):
        return Decision(commands.SUPERSEDED)
    connection_facts = model.note_connection(state, transactional_id, command.connection)
    joined = grow(transaction)
    facts = connection_facts if joined is transaction else (Put.of(joined), *connection_facts)
    return Decision(ErrorCode.NONE, facts, defers_sync=not joined.is_two_phase)


def verify_partitions(state: "BrokerState", command: commands.VerifyPartitions, now: int) -> Decision:
    """Check whether partitions are in the transaction."""
    transaction = state.transactions[TransactionKey(command.transactional_id)]
    error = model.check_is_current(transaction, ProducerIdAndEpoch(command.producer_id, command.epoch))
    if error is not ErrorCode.NONE:
        return Decision((error,) * len(command.partitions))
    assert transaction is not None
    present = frozenset(transaction.partitions)
    return Decision(
        tuple(
            ErrorCode.NONE if key in present else ErrorCode.TRANSACTION_ABORTABLE
            for key in command.partitions
        )
    )


def end_transaction(state: "BrokerState", command: commands.EndTransaction, now: int) -> Decision:
    """Commit or abort."""
    transaction = state.transactions[TransactionKey(command.transactional_id)]
    producer = ProducerIdAndEpoch(command.producer_id, command.epoch)
    presented = Presented.CURRENT
    error = model.check_is_current(transaction, producer)
    if error is not ErrorCode.NONE:
        if command.version == 1 or transaction is None or producer != model.previous_producer(transaction):
            return Decision(commands.ProducerGiven(error))
        presented = Presented.BEFORE
    assert transaction is not None
    if command.version == 1 and model.is_superseded(state, command.transactional_id, command.connection):
        return Decision(commands.SUPERSEDED)
    is_abort_of_version_2 = command.version == 2 and not command.is_commit
    if (
        presented is Presented.CURRENT
        and model.is_of_old_term(state, transaction)
        and not is_abort_of_version_2
    ):
        return Decision(commands.ProducerGiven(ErrorCode.PRODUCER_FENCED))
    update = TransactionUpdate(state, transaction, now)
    connection_facts = model.note_connection(state, command.transactional_id, command.connection)
    match ENDS[command.version, transaction.state, presented, command.is_commit]:
        case End.AGAIN:
            return Decision(update.given(), connection_facts)
        case End.NOW | End.EMPTY:
            update.end(Event.COMMIT if command.is_commit else Event.ABORT, version=command.version)
            return update.decision(update.given(), connection_facts=connection_facts)
        case ErrorCode() as refused:
            return Decision(commands.ProducerGiven(refused), connection_facts)
    raise AssertionError("ENDS has no other rows")


def abort_open(state: "BrokerState", command: commands.AbortOpen, now: int) -> Decision:
    """Abort the open transaction and fence its producer."""
    transaction = state.transactions[TransactionKey(command.transactional_id)]
    if transaction is None or not model.is_open(transaction):
        return Decision(False)
    if command.overdue_only and not 0 <= transaction.deadline_ms < now:
        return Decision(False)
    latest = state.latest_connections.get(command.transactional_id, commands.NO_CONNECTION)
    if command.connection not in (commands.NO_CONNECTION, latest):
        return Decision(False)
    if command.before_term and not model.is_of_old_term(state, transaction):
        return Decision(False)
    update = TransactionUpdate(state, transaction, now)
    update.fence(_reason(command))
    return update.decision(True)


def _reason(command: commands.AbortOpen) -> EndReason:
    if command.overdue_only:
        return EndReason.TIMEOUT
    if command.connection != commands.NO_CONNECTION:
        return EndReason.DISCONNECT
    return EndReason.TERM if command.before_term else EndReason.ADMIN


def forget_transaction(state: "BrokerState", command: commands.ForgetTransaction, now: int) -> Decision:
    """Forget an unused id."""
    transaction = state.transactions[TransactionKey(command.transactional_id)]
    if (
        transaction is None
        or (transaction.state, Event.FORGET) not in TRANSITIONS
        or transaction.updated_ms > command.unused_since_ms
    ):
        return Decision(False)
    return Decision(True, (Put(TransactionKey(command.transactional_id), None),))


def describe_transaction(state: "BrokerState", command: commands.DescribeTransaction, now: int) -> Decision:
    """Return the current state of the transactional id."""
    return Decision(state.transactions[TransactionKey(command.transactional_id)])


def write_marker(state: "BrokerState", command: commands.WriteMarker, now: int) -> Decision:
    """End a producer's transaction in one partition. Administrators use it to end hanging transactions."""
    partition = state.partitions[command.partition]
    if partition is None:
        return Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    key = ProducerKey(command.partition.topic_id, command.partition.index, command.producer_id)
    producer = state.producers[key] or ProducerState()
    epoch = command.epoch
    # In version 2 a marker has a higher epoch than the transaction. The same epoch is stale if a transaction
    # is open, else a retry.
    is_stale = epoch < producer.epoch
    if command.version >= 2 and producer.has_open_transaction and epoch < model.EPOCH_MAX:
        is_stale = epoch <= producer.epoch
    if is_stale:
        return Decision(ErrorCode.INVALID_PRODUCER_EPOCH)
    if command.coordinator_epoch < producer.coordinator_epoch:
        return Decision(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    ending = Ending(state, is_commit=command.is_commit, now=now)
    ending.in_partition(
        command.partition,
        partition,
        command.producer_id,
        producer,
        epoch,
        command.coordinator_epoch,
        has_markers=not command.is_journal,
    )
    return Decision(ErrorCode.NONE, tuple(ending.facts), tuple(ending.batches))


def change_feature(state: "BrokerState", command: commands.ChangeFeature, now: int) -> Decision:
    """Set the transaction version of new clients. Transactions end in the version they started with."""
    cluster = state.cluster[ClusterKey()] or Cluster()
    level = command.transaction_version
    if level not in FEATURE_LEVELS:
        return Decision(ErrorCode.INVALID_UPDATE_VERSION)
    if level == cluster.transaction_version:
        return Decision(ErrorCode.NONE)
    return Decision(ErrorCode.NONE, (FeatureChanged(level, cluster.features_epoch + 1),))


def read_features(state: "BrokerState", command: commands.ReadFeatures, now: int) -> Decision:
    """Return the current features of the cluster."""
    return Decision(state.cluster[ClusterKey()] or Cluster())


# -- facts ------------------------------------------------------------------------------------------------


def feature_changed(state: "BrokerState", fact: FeatureChanged) -> None:
    """Store the feature level of the cluster."""
    cluster = state.cluster[ClusterKey()] or Cluster()
    state.cluster[ClusterKey()] = cluster.but(
        transaction_version=fact.transaction_version, features_epoch=fact.features_epoch
    )


def latest_connection_changed(state: "BrokerState", fact: LatestConnectionChanged) -> None:
    """Set the latest connection of the id. The newest come last, so that the oldest are evicted first."""
    latest_connections = state.latest_offset_connections if fact.for_offsets else state.latest_connections
    latest_connections.pop(fact.transactional_id, None)
    latest_connections[fact.transactional_id] = fact.connection
