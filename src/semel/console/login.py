"""Logs users in with the broker's own SASL credentials.

The console has no users of its own. It connects to the broker with the given name and password. If the broker
accepts them, the session acts as that principal, and ACLs decide what it sees. The password stays in memory
with the session, because every connection needs it.
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
from semel.console.sessions import COOKIE, LoginSession

WINDOW_SECONDS = 60.0
COUNTED_MAX = 10_000
#: Longer names are cut to this length for counting, which bounds the memory of the counts.
NAME_MAX = 100
#: The limit of one address is this many times the limit of one name: all users may share the address of a
#: proxy.
NAMES_PER_ADDRESS = 10


class Attempts:
    """Counts logins that failed or are in progress, by address and user, and by address, for a minute.

    An attempt is counted before the broker is asked, so concurrent attempts cannot exceed the limit. All
    counts are cleared every minute, and when there are `COUNTED_MAX`, which bounds the memory.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._since = time.monotonic()
        self._counts: Counter[tuple[str, ...]] = Counter()

    def begin(self, address: str, user: str) -> bool:
        """Count an attempt; False if the limit is reached and this attempt must be refused."""
        if time.monotonic() - self._since > WINDOW_SECONDS or len(self._counts) >= COUNTED_MAX:
            self._since = time.monotonic()
            self._counts.clear()
        both, alone = _keys(address, user)
        if self._counts[both] >= self._most or self._counts[alone] >= self._most * NAMES_PER_ADDRESS:
            return False
        self._counts.update((both, alone))
        return True

    def forgive(self, address: str, user: str) -> None:
        """Take back the count of an attempt that did not fail because of its password."""
        for key in _keys(address, user):
            self._counts[key] = max(0, self._counts[key] - 1)


def _keys(address: str, user: str) -> tuple[tuple[str, str], tuple[str]]:
    return (address, user[:NAME_MAX]), (address,)


async def form(request: Request) -> Response:
    """Show the login form, or redirect if no login is needed."""
    target = _local(request.query_params.get("next", "/"))
    if not request.app.state.settings.needs_login or request.state.session is not None:
        return RedirectResponse(target, status_code=303)
    return page(request, "login.html", {"next": target, "user": "", "problem": None})


async def log_in(request: Request) -> Response:
    """Verify the credentials with the broker, and begin a session."""
    state = request.app.state
    fields = await forms.read(request)
    target = _local(fields.get("next", "/"))
    address = request.client.host if request.client else ""
    # Strip as the client does: a name with spaces around it is the same user.
    user = fields.get("user", "").strip()
    if not user or not fields.get("password", "").strip():
        return _again(request, user, target, 400, "give the user and the password.")
    if not state.attempts.begin(address, user):
        return _again(request, user, target, 429, "too many failed logins; wait a minute, and try again.")
    security = state.settings.security_of(user, fields["password"])
    trial = LoginSession(user, security)
    request.state.session = trial
    is_wrong = False
    try:
        await state.workers.run(request, _try)
    except AuthenticationFailed:
        is_wrong = True
        request.state.session = None
        return _again(request, user, target, 401, "the broker does not accept this user and password.")
    finally:
        if not is_wrong:
            state.attempts.forgive(address, user)
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
        secure=_is_by_tls(request),
    )
    return reply


async def log_out(request: Request) -> Response:
    """End the session, and close its connections."""
    state = request.app.state
    ended = state.sessions.end(request.cookies.get(COOKIE, ""))
    if ended is not None:
        state.retire([ended])
    reply = as_json({"done": "logged out"}) if is_json(request) else RedirectResponse("/login", 303)
    reply.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=_is_by_tls(request))
    return reply


def _again(request: Request, user: str, target: str, status: int, problem: str) -> Response:
    if is_json(request):
        return as_json({"error": "LOGIN_FAILED", "message": problem}, status)
    return page(request, "login.html", {"next": target, "user": user, "problem": problem}, status)


def _is_by_tls(request: Request) -> bool:
    """Whether the browser uses TLS, to the console or to a proxy before it; `access` has checked Origin."""
    return request.scope["scheme"] == "https" or request.headers.get("origin", "").startswith("https://")


def _try(client: StoppableClient) -> None:
    client.connection()


def _local(target: str) -> str:
    """Return the target if it is a path of this console, else `/`: a login must not redirect elsewhere."""
    is_local = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_local else "/"


ROUTES = [
    Route("/login", form, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
]
