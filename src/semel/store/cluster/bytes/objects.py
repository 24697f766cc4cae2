"""Write, read and delete immutable objects in an object store, or in a directory that all brokers see.

An object is written once, under a number that is never used again. Afterwards it is only read and deleted.
Calls of ``obstore`` run on dedicated threads, because its asynchronous calls may abort an interpreter that is
shutting down.

At startup the object store is checked: the bucket exists and accepts the credentials. Otherwise a broker with
wrong settings starts, and the first large commit fails.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from semel.core.types import Buffer
from semel.store.contract import BatchLocation, StoreBroken, StoreMisconfigured, StoreRefused
from semel.store.worker import Worker

log = logging.getLogger("semel.store")

START_RETRY: Final[Any] = {"max_retries": 1, "retry_timeout": timedelta(seconds=5)}
START_REQUEST_TIMEOUT: Final = "5s"
_REFUSED: Final = re.compile(r"status code: 4(?!08|29)\d\d [^:]*")
"""The object store refuses this request for good: a 4xx status other than 408 and 429."""
_REASON: Final = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")
_MACHINE_CREDENTIALS: Final = "169.254.169.254"
"""Where the client of an object store asks for its machine's credentials, if the environment has none."""


def client_options(timeout: str, given: Mapping[str, Any]) -> Any:
    """Return options of an HTTP client: a timeout, plain HTTP if the environment allows it, and ``given``.

    Client options that are passed to ``obstore`` replace all that it finds in the environment.
    """
    allows_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes")
    return {"timeout": timeout, **({"allow_http": True} if allows_http else {}), **given}


async def check_access(address: str, **options: Any) -> None:
    """List objects at an address. StoreMisconfigured if that is refused. No answer is only logged.

    ``options`` are those of ``Objects.open``.
    """
    worker = Worker("object-access")
    try:
        await worker.run(_check, address, options)
    finally:
        worker.stop()


def _check(address: str, options: dict[str, Any]) -> None:
    if "://" not in address:
        raise StoreMisconfigured(
            f"{address} is not an address: use s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY"
        )
    if address.startswith("file:"):
        if host := urlsplit(address).netloc:
            raise StoreMisconfigured(
                f"{address} has {host} for a host: a directory has three slashes, as in file:///srv/semel"
            )
        directory = Path(unquote(urlsplit(address).path))
        if not directory.is_dir():
            raise StoreMisconfigured(f"{directory} is not a directory: create or mount it on every broker")
        return
    options = {"retry_config": START_RETRY, **options}
    options["client_options"] = client_options(START_REQUEST_TIMEOUT, options.get("client_options", {}))
    try:
        store = from_url(address, **options)
    except (BaseError, ValueError) as error:
        raise StoreMisconfigured(f"{address} cannot be used: {_first_line(error)}") from None
    try:
        next(iter(obstore.list(store, chunk_size=1)), None)
    except BaseError as error:
        text = str(error)
        if _MACHINE_CREDENTIALS in text:
            raise StoreMisconfigured(
                f"{address} cannot be used: there are no credentials in the environment"
                " (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
            ) from None
        if refused := _REFUSED.search(text):
            said = _REASON.search(text)
            reason = ": ".join(said.groups()) if said else refused.group().removeprefix("status code: ")
            raise StoreMisconfigured(
                f"{address} cannot be used: {reason}. Check the bucket and the credentials"
            ) from None
        log.warning(
            "%s does not answer; large commits are refused until it does: %s", address, _first_line(error)
        )


T = TypeVar("T")
Claim = Callable[[], Awaitable[None]]

MARK: Final = "semel-cluster.txt"
_MARK_TEXT: Final = (
    b"Records of a Semel cluster. Every file here belongs to it. Do not change or delete any.\n"
)
THREADS: Final = 8
"""Concurrent requests: an object store answers many slow ones as fast as one."""
RETRY: Final[Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
"""Commits wait during the retries. If all fail, their clients get a retriable error."""
REQUEST_TIMEOUT: Final = "10s"
READ_PATIENCE_SECONDS: Final = 20.0
"""How long failed reads are repeated, because a reader has no other source of the bytes."""
GAP_BYTES_MAX: Final = 256 * 1024
"""Ranges closer than this share a request: reading the gap costs less than another request."""
PAUSE_SECONDS: Final = 0.1
PAUSE_MAX_SECONDS: Final = 2.0
PAGE: Final = 1_000
"""Objects in a page of a listing, and in one request to delete them."""


class Listed(NamedTuple):
    """An object in a listing."""

    number: int
    size: int
    age_seconds: float
    """Time since it was written: this machine's clock minus the object store's time."""


class Objects:
    """The objects below one address."""

    def __init__(self, store: Any, address: str, patience_seconds: float = READ_PATIENCE_SECONDS) -> None:
        self._store = store
        self._address = address
        self._patience_seconds = patience_seconds
        self._folder = ""
        self._claim: Claim | None = None
        # Objects in a directory must be flushed explicitly.
        is_directory = address.startswith("file:")
        self._directory = Path(unquote(urlsplit(address).path)) if is_directory else None
        self._failing_since: float | None = None
        self._worker = Worker("objects", threads=THREADS)
        # Separate threads, because commits must not wait behind many readers.
        self._uploads = Worker("uploads", threads=THREADS)

    @classmethod
    def open(
        cls, address: str, *, patience_seconds: float = READ_PATIENCE_SECONDS, **options: Any
    ) -> "Objects":
        """Open the objects at a URL: ``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``file:///directory``.

        Credentials come from the environment, as for every client of these services.
        """
        if not address.startswith("file:"):
            options = {"retry_config": RETRY, **options}
            options["client_options"] = client_options(REQUEST_TIMEOUT, options.get("client_options", {}))
        try:
            return cls(from_url(address, **options), address, patience_seconds)
        except (BaseError, ValueError, OSError) as error:
            raise StoreBroken(f"{address} cannot be used: {_first_line(error)}") from error

    def belong_to(self, folder: str, claim: "Claim | None" = None) -> None:
        """Use only the objects of this folder. Other folders may be at the same address.

        ``claim`` is called before each write, until it succeeds once.
        """
        self._folder = f"{folder}/"
        self._claim = claim

    # -- claim and mark -----------------------------------------------------------------------------------

    async def claim(self) -> None:
        """Check once that this is the cluster's object store. StoreMisconfigured, StoreRefused."""
        if self._claim is not None:
            await self._claim()
            self._claim = None

    async def mark(self) -> None:
        """Write the mark: the file that identifies this folder. StoreRefused."""
        await self._uploads.run(self._write_mark)

    def _write_mark(self) -> None:
        try:
            obstore.put(self._store, self._mark, _MARK_TEXT, use_multipart=False)
            self._flush(self._mark)
        except (BaseError, OSError) as error:
            raise StoreRefused(f"{self._address} cannot be written: {_first_line(error)}") from error

    async def unmark(self) -> None:
        """Delete the mark and the terms of a folder that has no objects any more. StoreRefused."""
        await self._worker.run(self._unmark)

    def _unmark(self) -> None:
        try:
            terms = [self._path_of_term(term) for term in self._noted_terms()]
        except OSError as error:
            raise StoreRefused(str(error)) from error
        self._delete_paths([*terms, self._mark])

    async def is_marked(self) -> bool:
        """Whether this folder has its mark. OSError."""
        return await self._uploads.run(self._size, self._mark) is not None

    async def keeps_mark(self) -> bool:
        """Whether the object store refuses to create the mark, which exists. OSError."""
        return await self._uploads.run(self._keeps_mark)

    def _keeps_mark(self) -> bool:
        try:
            obstore.put(self._store, self._mark, _MARK_TEXT, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return True
        except BaseError as error:
            raise OSError(f"{self._address} cannot be written: {_first_line(error)}") from error
        return False

    @property
    def _mark(self) -> str:
        return f"{self._folder}{MARK}"

    @property
    def mark_address(self) -> str:
        """The address of the mark."""
        return f"{self._address.rstrip('/')}/{self._mark}"

    def _check_directory(self) -> None:
        """Raise OSError if the directory lacks the mark, perhaps because it is not mounted."""
        if self._directory is not None and self._folder and not (self._directory / self._mark).exists():
            raise OSError(f"{self.mark_address} is missing; is the directory mounted?")

    # -- terms --------------------------------------------------------------------------------------------

    async def newest_term(self) -> tuple[int, str] | None:
        """Return the newest noted term and its id; None if no term is noted. OSError."""
        return await self._uploads.run(self._newest_term)

    def _newest_term(self) -> tuple[int, str] | None:
        self._check_directory()
        terms = self._noted_terms()
        return (terms[-1], self._read_term(terms[-1])) if terms else None

    async def note_term(self, term: int, term_id: str) -> str:
        """Note a term unless it is noted already. Return the id that is noted. StoreRefused."""
        await self.claim()
        return await self._uploads.run(self._note_term, term, term_id)

    def _note_term(self, term: int, term_id: str) -> str:
        path = self._path_of_term(term)
        try:
            self._check_directory()
            with contextlib.suppress(AlreadyExistsError):
                obstore.put(self._store, path, term_id.encode(), mode="create", use_multipart=False)
            self._flush(path)
            return self._read_term(term)
        except (BaseError, OSError) as error:
            raise StoreRefused(f"{self._address} cannot be written: {_first_line(error)}") from error

    def _noted_terms(self) -> list[int]:
        try:
            found = [
                each for page in obstore.list(self._store, prefix=f"{self._folder}terms/") for each in page
            ]
        except BaseError as error:
            raise OSError(f"{self._address} cannot be listed: {_first_line(error)}") from error
        return sorted(number for each in found if (number := _number_of(each["path"])) is not None)

    def _read_term(self, term: int) -> str:
        try:
            return bytes(obstore.get(self._store, self._path_of_term(term)).bytes()).decode()
        except (BaseError, FileNotFoundError) as error:
            raise OSError(f"{self._address} cannot be read: {_first_line(error)}") from error

    def _path_of_term(self, term: int) -> str:
        return f"{self._folder}terms/{term:016x}"

    # -- writing ------------------------------------------------------------------------------------------

    async def put(self, number: int, parts: Sequence[Buffer]) -> None:
        """Write an object, and check that it is there. StoreRefused if the object store does not take it."""
        await self.claim()
        await self._uploads.run(self._put, number, [bytes(part) for part in parts])

    def _put(self, number: int, parts: list[bytes]) -> None:
        path = self._path_of(number)
        size = sum(map(len, parts))
        try:
            self._check_directory()
            try:
                written = obstore.put(self._store, path, parts, mode="create", use_multipart=False)
            except AlreadyExistsError:
                # The answer to an earlier attempt was lost. No other broker uses this number.
                if bytes(obstore.get(self._store, path).bytes()) != b"".join(parts):
                    raise StoreBroken(
                        f"object {path} in {self._address} is not the one that was written: the ledger is"
                        " older than the objects"
                    ) from None
            else:
                found = obstore.head(self._store, path)
                if found["size"] != size or not _may_be_same(found, written):
                    raise StoreRefused(f"{self._address} did not keep object {path} as it was written")
            self._flush(path)
        except (BaseError, OSError) as error:
            raise StoreRefused(f"{self._address} cannot be written: {_first_line(error)}") from error

    def _flush(self, path: str) -> None:
        """Flush an object in a directory, and its name. An object store does this before it answers."""
        if self._directory is None:
            return
        file = self._directory / path
        for each in (file, *file.parents[: len(Path(path).parts)]):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    # -- reading ------------------------------------------------------------------------------------------

    async def read(self, ranges: Sequence[BatchLocation]) -> list[bytes]:
        """Return the bytes of these ranges of objects. LookupError if one is gone, OSError if unreadable.

        Neighbouring ranges of an object are one request. A request that fails is repeated for a while.
        """
        by_object: dict[int, list[int]] = {}
        for at, each in enumerate(ranges):
            by_object.setdefault(each.chunk_id, []).append(at)
        wanted = [(number, [ranges[at] for at in places]) for number, places in by_object.items()]
        answers = await asyncio.gather(*(self._patiently(self._read, *each) for each in wanted))
        found: list[bytes] = [b""] * len(ranges)
        for answer, places in zip(answers, by_object.values(), strict=True):
            for at, data in zip(places, answer, strict=True):
                found[at] = data
        return found

    async def _patiently(self, job: Callable[..., T], *arguments: Any) -> T:
        """Repeat a job that fails. Patience is counted from the first failure after a success.

        So a reader waits once for an unreachable object store, not once per range.
        """
        clock = asyncio.get_running_loop().time
        pause = PAUSE_SECONDS
        while True:
            try:
                result = await self._worker.run(job, *arguments)
            except OSError:
                self._failing_since = self._failing_since or clock()
                if clock() + pause > self._failing_since + self._patience_seconds:
                    raise
            else:
                self._failing_since = None
                return result
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX_SECONDS)

    def _read(self, number: int, ranges: list[BatchLocation]) -> list[bytes]:
        path = self._path_of(number)
        starts, lengths = [each.position for each in ranges], [each.length for each in ranges]
        reason = "its answer is too short"
        try:
            found = obstore.get_ranges(
                self._store, path, starts=starts, lengths=lengths, coalesce=GAP_BYTES_MAX
            )
        except FileNotFoundError:
            self._check_directory()
            raise LookupError(f"object {path} is not in {self._address}") from None
        except BaseError as error:
            reason = _first_line(error)
        else:
            data = [bytes(each) for each in found]
            if list(map(len, data)) == lengths:
                return data
        size = self._size(path)
        if size is None or any(each.position + each.length > size for each in ranges):
            raise LookupError(f"object {path} in {self._address} is shorter than that")
        raise OSError(f"{self._address} cannot be read: {reason}")

    def _size(self, path: str) -> int | None:
        try:
            return int(obstore.head(self._store, path)["size"])
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise OSError(f"{self._address} cannot be read: {_first_line(error)}") from error

    async def has(self, number: int) -> bool:
        """Whether an object is there. OSError."""
        return await self.size(number) is not None

    async def size(self, number: int) -> int | None:
        """The size of an object; None if it is not there. OSError."""
        return await self._patiently(self._size, self._path_of(number))

    # -- deleting and listing -----------------------------------------------------------------------------

    async def delete(self, numbers: Sequence[int]) -> None:
        """Delete objects. It is no error if one does not exist. StoreRefused."""
        for start in range(0, len(numbers), PAGE):
            await self._worker.run(self._delete, numbers[start : start + PAGE])

    def _delete(self, numbers: Sequence[int]) -> None:
        self._delete_paths([self._path_of(number) for number in numbers])

    def _delete_paths(self, paths: Sequence[str]) -> None:
        try:
            try:
                obstore.delete(self._store, paths)
            except FileNotFoundError:
                # Some services stop at the first object that is missing.
                for path in paths:
                    with contextlib.suppress(FileNotFoundError):
                        obstore.delete(self._store, path)
        except BaseError as error:
            raise StoreRefused(f"{self._address} cannot be changed: {_first_line(error)}") from error

    async def pages(self, after_number: int | None = None) -> AsyncIterator[list[Listed]]:
        """List all objects, or those with larger numbers, ordered by number. OSError."""
        after = None if after_number is None else self._path_of(after_number)
        while True:
            found, after = await self._patiently(self._list, after)
            if found:
                yield sorted(found)
            if after is None:
                return

    def _list(self, after: str | None) -> tuple[list[Listed], str | None]:
        """List a page after a path. Return the last path, None if there are no more."""
        found: list[Any] = []
        self._check_directory()
        try:
            for page in obstore.list(
                self._store, prefix=f"{self._folder}chunks/", offset=after, chunk_size=PAGE
            ):
                found += page
                # A directory is listed in no order, so all of it is one page.
                if self._directory is None:
                    break
        except BaseError as error:
            raise OSError(f"{self._address} cannot be listed: {_first_line(error)}") from error
        now = datetime.now(UTC)
        listed = [
            Listed(number, each["size"], (now - each["last_modified"]).total_seconds())
            for each in found
            if (number := _number_of(each["path"])) is not None
        ]
        return listed, found[-1]["path"] if found and self._directory is None else None

    def close(self) -> None:
        """Finish the requests under way, and stop the threads."""
        self._uploads.stop()
        self._worker.stop()

    def _path_of(self, number: int) -> str:
        return f"{self._folder}chunks/{number:016x}"


def _number_of(path: str) -> int | None:
    """Return the number in a path; None for a file that Semel did not write."""
    name = path.rpartition("/")[2]
    return int(name, 16) if len(name) == 16 and set(name) <= set("0123456789abcdef") else None


def _may_be_same(found: Any, written: Any) -> bool:
    """Whether an object has the ETag that it got when it was written. Not every service has ETags."""
    tags = {(each.get("e_tag") or "").strip('"') for each in (found, written)}
    return len(tags - {""}) <= 1


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
