"""Admits or refuses each request to the console before a page handles it.

One ASGI middleware checks, in this order: the Host must be a name of the console (against DNS rebinding);
a request that changes something must come from the console's own pages (against CSRF) and is refused if the
console is read-only; there must be a session if the console requires a login; and the body has a limit. The
middleware also removes `.json` from the path, so that a page and its JSON twin are one route, and sets the
security headers of every response.
"""

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.console.failures import of_bug
from semel.console.rendering import byte_size, failure
from semel.console.sessions import COOKIE, LoginSession, Sessions
from semel.console.settings import ConsoleSettings

JSON_SUFFIX: Final = ".json"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
#: Addresses that need no session.
OPEN_PATHS: Final = ("/login", "/logout")
#: The largest body for these paths, to which anyone may send one. No password is longer.
OPEN_BYTES: Final = 64 << 10
#: Paths that accept POST on a read-only console: login, logout, and checks, which change nothing.
HARMLESS_PATHS: Final = (
    *OPEN_PATHS,
    "/checks/hanging",
    "/checks/records",
    "/checks/verify",
    "/checks/storage",
)
STATIC_PREFIX: Final = "/static/"
#: A name or an IPv6 address in brackets, and a port. Anything else is rejected: proxies and servers parse
#: malformed Host headers differently.
HOST: Final = re.compile(r"(?:(?P<name>[a-z0-9._-]+)|\[(?P<v6>[0-9a-f:.]+)\])(?::[0-9]{1,5})?")

CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Endpoint = Callable[[Request], Awaitable[Response]]


def changes(path: str, endpoint: Endpoint) -> Route:
    """A route that changes something in the cluster. It takes POST only; a read-only console refuses it."""
    return Route(path, endpoint, methods=["POST"])


class BodyTooLarge(Exception):
    """The body of a request exceeds its limit."""


class Access:
    """The middleware around all pages."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ConsoleSettings,
        sessions: Sessions,
        everyone: LoginSession | None,
    ) -> None:
        """`everyone` is the session of all browsers if the console requires no login, else None."""
        self._app = app
        self._settings = settings
        self._sessions = sessions
        self._everyone = everyone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _cut_suffix(scope)
        request = Request(scope, receive)
        send = _with_headers(send, scope["path"].startswith(STATIC_PREFIX))
        refusal = self._refused(request) or self._without_session(request)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        most = OPEN_BYTES if scope["path"] in OPEN_PATHS else self._settings.body_bytes
        try:
            await self._app(scope, _limited(receive, most), send)
        except BodyTooLarge:
            text = f"a request may have {byte_size(most)}; send less at once."
            reply = failure(request, 413, "Too large", text)
            await reply(scope, receive, send)
        except ClientDisconnect:
            return  # The browser has gone, or the server is to disconnect it.
        except Exception as error:  # noqa: BLE001 - the error page needs the security headers, too
            reply = await of_bug(request, error)
            await reply(scope, receive, send)

    def _refused(self, request: Request) -> Response | None:
        headers = request.headers
        host = _host_name(headers.get("host", ""))
        if host is None:
            return failure(request, 400, "Invalid host", "the Host of a request is a name and a port.")
        if host not in self._settings.hosts:
            return failure(
                request,
                HTTPStatus.MISDIRECTED_REQUEST,
                "Unknown host",
                f"this console does not answer for the host {host!r}. Start it with --allow-host {host} if "
                "that is its name.",
            )
        if request.method in SAFE_METHODS:
            if _is_foreign_read(headers):
                return failure(request, 403, "From another site", "pages of other sites may not read this.")
            return None
        if not _is_own(headers, request.scope["scheme"]):
            return failure(
                request,
                403,
                "From another site",
                "changes are accepted from the console's own pages only: Origin must be the console's "
                "address, or Sec-Fetch-Site same-origin.",
            )
        if self._settings.read_only and request.scope["path"] not in HARMLESS_PATHS:
            return failure(
                request, 403, "Read-only", "this console was started with --read-only and changes nothing."
            )
        return None

    def _without_session(self, request: Request) -> Response | None:
        path: str = request.scope["path"]
        session = self._everyone or self._sessions.find(request.cookies.get(COOKIE, ""))
        request.state.session = session
        if session is not None or path in OPEN_PATHS or path.startswith(STATIC_PREFIX):
            return None
        if request.state.is_json or request.method not in SAFE_METHODS or _wants_events(request.headers):
            return failure(request, 401, "Log in first", "this console wants a login; open /login.")
        query = request.scope["query_string"].decode("latin-1")
        asked = path + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(asked, safe='')}", status_code=303)


def _cut_suffix(scope: Scope) -> None:
    """Serve `/topics.json` by the route `/topics`. A dot that is written `%2E` belongs to a name."""
    raw = scope.get("raw_path") or scope["path"].encode()
    state: dict[str, Any] = scope.setdefault("state", {})
    state["is_json"] = raw.endswith(JSON_SUFFIX.encode()) and not raw.startswith(STATIC_PREFIX.encode())
    if state["is_json"]:
        scope["path"] = scope["path"].removesuffix(JSON_SUFFIX) or "/"
        scope["raw_path"] = raw.removesuffix(JSON_SUFFIX.encode()) or b"/"


def _host_name(host: str) -> str | None:
    """Return the host of a Host header without its port; None if the header is malformed."""
    match = HOST.fullmatch(host.lower())
    return None if match is None else match["name"] or match["v6"]


def _is_own(headers: Headers, scheme: str) -> bool:
    """Whether a request comes from the console's own pages. Browsers send Sec-Fetch-Site, Origin or both."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return False
    is_same_site = site is None or site == "same-origin"
    own = (f"http://{headers.get('host', '')}", f"https://{headers.get('host', '')}")
    allowed = own if scheme == "http" else own[1:]  # A proxy may have terminated TLS.
    return is_same_site and (origin is None or origin.lower() in [each.lower() for each in allowed])


def _is_foreign_read(headers: Headers) -> bool:
    """Whether a page of another site reads in the background. Following a link to the console is allowed."""
    is_foreign = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
    return is_foreign and headers.get("sec-fetch-mode") != "navigate"


def _wants_events(headers: Headers) -> bool:
    return "text/event-stream" in headers.get("accept", "")


def _with_headers(send: Send, is_static: bool) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-cache" if is_static else "no-store")
        await send(message)

    return sending


def _limited(receive: Receive, most: int) -> Receive:
    received = 0

    async def receiving() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise BodyTooLarge
        return message

    return receiving
