"""A proxy on loopback that counts clients' requests, to prove which requests were sent."""

import struct
import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from support.faults.tcp_proxy import TcpProxy

from semel.wire.frames import FrameParser

HEADER = struct.Struct(">hhih")
LARGEST_BYTES = 1 << 30


class Asked(NamedTuple):
    """A kind of request, of one client."""

    client_id: str
    api_key: int
    version: int


class Wiretap(TcpProxy):
    """Forwards connections to a broker that advertises this proxy's port."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._asked: Counter[Asked] = Counter()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def forward(self, port: int) -> None:
        """Forward to a broker on this port."""
        self.upstream = ("127.0.0.1", port)

    def asked_by(self, client_id: str) -> Counter[tuple[int, int]]:
        """Return how often a client has sent each (api key, version) so far."""
        with self._lock:
            return Counter(
                {
                    (asked.api_key, asked.version): count
                    for asked, count in self._asked.items()
                    if asked.client_id == client_id
                }
            )

    def listener(self) -> Callable[[bytes], object]:
        """Return a function that counts the requests of one connection."""
        parser = FrameParser(LARGEST_BYTES)

        def count(data: bytes) -> None:
            for frame in parser.feed(data):
                if len(frame) >= HEADER.size:
                    api_key, version, _, length = HEADER.unpack_from(frame)
                    name = bytes(frame[HEADER.size : HEADER.size + max(0, length)])
                    with self._lock:
                        self._asked[Asked(name.decode(errors="replace"), api_key, version)] += 1

        return count
