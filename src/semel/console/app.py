"""Assembles the application: its routes, its state, and its background tasks."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import create_task_group, sleep, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from semel.client import Security
from semel.console import login
from semel.console.access import Access
from semel.console.clients import ClientPool
from semel.console.failures import HANDLERS
from semel.console.observing import Observers
from semel.console.pages import (
    checks,
    cluster,
    configs,
    groups,
    messages,
    overview,
    pipelines,
    produce,
    records,
    resetting,
    security,
    topic,
    topics,
    transactions,
    waiting,
)
from semel.console.sessions import LoginSession, Sessions
from semel.console.settings import ConsoleSettings
from semel.console.workers import Workers

STATIC = Path(__file__).parent / "static"
SWEEP_SECONDS = 15.0


def routes() -> Sequence[BaseRoute]:
    """All routes. Each page has a JSON twin: `access` removes the suffix before a route is chosen."""
    return [
        *overview.ROUTES,
        *topics.ROUTES,
        *topic.ROUTES,
        *configs.ROUTES,
        *waiting.ROUTES,
        *transactions.ROUTES,
        *groups.ROUTES,
        *resetting.ROUTES,
        *groups.DETAIL_ROUTES,
        *pipelines.ROUTES,
        *cluster.ROUTES,
        *security.ROUTES,
        *checks.ROUTES,
        *messages.ROUTES,
        *records.ROUTES,
        *produce.ROUTES,
        *login.ROUTES,
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def create_app(settings: ConsoleSettings) -> Starlette:
    """Return the console. ValueError if the settings are invalid or would admit unauthenticated users."""
    settings.checked()
    everyone = None if settings.needs_login else LoginSession("", Security.of(settings.client))
    sessions = Sessions(settings.sessions_max, settings.session_seconds)
    app = Starlette(
        routes=routes(),
        middleware=[Middleware(Access, settings=settings, sessions=sessions, everyone=everyone)],
        exception_handlers=HANDLERS,
        lifespan=_lifespan,
    )
    state = app.state
    state.settings, state.sessions, state.everyone = settings, sessions, everyone
    state.workers = Workers(settings, ClientPool(settings))
    state.refuse = lambda session: state.retire(sessions.end_all(session.identity))
    state.attempts = login.Attempts(settings.logins_per_minute)
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    state = app.state
    everyone: LoginSession | None = state.everyone

    def retire(over: list[LoginSession]) -> None:
        """Stop the work of ended sessions, and close their connections."""
        state.workers.end(over)
        state.workers.pool.forget(over)
        identities = {each.identity for each in over}
        state.observers.retire(each for each in identities if not state.sessions.has(each))

    state.retire = retire
    try:
        # A bug that ends one of these tasks ends the console: without it, pages would show old data.
        async with create_task_group() as tasks:
            state.observers = Observers(
                tasks,
                state.workers,
                state.settings,
                everyone,
                state.refuse,
                lambda session: session is everyone or state.sessions.has(session.identity),
            )
            if everyone is not None:
                state.observers.of(everyone)
            tasks.start_soon(_sweep, app)
            yield
            tasks.cancel_scope.cancel()
    finally:
        state.workers.close()


async def _sweep(app: Starlette) -> None:
    """Close expired sessions, unused observers and idle clients, periodically."""
    state = app.state
    while True:
        await sleep(SWEEP_SECONDS)
        state.retire(state.sessions.ended())
        state.observers.retire_unused()
        await to_thread.run_sync(state.workers.pool.close_idle)
