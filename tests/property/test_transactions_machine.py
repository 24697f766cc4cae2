"""Whatever producers, consumers, time and a bad network do: a transaction is all or nothing, and once.

Two transactional ids with producers of both generations write to topics of both visibilities and commit
offsets. Producers are replaced, time out, lose connections; what was sent on a lost connection arrives any
time later. The broker is restarted, also in a new term, and topics, groups and offsets are deleted.

What was answered is told to a model that knows no rules (`support.transaction_model`); after every step what
a client would read is what the model says.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.raw import NOW
from support.transaction_model import Expected, Shelf, is_journal
from support.transaction_rules import GROUP, MARKED, NAMES, STAGED, holds_together

from semel.core.groups.commands import DeleteGroup
from semel.core.offsets import CommitOffsets, Committer, DeleteOffsets, FetchOffsets
from semel.core.partition import Append, Membership
from semel.core.state import BrokerState
from semel.core.topics import CreateTopic, DeleteTopic
from semel.core.transactions import model
from semel.core.transactions.commands import (
    SUPERSEDED,
    AbortOpen,
    AddOffsets,
    AddPartitions,
    ChangeFeature,
    CommitPending,
    EndTransaction,
    ForgetTransaction,
    InitProducer,
)
from semel.core.types import (
    ClusterKey,
    CommittedOffset,
    ErrorCode,
    GroupKey,
    OffsetKey,
    PartitionKey,
    TransactionKey,
    TransactionState,
)
from semel.wire.records import Record, decode_batch, encode_batch, read_header

IDS = ["x", "y"]
TIMEOUT_MS = 1_000
ids = st.sampled_from(IDS)
indexes = st.sampled_from([0, 0, 1])
endings = st.sampled_from([None, None, True, False])
"""How a step goes on: not at all, or by a commit or an abort."""
topics = st.sampled_from(["marked", "staged"])
counts = st.integers(1, 3)


@dataclass
class Client:
    """A producer as its library keeps it: pair, sequences, connection, and what it has sent."""

    transactional_id: str
    version: int
    connection: int
    pair: tuple[int, int]
    sequences: dict[PartitionKey, int] = field(default_factory=dict)
    has_begun: bool = False
    last: Any = None
    """The request to the coordinator that came last of all; sent again when the connection is lost."""
    is_broken: bool = False
    """It was refused: all it may do is abort or begin anew."""
    sent: list[tuple[PartitionKey, bytes]] = field(default_factory=list)
    """What was acknowledged since its transaction began, as far as it knows."""


class Machine(RuleBasedStateMachine):
    @initialize(level=st.sampled_from([2, 2, 1]))
    def begin(self, level: int) -> None:
        self.shelf = Shelf()
        self.shelf.run(ChangeFeature(level))
        self.expected = Expected()
        self.topic_ids = {name: topic_id for topic_id, name in NAMES.items()}
        self.clients: dict[str, Client] = {}
        self.zombies: list[Client] = []
        self.late: list[Any] = []
        """Requests on connections that were lost."""
        self.accepted: set[bytes] = set()
        self.stable: dict[PartitionKey, int] = {}
        self.numbers = 0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def key(self, topic: str, index: int) -> PartitionKey:
        return PartitionKey(self.topic_ids[topic], index)

    # Asking, and telling the model what was answered.

    def ask(self, command: Any) -> Any:
        answer = self.shelf.run(command)
        if answer is SUPERSEDED:
            return answer
        match command:
            case Append():
                self.told_of_append(command, answer)
            case AddPartitions() | AddOffsets() if answer is ErrorCode.NONE:
                self.expected.added(self.shelf.now, command.transactional_id)
            case CommitPending():
                for (key, value), error in zip(command.offsets, answer, strict=True):
                    if error is ErrorCode.NONE:
                        self.expected.positioned(
                            self.shelf.now, command.transactional_id, tuple(key), value.offset
                        )
        return answer

    def told_of_append(self, command: Append, answer: Any) -> None:
        if answer.error is not ErrorCode.NONE:
            return
        values = values_of(command)
        name = command.membership.transactional_id if command.membership else None
        if values[0] in self.accepted:
            # A duplicate. It is answered as if it were written now, so it must be in what is open now.
            assert name is not None
            assert set(values) <= set(self.expected.open[name].values[command.partition])
            return
        self.accepted.add(values[0])
        self.expected.wrote(self.shelf.now, name, command.partition, values)

    def must(self, client: Client, error: ErrorCode) -> bool:
        """A request of a producer that nobody has fenced succeeds; one of any other does not."""
        found = self.shelf.state.transactions[TransactionKey(client.transactional_id)]
        is_current = found is not None and (found.producer_id, found.epoch) == client.pair
        is_of_term = found is not None and found.term >= self.shelf.state.term
        if client in self.zombies or not is_current or not is_of_term:
            assert error is not ErrorCode.NONE
            client.is_broken = True
            return False
        assert error is ErrorCode.NONE, error
        client.has_begun = True
        return True

    # Producers.

    def healthy(self, name: str) -> Client:
        """The producer of an id, in working order: if it was refused it begins anew."""
        client = self.clients.get(name)
        if client is None or client.is_broken:
            self.replace(name, 1 + self.number() % 2)
        return self.clients[name]

    def replace(self, name: str, version: int) -> None:
        """A new instance takes the id over."""
        connection = self.number()
        given = self.shelf.run(InitProducer(name, TIMEOUT_MS, connection=connection))
        assert given.error is ErrorCode.NONE
        self.expected.ended(name, is_commit=False)
        if name in self.clients:
            self.zombies.append(self.clients[name])
        self.clients[name] = Client(name, version, connection, (given.producer_id, given.epoch))

    def recover(self, name: str) -> None:
        """KIP-360: the same instance, with its pair."""
        client = self.clients.get(name)
        if client is None:
            return
        given = self.shelf.run(InitProducer(name, TIMEOUT_MS, *client.pair, connection=client.connection))
        if given.error is ErrorCode.NONE:
            self.expected.ended(name, is_commit=False)
            self.take(client, given)
            client.is_broken = client.has_begun = False
        elif given.error is ErrorCode.PRODUCER_FENCED:
            found = self.shelf.transaction(name)
            if found.state is not TransactionState.ONGOING:
                # Refused, but what was its own is aborted (in a cluster of the first generation).
                self.expected.ended(name, is_commit=False)
            client.is_broken = True

    @rule(
        name=ids,
        topic=topics,
        index=indexes,
        count=counts,
        is_lost=st.booleans(),
        late=st.integers(-2, 4),
        ending=endings,
    )
    def write(
        self, name: str, topic: str, index: int, count: int, is_lost: bool, late: int, ending: bool | None
    ) -> None:
        client = self.healthy(name)
        key = self.key(topic, index)
        if client.version == 1:
            if not self.coordinate(client, AddPartitions(name, *client.pair, (key,))):
                return
            if is_lost:
                self.lose_connection(name)
        command = self.batch(client, key, count)
        if is_lost:
            self.late.append(command)
        client.last = None
        if self.must(client, self.ask(command).error):
            client.sequences[key] = command.header.base_sequence + count
            client.sent += [(key, value) for value in values_of(command)]
        if late >= 0 and self.late:
            self.arrive(late)
        if ending is not None:
            self.end(name, ending, is_repeated=is_lost, is_lost=is_lost)

    def batch(self, client: Client, key: PartitionKey, count: int) -> Append:
        value = b"%s-%d" % (client.transactional_id.encode(), self.number())
        data = encode_batch(
            [Record(0, NOW, None, b"%s-%d" % (value, at)) for at in range(count)],
            producer_id=client.pair[0],
            producer_epoch=client.pair[1],
            base_sequence=client.sequences.get(key, 0),
            transactional=True,
        )
        membership = Membership(client.transactional_id, client.version)
        return Append(key, read_header(data), data, membership=membership, is_journal=is_journal(key))

    def coordinate(self, client: Client, command: Any) -> bool:
        """Ask the coordinator on the connection of the client, which is the newest of the id."""
        client.last = command = command._replace(connection=client.connection)
        return self.must(client, self.ask(command))

    @rule(name=ids, topic=topics, index=indexes, offset=st.integers(0, 99), ending=endings)
    def write_offset(self, name: str, topic: str, index: int, offset: int, ending: bool | None) -> None:
        client = self.healthy(name)
        if client.version == 1 and not self.coordinate(client, AddOffsets(name, *client.pair, GROUP)):
            return
        value = (OffsetKey(GROUP, topic, index), CommittedOffset(offset))
        command = CommitPending(
            name, *client.pair, GROUP, Committer(), (value,), client.version, connection=client.connection
        )
        client.last = None
        (error,) = self.ask(command)
        self.must(client, error)
        if ending is not None:
            self.end(name, ending, is_repeated=False, is_lost=False)

    @rule(name=ids, is_commit=st.booleans(), is_repeated=st.booleans(), is_lost=st.booleans())
    def finish(self, name: str, is_commit: bool, is_repeated: bool, is_lost: bool) -> None:
        self.end(name, is_commit, is_repeated, is_lost)

    def end(self, name: str, is_commit: bool, is_repeated: bool, is_lost: bool) -> None:
        """As clients do it: with nothing written there is nothing to end, but version 2 may abort it."""
        client = self.clients.get(name)
        if client is None or not (client.has_begun or (client.version == 2 and not is_commit)):
            return
        client.last = command = EndTransaction(
            name, *client.pair, is_commit, client.version, connection=client.connection
        )
        found = self.shelf.transaction(name)
        is_fenced = (found.producer_id, found.epoch) != client.pair or found.term < self.shelf.state.term
        work = self.expected.open.get(name)
        answer = self.shelf.run(command)
        if answer.error is not ErrorCode.NONE:
            assert is_fenced, answer
            client.is_broken = True
            return
        assert self.shelf.state_of(name) is not TransactionState.ONGOING
        if is_commit:
            assert work is not None
            for key, value in client.sent:
                assert key.topic_id not in self.topic_ids.values() or value in work.values[key], "half of it"
        self.expected.ended(name, is_commit)
        if is_repeated:
            assert self.shelf.run(command) == answer
        client.is_broken = client.has_begun = False
        self.take(client, answer)
        if is_lost:
            self.lose_connection(name)

    def take(self, client: Client, given: Any) -> None:
        client.sent.clear()
        if (given.producer_id, given.epoch) != client.pair:
            client.pair = (given.producer_id, given.epoch)
            client.sequences.clear()

    @rule(at=st.integers(0, 9), topic=topics, index=indexes, what=st.integers(0, 3))
    def zombie(self, at: int, topic: str, index: int, what: int) -> None:
        """An instance that was replaced goes on as if nothing had happened."""
        if not self.zombies:
            return
        client = self.zombies[at % len(self.zombies)]
        key, name = self.key(topic, index), client.transactional_id
        if what == 0:
            error = self.ask(self.batch(client, key, 1)).error
        elif what == 1:
            error = self.ask(AddPartitions(name, *client.pair, (key,), connection=client.connection))
        else:
            command = EndTransaction(
                name, *client.pair, what == 2, client.version, connection=client.connection
            )
            error = self.shelf.run(command).error
        assert error is not ErrorCode.NONE

    # The network.

    def lose_connection(self, name: str) -> None:
        """What was sent last is still under way; the client sends it again on a new connection."""
        client = self.clients[name]
        client.connection = self.number()
        if client.last is not None and not client.is_broken:
            self.late.append(client.last)
            client.last = client.last._replace(connection=client.connection)
            # An end comes again with the pair that it had, and says what it said.
            if isinstance(client.last, EndTransaction):
                assert self.shelf.run(client.last).error is ErrorCode.NONE
            else:
                assert self.ask(client.last) is ErrorCode.NONE

    @precondition(lambda self: self.late)
    @rule(at=st.integers(0, 9))
    def arrive_late(self, at: int) -> None:
        self.arrive(at)

    def arrive(self, at: int) -> None:
        """Nothing that comes on a lost connection moves the transaction. A batch is written once or never."""
        command = self.late[-1 - at % len(self.late)]
        before = dict(self.shelf.state.transactions)
        answer = self.ask(command)
        if not isinstance(command, Append):
            assert self.shelf.state.transactions == before, answer

    # Others.

    @rule(topic=topics, index=indexes, count=counts)
    def plain(self, topic: str, index: int, count: int) -> None:
        key, value = self.key(topic, index), b"plain-%d" % self.number()
        data = encode_batch([Record(0, NOW, None, b"%s-%d" % (value, at)) for at in range(count)])
        answer = self.ask(Append(key, read_header(data), data, is_journal=is_journal(key)))
        assert answer.error is ErrorCode.NONE

    @rule(topic=topics, index=indexes, offset=st.integers(0, 99))
    def plain_offset(self, topic: str, index: int, offset: int) -> None:
        key = OffsetKey(GROUP, topic, index)
        (error,) = self.shelf.run(CommitOffsets(GROUP, Committer(), ((key, CommittedOffset(offset)),)))
        assert error is ErrorCode.NONE
        self.expected.positioned(self.shelf.now, None, tuple(key), offset)

    @rule(
        what=st.sampled_from(
            ["init", "recover", "offset", "group", "topic", "forget", "feature", "restart", "term"]
        ),
        name=ids,
        topic=topics,
        index=indexes,
        number=st.integers(0, 2),
    )
    def happen_rarely(self, what: str, name: str, topic: str, index: int, number: int) -> None:
        match what:
            case "init":
                self.replace(name, 1 + number % 2)
            case "recover":
                self.recover(name)
            case "offset":
                self.delete_offset(topic, index)
            case "group":
                self.delete_group()
            case "topic":
                self.delete_topic(topic)
            case "forget":
                self.forget(name)
            case "feature":
                assert self.shelf.run(ChangeFeature(number)) is ErrorCode.NONE
            case _:
                self.restart(is_new_term=what == "term")

    def delete_offset(self, topic: str, index: int) -> None:
        key = OffsetKey(GROUP, topic, index)
        if self.shelf.run(DeleteOffsets(GROUP, (key,))).error is ErrorCode.NONE:
            self.expected.forget_positions(lambda place: place == tuple(key))

    def delete_group(self) -> None:
        if self.shelf.run(DeleteGroup(GROUP)) is ErrorCode.NONE:
            self.expected.forget_positions(lambda place: True)

    def delete_topic(self, topic: str) -> None:
        """And make it anew: the same name, another topic."""
        old = self.topic_ids[topic]
        self.shelf.run(DeleteTopic(topic))
        self.expected.topic_deleted(topic, old)
        first = (MARKED if topic == "marked" else STAGED)[:1]
        self.topic_ids[topic] = first + self.number().to_bytes(15, "big")
        configs = {"semel.visibility": "journal"} if topic == "staged" else {}
        self.shelf.run(CreateTopic(topic, self.topic_ids[topic], 2, configs))
        for client in (*self.clients.values(), *self.zombies):
            client.sequences = {key: at for key, at in client.sequences.items() if key.topic_id != old}

    # Time.

    @rule(passed_ms=st.sampled_from([1, 10, 100, 100, 100, 100, TIMEOUT_MS, TIMEOUT_MS + 1]))
    def pass_time(self, passed_ms: int) -> None:
        self.shelf.now += passed_ms
        for name in list(self.shelf.state.ongoing):
            started = self.expected.open[name].started_ms
            is_due = self.shelf.now > started + TIMEOUT_MS
            assert self.shelf.run(AbortOpen(name, overdue_only=True)) is is_due
            if is_due:
                # The producer does not know yet.
                self.expected.ended(name, is_commit=False)

    def forget(self, name: str) -> None:
        was_open = name in self.expected.open
        if self.shelf.run(ForgetTransaction(name, self.shelf.now)):
            assert not was_open
            self.zombies.append(self.clients.pop(name))
            self.late = [each for each in self.late if name_of(each) != name]

    def restart(self, *, is_new_term: bool) -> None:
        """Only facts are left, and connections are gone, with what was under way on them."""
        term = self.shelf.state.term + is_new_term
        self.shelf.state = self.replayed(term)
        self.late = [each for each in self.late if isinstance(each, Append)]
        for client in (*self.clients.values(), *self.zombies):
            client.connection = self.number()
            client.last = None
        if is_new_term:
            for name in self.clients:
                self.shelf.run(AbortOpen(name, before_term=term))
                self.expected.ended(name, is_commit=False)

    def replayed(self, term: int) -> BrokerState:
        fresh = BrokerState(term)
        fresh.put(ClusterKey(), None)
        for fact in self.shelf.facts:
            fresh.apply(fact)
        return fresh

    # What is always true.

    @invariant()
    def readers_see_what_was_answered(self) -> None:
        for topic, topic_id in self.topic_ids.items():
            for index in range(2):
                key = PartitionKey(topic_id, index)
                partition = self.shelf.at(key)
                assert self.shelf.read_committed(key, partition) == self.expected.visible(key), topic
                if is_journal(key):
                    # Nobody waits, and there is nothing in it but records.
                    assert partition.last_stable_offset == partition.high_watermark
                    assert partition.high_watermark == len(self.expected.visible(key))
                assert partition.last_stable_offset >= self.stable.get(key, 0), "it never falls"
                self.stable[key] = partition.last_stable_offset

    @invariant()
    def groups_are_where_they_were_answered_to_be(self) -> None:
        places = [(GROUP, topic, index) for topic in self.topic_ids for index in range(2)]
        keys = tuple(OffsetKey(*place) for place in places)
        found = self.shelf.run(FetchOffsets(GROUP, offsets=keys, require_stable=True))
        for place, value in zip(places, found.offsets, strict=True):
            expected = self.expected.positions.get(place)
            assert (value.offset if value else None) == (expected[1] if expected else None), place
        assert {tuple(key) for key in found.unstable} == self.expected.unstable()

    @invariant()
    def open_is_what_was_answered_to_be_open(self) -> None:
        assert set(self.shelf.state.ongoing) == set(self.expected.open)
        holds_together(self.shelf)

    def teardown(self) -> None:
        """Facts alone rebuild all of it; and once everything is ended nothing is held back."""
        if not hasattr(self, "shelf"):
            return
        fresh = self.replayed(self.shelf.state.term)
        for name in ("transactions", "pending", "partitions", "producers", "offsets", "ongoing"):
            live = {key: value for key, value in getattr(self.shelf.state, name).items() if value is not None}
            again = {key: value for key, value in getattr(fresh, name).items() if value is not None}
            assert live == again, name
        for name in list(self.shelf.state.ongoing):
            assert self.shelf.run(AbortOpen(name)) is True
            self.expected.ended(name, is_commit=False)
        self.readers_see_what_was_answered()
        self.groups_are_where_they_were_answered_to_be()
        assert self.shelf.staged == {}
        assert self.shelf.state.groups.get(GroupKey(GROUP)) is None or not self.expected.unstable()


def values_of(command: Append) -> list[bytes]:
    return [record.value or b"" for record in decode_batch(command.records)]


def name_of(command: Any) -> str | None:
    if isinstance(command, Append):
        return command.membership.transactional_id if command.membership else None
    name: str = command.transactional_id
    return name


class FewEpochs(Machine):
    """The same with an epoch space of four: producer ids change all the time."""

    @initialize(level=st.sampled_from([2, 2, 1]))
    def begin(self, level: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(model, "EPOCH_MAX", 3)
        super().begin(level)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


STEPS = settings(max_examples=100, stateful_step_count=50, deadline=None)
Machine.TestCase.settings = STEPS
FewEpochs.TestCase.settings = STEPS
TestTransactions = Machine.TestCase
TestTransactionsWithFewEpochs = FewEpochs.TestCase
