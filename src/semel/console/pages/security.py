"""Security: SCRAM users, ACLs, quotas, and the audit trail of a broker on this machine.

The audit trail are the newest lines of the logger `semel.audit` in the log of that broker. The log may be
text or JSON (`--log-format`). Only the end of the file is read.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Admin, Client, ErrorCode, KafkaError, UnsupportedRequest
from semel.console import forms
from semel.console.rendering import page
from semel.console.settings import ConsoleSettings

LOGGER = "semel.audit"
READ_BYTES = 2 << 20
_TEXT = re.compile(r"(\S+) (\w+) semel\.audit (.*)")
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def newest(file: Path, wanted: str, most: int) -> list[dict[str, Any]]:
    """Return the newest lines that contain a text, newest first. OSError if the file cannot be read."""
    found = []
    for line in reversed(list(_lines(file))):
        if wanted and wanted.lower() not in line.lower():
            continue
        entry = _parsed(line)
        if entry is not None:
            found.append(entry)
            if len(found) >= most:
                break
    return found


def _lines(file: Path) -> Iterator[str]:
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - READ_BYTES))
        text = stream.read(READ_BYTES).decode("utf-8", "replace")
    lines = text.splitlines()
    yield from lines[1:] if size > READ_BYTES else lines


def _parsed(line: str) -> dict[str, Any] | None:
    if LOGGER not in line:
        return None
    if line.startswith("{"):
        try:
            found = json.loads(line)
        except ValueError:
            return None
        if not isinstance(found, dict) or found.get("logger") != LOGGER:
            return None
        fields = {
            name: str(value)
            for name, value in found.items()
            if name not in ("time", "level", "logger", "event")
        }
        return _entry(str(found.get("time")), str(found.get("event")), fields)
    parts = _TEXT.match(line)
    if parts is None:
        return None
    fields = {name: _unquoted(value) for name, value in _FIELD.findall(parts[3])}
    sentence = _FIELD.split(parts[3], maxsplit=1)[0].strip()
    return _entry(parts[1], sentence, fields)


def _entry(time: str, event: str, fields: dict[str, str]) -> dict[str, Any]:
    return {
        "time": time,
        "event": event,
        "principal": fields.pop("principal", None),
        "client": fields.pop("client", None),
        "fields": fields,
    }


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


AUDIT_SHOWN = 200


async def security(request: Request) -> Response:
    """Show users, ACLs and quotas. `q` filters all of them, and the audit trail."""
    settings: ConsoleSettings = request.app.state.settings
    wanted = request.query_params.get("q", "").strip()
    found = await request.app.state.workers.run(request, _read)
    acls = [each for each in found["acls"] or () if _has(wanted, each)]
    shown, where = forms.paged(acls, forms.page_number(request), settings.page_size)
    data = {
        "q": wanted,
        "users": _filtered(wanted, found["users"]),
        "acls": None if found["acls"] is None else shown,
        **where,
        "quotas": _filtered(wanted, found["quotas"]),
        "problems": found["problems"],
        "audit": None,
        "audit_problem": None,
    }
    if settings.audit_file is None:
        data["audit_problem"] = "Start the console on the broker's machine with --audit FILE, its log."
    elif found["acls"] is None and settings.needs_login:
        # The console reads the file with its own rights, so it shows it only to principals who may list ACLs.
        data["audit_problem"] = "It is shown to those who may list ACLs."
    else:
        try:
            data["audit"] = await asyncio.to_thread(newest, settings.audit_file, wanted, AUDIT_SHOWN)
        except OSError as error:
            data["audit_problem"] = f"{settings.audit_file} cannot be read: {error.strerror}."
    return page(request, "security.html", data)


def _has(wanted: str, row: dict[str, Any]) -> bool:
    return not wanted or any(wanted.lower() in str(value).lower() for value in row.values())


def _filtered(wanted: str, rows: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    return None if rows is None else [row for row in rows if _has(wanted, row)]


def _read(client: Client) -> dict[str, Any]:
    """Read each list. A list that is refused or unsupported is None, and `problems` has the reason."""
    client.connection()
    problems: dict[str, str] = {}
    found: dict[str, Any] = {"problems": problems}
    for name, ask in (("users", _users), ("acls", _acls), ("quotas", _quotas)):
        found[name], problem = _tried(client, ask)
        if problem is not None:
            problems[name] = problem
    return found


def _tried(
    client: Client, ask: Callable[[Client], list[dict[str, Any]]]
) -> tuple[list[dict[str, Any]] | None, str | None]:
    try:
        return ask(client), None
    except UnsupportedRequest:
        return None, "This broker does not have them."
    except KafkaError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            return None, "This broker has no authorizer: everybody may do everything."
        return None, str(error)


def _users(client: Client) -> list[dict[str, Any]]:
    return [
        {"user": each.user, "mechanism": each.mechanism, "iterations": each.iterations}
        for each in Admin(client).users.list()
    ]


def _acls(client: Client) -> list[dict[str, Any]]:
    return [
        {
            "principal": each.principal,
            "permission": each.permission,
            "operation": each.operation,
            "resource_type": each.resource_type,
            "resource": each.resource_name,
            "pattern": each.pattern_type,
            "host": each.host,
        }
        for each in Admin(client).acls.list()
    ]


def _quotas(client: Client) -> list[dict[str, Any]]:
    return [{"entity": str(each.entity), "limits": dict(each.limits)} for each in Admin(client).quotas.list()]


ROUTES = [Route("/security", security)]
