"""Write the commits of one broker to PostgreSQL: fenced, numbered, and repeated until the outcome is known.

Every commit writes its number into the broker's row (``fencing.sql``), if the row has the commit's epoch and
session. So a process that was replaced can write nothing. A process that lost its connection begins another
session, which waits for a commit that is under way and refuses one that arrives later. The number in the row
then shows whether the commit was written.

A commit that need not be durable at once is not flushed. The next flushed commit makes it durable, because
the write-ahead log of PostgreSQL is one stream.

**Locks.** A broker may lock entities from loading them to its next commit. The locks are row locks of a
transaction that stays open. PostgreSQL ends it if the broker is silent for too long. Nothing is written then:
the commit notices, and compares versions as any other commit does.

**Versions.** A commit names the versions that it was decided on (``versions.sql``). All brokers take locks in
the same order, so that deadlocks are rare. An entity that does not exist has no row to lock: a commit that
adds it, or relies on its absence, locks its shard.
"""

import json
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import asyncpg

from semel.core.entities import ABSENT, SHARDS, VERSIONED, name_shard, shard_of, versioned_by
from semel.core.facts import TopicChanged, TopicDeleted
from semel.core.types import (
    ClusterKey,
    Fact,
    GroupKey,
    Key,
    PartitionKey,
    PendingKey,
    ProducerKey,
    ShareKey,
    TopicKey,
    TransactionKey,
)
from semel.store import contract
from semel.store.cluster.commit_calls import WRITE_ROWS, WRITE_SHARES, Bytes, Call, CommitCalls
from semel.store.cluster.contract import Conflict, TermEnded
from semel.store.cluster.membership import BrokerSlot
from semel.store.cluster.postgres.database import (
    COLLIDED,
    FLUSH,
    ConnectionLost,
    Database,
    confirmed,
    pauses,
    refusal,
    stored,
)
from semel.store.cluster.postgres.terms import Terms

SLOT_SHIFT: Final = 44
"""A version is the slot of the broker that wrote it, shifted by this many bits, and the commit's number."""
_KINDS: Final = (TopicKey, PartitionKey, ProducerKey, TransactionKey, GroupKey, PendingKey, ShareKey)
assert set(_KINDS) == VERSIONED
_ALL_SHARDS: Final = list(range(SHARDS))
_UNNAMED: Final = (TopicChanged, TopicDeleted)
"""Facts that add or remove entities which they do not name: partitions, versions of groups."""


class Expectations:
    """What one commit expects, or one load locks."""

    def __init__(self, expected: Mapping[Key, int], written: Collection[Key], *, locks_all: bool) -> None:
        by_kind: dict[type, list[tuple[Any, Key]]] = {kind: [] for kind in _KINDS}
        unknown = [key for key in written if key not in expected]
        for key, version in expected.items():
            if type(key) in VERSIONED:
                by_kind[type(key)].append(((*_stored(key), version), key))
                if version == ABSENT:
                    unknown.append(key)
        for some in by_kind.values():
            some.sort(key=_row)
        self._keys = [[key for _, key in some] for some in by_kind.values()]
        rows = [[row for row, _ in some] for some in by_kind.values()]
        kinds = {type(key) for key in written}
        *earlier, shares = rows
        self.argument: Final = (
            *earlier,
            [sum(row[-1] != ABSENT for row in some) for some in rows],
            [kind in kinds for kind in _KINDS],
            _ALL_SHARDS if locks_all else sorted({_shard(key) for key in unknown}),
            shares,
        )
        """A value of the SQL type ``expectations``."""
        self.are_none: Final = not any(rows) and not self.argument[-2]
        """Whether nothing has to be checked or locked."""

    @classmethod
    def of_commit(cls, facts: Sequence[Fact], expected: Mapping[Key, int]) -> "Expectations":
        """Return what a commit of these facts expects."""
        written = {key for fact in facts for key in versioned_by(fact)}
        return cls(expected, written, locks_all=any(isinstance(fact, _UNNAMED) for fact in facts))

    @classmethod
    def of_locks(cls, keys: Iterable[Key]) -> "Expectations":
        """Return what locks these entities, whether or not they exist."""
        wanted = {key: ABSENT for key in keys if type(key) in VERSIONED}
        return cls(wanted, wanted, locks_all=False)

    def moved(self, detail: str) -> list[Key]:
        """Return the entities that have moved, from the detail of the database's error."""
        return [self._keys[kind][position] for kind, position in json.loads(detail)]


def _row(pair: tuple[Any, Key]) -> Any:
    return pair[0]


def _stored(key: Any) -> tuple[Any, ...]:
    values: tuple[Any, ...] = key.values()
    if isinstance(key, ShareKey):
        return key.topic_id, key.index, stored(key.group_id)
    # The keys of partitions and producers have no text.
    return (stored(values[0]),) if len(values) == 1 else values


def _shard(key: Key) -> int:
    shard = shard_of(key)
    return name_shard(key.name) if shard is None and isinstance(key, TopicKey) else shard or 0


class _Unlocked(Exception):
    """Rolls the transaction back."""


class Locks:
    """The open transaction of a broker, if there is one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: AsyncExitStack | None = None
        self._connection: Any = None
        self._keys: dict[Key, None] = {}

    @property
    def are_held(self) -> bool:
        """Whether a transaction is open."""
        return self._open is not None

    @asynccontextmanager
    async def taken(self, keys: Iterable[Key]) -> AsyncIterator[Any]:
        """Lock these entities too. Yield the transaction's connection. ConnectionLost. Errors roll it back.

        All brokers take the locks of one call in the same order, but not those of several calls. After an
        error the next call takes all locks again, in order.
        """
        wanted = dict.fromkeys(keys)
        is_new = self._open is None
        self._keys |= wanted
        async with self._open or AsyncExitStack() as stack:
            self._open = None
            if is_new:
                wanted = self._keys
                self._connection = await stack.enter_async_context(self._database.connection())
                await stack.enter_async_context(self._connection.transaction())
            locked = Expectations.of_locks(wanted).argument
            await self._connection.fetchrow("SELECT lock_entities($1)", locked)
            yield self._connection
            self._open = stack.pop_all()

    @asynccontextmanager
    async def release(self) -> AsyncIterator[Any]:
        """Yield the transaction's connection. Commit the transaction at the end, or roll back on an error."""
        assert self._open is not None
        stack, self._open = self._open, None
        self._keys.clear()
        async with stack:
            yield self._connection

    async def give_up(self) -> None:
        """Roll the transaction back, if there is one."""
        self._keys.clear()
        if self.are_held:
            with suppress(_Unlocked):
                async with self.release():
                    raise _Unlocked


log = logging.getLogger("semel.store")

TERM_ENDED: Final = "SM002"
MOVED: Final = "SM003"
FEATURES_MOVED: Final = "SM004"
"""Errors of the database's functions."""

_AT_ONCE: Final = {WRITE_ROWS: "commit_rows", WRITE_SHARES: "commit_shares"}
"""For a commit of a single call: the function that makes the whole commit."""

_LAST_COMMITS: Final = """
    SELECT slot, newest.epoch, newest.sequence, EXISTS (SELECT FROM term WHERE term = $1) AS goes_on
    FROM brokers CROSS JOIN LATERAL (
        SELECT epoch, sequence FROM commits WHERE commits.broker_id = brokers.broker_id
        ORDER BY sequence DESC LIMIT 1
    ) AS newest
"""
_COUNT_ON: Final = """
    UPDATE commits SET sequence = $4
    WHERE broker_id = $1 AND epoch = $2 AND session = $3 AND sequence >= last_commit($1) AND sequence < $4
"""
"""Skips the numbers of commits that were lost with a term, so that they are not used again."""


class Committer:
    """Writes the commits of one broker, one at a time."""

    def __init__(self, database: Database, place: BrokerSlot, term: int) -> None:
        self._database = database
        self._place = place
        self.terms = Terms(database)
        self.term = term
        self.locks = Locks(database)
        self._sequence = place.sequence
        # ``take_place`` was flushed, and everything before it.
        self._durable: dict[int, int] = {place.slot: place.sequence}
        """The last commit of each broker, by slot, that needs no flush any more."""
        self._flushed: dict[int, int] = {place.slot: place.sequence}
        """The last flushed commit of each broker, by slot. Later ones may be lost when the term ends."""
        database.servers.check_history = self._check_history

    @property
    def has_unsynced(self) -> bool:
        """Whether there are commits that were not flushed."""
        return self._sequence > self._durable[self._place.slot]

    async def commit(
        self,
        facts: Sequence[Fact],
        locations: Sequence[contract.BatchLocation],
        contents: Bytes,
        *,
        expected: Mapping[Key, int],
        defers_sync: bool,
    ) -> int:
        """Write these facts together. Return the commit's number.

        Conflict, TermEnded, StoreRefused: nothing was written. StoreBroken.
        """
        number = self._sequence + 1
        built = CommitCalls(locations, contents, self.version(number))
        calls = built.write(facts)
        expectations = Expectations.of_commit(facts, expected)
        is_synced = not defers_sync or bool(contents.objects)
        async for _ in pauses():
            place = self._place
            claim = (place.broker_id, place.epoch, place.session, number, self.term, is_synced)
            try:
                await self._try((*claim, built.next_producer_id), expectations, calls)
                break
            except COLLIDED:
                # The commit was certainly rolled back.
                continue
            except ConnectionLost as error:
                log.warning("PostgreSQL was lost during a commit, which is looked for: %s", error)
                if await self._reached() >= number:
                    # The new session began after the commit, and its beginning was flushed.
                    is_synced = True
                    break
        self._sequence = number
        if is_synced:
            self._durable[self._place.slot] = self._flushed[self._place.slot] = number
        return number

    def version(self, number: int) -> int:
        """Return the version of the entities that a commit of this broker writes."""
        return self._place.slot << SLOT_SHIFT | number

    async def make_durable(self, versions: Iterable[int], connection: Any) -> None:
        """Flush the commits of these versions, which this connection has read, unless they are flushed."""
        seen: dict[int, int] = {}
        for version in versions:
            slot, number = version >> SLOT_SHIFT, version & ((1 << SLOT_SHIFT) - 1)
            if number > self._durable.get(slot, 0):
                seen[slot] = max(number, seen.get(slot, 0))
        if seen:
            with confirmed(connection):
                await connection.fetchval(FLUSH)
            for slot, number in seen.items():
                self._durable[slot] = self._flushed[slot] = max(number, self._durable.get(slot, 0))

    async def check_term(self) -> None:
        """Raise TermEnded if the term is over. StoreRefused."""
        query = "SELECT EXISTS (SELECT FROM term WHERE term = $1)"
        if not await self._database.value(query, self.term):
            ended = self.term
            await self._begin_term()
            raise TermEnded(f"the term {ended} is over")

    async def _try(self, claim: tuple[Any, ...], expectations: Expectations, calls: Sequence[Call]) -> None:
        try:
            async with self._connection() as (connection, is_transaction):
                if len(calls) == 1 and calls[0].function in _AT_ONCE:
                    arguments = (claim, expectations.argument, *calls[0].arguments)
                    (moved,) = await _called(connection, Call(_AT_ONCE[calls[0].function], arguments))
                    if moved is not None:
                        raise Conflict(expectations.moved(moved))
                    return
                count = Call("count_commit", (claim,))
                if not calls and expectations.are_none:
                    await _called(connection, count)
                    return
                check = Call("check_versions", (expectations.argument,))
                async with _transaction(connection, is_transaction):
                    for call in (check, *calls, count):
                        await _called(connection, call)
        except COLLIDED:
            raise
        except asyncpg.PostgresError as error:
            await self._explain(error, expectations)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[Any, bool]]:
        """Yield the connection that holds locks, or another one, and whether it is in a transaction."""
        if self.locks.are_held:
            async with self.locks.release() as connection:
                yield connection, True
        else:
            await self.locks.give_up()
            async with self._database.connection() as connection:
                yield connection, False

    async def _explain(self, error: asyncpg.PostgresError, expectations: Expectations) -> None:
        """Raise the exception that an error of a commit means. The commit was certainly rolled back."""
        if error.sqlstate == MOVED:
            raise Conflict(expectations.moved(error.detail)) from None
        if error.sqlstate == FEATURES_MOVED:
            raise Conflict((ClusterKey(),)) from None
        if error.sqlstate == TERM_ENDED:
            await self._begin_term()
            raise TermEnded(str(error)) from None
        if isinstance(error, asyncpg.UniqueViolationError) and error.table_name == "topics":
            # The commit did not name the topic among its expected versions.
            raise Conflict from error
        refused = refusal(error)
        if isinstance(refused, contract.StoreFenced):
            await self._check_history(self._database)
        raise refused or contract.StoreBroken(f"a commit in PostgreSQL failed: {error}") from error

    async def _check_history(self, at: "Database | Any") -> None:
        """Raise StoreDamaged if a server lacks confirmed commits. ``at`` is the database or a session."""
        # Copy before asking the server, because its answer need not include later commits.
        flushed, last = dict(self._flushed), {self._place.slot: self._sequence}
        rows = await at.fetch(_LAST_COMMITS, self.term)
        found = {row["slot"]: (row["epoch"], row["sequence"]) for row in rows}
        goes_on = any(row["goes_on"] for row in rows)
        check_loss(self._place, flushed | last if goes_on else flushed, found)

    async def _begin_term(self) -> None:
        term = await self.terms.begin()
        await self._check_history(self._database)
        place = self._place
        await self._database.row(_COUNT_ON, place.broker_id, place.epoch, place.session, self._sequence)
        self.term = term
        # Unflushed commits are lost, or recovered and flushed.
        self._durable[self._place.slot] = self._sequence

    async def _reached(self) -> int:
        """Begin a new session, so that the old one can commit no more. Return the last commit's number."""
        place = self._place
        async for _ in pauses():
            try:
                async with self._database.connection() as connection:
                    row = await connection.fetchrow(
                        "SELECT * FROM begin_session($1, $2)", place.broker_id, place.epoch
                    )
                    await self._check_history(connection)
            except (ConnectionLost, *COLLIDED):
                continue
            except asyncpg.PostgresError as error:
                refused = refusal(error)
                if isinstance(refused, contract.StoreRefused):
                    # PostgreSQL has no room or allows no writes for now, and the outcome is still unknown.
                    continue
                raise refused or contract.StoreBroken(
                    f"PostgreSQL does not tell about a commit: {error}"
                ) from error
            if row is None:
                raise contract.StoreFenced(f"another process took the place of broker {place.broker_id}")
            self._place = place._replace(session=row["session"])
            return int(row["sequence"])
        raise AssertionError("there is always another pause")


def check_loss(place: BrokerSlot, known: Mapping[int, int], found: Mapping[int, tuple[int, int]]) -> None:
    """Raise StoreDamaged if the ledger is older than what this broker has seen in it.

    ``known`` has, by slot, the last commit of each broker that cannot be lost; ``found`` has the epoch and
    last commit of each broker in the ledger.
    """
    for slot, number in known.items():
        epoch, last = found.get(slot, (0, 0))
        if last < number or (slot == place.slot and epoch < place.epoch):
            raise contract.StoreDamaged(
                "PostgreSQL has lost commits that it had confirmed: a broker's last commit was number"
                f" {number}, and now it is {last}. A standby that was not synchronous was promoted, or a"
                " backup or an older copy of the server was restored. Stop all brokers, and see 'What a"
                " failure does' in docs/cluster.md"
            )


@asynccontextmanager
async def _transaction(connection: Any, is_open: bool) -> AsyncIterator[None]:
    if is_open:
        yield
        return
    async with connection.transaction():
        yield


async def _called(connection: Any, call: Call) -> Any:
    marks = ", ".join(f"${number}" for number in range(1, len(call.arguments) + 1))
    row = await connection.fetchrow(f"SELECT * FROM {call.function}({marks})", *call.arguments)
    if call.returns is not None and tuple(row) != call.returns:
        # The commit is rolled back. The core counts staged batches, so the ledger has lost some of them.
        raise contract.LedgerDamaged(
            f"the ledger has lost staged batches of partition {call.arguments[1]} of topic id"
            f" {call.arguments[0].hex()}: producer {call.arguments[2]} cannot commit them. See 'semel cluster"
            " check'"
        )
    return row
