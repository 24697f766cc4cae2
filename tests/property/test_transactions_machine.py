"""Whatever producers, consumers, time and a bad network do: a transaction is all or nothing, and once.

Two transactional ids with producers of both generations write to topics of both visibilities and commit
offsets. Producers are replaced, time out, lose connections; what was sent on a lost connection arrives any
time later. A driver begins run after run and commits what others wrote, several at once. The broker is
restarted, also in a new term, and topics, groups and offsets are deleted.

What was answered is told to a model that knows no rules (`support.models.transaction_model`); after every
step what a client would read is what the model says.
"""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.clients.raw import NOW
from support.examples import examples
from support.models.transaction_clients import TIMEOUT_MS, Clients, name_of, values_of
from support.models.transaction_model import is_journal
from support.models.transaction_rules import GROUP, MARKED, STAGED, holds_together

from semel.core.facts import BatchAppended, BatchStaged
from semel.core.groups.commands import DeleteGroup
from semel.core.groups.offsets import CommitOffsets, Committer, DeleteOffsets, FetchOffsets
from semel.core.log.partition import Append
from semel.core.state import BrokerState
from semel.core.topics import CreateTopic, DeleteTopic
from semel.core.transactions import model
from semel.core.transactions.commands import (
    AbortOpen,
    AddOffsets,
    AddPartitions,
    ChangeFeature,
    CommitPending,
    EndTransaction,
    ForgetTransaction,
)
from semel.core.types import (
    Cluster,
    ClusterKey,
    CommittedOffset,
    ErrorCode,
    GroupKey,
    OffsetKey,
    PartitionKey,
)
from semel.store.contract import BatchLocation
from semel.store.embedded.ledger import SqliteLedger
from semel.wire.records import Record, encode_batch, read_header

IDS = ["x", "y"]
ids = st.sampled_from(IDS)
indexes = st.sampled_from([0, 0, 1])
endings = st.sampled_from([None, None, True, False])
"""How a step goes on: not at all, or by a commit or an abort."""
topics = st.sampled_from(["marked", "staged"])
counts = st.integers(1, 3)


class Machine(Clients, RuleBasedStateMachine):
    @initialize(level=st.sampled_from([2, 2, 1]))
    def begin(self, level: int) -> None:
        self.start(level)

    # Producers.

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

    @rule(
        names=st.lists(ids, unique=True),
        topic=topics,
        index=indexes,
        offset=st.integers(0, 99),
        is_old=st.sampled_from([False, False, True]),
        is_lost=st.booleans(),
    )
    def together(
        self, names: list[str], topic: str, index: int, offset: int, is_old: bool, is_lost: bool
    ) -> None:
        place = OffsetKey(GROUP, topic, index)
        self.commit_together(names, place, offset, is_old=is_old, is_lost=is_lost)

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

    @precondition(lambda self: self.late)
    @rule(at=st.integers(0, 9))
    def arrive_late(self, at: int) -> None:
        self.arrive(at)

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
        self.expected.positioned(self.shelf.now, None, key.values(), offset)

    @rule(
        what=st.sampled_from(
            [
                *("init", "recover", "run", "attempt", "offset", "group", "topic", "forget", "feature"),
                *("restart", "term"),
            ]
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
            case "run":
                self.begin_run()
            case "attempt":
                if number > 0:
                    self.forget(name)
                self.begin_attempt(name, 1 + number % 2, is_old=number == 0)
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
            self.expected.forget_positions(lambda place: place == key.values())

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
        assert {key.values() for key in found.unstable} == self.expected.unstable()

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


class OnALedger(Machine):
    """The same, and what a ledger gives back at the end is what lived in memory."""

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "shelf"):
            asyncio.run(self.compare())

    async def compare(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            ledger = await SqliteLedger.open(Path(directory) / "ledger.db")
            try:
                facts, end = list(self.shelf.facts), 0
                for at in range(0, len(facts), 5):
                    locations = []
                    for fact in facts[at : at + 5]:
                        if isinstance(fact, BatchAppended | BatchStaged):
                            locations.append(BatchLocation(1, end, fact.size_bytes))
                            end += fact.size_bytes
                    await ledger.commit(facts[at : at + 5], locations)
                for kind, table in self.shelf.state.tables.items():
                    # A ledger has a cluster from the beginning.
                    blank = Cluster() if kind is ClusterKey else None
                    expected = [blank if value is None else value for value in table.values()]
                    assert list(await ledger.load(list(table))) == expected, kind
            finally:
                await ledger.close()


STEPS = examples(90, few=40, stateful_step_count=50)
Machine.TestCase.settings = STEPS
FewEpochs.TestCase.settings = STEPS
OnALedger.TestCase.settings = examples(12, stateful_step_count=50)
TestTransactions = Machine.TestCase
TestTransactionsWithFewEpochs = FewEpochs.TestCase
TestTransactionsOnALedger = OnALedger.TestCase
