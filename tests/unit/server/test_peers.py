"""Messages between brokers: answered, authenticated, bounded."""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from support.waiting import LIMIT_SECONDS

from semel.server.peers import FRAME_BYTES_MAX, GREETING, PeerConnections, PeerListener
from semel.store.cluster.contract import Peer

SECRET = b"s" * 32


async def echo(message: bytes) -> bytes:
    if message == b"foreign":
        raise ValueError("of another version")
    return b"<" + message + b">"


@asynccontextmanager
async def listening(
    secret: bytes = SECRET, answer: Callable[[bytes], Awaitable[bytes]] = echo
) -> AsyncIterator[Peer]:
    listener = PeerListener(secret, answer)
    port = await listener.start("127.0.0.1", 0)
    try:
        yield Peer(1, 1, {}, ("127.0.0.1", port), None, True)
    finally:
        await listener.stop()


async def test_messages_are_answered() -> None:
    async with listening() as peer:
        peers = PeerConnections(SECRET)
        assert await peers.send(peer, b"a") == b"<a>"
        assert await peers.send(peer, bytes(1_000_000)) == b"<" + bytes(1_000_000) + b">"
        peers.close()


async def test_a_slow_answer_does_not_delay_others() -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def answer(message: bytes) -> bytes:
        if message == b"slow":
            has_begun.set()
            await may_end.wait()
        return await echo(message)

    async with listening(answer=answer) as peer:
        peers = PeerConnections(SECRET)
        slow = asyncio.create_task(peers.send(peer, b"slow"))
        await has_begun.wait()
        assert await peers.send(peer, b"quick") == b"<quick>"
        may_end.set()
        assert await slow == b"<slow>"
        peers.close()


async def test_a_broker_with_another_secret_gets_no_answer() -> None:
    async with listening() as peer:
        peers = PeerConnections(b"x" * 32)
        with pytest.raises(ConnectionError):
            await peers.send(peer, b"a")
        peers.close()


async def test_an_answer_cannot_be_made_up() -> None:
    async def forge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(32))
        await reader.readexactly(32)
        length = int.from_bytes(await reader.readexactly(4), "big")
        frame = await reader.readexactly(length)
        # The code of the question is not the code of the answer.
        writer.write((32 + 8 + 4).to_bytes(4, "big") + frame[:32] + frame[32:40] + b"done")
        await writer.drain()
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(forge, "127.0.0.1", 0)
    peer = Peer(1, 1, {}, ("127.0.0.1", server.sockets[0].getsockname()[1]), None, True)
    peers = PeerConnections(SECRET)
    with pytest.raises(ConnectionError):
        await peers.send(peer, b"a")
    peers.close()
    await ended.wait()
    server.close()


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * 32, b"x" * 1_000_000])
async def test_a_stranger_is_disconnected_before_anything_is_kept(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.server.peers.ANSWER_SECONDS", 0.2)
    async with listening() as peer:
        reader, writer = await asyncio.open_connection(*peer.internal)
        await reader.readexactly(32)
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), LIMIT_SECONDS) == b""
        writer.close()


@pytest.mark.parametrize("length", [0, 39, FRAME_BYTES_MAX + 1])
async def test_a_frame_of_an_impossible_length_closes_the_connection(length: int) -> None:
    async with listening() as peer:
        reader, writer = await asyncio.open_connection(*peer.internal)
        writer.write(hmac.digest(SECRET, GREETING + await reader.readexactly(32), "sha256"))
        writer.write(length.to_bytes(4, "big"))
        assert await asyncio.wait_for(reader.read(), LIMIT_SECONDS) == b""
        writer.close()
        peers = PeerConnections(SECRET)
        assert await peers.send(peer, b"a") == b"<a>"
        peers.close()


async def test_a_broker_that_does_not_listen_is_an_error() -> None:
    async with listening() as peer:
        pass
    peers = PeerConnections(SECRET)
    with pytest.raises(ConnectionError):
        await peers.send(peer, b"a")
    peers.close()


async def test_a_connection_is_made_again_after_it_was_lost() -> None:
    async with listening() as peer:
        peers = PeerConnections(SECRET)
        assert await peers.send(peer, b"a") == b"<a>"
        peers.close()
        assert await peers.send(peer, b"b") == b"<b>"
        peers.close()


async def test_a_message_of_another_version_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.server.peers.ANSWER_SECONDS", 0.2)
    async with listening() as peer:
        peers = PeerConnections(SECRET)
        with pytest.raises(ConnectionError):
            await peers.send(peer, b"foreign")
        peers.close()
