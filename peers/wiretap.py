"""A proxy on loopback that counts what clients ask for: the proof on the wire of which requests were sent."""

import contextlib
import socket
import struct
import threading
from collections import Counter
from typing import NamedTuple, Self

HEADER = struct.Struct(">ihhih")


class Asked(NamedTuple):
    """One kind of request of one client."""

    client_id: str
    api_key: int
    version: int


class Wiretap:
    """Forwards connections to a broker that advertises this proxy's port, frame by frame."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.broker_port = 0
        self._lock = threading.Lock()
        self._asked: Counter[Asked] = Counter()
        self._sockets: set[socket.socket] = set()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def asked_by(self, client_id: str) -> Counter[tuple[int, int]]:
        """How often each (api key, version) was asked for by a client so far."""
        with self._lock:
            return Counter(
                {
                    (asked.api_key, asked.version): count
                    for asked, count in self._asked.items()
                    if asked.client_id == client_id
                }
            )

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.broker_port), 10)
                except OSError:
                    client.close()
                    continue
                broker.settimeout(None)
                with self._lock:
                    self._sockets |= {client, broker}
                for each in (client, broker):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._responses, args=(broker, client), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (frame := _read_frame(client)) is not None:
                self._count(frame)
                broker.sendall(frame)
        self._end(client, broker)

    def _responses(self, broker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := broker.recv(1 << 16):
                client.sendall(piece)
        self._end(client, broker)

    def _count(self, frame: bytes) -> None:
        if len(frame) < HEADER.size:
            return
        _, api_key, version, _, length = HEADER.unpack_from(frame)
        client_id = frame[HEADER.size : HEADER.size + max(0, length)].decode(errors="replace")
        with self._lock:
            self._asked[Asked(client_id, api_key, version)] += 1

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._lock:
            self._sockets.difference_update(sockets)


def _read_frame(source: socket.socket) -> bytes | None:
    data = bytearray()
    wanted = 4
    while len(data) < wanted:
        piece = source.recv(min(wanted - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
        if len(data) == 4:
            wanted = 4 + int(struct.unpack(">i", data)[0])
    return bytes(data)
