"""Sends messages between the brokers of a cluster; each message is authenticated and answered.

The listener sends random bytes first, and the caller responds with their code (HMAC-SHA256). A frame is a
length, a code and a body. The key is a secret in the ledger, so only processes that can read the ledger can
talk to the brokers; any other peer is disconnected before anything that it sends is kept. The code of an
answer covers the code of its question, so an answer cannot be forged or used for another question. Bodies are
not encrypted: they hold keys, offsets and small batches, and belong in a private network. A replayed message
does no harm, because messages name versions of entities, which a broker compares with its own.
"""

import asyncio
import contextlib
import hmac
import logging
import os
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

from semel.rate_limit import RateLimit
from semel.store.cluster.contract import Peer
from semel.store.contract import StoreRefused

log = logging.getLogger("semel.cluster")

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECTIONS_MAX: Final = 1_000
IN_FLIGHT_MAX: Final = 1_000
CONNECT_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0
"""The timeout of a message. After it, the sender stores the message in the ledger instead."""
GREETING: Final = b"semel broker"
_NONCE_BYTES: Final = 32
_CODE_BYTES: Final = 32

Receive = Callable[[bytes], Awaitable[bytes]]


class ForeignFrame(Exception):
    """A frame that was not sent by a broker of this cluster."""


class PeerConnections:
    """One connection to each other broker, opened on demand. Implements ``announcing.Peers``."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._connections: dict[tuple[int, int], _PeerConnection] = {}

    async def send(self, peer: Peer, message: bytes) -> bytes:
        """Send a message to a broker and return its answer. OSError or TimeoutError if there is none."""
        key = (peer.broker_id, peer.epoch)
        connection = self._connections.get(key)
        if connection is None or connection.is_closed:
            for old in [each for each in self._connections if each[0] == peer.broker_id]:
                self._connections.pop(old).close()
            connection = self._connections[key] = _PeerConnection(self._secret, peer.internal)
        return await connection.ask(message)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class _PeerConnection:
    def __init__(self, secret: bytes, address: tuple[str, int]) -> None:
        self._secret = secret
        self._address = address
        self._opening: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._questions: dict[int, tuple[bytes, asyncio.Future[bytes]]] = {}
        self._numbers = count(1)
        self.is_closed = False

    async def ask(self, message: bytes) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                writer = await self._open()
                number = next(self._numbers)
                body = number.to_bytes(8, "big") + message
                code = _code(self._secret, body)
                answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                self._questions[number] = (code, answer)
                try:
                    _write(writer, code, body)
                    await writer.drain()
                    return await answer
                finally:
                    del self._questions[number]
        except (OSError, TimeoutError, ForeignFrame, asyncio.IncompleteReadError) as error:
            self.close()
            raise ConnectionError(f"{self._address[0]}:{self._address[1]}: {error!r}") from error

    async def _open(self) -> asyncio.StreamWriter:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect())
        _, writer = await asyncio.shield(self._opening)
        return writer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                writer.write(_code(self._secret, GREETING + await reader.readexactly(_NONCE_BYTES)))
            except BaseException:
                writer.close()
                raise
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        return reader, writer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        error: Exception = ConnectionError("the connection is closed")
        try:
            while True:
                code, body = await _read_frame(reader)
                question, answer = self._questions.get(int.from_bytes(body[:8], "big"), (b"", None))
                if not hmac.compare_digest(code, _code(self._secret, question + body)):
                    raise ForeignFrame("an answer has a wrong code")
                if answer is not None and not answer.done():
                    answer.set_result(body[8:])
        except (OSError, asyncio.IncompleteReadError, ForeignFrame) as caught:
            error = ConnectionError(str(caught))
        finally:
            self.is_closed = True
            for _, answer in self._questions.values():
                if not answer.done():
                    answer.set_exception(error)

    def close(self) -> None:
        self.is_closed = True
        if self._reading is not None:
            self._reading.cancel()
        if self._opening is not None:
            if self._opening.done() and not self._opening.cancelled() and self._opening.exception() is None:
                self._opening.result()[1].close()
            else:
                self._opening.cancel()


class PeerListener:
    """Accepts the connections of other brokers, and answers their messages."""

    def __init__(self, secret: bytes, receive: Receive) -> None:
        self._secret = secret
        self._receive = receive
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._lines = RateLimit()

    async def start(self, host: str, port: int) -> int:
        """Listen on this address; returns the port. OSError if the address is in use."""
        self._server = await asyncio.start_server(self._accept, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        places = asyncio.Semaphore(IN_FLIGHT_MAX)
        async with asyncio.TaskGroup() as answers:
            try:
                await self._greet(reader, writer)
                while True:
                    code, body = await _read_frame(reader)
                    if not hmac.compare_digest(code, _code(self._secret, body)):
                        raise ForeignFrame("a message has a wrong code")
                    await places.acquire()
                    answers.create_task(self._answer(writer, code, body, places))
            except (OSError, asyncio.IncompleteReadError):
                return
            except ForeignFrame as error:
                if (suppressed := self._lines.suppressed("foreign")) is not None:
                    peer = writer.get_extra_info("peername")
                    log.warning("a connection of %s is closed: %s (%d more)", peer, error, suppressed)
                writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        writer.write(nonce)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                proof = await reader.readexactly(_CODE_BYTES)
        except TimeoutError:
            raise ForeignFrame("it does not prove that it is a broker of this cluster") from None
        if not hmac.compare_digest(proof, _code(self._secret, GREETING + nonce)):
            raise ForeignFrame("it is not a broker of this cluster")

    async def _answer(
        self, writer: asyncio.StreamWriter, code: bytes, body: bytes, places: asyncio.Semaphore
    ) -> None:
        try:
            answer = body[:8] + await self._receive(body[8:])
        except (ValueError, StoreRefused) as error:
            # The sender may run another version of Semel. Without an answer, it stores the message in the
            # ledger.
            log.warning("a message of another broker is not answered: %s", error)
            return
        finally:
            places.release()
        with contextlib.suppress(OSError):
            _write(writer, _code(self._secret, code + answer), answer)
            await writer.drain()


def _code(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256")


def _write(writer: asyncio.StreamWriter, code: bytes, body: bytes) -> None:
    writer.writelines(((_CODE_BYTES + len(body)).to_bytes(4, "big"), code, body))


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    length = int.from_bytes(await reader.readexactly(4), "big")
    if not _CODE_BYTES + 8 <= length <= FRAME_BYTES_MAX:
        raise ForeignFrame(f"a frame of {length} bytes")
    frame = await reader.readexactly(length)
    return frame[:_CODE_BYTES], frame[_CODE_BYTES:]
