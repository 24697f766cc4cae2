"""Reads a URL of the settings, a file or an HTTPS server, with bounds on size and time.

Clients get tokens and brokers get keys from such URLs. Plain HTTP is accepted for this machine only, because
secrets and keys travel over it. Redirects are not followed: urllib would send the headers, and the secret in
them, to any address that the response names.
"""

import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Final, NoReturn
from urllib.error import HTTPError
from urllib.parse import SplitResult, urlsplit

from semel.printable import printable

TIMEOUT_S: Final = 10.0
_PIECE: Final = 65_536


class UrlError(Exception):
    """The URL could not be read. `status` and `body` are those of the HTTP response, if there was one."""

    def __init__(self, reason: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(reason)
        self.status = status
        self.body = body


def url_problem(url: str) -> str | None:
    """Return why a URL cannot be used, or None. The text omits the URL, which may contain a password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is not a valid URL"
    if parts.username is not None or parts.password is not None:
        return "must not contain a user or a password"
    if any(sign.isspace() or not sign.isprintable() for sign in url):
        return "must not contain spaces"
    match parts.scheme:
        case "file":
            return None if host in ("", "localhost") and parts.path else "must be file:///path"
        case "https":
            return None if host else "has no host"
        case "http":
            return (
                None
                if _is_loopback(host)
                else "must be an https:// URL, because its host is not this machine"
            )
        case _:
            return "must be an https:// or file:// URL"


def read_url(
    url: str,
    size_max: int,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """Return the content, at most `size_max` bytes. `body` is sent by POST. UrlError says why it failed."""
    if problem := url_problem(url):
        raise UrlError(f"the URL {problem}")
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _read_file(parts, size_max)
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}))
    try:
        with _opener(parts.scheme).open(request, timeout=timeout_s) as answer:
            return _bounded(answer, size_max, timeout_s)
    except HTTPError as error:
        with error:
            reason = f"it answers {error.code} {printable(str(error.reason))}"
            raise UrlError(reason, error.code, _start(error)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise UrlError(str(getattr(error, "reason", error)) or type(error).__name__) from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(parts: SplitResult, size_max: int) -> bytes:
    path = Path(urllib.request.url2pathname(parts.path))
    try:
        with path.open("rb") as file:
            content = file.read(size_max + 1)
    except (OSError, ValueError) as error:
        raise UrlError(getattr(error, "strerror", None) or str(error)) from None
    if len(content) > size_max:
        raise UrlError(f"it is longer than {size_max} bytes")
    return content


def _opener(scheme: str) -> urllib.request.OpenerDirector:
    """Return an opener that follows no redirects, and uses no proxy for plain HTTP, which it could read."""
    proxy = urllib.request.ProxyHandler({} if scheme == "http" else None)
    return urllib.request.build_opener(proxy, _NoRedirects)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> NoReturn:
        raise HTTPError(req.full_url, code, "with a redirect, which is not followed", headers, fp)


def _bounded(answer: IO[bytes], size_max: int, timeout_s: float) -> bytes:
    """Read to the end. A socket's timeout limits one read only, so a deadline limits all of them."""
    deadline = time.monotonic() + timeout_s
    pieces, size = [], 0
    while piece := answer.read(min(_PIECE, size_max + 1 - size)):
        pieces.append(piece)
        size += len(piece)
        if size > size_max:
            raise UrlError(f"its answer is longer than {size_max} bytes")
        if time.monotonic() > deadline:
            raise UrlError(f"its answer did not come within {timeout_s:g} s")
    return b"".join(pieces)


def _start(error: HTTPError) -> bytes:
    try:
        return error.read(2_000)
    except (OSError, HTTPException):
        return b""
