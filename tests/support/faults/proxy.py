"""A proxy on loopback that understands requests, and treats them as unreliable networks do.

Clients reach brokers only through it: it replaces the broker addresses in responses with its own, one port
for each broker. It passes everything else byte by byte. A rule says what happens to matching requests; the
first rule that matches wins:

    with Proxy(bootstrap) as proxy:
        held = proxy.on(26, Act.STRAND)     # the next EndTxn
        ...
        held.wait()                         # it arrived, and is held
        held.release()                      # the broker gets it now, on the connection on which it arrived

Later requests on the same connection wait behind a held request, as in a stream of bytes. If the client
closes its connection, the proxy keeps the broker's side open until the held request was delivered and
answered.

A proxy may also hide Semel's extensions, so that clients use only Kafka's requests.
"""

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from semel.wire.frames import RequestHeader, decode_request_header, decode_response_header, encode_response
from semel.wire.messages import APIS
from semel.wire.messages.semel import FIRST_OWN_KEY
from support.faults.proxy_rules import Act as Act  # re-exported
from support.faults.proxy_rules import Rule as Rule
from support.faults.proxy_rules import Seen as Seen
from support.waiting import LIMIT_SECONDS

SIZE = struct.Struct(">i")
MORE = getattr(socket, "MSG_MORE", 0)  # Linux sends these bytes together with what comes next
PRODUCE, METADATA, FIND_COORDINATOR, API_VERSIONS, DESCRIBE_CLUSTER = 0, 3, 10, 18, 60


class Proxy:
    """Listens on a port of its own before one broker, and before every other broker that responses name."""

    def __init__(self, bootstrap: str, *, hides_extensions: bool = False) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.hides_extensions = hides_extensions
        first = _Door(self, (host, int(port)))
        self.port = first.port
        self._doors = {first.upstream: first}
        self._refuses = False
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._links: list[_Link] = []
        self.seen: list[Seen] = []
        """Every request, in the order of arrival."""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def on(
        self,
        api_key: int,
        act: Act,
        *,
        times: int = 1,
        after: int = 0,
        where: Callable[[Seen], bool] = lambda seen: True,
    ) -> Rule:
        """From now on, let `after` matching requests pass, then apply the act to the next `times`."""
        rule = Rule(act, lambda seen: seen.header.api_key == api_key and where(seen), times, after)
        with self._lock:
            self._rules.append(rule)
        return rule

    def port_before(self, host: str, port: int) -> int:
        """Return the port at which clients reach the broker at an address."""
        with self._lock:
            door = self._doors.get((host, port))
            if door is None:
                door = self._doors[host, port] = _Door(self, (host, port))
                if self._refuses:
                    door.close()
                else:
                    door.start()
            return door.port

    def refuse_all(self) -> None:
        """Refuse all new connections. May be called again."""
        with self._lock:
            self._refuses = True
            doors = list(self._doors.values())
        for door in doors:
            door.close()

    def cut_all(self) -> None:
        """Close every connection, on both sides."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def count(self, api_key: int) -> int:
        """Return how many requests with this API key have arrived."""
        return sum(seen.header.api_key == api_key for seen in list(self.seen))

    def judge(self, seen: Seen) -> Rule | None:
        with self._lock:
            self.seen.append(seen)
            return next((rule for rule in self._rules if rule.takes(seen)), None)

    def connect(self, client: socket.socket, client_port: int, broker: socket.socket) -> None:
        link = _Link(self, next(self._numbers), client, client_port, broker)
        with self._lock:
            self._links.append(link)
        link.start()

    def __enter__(self) -> Self:
        for door in self._doors.values():
            door.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse_all()
        with self._lock:
            doors = list(self._doors.values())
        for door in doors:
            door.join()
        for rule in self._rules:
            rule.let_go()
        self.cut_all()
        for link in self._links:
            link.join()


class _Door:
    """A port, and the broker it leads to."""

    def __init__(self, proxy: Proxy, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self._proxy = proxy
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting: threading.Thread | None = None

    def start(self) -> None:
        self._accepting = threading.Thread(target=self._accept, name="proxy")
        self._accepting.start()

    def close(self) -> None:
        """Refuse new connections. May be called again."""
        with contextlib.suppress(OSError):
            # A close does not wake a thread in accept().
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def join(self) -> None:
        if self._accepting is not None:
            self._accepting.join(LIMIT_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                client, (_, client_port) = self._listener.accept()
            except OSError:
                return
            try:
                # Connect here, not in a thread, so that the broker sees connections in the order of the
                # clients' connects.
                broker = socket.create_connection(self.upstream, LIMIT_SECONDS)
            except OSError:
                client.close()
                continue
            self._proxy.connect(client, client_port, broker)


@dataclass
class _Asked:
    """A request that was forwarded to the broker, and what to do with its response."""

    header: RequestHeader
    rule: Rule | None
    is_for_client: bool = True
    closes_client: bool = False
    is_late: bool = False


class _Link:
    """A client's connection and its counterpart to the broker, with a thread for each direction."""

    def __init__(
        self, proxy: Proxy, number: int, client: socket.socket, client_port: int, broker: socket.socket
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client = client
        self._ports = (client_port, client.getsockname()[1])
        self._broker = broker
        broker.settimeout(None)
        for each in (client, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._asked: list[_Asked] = []
        self._answered = threading.Condition()
        self._broker_is_gone = False
        self._threads = [
            threading.Thread(target=self._requests, name=f"proxy {number} requests"),
            threading.Thread(target=self._responses, name=f"proxy {number} responses"),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)
            assert not thread.is_alive(), thread.name

    def close(self) -> None:
        _shut(self._client)
        _shut(self._broker)

    def _requests(self) -> None:
        while (frame := _receive(self._client)) is not None:
            header, position = decode_request_header(frame)
            seen = Seen(self._number, header, frame, position, self._ports)
            self._treat(seen, self._proxy.judge(seen))
        with self._answered:
            # A request that was delivered late gets its answer, although its client has disconnected.
            self._answered.wait_for(self._owes_nothing, LIMIT_SECONDS)
        _shut(self._broker)
        self._client.close()

    def _owes_nothing(self) -> bool:
        return self._broker_is_gone or not any(asked.is_late for asked in self._asked)

    def _treat(self, seen: Seen, rule: Rule | None) -> None:
        act = Act.PASS if rule is None else rule.act
        header = seen.header
        if act in (Act.CUT, Act.STRAND):
            _shut(self._client)
        if act in (Act.LOSE, Act.CUT):
            return
        if act in (Act.HOLD, Act.STRAND):
            assert rule is not None
            rule.until_released()
            self._forward(seen, _Asked(header, rule, is_late=True))
            return
        self._forward(
            seen,
            _Asked(
                header,
                rule,
                is_for_client=act != Act.DEAFEN,
                closes_client=act in (Act.CUT_ANSWER, Act.ECHO),
            ),
        )
        if act is Act.TWICE:
            self._forward(seen, _Asked(header, rule, is_for_client=False))
        if act is Act.ECHO:
            assert rule is not None
            rule.until_released()
            self._forward(seen, _Asked(header, rule, is_for_client=False, is_late=True))

    def _forward(self, seen: Seen, asked: _Asked) -> None:
        with self._answered:
            if not _has_no_answer(seen):
                self._asked.append(asked)
            gone = self._broker_is_gone
        if gone:
            self._refused()
            return
        with contextlib.suppress(OSError):
            self._broker.sendall(SIZE.pack(len(seen.frame)) + seen.frame)

    def _responses(self) -> None:
        while (frame := _receive(self._broker)) is not None:
            with self._answered:
                asked = self._asked[0]
            if asked.rule is not None:
                asked.rule.answered.set()
            if asked.closes_client:
                _shut(self._client)
            elif asked.is_for_client:
                self._answer(b"".join(self._changed(frame, asked.header)), asked)
            with self._answered:
                self._asked.pop(0)
                self._answered.notify_all()
            if asked.is_late and asked.rule is not None:
                asked.rule.delivered.set()
        with self._answered:
            self._broker_is_gone = True
            self._answered.notify_all()
        self._refused()
        _shut(self._client)
        self._broker.close()

    def _answer(self, answer: bytes, asked: _Asked) -> None:
        is_last = asked.rule is not None and asked.rule.act is Act.LAST
        if is_last:
            self._proxy.refuse_all()
        with contextlib.suppress(OSError):
            # MSG_MORE sends the answer together with the end of the stream, so the client cannot act in
            # between.
            self._client.sendall(answer, MORE if is_last else 0)
        if is_last:
            self._proxy.cut_all()

    def _refused(self) -> None:
        """Note that the broker closed the connection instead of answering the outstanding requests."""
        with self._answered:
            asked, self._asked = self._asked, []
        for each in asked:
            if each.is_late and each.rule is not None:
                each.rule.was_refused = True
                each.rule.delivered.set()

    def _changed(self, frame: bytes, header: RequestHeader) -> list[Any]:
        """Return the response with the proxy's addresses for brokers, and without the APIs that it hides."""
        key, version = header.api_key, header.api_version
        hides = key == API_VERSIONS and self._proxy.hides_extensions
        if not hides and key not in (METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER):
            return [SIZE.pack(len(frame)), frame]
        correlation_id, position = decode_response_header(frame, key, version)
        response: Any = APIS[key].response.decode(frame, version, position)
        if hides:
            response.api_keys = [each for each in response.api_keys if each.api_key < FIRST_OWN_KEY]
            return encode_response(response, version, correlation_id)
        places = [response] if key == FIND_COORDINATOR else []
        places += response.coordinators if key == FIND_COORDINATOR else response.brokers
        for place in places:
            # A response without a coordinator has no address.
            if place.port > 0:
                place.host, place.port = "127.0.0.1", self._proxy.port_before(place.host, place.port)
        return encode_response(response, version, correlation_id)


def _has_no_answer(seen: Seen) -> bool:
    return seen.header.api_key == PRODUCE and seen.body.acks == 0


def _receive(source: socket.socket) -> bytes | None:
    """Return the next frame, or None at the end of the stream."""
    size = _exactly(source, SIZE.size)
    return None if size is None else _exactly(source, SIZE.unpack(size)[0])


def _exactly(source: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            piece = source.recv(count - len(data))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


def _shut(which: socket.socket) -> None:
    """Shut a connection down, which also wakes a thread that reads from it; its owner closes it."""
    with contextlib.suppress(OSError):
        which.shutdown(socket.SHUT_RDWR)
