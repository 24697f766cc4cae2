"""Uploads large batches before their commands are decided.

An object store may take a tenth of a second. So no tick waits for it, and a tick that is decided again does
not upload the same bytes again. Later requests of the same client wait for the upload, because the queue
keeps their order; those of other clients do not.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from semel.broker.commit.pending_commands import PendingCommands
from semel.core.log.partition import Append
from semel.core.types import Buffer
from semel.store.cluster.contract import SharedStore
from semel.store.contract import StoreRefused

log = logging.getLogger("semel.broker")


class Uploads:
    """Owned by the commit loop of a broker in a cluster."""

    def __init__(
        self, store: SharedStore, inline_bytes_max: int, release: Callable[[PendingCommands], None]
    ) -> None:
        self._store = store
        self._inline_bytes_max = inline_bytes_max
        self._release = release
        """Called when the hold of commands is over."""
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, pending: PendingCommands) -> None:
        """Hold commands with large batches, and upload these."""
        if pending.room_bytes <= self._inline_bytes_max:
            return
        batches = [each.records for each in pending.commands if isinstance(each, Append)]
        if sum(map(len, batches)) > self._inline_bytes_max:
            pending.is_held = True
            task = asyncio.get_running_loop().create_task(self._upload(pending, batches))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _upload(self, pending: PendingCommands, batches: Sequence[Buffer]) -> None:
        try:
            await self._store.put_ahead(batches)
            pending.uploaded = batches
        except StoreRefused as refused:
            # The commit must not try again: the commands of other clients would wait for it.
            pending.refused = refused
            log.warning("records could not be uploaded: %s", refused)
        finally:
            # After any other error the commit meets the same error, which stops the broker.
            self._release(pending)

    def forget(self, answered: Iterable[PendingCommands]) -> None:
        """Forget the uploads of commands that were answered."""
        for each in answered:
            if each.uploaded:
                self._store.forget_ahead(each.uploaded)
