"""Logging in with the broker's own SASL credentials.

The console has no users. It opens a connection to the broker with the given name and password, and if the
broker accepts them, the session acts as that principal: ACLs decide what it sees. Passwords are kept in
memory, with the session, because every connection needs them.
"""

import time
from collections import Counter

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from semel.client import AuthenticationFailed
from semel.console import forms
from semel.console.clients import StoppableClient
from semel.console.rendering import as_json, is_json, page
from semel.console.sessions import COOKIE, Session

WINDOW_SECONDS = 60.0
ADDRESSES_MAX = 10_000


class Failures:
    """Failed logins by address in the current minute. Bounded: a new minute forgets all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._since = time.monotonic()
        self._counts: Counter[str] = Counter()

    def are_too_many(self, address: str) -> bool:
        """Whether an address has to wait."""
        if time.monotonic() - self._since > WINDOW_SECONDS or len(self._counts) >= ADDRESSES_MAX:
            self._since = time.monotonic()
            self._counts.clear()
        return self._counts[address] >= self._most

    def note(self, address: str) -> None:
        """Count a failure."""
        self._counts[address] += 1


async def form(request: Request) -> Response:
    """The form, or a redirect for those who need none."""
    target = _local(request.query_params.get("next", "/"))
    if not request.app.state.settings.needs_login or request.state.session is not None:
        return RedirectResponse(target, status_code=303)
    return page(request, "login.html", {"next": target, "user": "", "problem": None})


async def log_in(request: Request) -> Response:
    """Try the credentials on the broker, and begin a session."""
    state = request.app.state
    fields = await forms.read(request)
    target = _local(fields.get("next", "/"))
    address = request.client.host if request.client else ""
    user = fields.get("user", "")
    if state.failures.are_too_many(address):
        return _again(request, user, target, 429, "too many failed logins; wait a minute, and try again.")
    if not user or not fields.get("password"):
        return _again(request, user, target, 400, "give the user and the password.")
    security = state.settings.security_of(user, fields["password"])
    trial = Session(user, security)
    request.state.session = trial
    try:
        await state.workers.run(request, _try)
    except AuthenticationFailed:
        state.failures.note(address)
        request.state.session = None
        return _again(request, user, target, 401, "the broker does not accept this user and password.")
    finally:
        state.workers.pool.forget([trial])
    state.retire(state.sessions.ended())
    session = state.sessions.begin(user, security)
    reply = as_json({"principal": user}) if is_json(request) else RedirectResponse(target, status_code=303)
    reply.set_cookie(
        COOKIE,
        session.token,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return reply


async def log_out(request: Request) -> Response:
    """End the session, and close its connections."""
    state = request.app.state
    ended = state.sessions.end(request.cookies.get(COOKIE, ""))
    if ended is not None:
        state.retire([ended])
    reply = as_json({"done": "logged out"}) if is_json(request) else RedirectResponse("/login", 303)
    reply.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return reply


def _again(request: Request, user: str, target: str, status: int, problem: str) -> Response:
    if is_json(request):
        return as_json({"error": "LOGIN_FAILED", "message": problem}, status)
    return page(request, "login.html", {"next": target, "user": user, "problem": problem}, status)


def _try(client: StoppableClient) -> None:
    client.connection()


def _local(target: str) -> str:
    """Return an address of this console: a login must not send people elsewhere."""
    is_local = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_local else "/"


ROUTES = [
    Route("/login", form, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
]
