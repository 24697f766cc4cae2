"""Immutable objects in an object store, or in a directory that all brokers see.

An object is written once, under a number that is never used again, and only read and deleted afterwards. The
calls of ``obstore`` run on threads of their own: its asynchronous ones may abort an interpreter that ends.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from semel.core.types import Buffer
from semel.store.interface import BatchLocation, StoreBroken, StoreRefused
from semel.store.object_access import client_options
from semel.store.worker import Worker

THREADS: Final = 8
"""Requests under way at once: an object store answers many slow ones as fast as one."""
RETRY: Final[Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
"""Commits wait meanwhile. Then their clients get an error that they can retry."""
REQUEST_TIMEOUT: Final = "10s"
_PREFIX: Final = "chunks/"


class Objects:
    """The objects below one address."""

    def __init__(self, store: Any, address: str) -> None:
        self._store = store
        self._address = address
        self._worker = Worker("objects", threads=THREADS)

    @classmethod
    def open(cls, address: str, **options: Any) -> "Objects":
        """The objects at a URL: ``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``file:///directory``.

        Credentials come from the environment, as for every client of these services.
        """
        if not address.startswith("file:"):
            options = {"retry_config": RETRY, **options}
            options["client_options"] = client_options(REQUEST_TIMEOUT, options.get("client_options", {}))
        try:
            return cls(from_url(address, **options), address)
        except (BaseError, ValueError, OSError) as error:
            raise StoreBroken(f"{address} cannot be used: {_first_line(error)}") from error

    async def put(self, number: int, parts: Sequence[Buffer]) -> None:
        """Write an object. StoreRefused if the object store does not take it."""
        await self._worker.run(self._put, number, [bytes(part) for part in parts])

    def _put(self, number: int, parts: list[bytes]) -> None:
        path = _path_of(number)
        try:
            obstore.put(self._store, path, parts, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # The answer to an earlier try was lost. Nobody else uses this number.
            found = obstore.head(self._store, path)["size"]
            if found != sum(map(len, parts)):
                raise StoreBroken(
                    f"object {path} in {self._address} is not the one that was written"
                ) from None
        except (BaseError, OSError) as error:
            raise StoreRefused(f"{self._address} cannot be written: {_first_line(error)}") from error

    async def read(self, ranges: Sequence[BatchLocation]) -> list[bytes]:
        """Return the bytes of these ranges of objects. LookupError if one is gone, OSError if unreadable."""
        by_object: dict[int, list[int]] = {}
        for at, each in enumerate(ranges):
            by_object.setdefault(each.chunk_id, []).append(at)
        jobs = [
            self._worker.begin(self._read, number, [ranges[at] for at in places])
            for number, places in by_object.items()
        ]
        found: list[bytes] = [b""] * len(ranges)
        for job, places in zip(jobs, by_object.values(), strict=True):
            for at, data in zip(places, await job, strict=True):
                found[at] = data
        return found

    def _read(self, number: int, ranges: list[BatchLocation]) -> list[bytes]:
        path = _path_of(number)
        starts, lengths = [each.position for each in ranges], [each.length for each in ranges]
        try:
            found = obstore.get_ranges(self._store, path, starts=starts, lengths=lengths)
        except FileNotFoundError:
            raise LookupError(f"object {path} is not in {self._address}") from None
        except BaseError as error:
            size = self._size(path)
            if size is not None and all(each.position + each.length <= size for each in ranges):
                raise OSError(f"{self._address} cannot be read: {_first_line(error)}") from error
            raise LookupError(f"object {path} in {self._address} is shorter than that") from None
        data = [bytes(each) for each in found]
        if list(map(len, data)) != lengths:
            raise LookupError(f"object {path} in {self._address} is shorter than that")
        return data

    def _size(self, path: str) -> int | None:
        try:
            return int(obstore.head(self._store, path)["size"])
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise OSError(f"{self._address} cannot be read: {_first_line(error)}") from error

    async def delete(self, number: int) -> None:
        """Delete an object. It is no error if it does not exist. StoreRefused."""
        await self._worker.run(self._delete, number)

    def _delete(self, number: int) -> None:
        try:
            obstore.delete(self._store, _path_of(number))
        except FileNotFoundError:
            pass
        except BaseError as error:
            raise StoreRefused(f"{self._address} cannot be changed: {_first_line(error)}") from error

    async def list_all(self) -> list[tuple[int, int]]:
        """Return the numbers and sizes of all objects, in order. OSError."""
        return await self._worker.run(self._list)

    def _list(self) -> list[tuple[int, int]]:
        try:
            pages = obstore.list(self._store, prefix=_PREFIX)
            found = [(each["path"].removeprefix(_PREFIX), each["size"]) for page in pages for each in page]
        except BaseError as error:
            raise OSError(f"{self._address} cannot be listed: {_first_line(error)}") from error
        return sorted((int(name, 16), size) for name, size in found)

    def close(self) -> None:
        """Finish what was begun, and end the threads."""
        self._worker.stop()


def _path_of(number: int) -> str:
    return f"{_PREFIX}{number:016x}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
