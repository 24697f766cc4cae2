"""Keep all connections of a process at one server of a ledger, and never at one that was left behind.

After a failover two servers may accept writes: the promoted standby, and the old primary that a service
manager has started again. Everything that the old one confirms would be lost. Two things tell them apart. A
promotion begins another *timeline* of PostgreSQL. And a crash or a promotion ends the *term* of the cluster;
the next term gets an id, which the other server does not have. So a process refuses a server whose timeline
is older than one that it has seen, or that lacks the newest term. It moves all connections to a newer server.

A process that starts has no memory. If the address has several hosts, it looks at all of them and takes the
newest. It learns from the object store what other processes have seen (``terms``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit
from weakref import WeakKeyDictionary

import asyncpg

from semel.store.cluster.postgres import sessions
from semel.store.cluster.postgres.database import ConnectionLost
from semel.store.contract import StoreMisconfigured

log = logging.getLogger("semel.store")

OTHERS_SECONDS: Final = 1.0
"""How long other hosts may take after one has answered. Silent hosts are left to `look_around`."""
SAY_SECONDS: Final = 5.0
"""Minimum time between two log lines about servers that are refused."""
READ_BACK: Final = ("application_name", "search_path", "client_min_messages")
"""Settings of a session that a pooler may lose; PostgreSQL shows them as they were given."""

_CLIENT_ERRORS: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)


class Seen(NamedTuple):
    """The newest server and term that a process has seen."""

    system: str | None = None
    timeline: int = 0
    term: str | None = None
    """The id of the newest term."""
    number: int = 0
    """Its number."""


def why_refused(seen: Seen, server: sessions.Server) -> str | None:
    """Return why a process that has seen this must not use a server; None if it may."""
    if None not in (seen.system, server.system) and seen.system != server.system:
        return "it is another database system"
    if server.is_standby and seen != Seen():
        return "it is a standby"
    if 0 < server.timeline < seen.timeline:
        return f"it was left behind by a failover: it is on timeline {server.timeline}, not {seen.timeline}"
    if seen.term is not None and seen.term not in server.terms:
        return f"it was left behind by a failover: it does not know the term {seen.term}"
    return None


def seen_at(seen: Seen, server: sessions.Server) -> Seen:
    """Return what a process has seen after it uses this server."""
    timeline = max(seen.timeline, server.timeline)
    return seen._replace(system=server.system or seen.system, timeline=timeline)


def newest(servers: Sequence[sessions.Server]) -> int:
    """Return the index of the newest server: a primary, the latest timeline, the most terms."""
    return max(range(len(servers)), key=lambda at: _age(servers[at]))


def _age(server: sessions.Server) -> tuple[bool, int, int]:
    return not server.is_standby, server.timeline, len(server.terms)


def addresses(dsn: str) -> list[str]:
    """Split an address with several hosts into one for each host. ValueError if it is malformed."""
    parts = urlsplit(dsn)
    user, at, hosts = parts.netloc.rpartition("@")
    if "," in hosts:
        return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",") if host]
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "," not in query.get("host", ""):
        return [dsn]
    names = query["host"].split(",")
    ports = query.get("port", "").split(",")
    each_port = ports * len(names) if len(ports) == 1 else ports
    return [
        parts._replace(query=urlencode({**query, "host": name} | ({"port": port} if port else {}))).geturl()
        for name, port in zip(names, each_port, strict=True)
    ]


class _Found(NamedTuple):
    session: Any
    server: sessions.Server
    address: str


class Servers:
    """What one process knows of the servers behind an address."""

    def __init__(self, dsn: str, unsafe: Collection[str] | None = None) -> None:
        self._addresses = addresses(dsn)
        self._unsafe = unsafe
        """Settings that may be unsafe. None allows all, because this process does not serve."""
        self._said: set[str] = set()
        self._seen = Seen()
        self._current: sessions.Server | None = None
        self._sessions: WeakKeyDictionary[Any, sessions.Server] = WeakKeyDictionary()
        self._say_at = 0.0
        self._options: dict[str, Any] = {}
        self.check_history: Callable[[Any], Awaitable[None]] | None = None
        """Called with a session of each server that was restarted, or is another one. StoreDamaged."""
        self._silent: set[str] = set()
        """The addresses that did not answer at the last look."""

    @property
    def silent(self) -> Sequence[str]:
        """The hosts that did not answer at the last look."""
        return [_host(each) for each in self._addresses if each in self._silent]

    async def connect(self, _dsn: str | None = None, **options: Any) -> Any:
        """Open a session at the newest server. ConnectionLost if only older ones answer, StoreMisconfigured.

        StoreDamaged if the newest server lacks confirmed commits. If no server answers, the error is that of
        `asyncpg.connect`.
        """
        self._options = options
        return await self._connect(waits=False)

    async def _connect(self, *, waits: bool) -> Any:
        found = await self._look(self._options, waits=waits)
        if self.check_history is not None and not self._is_current(found.server):
            try:
                await self.check_history(found.session)
            except BaseException:
                found.session.terminate()
                raise
        return self._taken(found)

    async def _look(self, options: Mapping[str, Any], *, waits: bool) -> _Found:
        """Ask all hosts. Return the newest that may be used.

        If the server in use answers, hosts that were silent before are not waited for, unless `waits` is
        true: another session at the same server changes nothing.
        """
        tasks = [asyncio.ensure_future(self._open(each, options)) for each in self._addresses]
        try:
            done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            while late and all(each.exception() for each in done):
                more, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
                done |= more
            slow = {address for address, each in zip(self._addresses, tasks, strict=True) if each in late}
            answers = [each.result().server for each in done if each.exception() is None]
            if late and (waits or slow - self._silent or not any(map(self._is_current, answers))):
                more, late = await asyncio.wait(late, timeout=OTHERS_SECONDS)
                done |= more
        except BaseException:
            for each in tasks:
                each.add_done_callback(_discard)
                each.cancel()
            raise
        for each in late:
            each.add_done_callback(_discard)
            each.cancel()
        ordered = [each for each in tasks if each in done]
        self._silent = {
            address
            for address, each in zip(self._addresses, tasks, strict=True)
            if each not in done or isinstance(each.exception(), OSError | TimeoutError)
        }
        found = [each.result() for each in ordered if each.exception() is None]
        if not found:
            raise _telling([error for each in ordered if (error := each.exception()) is not None])
        # Of equally new servers, prefer the one in use.
        found.sort(key=lambda each: not self._is_current(each.server))
        best = found[newest([each.server for each in found])]
        for other in found:
            if other is not best:
                other.session.terminate()
        return best

    async def _open(self, address: str, options: Mapping[str, Any]) -> _Found:
        """Open a session, and check it and its server."""
        given = options["server_settings"]
        try:
            session = await asyncpg.connect(address, **options)
        except asyncpg.ProtocolViolationError as error:
            if sessions.is_pooled(error):
                raise sessions.pooler(error) from None
            raise
        try:
            await sessions.begin(session, {name: given[name] for name in READ_BACK if name in given})
            server = await sessions.server_of(session)
            if not server.is_standby:
                self.check_settings([name for (name,) in await session.fetch(sessions.UNSAFE)])
            if (why := why_refused(self._seen, server)) is not None:
                self._say(f"the PostgreSQL server at {_host(address)} is not used: {why}")
                raise ConnectionLost(f"the server at {_host(address)} is not used: {why}")
        except BaseException:
            session.terminate()
            raise
        return _Found(session, server, address)

    def _taken(self, found: _Found) -> Any:
        """Use a session, and end all sessions at other servers."""
        session, server, address = found
        if (why := why_refused(self._seen, server)) is not None:
            # A newer timeline or term was seen while this session was opened.
            session.terminate()
            raise ConnectionLost(f"the server at {_host(address)} is not used: {why}")
        if self._current is not None and not _is_same(self._current, server):
            log.warning(
                "all connections move to the PostgreSQL server at %s, on timeline %d",
                *(_host(address), server.timeline),
            )
            self._end_others(server)
        self._seen = seen_at(self._seen, server)
        self._current = server
        self._sessions[session] = server
        return session

    def check_settings(self, unsafe: Sequence[str]) -> None:
        """Raise StoreMisconfigured if these unsafe settings are not allowed. Log those that are."""
        sessions.check_unsafe(unsafe, self._unsafe)
        if unsafe and set(unsafe) - self._said:
            self._said.update(unsafe)
            log.warning(
                "PostgreSQL runs with %s off: a crash of its machine loses or damages what was confirmed",
                " and ".join(unsafe),
            )

    def _is_current(self, server: sessions.Server) -> bool:
        return self._current is not None and _is_same(self._current, server)

    def _end_others(self, server: sessions.Server | None) -> None:
        for session, at in list(self._sessions.items()):
            if not session.is_closed() and (server is None or not _is_same(at, server)):
                session.terminate()

    def learn(self, number: int, term: str) -> None:
        """Refuse servers without this term, which the server in use has."""
        if number > self._seen.number:
            self._seen = self._seen._replace(term=term, number=number)

    def require(self, number: int, term: str) -> None:
        """Refuse servers without this term, which has begun at another server. End all sessions."""
        self._seen = self._seen._replace(term=term, number=number)
        self._end_others(None)

    async def look_around(self) -> None:
        """Move to another host if its server is newer than the one in use."""
        if len(self._addresses) > 1 and self._options:
            with suppress(OSError, ConnectionLost, asyncpg.PostgresError, *_CLIENT_ERRORS):
                session = await self._connect(waits=True)
                session.terminate()

    def _say(self, sentence: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._say_at:
            self._say_at = now + SAY_SECONDS
            log.warning("%s", sentence)


def _is_same(one: sessions.Server, other: sessions.Server) -> bool:
    return (one.system, one.timeline, one.started) == (other.system, other.timeline, other.started)


def _host(address: str) -> str:
    """Return the part of an address that contains no secret."""
    parts = urlsplit(address)
    return parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "the default host")


def _discard(task: "asyncio.Future[_Found]") -> None:
    """End the session of a task whose result is not needed any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().session.terminate()


def _telling(errors: Sequence[BaseException]) -> BaseException:
    """Return the most informative error of several hosts: what a server says, rather than no answer."""
    ranks = (StoreMisconfigured, ConnectionLost, asyncpg.PostgresError)
    return min(
        errors,
        key=lambda error: next((at for at, each in enumerate(ranks) if isinstance(error, each)), len(ranks)),
    )
