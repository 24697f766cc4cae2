"""Reads and writes the files of a table, in a directory or at a URL that both pyarrow and deltalake support.

In a directory, files are also flushed, because a commit must not outlive the files that it names. At a URL,
the store is responsible for that. Credentials come from the environment, as both libraries read them.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyarrow import fs

from semel.spark.errors import OptionError, TableUnreachable

#: Characters that some parts of deltalake misread as the end of a path, as a separator or as an escape. The
#: log would then be written in one place and looked for in another.
_MISREAD = re.compile(r"[#?\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
#: The same in a URL, in which pyarrow does not accept these and spaces.
_MISREAD_IN_URLS = re.compile(r"[#?\\\x00-\x20\x7f]")
#: Hadoop's form of a URL without a host.
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")


def location_of(path: str) -> str:
    """Return the location of a table for every process: an absolute path, or a URL.

    OptionError if deltalake would look for the table, or for a part of its log, in another place.
    """
    plain = path
    if path.startswith("file:"):
        plain, host = _of_file_url(path)
        if host not in ("", "localhost"):
            raise OptionError(
                f"{path} is a file on the machine {host!r}. Write file:///… for one on this machine"
            )
    elif found := _ONE_SLASH.match(path):
        raise OptionError(
            f"{path} is neither a path nor a URL; did you mean {found[1]}://{path[found.end() :]}?"
        )
    is_url = plain is path and "://" in path
    location = path.rstrip("/") if is_url else str(Path(plain).absolute())
    named = unquote(location) if is_url else location
    if wrong := (_MISREAD_IN_URLS if is_url else _MISREAD).search(location) or _MISREAD.search(named):
        raise OptionError(
            f"the path of a table cannot contain {wrong[0]!r}, which deltalake reads as something else: "
            f"{location!r}. Choose another path"
        )
    return location


def _of_file_url(url: str) -> tuple[str, str]:
    """Return the path of a file URL, and the machine that it names, if any."""
    rest = url.removeprefix("file:")
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    return unquote("/" + path.lstrip("/")), host


@contextmanager
def reaching(location: str) -> Iterator[None]:
    """Raise TableUnreachable for errors of the storage."""
    try:
        yield
    except OSError as error:
        raise TableUnreachable(f"the table {location} cannot be reached: {error}") from error


class Storage:
    """Files by their paths inside a table."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.is_local = "://" not in location
        self._files: Any = fs.LocalFileSystem()
        self._root = location
        if not self.is_local:
            with reaching(location):
                self._files, self._root = fs.FileSystem.from_uri(location)

    def open(self, path: str) -> Any:
        """Open a new file for writing."""
        target = self._at(path)
        with reaching(self.location):
            if self.is_local:
                self._files.create_dir(posixpath.dirname(target), recursive=True)
            return self._files.open_output_stream(target)

    def write(self, path: str, content: bytes) -> None:
        """Write a small file."""
        with reaching(self.location), self.open(path) as stream:
            stream.write(content)

    def read(self, path: str) -> bytes | None:
        """Return a small file, or None if it does not exist."""
        with reaching(self.location):
            try:
                with self._files.open_input_stream(self._at(path)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def names(self, directory: str) -> list[str]:
        """List a directory; empty if it does not exist."""
        selector = fs.FileSelector(self._at(directory), allow_not_found=True)
        with reaching(self.location):
            return sorted(str(each.base_name) for each in self._files.get_file_info(selector))

    def changed(self, path: str) -> int | None:
        """Return when a file was written, in nanoseconds; None if it does not exist."""
        with reaching(self.location):
            (found,) = self._files.get_file_info([self._at(path)])
        return None if found.type is fs.FileType.NotFound else int(found.mtime_ns or 0)

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Return those of the files that do not exist."""
        with reaching(self.location):
            found = self._files.get_file_info([self._at(path) for path in paths])
        return [path for path, each in zip(paths, found, strict=True) if each.type is fs.FileType.NotFound]

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        with reaching(self.location), suppress(FileNotFoundError):
            self._files.delete_file(self._at(path))

    def flush(self, path: str) -> None:
        """Flush a local file and the directories that lead to it."""
        if self.is_local:
            at = Path(self._at(path))
            with reaching(self.location):
                for each in (at, *at.parents[: len(Path(path).parts)]):
                    _flush(each)

    def _at(self, path: str) -> str:
        return posixpath.join(self._root, path) if path else self._root


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
