"""A small cluster as plain data: three brokers, two partitions and two transactions.

The brokers decide, commit, undo, publish, take notices and adopt shards with the real commit loop
(``SharedCommitLoop``). A step is what happens without another broker in between: loading the entities of a
command, committing and publishing it, or delivering a notice. ``small_steps`` lists the possible next steps,
and ``explorer`` takes all of them.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from semel.broker.catalog import Catalog
from semel.broker.clock import Clock
from semel.broker.cluster.commit_loop import SharedCommitLoop
from semel.broker.cluster.notice import Notice, revealing
from semel.broker.cluster.state import SharedState
from semel.broker.commit.tick import Tick
from semel.broker.metrics import Metrics
from semel.broker.policies import Policies
from semel.broker.reads.published_log import PublishedLog, Publisher
from semel.config import Settings
from semel.core.entities import name_shard, partition_shard, shard_of
from semel.core.log.partition import Append, TransactionContext
from semel.core.transactions.commands import EndTransaction
from semel.core.types import Command, Key, Partition, PartitionKey, Transaction
from semel.wire.records import Record, encode_batch, read_header
from simulation.small_ledger import SmallLedger

BROKERS: Final = (1, 2, 3)
TOPIC: Final = b"small topic....."
PARTITIONS: Final = (PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 1))
IDS: Final = ("first", "second")
PRODUCERS: Final = {"first": 11, "second": 22}
HOME: Final[dict[int, int]] = {
    name_shard("first"): 1,
    name_shard("second"): 3,
    partition_shard(TOPIC, 0): 2,
    partition_shard(TOPIC, 1): 3,
}
"""The shards that matter, and their first owners."""
assert len(HOME) == 4
SETTINGS: Final = Settings(semel_durability="always")
NOW: Final = 1_000_000


class Request(NamedTuple):
    """The command of a client, and the shard that it concerns."""

    command: Command[Any]
    shard: int
    is_end: bool


def _append(transactional_id: str, partition: PartitionKey, sequence: int = 0) -> Request:
    batch = encode_batch(
        [Record(0, NOW, None, transactional_id.encode())],
        producer_id=PRODUCERS[transactional_id],
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    context = TransactionContext(transactional_id, 2)
    command = Append(partition, read_header(batch), bytes(batch), transaction_context=context)
    return Request(command, partition_shard(*partition.values()), is_end=False)


def _end(transactional_id: str, *, is_commit: bool) -> Request:
    command = EndTransaction(transactional_id, PRODUCERS[transactional_id], 0, is_commit, version=2)
    return Request(command, name_shard(transactional_id), is_end=True)


PROGRAMS: Final[dict[str, tuple[Request, ...]]] = {
    "first": (
        _append("first", PARTITIONS[0]),
        _append("first", PARTITIONS[1]),
        _end("first", is_commit=True),
    ),
    "second": (
        _append("second", PARTITIONS[0]),
        _append("second", PARTITIONS[0], 1),
        _end("second", is_commit=True),
    ),
}
"""The requests of each client, in order. A client repeats a request without an answer, or aborts."""
ABORTS: Final = {name: _end(name, is_commit=False) for name in PROGRAMS}


class Job(NamedTuple):
    """A tick of a broker that is loaded and not decided yet: the request of one client."""

    client: str
    request: "Request"
    attempt: int
    reads: tuple[Key, ...]


class Announcement(NamedTuple):
    """An answer that waits until the owners of the changed entities have their notices."""

    client: str
    attempt: int
    answer: Any
    reads: frozenset[Key]
    keys: frozenset[Key]
    """`reads` are the entities that the answer is based on, and `keys` those that reveal it."""
    left: tuple[tuple[int, Notice], ...]
    """The shards whose owners do not have the notice yet."""


@dataclass(slots=True)
class Member:
    """One broker."""

    epoch: int = 1
    """Zero if it is down."""
    is_serving: bool = True
    adopted: frozenset[int] = frozenset()
    sequence: int = 0
    state: SharedState = field(default_factory=lambda: SharedState(term=1))
    published: dict[PartitionKey, Partition] = field(default_factory=dict)
    job: Job | None = None
    announcing: tuple[Announcement, ...] = ()
    inbox: tuple[Notice | None, ...] = ()
    """Notices to carry out before the broker serves again; None means to forget all copies."""
    _key: int | None = None

    def copy(self) -> "Member":
        """Return a copy that shares nothing that changes."""
        return replace(self, state=copied(self.state), published=dict(self.published), _key=None)

    def key(self) -> int:
        """Return a value that is equal for equal members. Call it only when the step is done."""
        if self._key is None:
            state = self.state
            tables = tuple(frozenset(table.items()) for table in state.tables.values())
            self._key = hash(
                (
                    (self.epoch, self.is_serving, self.adopted, self.sequence, self.job),
                    (tables, frozenset(state.versions.items())),
                    (frozenset(self.published.items()), self.announcing, self.inbox),
                )
            )
        return self._key


def copied(state: SharedState) -> SharedState:
    """Return a copy of a state."""
    other = SharedState(state.term)
    for kind, table in state.tables.items():
        other.tables[kind].update(table)
    other.versions.update(state.versions)
    other.ongoing.update(state.ongoing)
    return other


class Client(NamedTuple):
    """One client: how far it is, and where its request is."""

    at: int = 0
    asked: int | None = None
    """The broker that has its request."""
    attempt: int = 0
    """The number of requests for which the client no longer waits."""
    aborts: bool = False
    is_over: bool = False
    answers: tuple[Any, ...] = ()

    def request(self, name: str) -> Request:
        """Return the next request."""
        return ABORTS[name] if self.aborts else PROGRAMS[name][self.at]


class _Seat:
    """The ownership of the broker whose step is taken."""

    changes = 0
    adopted: frozenset[int] = frozenset()

    def owns(self, key: Key) -> bool:
        return shard_of(key) in self.adopted

    def shards(self) -> frozenset[int]:
        return self.adopted


class _Loop(SharedCommitLoop):
    """The real commit loop, whose answers are steps of their own."""

    answered: tuple[frozenset[Key], frozenset[Key], tuple[tuple[int, Notice], ...]]
    """What the last tick has read, what reveals it, and the notices that its answer waits for."""

    async def between_ticks(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await work()

    def _answer(self, tick: Tick) -> None:
        reads, notices = frozenset(self._reads), self._notices
        self._forget_foreign(reads)
        awaited = tuple((shard, each) for shard, each in notices.items() if shard is not None)
        self.answered = (reads, frozenset(revealing(tick, notices)), awaited)
        self._notices, self._later = {}, {}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a step does not wait")


class Engine:
    """Takes the steps of all brokers. It keeps nothing from one step to the next."""

    def __init__(self) -> None:
        self.ledger = SmallLedger()
        self.seat = _Seat()
        ledger: Any = self.ledger
        catalog = Catalog(ledger, 100, {})
        self.published = PublishedLog(ledger, SETTINGS)
        publisher = Publisher(self.published, catalog, Policies(ledger, SETTINGS))
        clock = Clock(lambda: NOW / 1000, lambda: 0.0)
        announcer: Any = None
        seat: Any = self.seat
        self.loop = _Loop(ledger, SETTINGS, clock, Metrics(), publisher, seat, announcer)

    def seated(self, world: "World", broker: int) -> _Loop:
        """Return the commit loop with the state of one broker."""
        member = world.members[broker]
        self.ledger.use(world, broker)
        self.seat.adopted = member.adopted
        self.loop.state = member.state
        self.published.partitions._views = member.published
        return self.loop

    def shard(self, key: PartitionKey) -> int:
        """Return the shard of a partition."""
        return partition_shard(key.topic_id, key.index)


ENGINE: Final = Engine()


@dataclass(slots=True)
class World:
    """The complete state at one moment."""

    ledger: Any
    epochs: dict[int, int]
    owners: dict[int, int | None]
    members: dict[int, Member]
    clients: dict[str, Client]
    crashes: int
    lost: int
    lapses: int
    """How many faults of each kind may still happen."""
    distrusted: tuple[frozenset[int], frozenset[int]] | None = None
    """The shards of a dead broker, and the brokers that must forget their copies before they are divided."""

    @classmethod
    def initial(cls, *, crashes: int, lost: int, lapses: int) -> "World":
        """Return the first world: all brokers run, and both producers are initialised."""
        members = {
            broker: Member(adopted=frozenset(shard for shard, owner in HOME.items() if owner == broker))
            for broker in BROKERS
        }
        transactions = [Transaction(name, PRODUCERS[name], 0, 60_000, term=1) for name in IDS]
        ledger = ENGINE.ledger.initial(transactions, PARTITIONS)
        clients = {name: Client() for name in IDS}
        epochs = dict.fromkeys(BROKERS, 1)
        return cls(ledger, epochs, dict(HOME), members, clients, crashes, lost, lapses)

    def copy(self) -> "World":
        """Return a copy. Brokers are copied when they take a step."""
        return replace(
            self,
            epochs=dict(self.epochs),
            owners=dict(self.owners),
            members=dict(self.members),
            clients=dict(self.clients),
        )

    def key(self) -> int:
        """Return a value that is equal for equal worlds."""
        return hash(
            (
                self.ledger.key(),
                tuple(self.epochs.values()),
                tuple(self.owners.values()),
                tuple(each.key() for each in self.members.values()),
                tuple(self.clients.values()),
                (self.crashes, self.lost, self.lapses, self.distrusted),
            )
        )
