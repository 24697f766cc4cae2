"""Delays answers until other brokers have the notices of their commits.

A later tick that read one of the entities of such a commit is answered after it: its client must not learn
what other brokers do not know yet.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, Protocol

from semel.broker.cluster.notice import Notices
from semel.core.types import Key
from semel.store.contract import StoreRefused

CATCH_UP_SECONDS: Final = 0.1
"""How long to wait before the ledger is queried again. Without the ledger nothing can be confirmed."""


class Announcer(Protocol):
    """Sends notices to other brokers."""

    async def announce(self, notices: Notices) -> None:
        """Return when every recipient has its notice, or will have it before it serves clients."""

    def announce_later(self, notices: Notices) -> None:
        """Send notices in the background. No answer waits for them, and they may be lost."""


class Unannounced:
    """Commits whose notices are in flight."""

    def __init__(self, announcer: Announcer, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._announcer = announcer
        self._catch_up = catch_up
        """Loads into this broker what it is about to confirm. Raises StoreRefused."""
        self._by_key: dict[Key, asyncio.Task[None]] = {}
        """Entities whose owners do not have the notice of the newest commit yet."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.fatal: Callable[[BaseException], None] = _raise

    def __len__(self) -> int:
        return len(self._tasks)

    def answer(
        self, reads: Iterable[Key], notices: Notices, revealing: Iterable[Key], answer: Callable[[], None]
    ) -> None:
        """Announce a commit, then answer; at once if there is nothing to wait for.

        A later tick that reads one of the ``revealing`` entities is answered after this one.
        """
        earlier = {self._by_key[key] for key in reads if key in self._by_key}
        if not notices and not earlier:
            answer()
            return
        task = asyncio.get_running_loop().create_task(self._answer_later(notices, earlier, answer))
        self._tasks[task] = None
        keys = list(revealing)
        self._by_key.update(dict.fromkeys(keys, task))
        task.add_done_callback(lambda _: self._ended(keys, task))

    async def _answer_later(
        self, notices: Notices, earlier: "Collection[asyncio.Task[None]]", answer: Callable[[], None]
    ) -> None:
        if notices:
            await self._announcer.announce(notices)
            await self._know()
        if earlier:
            await asyncio.wait(earlier)
        answer()

    async def _know(self) -> None:
        while True:
            try:
                return await self._catch_up()
            except StoreRefused:
                await asyncio.sleep(CATCH_UP_SECONDS)

    def _ended(self, keys: Iterable[Key], task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        for key in keys:
            if self._by_key.get(key) is task:
                del self._by_key[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fatal(error)

    async def wait(self, seconds: float) -> None:
        """Wait until other brokers have all notices. Raises StoreRefused if that takes longer."""
        if self._tasks:
            _, waiting = await asyncio.wait(self._tasks, timeout=seconds)
            if waiting:
                raise StoreRefused("other brokers do not know the latest commits yet")

    async def stop(self) -> None:
        """Cancel the answers that wait, because this broker ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _raise(error: BaseException) -> None:
    raise error
