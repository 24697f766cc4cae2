"""Mutants: defects from the catalogue of real bugs, one line each, that can be switched on.

A simulation that finds nothing proves little unless it would have found known defects. Each mutant changes
one line of the real code, and the suite fails if one survives.

A mutant is text: the original line and the changed one. If the original line changes, the suite demands the
change here too. The code of functions is replaced in place, so all references run the mutant.
"""

import importlib
import inspect
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line of code, and its defective version."""

    name: str
    module: str
    before: str
    after: str
    seed: int = 0
    """The first seed to try. It saves time if it has found the defect before."""

    def seeds(self, count: int) -> Iterable[int]:
        """The seeds to try."""
        return dict.fromkeys((self.seed, *range(count)))


def in_core(name: str, module: str, before: str, after: str, seed: int = 0) -> Mutant:
    """A defect of the rules."""
    return Mutant(name, f"semel.core.{module}", before, after, seed)


def _broker(name: str, module: str, before: str, after: str) -> Mutant:
    return Mutant(name, f"semel.broker.{module}", before, after)


MUTANTS: tuple[Mutant, ...] = (
    # Sequences and duplicates.
    in_core(
        "a repeated batch is written again",
        "log.partition",
        "    if is_next(producer, header):",
        "    if True:",
    ),
    in_core(
        "any sequence may follow",
        "log.partition",
        "    return ErrorCode.NONE if sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER",
        "    return ErrorCode.NONE",
    ),
    in_core(
        "a repeated batch is answered with another offset",
        "log.partition",
        "        first = duplicate.last_offset - duplicate.offset_delta if",
        "        first = duplicate.last_offset - duplicate.offset_delta + 1 if",
    ),
    # Permission to write and end.
    in_core(
        "a producer that begins does not fence the one before",
        "transactions.beginning",
        "        update.transaction = before.but(epoch=before.epoch + 1, last_epoch=last_epoch)",
        "        update.transaction = before.but(last_epoch=last_epoch)",
    ),
    in_core(
        "an old epoch may end a transaction",
        "transactions.model",
        "    if producer.epoch != transaction.epoch:",
        "    if producer.epoch > transaction.epoch:",
    ),
    in_core(
        "an old epoch may write",
        "transactions.model",
        "    if producer.epoch != transaction.epoch or is_of_old_term(state, transaction):",
        "    if producer.epoch > transaction.epoch or is_of_old_term(state, transaction):",
    ),
    in_core(
        "one epoch for a whole session (before KIP-890)",
        "transactions.update",
        "        bumps = version == 2 or event is Event.FENCE",
        "        bumps = event is Event.FENCE",
    ),
    in_core(
        "a timeout aborts and does not fence (KAFKA-6119)",
        "transactions.update",
        "        bumps = version == 2 or event is Event.FENCE",
        "        bumps = version == 2 and event is not Event.FENCE",
    ),
    in_core(
        "the last epoch is used again (KAFKA-20090)",
        "transactions.update",
        "        if may_come_again and epoch >= model.EPOCH_MAX:",
        "        if False:",
    ),
    in_core(
        "the end of a transaction cannot be repeated (Redpanda 3501)",
        "transactions.coordinator",
        "        if command.version == 1 or transaction is None or producer != "
        "model.previous_producer(transaction):",
        "        if True:",
    ),
    in_core(
        "a late request on an old connection counts (KAFKA-17754)",
        "transactions.model",
        "    return connection != NO_CONNECTION and connection < latest_connections.get(",
        "    return False and connection < latest_connections.get(",
    ),
    in_core(
        "a producer id is given away twice (KAFKA-15552)",
        "log.partition",
        "    state.cluster[ClusterKey()] = cluster.but(next_producer_id=fact.producer_id + 1)",
        "    state.cluster[ClusterKey()] = cluster.but(next_producer_id=fact.producer_id)",
    ),
    in_core(
        "a transaction has no end in time",
        "transactions.joining",
        "    deadline = transaction.deadline_ms if opened else started + transaction.timeout_ms",
        "    deadline = -1",
    ),
    # The end of a transaction.
    in_core(
        "the last partition gets no marker",
        "transactions.ending",
        "        for key in transaction.partitions:",
        "        for key in transaction.partitions[:-1]:",
    ),
    in_core(
        "an abort counts as a commit in one partition",
        "transactions.ending",
        "Closing(first, after.last_stable_offset, self._is_commit)",
        "Closing(first, after.last_stable_offset, self._is_commit or key.index == 1)",
    ),
    in_core(
        "a commit forgets the offsets",
        "transactions.pending",
        "        elif is_commit and not each.is_superseded:",
        "        elif False:",
    ),
    in_core(
        "an abort keeps the offsets",
        "transactions.pending",
        "        elif is_commit and not each.is_superseded:",
        "        elif not each.is_superseded:",
    ),
    in_core(
        "what was staged is shown after an abort",
        "transactions.ending",
        "        if not self._is_commit:",
        "        if False:",
    ),
    in_core(
        "what was staged stays staged",
        "transactions.ending",
        "        ended = ProducerState(epoch, batches, self._now, self._now, coordinator_epoch)",
        "        ended = ProducerState(epoch, batches, 0, self._now, coordinator_epoch, -1, producer.staged)",
    ),
    in_core(
        "what should be staged is in the log at once",
        "log.partition",
        "    if command.is_journal:",
        "    if False:",
    ),
    # Groups.
    in_core(
        "somebody who is no member any more may commit offsets",
        "groups.offsets",
        "        return ErrorCode.UNKNOWN_MEMBER_ID\n    if not is_transactional and not knows",
        "        return ErrorCode.NONE\n    if not is_transactional and not knows",
    ),
    in_core(
        "a group that changes its protocol forgets what its members own",
        "groups.migration",
        "        assigned = owned[member.member_id]",
        "        assigned: model.Assignment = frozenset()",
        seed=354,
    ),
    in_core(
        "a position is told while a transaction may move it",
        "groups.offsets",
        "    unstable = frozenset(each.key for each in pending or ())",
        "    unstable = frozenset(each.key for each in ())",
    ),
    # Visibility to readers.
    in_core(
        "readers see open transactions (nisshi 689)",
        "types",
        "            return max(self.open_transactions[0].first_offset, self.log_start_offset)",
        "            return self.high_watermark",
    ),
    in_core(
        "the last stable offset is one too high (Redpanda 3036)",
        "types",
        "            return max(self.open_transactions[0].first_offset, self.log_start_offset)",
        "            return max(self.open_transactions[0].first_offset + 1, self.log_start_offset)",
    ),
    in_core(
        "readers are not told what was aborted (nisshi 716)",
        "transactions.ending",
        "            aborted = aborted if self._is_commit else offset",
        "            pass",
    ),
    _broker(
        "readers see the newest batches whatever their bound",
        "reads.tail",
        "            if last_offsets[index] >= before:",
        "            if False:",
    ),
    _broker(
        "readers see what is not durable",
        "commit.loop",
        "        self.unsynced.add(tick.durable, tick.batches, loop.time())",
        "        self._publisher.publish(tick.durable, tick.batches)",
    ),
    # Durability.
    _broker(
        "an answer does not wait for the flush",
        "commit.loop",
        "            await self._write(tick, defers_sync=False)\n",
        "            await self._write(tick, defers_sync=True)\n",
    ),
    in_core(
        "work that was lost is not remembered as lost (the term rule)",
        "transactions.model",
        "    return transaction.term < state.term and not transaction.is_two_phase",
        "    return False",
    ),
    _broker(
        "open transactions are forgotten at a start",
        "commit.loop",
        "                self.state.put(TransactionKey(transaction.transactional_id), transaction)",
        "                pass",
    ),
    _broker(
        "what is not in the ledger yet is forgotten",
        "commit.loop",
        "        if not self.unsynced.facts:",
        "        if True:",
    ),
    _broker(
        "a full disk takes back what was answered",
        "commit.loop",
        "        self.state.apply(*self.unsynced.facts)\n",
        "",
    ),
    _broker(
        "what found no room stays true in memory",
        "commit.loop",
        "        before, self.state = self.state, BrokerState(self._store.term, self.state.migration)",
        "        before = self.state",
    ),
    _broker(
        "of several values of an entity an older one is kept",
        "commit.tick",
        "        newest.append(fact)",
        "        newest.append(fact if type(fact) is not Put else"
        " next(each for each in facts if type(each) is Put and each.key == key))",
    ),
    _broker(
        "of several entities one is written",
        "commit.tick",
        "            key = fact.key",
        "            key = type(fact.key)",
    ),
    # What a partition says of its batches.
    in_core(
        "the size of a partition is one batch behind",
        "log.partition",
        "        partition.size_bytes + header.length,",
        "        partition.size_bytes,",
    ),
    in_core(
        "a transaction stays open in a partition",
        "transactions.ending",
        "            opened = tuple(each for each in opened if each.producer_id != producer_id)",
        "            pass",
    ),
    in_core(
        "staged batches leave the size of a partition as it was",
        "transactions.ending",
        "            size_bytes=partition.size_bytes + staged.size_bytes,",
        "            size_bytes=partition.size_bytes,",
    ),
    in_core(
        "the size of a partition stays as it was when records are deleted",
        "log.partition",
        "        remaining = 0",
        "        remaining = partition.size_bytes",
    ),
)


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run the real code with this defect, and restore it afterwards."""
    module = importlib.import_module(mutant.module)
    path = Path(str(module.__file__))
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.before) != 1:
        raise LookupError(f"{mutant.name!r}: {path.name} has not exactly one {mutant.before.strip()!r}")
    codes = dict(_codes(compile(source.replace(mutant.before, mutant.after), str(path), "exec")))
    exchanged: list[tuple[types.FunctionType, types.CodeType]] = []
    for function in _functions(module):
        changed = codes.get(function.__code__.co_qualname)
        if changed is not None and changed != function.__code__:
            exchanged.append((function, function.__code__))
            function.__code__ = changed
    if not exchanged:
        raise LookupError(f"{mutant.name!r} changes no function")
    try:
        yield
    finally:
        for function, code in exchanged:
            function.__code__ = code


def _codes(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const.co_qualname, const
            yield from _codes(const)


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for value in vars(module).values():
        yield from _unwrapped(value, module)
        if isinstance(value, type) and value.__module__ == module.__name__:
            for member in vars(value).values():
                yield from _unwrapped(member, module)


def _unwrapped(value: Any, module: types.ModuleType) -> Iterator[types.FunctionType]:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    value = inspect.unwrap(value)
    if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
        yield value
