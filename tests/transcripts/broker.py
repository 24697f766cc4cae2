"""A broker without a socket, a disk and a clock: loads, decides and applies as the commit loop does.

The ledger is the list of durable facts. Facts that may be answered before they are flushed are ``unsynced``
until the next facts that may not, so a power loss can forget them (``broker/commit/loop.py``).
After every command the state must be the one that the facts alone make, and must agree with itself.
"""

from typing import Any

from support.models.transaction_rules import holds_together

from semel.core.facts import (
    DURABLE,
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    LogStartAdvanced,
    StagedCommitted,
    StagedDropped,
)
from semel.core.state import BrokerState
from semel.core.transactions.commands import AbortOpen
from semel.core.types import ClusterKey, Command, Decision, Fact, PartitionKey


class Broker:
    """The state, the durable facts, and the time since the transcript began."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.state = replayed((), term=1)
        self.synced: list[Fact] = []
        self.unsynced: list[Fact] = []

    @property
    def facts(self) -> list[Fact]:
        """What is durable, as long as the operating system lives."""
        return self.synced + self.unsynced

    def decide(self, command: Command[Any]) -> Decision:
        """Decide a command and make its facts true."""
        self._load(command)
        decision = self.state.decide(command, self.now_ms)
        for fact in decision.facts:
            self.state.apply(fact)
        self._keep(durable(decision), defers_sync=decision.defers_sync)
        self.check()
        return decision

    def become(self, fact: Fact) -> None:
        """Make a fact true that no command has led to."""
        self.state.apply(fact)
        self._keep([fact], defers_sync=False)

    def flush(self) -> None:
        """Put on disk what was answered before it was flushed."""
        self.synced += self.unsynced
        self.unsynced.clear()

    def restart(self) -> None:
        """The process is killed and started again. The operating system has all that was written."""
        self.state = replayed(self.facts, self.state.term)

    def lose_power(self) -> dict[str, Decision]:
        """What was not flushed is gone, a new term begins, and transactions of older terms are aborted."""
        self.unsynced.clear()
        term = self.state.term + 1
        self.state = replayed(self.synced, term)
        return {each: self.decide(AbortOpen(each, before_term=term)) for each in list(self.state.ongoing)}

    def abort_overdue(self) -> dict[str, Decision]:
        """Abort the transactions whose deadline is over, as housekeeping does."""
        return {each: self.decide(AbortOpen(each, overdue_only=True)) for each in list(self.state.ongoing)}

    def check(self) -> None:
        """The facts alone make the same state, and nothing in it contradicts anything else."""
        holds_together(self)
        again = replayed(self.facts, self.state.term)
        for kind, table in self.state.tables.items():
            assert _present(table) == _present(again.tables[kind]), kind.__name__
        assert self.state.ongoing == again.ongoing

    def log(self, partition: PartitionKey) -> dict[int, tuple[int, int]]:
        """The batches of a partition: last offset and size, by base offset."""
        found: dict[int, tuple[int, int]] = {}
        staged: dict[int, int] = {}
        for fact in self.facts:
            if getattr(fact, "partition", None) != partition:
                continue
            if isinstance(fact, BatchAppended):
                found[fact.base_offset] = (fact.last_offset, fact.size_bytes)
            elif isinstance(fact, BatchStaged):
                staged[fact.producer_id] = staged.get(fact.producer_id, 0) + fact.size_bytes
            elif isinstance(fact, StagedDropped):
                del staged[fact.producer_id]
            elif isinstance(fact, StagedCommitted):
                found[fact.base_offset] = (fact.last_offset, staged.pop(fact.producer_id))
            elif isinstance(fact, LogStartAdvanced):
                found = {base: each for base, each in found.items() if each[0] >= fact.log_start_offset}
            elif isinstance(fact, BatchesReplaced):
                found = {base: each for base, each in found.items() if base not in fact.removed}
                found |= {each.base_offset: (each.last_offset, each.size_bytes) for each in fact.rewritten}
        return found

    def _load(self, command: Command[Any]) -> None:
        # All that exists is in the state, so what is missing does not exist.
        for key in self.state.missing(command.keys()):
            self.state.put(key, None)
        if hasattr(command, "more_keys"):
            for key in self.state.missing(command.more_keys(self.state)):
                self.state.put(key, None)

    def _keep(self, facts: list[Fact], *, defers_sync: bool) -> None:
        if not facts:
            return
        self.unsynced += facts
        if not defers_sync:
            self.flush()


def durable(decision: Decision) -> list[Fact]:
    """The facts of a decision that are written."""
    return [fact for fact in decision.facts if isinstance(fact, DURABLE)]


def replayed(facts: list[Fact] | tuple[Fact, ...], term: int) -> BrokerState:
    """The state that these facts make."""
    state = BrokerState(term)
    state.put(ClusterKey(), None)
    for fact in facts:
        state.apply(fact)
    return state


def _present(table: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in table.items() if value is not None}
