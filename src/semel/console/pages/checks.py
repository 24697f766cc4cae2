"""Checks: find hanging transactions, read a topic and verify it, compare a pipeline, check a directory.

The page starts a check by a POST, which is refused to other sites. The response is a stream of events. A
check changes nothing in the cluster, so a read-only console may run it.
"""

from importlib.util import find_spec
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Admin, Client
from semel.console import forms
from semel.console.checking import check_records, find_hanging, run_command
from semel.console.events import EventStream
from semel.console.observing import Observer
from semel.console.rendering import page
from semel.console.settings import ConsoleSettings
from semel.console.workers import SCAN


async def checks(request: Request) -> Response:
    """Show the checks that can be run here, and why others cannot."""
    settings: ConsoleSettings = request.app.state.settings
    observer: Observer = request.app.state.observers.of(request.state.session)
    pipelines = sorted(observer.pipelines.value or {})
    data = {
        "topic": request.query_params.get("topic", ""),
        "pipeline": request.query_params.get("pipeline", ""),
        "pipelines": pipelines,
        "storage": None if settings.storage is None else str(settings.storage),
        "verify_refused": _verify_refused(settings),
        "storage_refused": _storage_refused(settings),
    }
    return page(request, "checks.html", data)


def _verify_refused(settings: ConsoleSettings) -> str | None:
    if settings.needs_login:
        return (
            "It starts Spark as the user of the console, so it is offered only on consoles without a login."
        )
    if find_spec("pyspark") is None:
        return "It needs Spark on this machine: pip install 'semel[spark]'."
    return None


def _storage_refused(settings: ConsoleSettings) -> str | None:
    if settings.needs_login:
        return "It reads files as the user of the console, so it is offered only on consoles without a login."
    if settings.storage is None:
        return "Start the console with --storage DIR to check a data directory that no broker has open."
    return None


async def hanging(request: Request) -> Response:
    """Search for transactions that hang, in one topic or in all."""
    fields = await forms.read(request)
    topic = fields.get("topic", "").strip() or None
    return _stream(request, find_hanging, topic)


async def records(request: Request) -> Response:
    """Read a topic, and verify the checksum of every batch."""
    topic = forms.needed(await forms.read(request), "topic")
    await request.app.state.workers.run(request, _exists, topic)
    settings: ConsoleSettings = request.app.state.settings
    return _stream(request, check_records, topic, settings.scan_bytes, settings.scan_seconds)


def _exists(client: Client, topic: str) -> None:
    Admin(client).topics.describe(topic)


async def verify(request: Request) -> Response:
    """Compare input and output of a pipeline record by record, as a Spark job."""
    settings: ConsoleSettings = request.app.state.settings
    _refuse(_verify_refused(settings))
    fields = await forms.read(request)
    pipeline = _argument(forms.needed(fields, "pipeline"), "pipeline")
    arguments = ["pipeline", "verify", pipeline, "--bootstrap", settings.bootstrap]
    arguments += ["--identity", _argument(fields.get("identity", "").strip() or "key", "identity")]
    for output in fields.get("outputs", "").split():
        arguments += ["--output", _argument(output, "outputs")]
    return _stream(request, run_command, arguments, dict(settings.client), settings.scan_seconds)


async def storage(request: Request) -> Response:
    """Read a data directory, and verify its checksums."""
    settings: ConsoleSettings = request.app.state.settings
    _refuse(_storage_refused(settings))
    arguments = ["check-storage", str(settings.storage)]
    return _stream(request, run_command, arguments, {}, settings.scan_seconds)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise forms.FormError(reason)


def _argument(text: str, name: str) -> str:
    """Return a text that is safe as one argument of a command: it must not be taken for an option."""
    if text.startswith("-") or "\x00" in text:
        raise forms.FormError(f"{name} must not begin with a dash")
    return text


def _stream(request: Request, function: Any, *args: Any) -> Response:
    return EventStream(request.app.state.workers.stream(request, function, *args, kind=SCAN))


ROUTES = [
    Route("/checks", checks, methods=["GET"]),
    Route("/checks/hanging", hanging, methods=["POST"]),
    Route("/checks/records", records, methods=["POST"]),
    Route("/checks/verify", verify, methods=["POST"]),
    Route("/checks/storage", storage, methods=["POST"]),
]
