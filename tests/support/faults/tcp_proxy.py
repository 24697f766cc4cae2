"""A proxy on loopback that passes the bytes of any protocol, until a test has it fail as networks do.

with TcpProxy(("127.0.0.1", 5432)) as proxy:
    proxy.cut()     # every connection is closed, and new ones are refused
    proxy.silence() # nothing passes in either direction, and no connection is closed
    proxy.mend()    # new connections pass again, and what was held back is delivered
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Self

from support.brokers.process import free_port

Address = tuple[str, int]


class TcpProxy:
    """Listens on its own port before one server, and runs on its own event loop."""

    def __init__(self, upstream: Address, change: Callable[[bytes], bytes] = bytes) -> None:
        self._change = change
        self.upstream = upstream
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy {self.port}", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()
        self._refuses = False
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self.held = 0
        """How many pieces of data were held back."""
        self.delay_seconds = 0.0
        """The delay of every piece of data from now on."""

    @property
    def address(self) -> Address:
        return ("127.0.0.1", self.port)

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""

        def cut() -> None:
            self._refuses = True
            for each in self._connections:
                each.cancel()

        self._call(cut)

    def drop(self) -> None:
        """Close all connections. New ones are accepted."""

        def drop() -> None:
            for each in self._connections:
                each.cancel()

        self._call(drop)

    def silence(self) -> None:
        """Pass nothing, as a network that loses every packet."""
        self._call(self._passing.clear)

    def mend(self) -> None:
        """Pass everything again."""

        def mend() -> None:
            self._refuses = False
            self._passing.set()

        self._call(mend)

    def _call(self, work: Callable[[], None]) -> None:
        done = threading.Event()

        def call() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(call)
        assert done.wait(10), "the proxy does not answer"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, *self.address)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self._refuses:
                await self._passing.wait()
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # asyncio would report a cancelled connection as an error
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection(*self.upstream)
        there = asyncio.create_task(self._pass(reader, upstream[1], self.listener()))
        back = asyncio.create_task(self._pass(upstream[0], writer))
        try:
            # None of our protocols can use a connection with one side closed.
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (there, back):
                each.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            upstream[1].transport.abort()

    def listener(self) -> Callable[[bytes], object]:
        """Return what a connection calls with all data that the client sends; a subclass may override it."""
        return bytes

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        listener: Callable[[bytes], object] = bytes,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                listener(data)
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                self.held += not self._passing.is_set()
                await self._passing.wait()
                writer.write(self._change(data))
                await writer.drain()
