"""Helpers for tests of transaction rules: topics of both visibilities, and producers."""

from typing import Any, Protocol

from semel.core.facts import BatchAppended, BatchStaged, Closing
from semel.core.groups.offsets import CommitOffsets, Committer, FetchOffsets
from semel.core.log.partition import Append, Appended, TransactionContext
from semel.core.state import BrokerState
from semel.core.topics import CreateTopic
from semel.core.transactions.commands import (
    AbortOpen,
    AddOffsets,
    AddPartitions,
    CommitPending,
    EndTransaction,
    InitProducer,
    ProducerGiven,
)
from semel.core.types import (
    ClusterKey,
    Command,
    CommittedOffset,
    Decision,
    ErrorCode,
    Fact,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingKey,
    PendingOffset,
    ProducerState,
    Transaction,
    TransactionKey,
    TransactionState,
)
from semel.wire.records import Marker, read_header, read_marker
from support.clients.pairs import HasPair
from support.models.facts import kinds_of
from support.models.rules import Rules, header

ID = "id"
GROUP = "g"
TIMEOUT_MS = 60_000
PARTITIONS = 3
MARKED = b"marker visibility"[:16]
STAGED = b"journal visibility"[:16]
M0, M1, M2 = (PartitionKey(MARKED, index) for index in range(PARTITIONS))
J0, J1, J2 = (PartitionKey(STAGED, index) for index in range(PARTITIONS))
NAMES = {MARKED: "marked", STAGED: "staged"}


class TransactionRules(Rules):
    """Decides and applies, and keeps the markers. ``marked`` and ``staged`` have three partitions each."""

    def __init__(self, term: int = 1) -> None:
        super().__init__()
        self.state = BrokerState(term)
        self.facts.clear()
        self.markers: list[tuple[PartitionKey, int, int, Marker]] = []
        """Partition, offset, epoch and content of each marker."""
        for topic_id, name in NAMES.items():
            configs = {"semel.visibility": "journal"} if topic_id == STAGED else {}
            self.run(CreateTopic(name, topic_id, PARTITIONS, configs))

    def run(self, command: Command[Any]) -> Any:
        decision = self.decide(command)
        self.take(decision)
        return decision.answer

    def take(self, decision: Decision) -> None:
        """Apply the facts of a decision, each with its batch if it has one."""
        bytes_of = iter(decision.batches)
        for fact in decision.facts:
            data = bytes(next(bytes_of)) if isinstance(fact, BatchAppended | BatchStaged) else None
            self.keep(fact, data)
            self.become(fact)
        assert next(bytes_of, None) is None

    def keep(self, fact: Fact, data: bytes | None) -> None:
        """Keep the batch if it is a marker. In most tests other batches are only a header."""
        if not isinstance(fact, BatchAppended) or not data:
            return
        batch = read_header(data)
        if batch.is_control:
            assert fact.size_bytes == len(data)
            said = read_marker(data)
            assert said is not None
            self.markers.append((fact.partition, fact.base_offset, batch.producer_epoch, said))

    # State.

    def transaction(self, transactional_id: str = ID) -> Transaction:
        found = self.state.transactions[TransactionKey(transactional_id)]
        assert found is not None
        return found

    def pair(self, transactional_id: str = ID) -> tuple[int, int]:
        found = self.transaction(transactional_id)
        return found.producer_id, found.epoch

    def state_of(self, transactional_id: str = ID) -> TransactionState:
        return self.transaction(transactional_id).state

    def at(self, key: PartitionKey) -> Partition:
        found = self.state.partitions[key]
        assert found is not None
        return found

    def remembered(self, key: PartitionKey, producer_id: int) -> ProducerState:
        found = self.state.producers[key.of(producer_id)]
        assert found is not None
        return found

    def pending(self, group_id: str = GROUP) -> tuple[PendingOffset, ...]:
        return self.state.pending.get(PendingKey(group_id)) or ()

    def committed(self, partition: int = 0, group_id: str = GROUP, topic: str = "marked") -> int | None:
        found = self.run(FetchOffsets(group_id, offsets=(OffsetKey(group_id, topic, partition),)))
        return found.offsets[0].offset if found.offsets[0] else None

    def is_stable(self, partition: int = 0, group_id: str = GROUP, topic: str = "marked") -> bool:
        key = OffsetKey(group_id, topic, partition)
        return key not in self.run(FetchOffsets(group_id, offsets=(key,), require_stable=True)).unstable

    def closed(self) -> list[Closing]:
        appended = (fact for fact in self.facts if isinstance(fact, BatchAppended))
        return [fact.closes for fact in appended if fact.closes is not None]

    def count(self, kind: type) -> int:
        return kinds_of(self.facts).count(kind)

    # Requests.

    def init(
        self, transactional_id: str = ID, pair: tuple[int, int] = (-1, -1), **fields: Any
    ) -> ProducerGiven:
        timeout_ms = fields.pop("timeout_ms", TIMEOUT_MS)
        answer = self.run(InitProducer(transactional_id, timeout_ms, *pair, **fields))
        assert isinstance(answer, ProducerGiven)
        return answer

    def end(
        self, pair: tuple[int, int], is_commit: bool, version: int, transactional_id: str = ID, **fields: Any
    ) -> Any:
        return self.run(EndTransaction(transactional_id, *pair, is_commit, version, **fields))

    def abort_open(self, transactional_id: str = ID, **fields: Any) -> Any:
        return self.run(AbortOpen(transactional_id, **fields))

    def plain(self, key: PartitionKey, count: int = 1) -> Appended:
        answer = self.run(
            Append(key, header(producer_id=-1, epoch=-1, count=count), b"", is_journal=key.topic_id == STAGED)
        )
        assert isinstance(answer, Appended)
        return answer

    def commit_plainly(self, offset: int, partition: int = 0, group_id: str = GROUP) -> ErrorCode:
        value = (OffsetKey(group_id, "marked", partition), CommittedOffset(offset))
        (answer,) = self.run(CommitOffsets(group_id, Committer(), (value,)))
        assert isinstance(answer, ErrorCode)
        return answer

    def restarted(self, term: int | None = None) -> "TransactionRules":
        """Apply the same facts to a new state: what was only in memory is lost."""
        fresh = TransactionRules(self.state.term if term is None else term)
        fresh.facts.clear()
        fresh.now = self.now
        fresh.state = BrokerState(self.state.term if term is None else term)
        fresh.state.put(ClusterKey(), None)
        for fact in self.facts:
            fresh.become(fact)
        return fresh


class Producer(HasPair):
    """A client that follows the protocol: it keeps id and epoch, counts sequences, adds partitions."""

    def __init__(
        self, rules: TransactionRules, version: int = 1, transactional_id: str = ID, **fields: Any
    ) -> None:
        self.rules = rules
        self.version = version
        self.transactional_id = transactional_id
        self.sequences: dict[PartitionKey, int] = {}
        given = rules.init(transactional_id, **fields)
        assert given.error is ErrorCode.NONE, given
        self.pair = (given.producer_id, given.epoch)

    def add(self, *keys: PartitionKey, pair: tuple[int, int] | None = None, **fields: Any) -> Any:
        return self.rules.run(AddPartitions(self.transactional_id, *(pair or self.pair), keys, **fields))

    def command(
        self,
        key: PartitionKey,
        count: int = 1,
        *,
        sequence: int | None = None,
        pair: tuple[int, int] | None = None,
        version: int | None = None,
        **fields: Any,
    ) -> Append:
        producer_id, epoch = pair or self.pair
        first = self.sequences.get(key, 0) if sequence is None else sequence
        transaction_context = TransactionContext(self.transactional_id, version or self.version, **fields)
        batch = header(first, producer_id=producer_id, epoch=epoch, count=count)
        return Append(
            key, batch, b"", transaction_context=transaction_context, is_journal=key.topic_id == STAGED
        )

    def send(self, key: PartitionKey, count: int = 1, **fields: Any) -> Appended:
        command = self.command(key, count, **fields)
        answer = self.rules.run(command)
        assert isinstance(answer, Appended)
        if answer.error is ErrorCode.NONE and "sequence" not in fields and "pair" not in fields:
            self.sequences[key] = command.header.base_sequence + count
        return answer

    def write(self, key: PartitionKey, count: int = 1) -> int:
        """Add the partition if the version requires it, write, and return the offset."""
        if self.version == 1:
            assert self.add(key) is ErrorCode.NONE
        answer = self.send(key, count)
        assert answer.error is ErrorCode.NONE, answer
        return answer.base_offset

    def add_offsets(self, group_id: str = GROUP, pair: tuple[int, int] | None = None, **fields: Any) -> Any:
        return self.rules.run(AddOffsets(self.transactional_id, *(pair or self.pair), group_id, **fields))

    def send_offset(
        self,
        offset: int,
        partition: int = 0,
        group_id: str = GROUP,
        *,
        committer: Committer | None = None,
        pair: tuple[int, int] | None = None,
        topic: str = "marked",
        note: str = "",
        **fields: Any,
    ) -> Any:
        value = (OffsetKey(group_id, topic, partition), CommittedOffset(offset, metadata=note))
        fields.setdefault("version", self.version)
        command = CommitPending(
            self.transactional_id,
            *(pair or self.pair),
            group_id,
            committer or Committer(),
            (value,),
            **fields,
        )
        answer = self.rules.run(command)
        return answer[0] if isinstance(answer, tuple) and len(answer) == 1 else answer

    def write_offset(self, offset: int, partition: int = 0, group_id: str = GROUP, **fields: Any) -> None:
        if self.version == 1:
            assert self.add_offsets(group_id) is ErrorCode.NONE
        assert self.send_offset(offset, partition, group_id, **fields) is ErrorCode.NONE

    def end(self, *, commit: bool, pair: tuple[int, int] | None = None, **fields: Any) -> Any:
        """Ask to end the transaction; a new producer id and epoch are not used."""
        version = fields.pop("version", self.version)
        return self.rules.end(pair or self.pair, commit, version, self.transactional_id, **fields)

    def finish(self, *, commit: bool) -> None:
        answer = self.end(commit=commit)
        assert answer.error is ErrorCode.NONE, answer
        if (answer.producer_id, answer.epoch) != self.pair:
            self.take(answer)

    def take(self, given: ProducerGiven) -> None:
        assert given.error is ErrorCode.NONE, given
        self.pair = (given.producer_id, given.epoch)
        self.sequences.clear()

    def commit(self) -> None:
        self.finish(commit=True)

    def abort(self) -> None:
        self.finish(commit=False)


class HasState(Protocol):
    """Anything with a broker state."""

    state: BrokerState


def holds_together(rules: HasState) -> None:
    """Check invariants of every state: its parts do not contradict each other."""
    state = rules.state
    ongoing = {
        key.transactional_id: each
        for key, each in state.transactions.items()
        if each is not None and each.state is TransactionState.ONGOING
    }
    assert state.ongoing == {name: each.deadline_ms for name, each in ongoing.items()}
    opened = {(partition, each.producer_id) for each in ongoing.values() for partition in each.partitions}
    for key, partition in state.partitions.items():
        if partition is None:
            continue
        firsts = [each.first_offset for each in partition.open_transactions]
        assert firsts == sorted(set(firsts)), "open transactions are in the order of their first offsets"
        assert partition.log_start_offset <= partition.last_stable_offset <= partition.high_watermark
        remembered = {
            each.producer_id: value.transaction_first_offset
            for each, value in state.producers.items()
            if PartitionKey(each.topic_id, each.index) == key
            and value is not None
            and value.transaction_first_offset >= 0
        }
        assert remembered == {each.producer_id: each.first_offset for each in partition.open_transactions}
    for producer, value in state.producers.items():
        if value is not None and value.has_open_transaction:
            place = PartitionKey(producer.topic_id, producer.index)
            if state.partitions.get(place) is not None:
                assert (place, producer.producer_id) in opened, "open in a partition and not in a transaction"
    holders = {(group_id, each.producer_id) for each in ongoing.values() for group_id in each.groups}
    for group, pending in state.pending.items():
        assert pending is None or pending, "nothing pending is None"
        for each in pending or ():
            assert (group.group_id, each.producer_id) in holders, "pending in no transaction"
            assert each.key.group_id == group.group_id
