"""Producers with the state that client libraries keep, over the rules, on a network that loses connections.

Every answer they get is passed to a model that knows no rules (`transaction_model`). A state machine drives
them: `tests/property/test_transactions_machine.py`.
"""

from dataclasses import dataclass, field
from typing import Any

from semel.core.log.partition import Append, TransactionContext
from semel.core.transactions.attempts import BeginAttempt, CommitTransactions, Producer, TransactionsCommitted
from semel.core.transactions.commands import (
    SUPERSEDED,
    AddOffsets,
    AddPartitions,
    ChangeFeature,
    CommitPending,
    EndTransaction,
    InitProducer,
)
from semel.core.types import (
    CommittedOffset,
    ErrorCode,
    OffsetKey,
    PartitionKey,
    TransactionKey,
    TransactionState,
)
from semel.wire.records import Record, decode_batch, encode_batch, read_header
from support.clients.raw import NOW
from support.models.transaction_model import Expected, Shelf, is_journal
from support.models.transaction_rules import NAMES

TIMEOUT_MS = 1_000
DRIVER = "driver"


@dataclass
class Client:
    """The state that a library keeps of a producer: id and epoch, sequences, connection, sent records."""

    transactional_id: str
    version: int
    connection: int
    pair: tuple[int, int]
    sequences: dict[PartitionKey, int] = field(default_factory=dict)
    has_begun: bool = False
    last: Any = None
    """The last request to the coordinator; it is sent again when the connection is lost."""
    is_broken: bool = False
    """A request was refused: the client may only abort, or begin again with InitProducerId."""
    sent: list[tuple[PartitionKey, bytes]] = field(default_factory=list)
    """What was acknowledged since the transaction began, as far as the client knows."""


class Clients:
    """Producers, the instances they replaced, and requests still under way on lost connections."""

    def start(self, level: int) -> None:
        self.shelf = Shelf()
        self.shelf.run(ChangeFeature(level))
        self.expected = Expected()
        self.topic_ids = {name: topic_id for topic_id, name in NAMES.items()}
        self.clients: dict[str, Client] = {}
        self.zombies: list[Client] = []
        self.late: list[Any] = []
        """Requests on lost connections."""
        self.runs: list[tuple[int, int]] = []
        """Runs of the driver, which ends the transactions of others. The last is the current one."""
        self.decided: set[tuple[int, int]] = set()
        self.driver_connection = 0
        self.accepted: set[bytes] = set()
        self.stable: dict[PartitionKey, int] = {}
        self.numbers = 0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def key(self, topic: str, index: int) -> PartitionKey:
        return PartitionKey(self.topic_ids[topic], index)

    # Asking, and passing the answers to the model.

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
                            self.shelf.now, command.transactional_id, key.values(), value.offset
                        )
        return answer

    def told_of_append(self, command: Append, answer: Any) -> None:
        if answer.error is not ErrorCode.NONE:
            return
        values = values_of(command)
        name = command.transaction_context.transactional_id if command.transaction_context else None
        if values[0] in self.accepted:
            # A duplicate, answered as if it were written now, so it must be part of the open transaction.
            assert name is not None
            assert set(values) <= set(self.expected.open[name].values[command.partition])
            return
        self.accepted.add(values[0])
        self.expected.wrote(self.shelf.now, name, command.partition, values)

    def must(self, client: Client, error: ErrorCode) -> bool:
        """Check that a request of a current producer succeeds, and that of any other does not."""
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

    # What a client does.

    def healthy(self, name: str) -> Client:
        """Return a working producer of an id: if it was refused, a new instance replaces it."""
        client = self.clients.get(name)
        if client is None or client.is_broken:
            self.replace(name, 1 + self.number() % 2)
        return self.clients[name]

    def replace(self, name: str, version: int) -> None:
        """Let a new instance take over the id."""
        connection = self.number()
        given = self.shelf.run(InitProducer(name, TIMEOUT_MS, connection=connection))
        assert given.error is ErrorCode.NONE
        self.expected.ended(name, is_commit=False)
        if name in self.clients:
            self.zombies.append(self.clients[name])
        self.clients[name] = Client(name, version, connection, (given.producer_id, given.epoch))

    # A driver, whose runs end the transactions of other producers together.

    def run_of_driver(self, *, is_old: bool) -> Producer:
        """Return the current run, or the previous one."""
        if not self.runs:
            self.begin_run()
        return Producer(DRIVER, *self.runs[-2 if is_old and len(self.runs) > 1 else -1])

    def begin_run(self) -> None:
        given = self.shelf.run(InitProducer(DRIVER, TIMEOUT_MS))
        assert given.error is ErrorCode.NONE
        self.runs.append((given.producer_id, given.epoch))

    def begin_attempt(self, name: str, version: int, *, is_old: bool) -> None:
        """Begin an attempt under an unknown id: its transaction is open before it writes."""
        command = BeginAttempt(name, self.run_of_driver(is_old=is_old), TIMEOUT_MS, version)
        is_known, facts = name in self.clients, len(self.shelf.facts)
        given = self.shelf.run(command)
        run = command.driver.values()[1:]
        is_over = run != self.runs[-1] or run in self.decided
        if is_over or (is_known and given.error is not ErrorCode.NONE):
            assert given.error is not ErrorCode.NONE
            assert len(self.shelf.facts) == facts
            return
        if is_known:
            # The attempt was begun before, and nothing has happened since.
            assert (given.producer_id, given.epoch) == self.clients[name].pair
            assert len(self.shelf.facts) == facts
            return
        self.expected.added(self.shelf.now, name)
        pair = (given.producer_id, given.epoch)
        self.clients[name] = Client(name, version, self.number(), pair, has_begun=True)
        assert self.shelf.run(command) == given, "the answer was lost, and is asked for again"

    def commit_together(
        self, names: list[str], place: OffsetKey, offset: int, *, is_old: bool, is_lost: bool
    ) -> None:
        """Commit all transactions and the offset, or nothing, as the model expects from earlier answers."""
        run = self.run_of_driver(is_old=is_old)
        members = [self.clients[name] for name in names if name in self.clients]
        members = [each for each in members if each.has_begun]
        written = tuple(Producer(each.transactional_id, *each.pair) for each in members)
        value = (place, CommittedOffset(offset))
        self.driver_connection = max(self.driver_connection, self.number())
        command = CommitTransactions(
            run, written, place.group_id, (value,), connection=self.driver_connection
        )
        has_decided = self.runs[-1] in self.decided
        lost = {each.transactional_id for each in members if has_decided or not self.is_whole(each)}
        facts = len(self.shelf.facts)
        answer = self.shelf.run(command)
        if run.values()[1:] != self.runs[-1] or lost:
            assert answer.error is not ErrorCode.NONE
            assert {name for name, _ in answer.refused} == (
                lost if run.values()[1:] == self.runs[-1] else set()
            )
            assert len(self.shelf.facts) == facts, "nothing has changed"
            return
        assert answer == TransactionsCommitted(ErrorCode.NONE)
        self.decided.add(self.runs[-1])
        for each in members:
            self.expected.ended(each.transactional_id, is_commit=True)
            found = self.shelf.transaction(each.transactional_id)
            each.last, each.has_begun = None, False
            self.take(each, found)
        self.expected.positioned(self.shelf.now, None, place.values(), offset)
        if is_lost:
            self.late.append(command)
            self.driver_connection = self.number()
            again = command.but(connection=self.driver_connection)
            before = dict(self.shelf.state.transactions)
            assert self.shelf.run(again) == answer, "the answer was lost, and is asked for again"
            assert self.shelf.state.transactions == before

    def is_whole(self, client: Client) -> bool:
        """Whether everything acknowledged to the client still exists, and its transaction has not ended."""
        name, found = client.transactional_id, self.shelf.transaction(client.transactional_id)
        is_current = (found.producer_id, found.epoch) == client.pair and found.term >= self.shelf.state.term
        return is_current and name in self.expected.open

    def recover(self, name: str) -> None:
        """Recover as KIP-360 says: the same instance, with its producer id and epoch."""
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
                # Refused, but its own transaction is aborted (in a cluster of the first generation).
                self.expected.ended(name, is_commit=False)
            client.is_broken = True

    def batch(self, client: Client, key: PartitionKey, count: int) -> Append:
        value = b"%s-%d" % (client.transactional_id.encode(), self.number())
        data = encode_batch(
            [Record(0, NOW, None, b"%s-%d" % (value, at)) for at in range(count)],
            producer_id=client.pair[0],
            producer_epoch=client.pair[1],
            base_sequence=client.sequences.get(key, 0),
            transactional=True,
        )
        transaction_context = TransactionContext(client.transactional_id, client.version)
        return Append(
            key, read_header(data), data, transaction_context=transaction_context, is_journal=is_journal(key)
        )

    def coordinate(self, client: Client, command: Any) -> bool:
        """Send a request to the coordinator on the client's connection, which is the newest of the id."""
        client.last = command = command.but(connection=client.connection)
        return self.must(client, self.ask(command))

    def end(self, name: str, is_commit: bool, is_repeated: bool, is_lost: bool) -> None:
        """End as clients do: if nothing was written there is nothing to end, but version 2 may abort."""
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

    # The network.

    def lose_connection(self, name: str) -> None:
        """Leave the last request under way on the lost connection; send it again on a new connection."""
        client = self.clients[name]
        client.connection = self.number()
        if client.last is not None and not client.is_broken:
            self.late.append(client.last)
            client.last = client.last.but(connection=client.connection)
            # A repeated end carries the producer id and epoch of the first, and gets the same answer.
            if isinstance(client.last, EndTransaction):
                assert self.shelf.run(client.last).error is ErrorCode.NONE
            else:
                assert self.ask(client.last) is ErrorCode.NONE

    def arrive(self, at: int) -> None:
        """Deliver a late request: it does not change the transaction, and a batch is written at most once."""
        command = self.late[-1 - at % len(self.late)]
        before = dict(self.shelf.state.transactions)
        answer = self.ask(command)
        if not isinstance(command, Append):
            assert self.shelf.state.transactions == before, answer


def values_of(command: Append) -> list[bytes]:
    return [record.value or b"" for record in decode_batch(command.records)]


def name_of(command: Any) -> str | None:
    if isinstance(command, Append):
        return command.transaction_context.transactional_id if command.transaction_context else None
    if isinstance(command, CommitTransactions):
        return DRIVER
    name: str = command.transactional_id
    return name
