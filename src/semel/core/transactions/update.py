"""Collect the effects of one decision about a transactional id: its new value, and the facts so far."""

from typing import TYPE_CHECKING

from semel.core.facts import EndReason, ProducerIdAllocated, Put, TransactionEnded
from semel.core.transactions import model
from semel.core.transactions.commands import ProducerGiven
from semel.core.transactions.ending import Ending
from semel.core.transactions.model import is_open
from semel.core.transactions.states import Event, becomes
from semel.core.types import Buffer, Cluster, ClusterKey, Decision, ErrorCode, Fact, Transaction

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class TransactionUpdate:
    """One decision about one transactional id: its new value, and the facts so far."""

    def __init__(self, state: "BrokerState", transaction: Transaction, now: int) -> None:
        self.state = state
        self.now = now
        self.transaction = transaction
        self.facts: list[Fact] = []
        self.batches: list[Buffer] = []
        self._cluster = state.cluster[ClusterKey()] or Cluster()
        self._next_producer_id = self._cluster.next_producer_id

    def new_producer_id(self) -> int:
        """Allocate a producer id that was never used."""
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        self.facts.append(ProducerIdAllocated(producer_id))
        return producer_id

    def end(self, event: Event, *, version: int, reason: EndReason = EndReason.CLIENT) -> None:
        """End the open or an empty transaction. Bumps the epoch, except when a client ends in version 1."""
        before = self.transaction
        bumps = version == 2 or event is Event.FENCE
        epoch = min(before.epoch + 1, model.EPOCH_MAX) if bumps else before.epoch
        ending = Ending(self.state, is_commit=event is Event.COMMIT, now=self.now)
        if is_open(before):
            ending.everywhere(before, epoch)
            self.facts.append(TransactionEnded(before.transactional_id, event is Event.COMMIT, reason))
        self.facts += ending.facts
        self.batches += ending.batches
        may_come_again = bumps and version == 2
        ended = before.but(
            epoch=epoch,
            last_epoch=before.epoch if may_come_again else -1,
            state=becomes(before.state, event),
            partitions=(),
            groups=(),
            shares=(),
            started_ms=before.started_ms if is_open(before) else self.now,
            updated_ms=self.state.time_of_day(self.now),
            deadline_ms=-1,
            version=version if event is not Event.FENCE else before.version,
            term=self.state.term,
            prepared_epoch=-1,
        )
        if may_come_again and epoch >= model.EPOCH_MAX:
            # The epochs of this producer id are used up: the next transaction has a new one.
            ended = ended.but(
                producer_id=self.new_producer_id(), epoch=0, previous_producer_id=before.producer_id
            )
        self.transaction = ended

    def fence(self, reason: EndReason) -> None:
        """Abort on behalf of the broker. Whether the producer may recover depends on the version in use."""
        self.end(Event.FENCE, version=2 if self._cluster.transaction_version >= 2 else 1, reason=reason)

    def decision(self, answer: object, *, connection_facts: tuple[Fact, ...] = ()) -> Decision:
        """Return the answer with all facts."""
        facts = (*self.facts, Put.of(self.transaction), *connection_facts)
        return Decision(answer, facts, tuple(self.batches))

    def given(self) -> ProducerGiven:
        """Return the producer id and epoch to continue with."""
        return ProducerGiven(ErrorCode.NONE, self.transaction.producer_id, self.transaction.epoch)
