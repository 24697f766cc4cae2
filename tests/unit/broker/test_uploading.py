"""Uploads before a commit."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from semel.broker.cluster.commit_loop import Uploads
from semel.broker.commit.pending_commands import PendingCommands, without_refused
from semel.core.log.partition import Append
from semel.core.types import Buffer, PartitionKey
from semel.store.contract import StoreRefused
from semel.wire.batch import read_header
from semel.wire.records import Record, encode_batch


class Away:
    """An object store that does not answer."""

    async def put_ahead(self, batches: Sequence[Buffer]) -> None:
        raise StoreRefused("no answer")


def pending(size: int) -> PendingCommands:
    data = encode_batch([Record(0, 1, None, bytes(size))])
    made = PendingCommands([Append(PartitionKey(b"t" * 16, 0), read_header(data), data)])
    made.room_bytes = len(data)
    return made


async def test_commands_whose_upload_failed_are_refused_and_not_uploaded_by_the_commit() -> None:
    """Everybody waits for a commit, also those with small requests."""
    released: asyncio.Future[PendingCommands] = asyncio.get_running_loop().create_future()
    store: Any = Away()
    uploads = Uploads(store, 1_000, released.set_result)
    small, large = pending(10), pending(2_000)
    for each in (small, large):
        uploads.begin(each)
    assert [small.is_held, large.is_held] == [False, True]
    assert await released is large
    assert without_refused([small, large]) == [small]
    with pytest.raises(StoreRefused):
        await large
