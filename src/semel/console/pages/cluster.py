"""The cluster: brokers, disk space, certificates, features and settings; for Semel, shards and leases."""

import ssl
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import (
    Admin,
    Client,
    ClientError,
    ErrorCode,
    KafkaError,
    Node,
    ResourceType,
    UnsupportedRequest,
)
from semel.client.admin.topics import LogDirectory, log_directories
from semel.console import forms
from semel.console.observing import Observer
from semel.console.pages.configs import config_row
from semel.console.rendering import iso, now_iso, page
from semel.console.sampling import Catalogue
from semel.console.settings import ConsoleSettings

#: A certificate that ends within this time is shown as a problem.
CERTIFICATE_ENDS_SOON_MS = 30 * 86_400_000


async def cluster(request: Request) -> Response:
    """Show brokers, what each leads, its directories and its certificate."""
    observer: Observer = request.app.state.observers.of(request.state.session)
    catalogue = await observer.catalogue.get()
    found = await request.app.state.workers.run(request, _describe, catalogue)
    settings: ConsoleSettings = request.app.state.settings
    # The console reads the ledger with its own rights, so it shows the result only to principals that the
    # broker allows to describe log directories.
    may_see = found["reports_directories"] or not settings.needs_login
    shared, problem = await _shared(request, settings) if may_see else (None, None)
    return page(
        request, "cluster.html", {"at": now_iso(), **found, "shared": shared, "shared_problem": problem}
    )


async def _shared(request: Request, settings: ConsoleSettings) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return what the ledger of a Semel cluster knows, or why it could not be read."""
    ask = settings.cluster_status
    if ask is None:
        return None, None
    try:
        return await request.app.state.workers.run(request, lambda _: ask()), None
    except (OSError, RuntimeError, ValueError) as error:
        return None, str(error)


def _describe(client: Client, catalogue: Catalogue) -> dict[str, Any]:
    now = client.describe(topics=())
    led: dict[int, int] = {}
    kept: dict[int, int] = {}
    for topic in catalogue.topics:
        for each in topic.partitions:
            led[each.leader] = led.get(each.leader, 0) + 1
            for replica in each.replicas:
                kept[replica] = kept.get(replica, 0) + 1
    directories = _directories(client)
    connection = client.connection()
    return {
        "cluster_id": now.cluster_id,
        "brokers": [
            {
                **_broker(client, each, directories or []),
                "is_controller": each.node_id == now.controller,
                "leads": led.get(each.node_id, 0),
                "keeps": kept.get(each.node_id, 0),
            }
            for each in now.nodes
        ],
        "reports_directories": directories is not None,
        "features": dict(sorted(connection.features.items())),
        "apis": len(connection.versions),
    }


def _broker(client: Client, node: Node, directories: list[LogDirectory]) -> dict[str, Any]:
    ends_ms, problem = _certificate_end(client, node.node_id)
    soon_ms = time.time() * 1000 + CERTIFICATE_ENDS_SOON_MS
    return {
        "id": node.node_id,
        "address": f"{node.host}:{node.port}",
        "problem": problem,
        "certificate_ends": iso(ends_ms),
        "certificate_ends_soon": ends_ms is not None and ends_ms < soon_ms,
        "directories": [
            {
                "path": each.path,
                "total_bytes": each.total_bytes if each.total_bytes >= 0 else None,
                "usable_bytes": each.usable_bytes if each.usable_bytes >= 0 else None,
            }
            for each in directories
            if each.node_id == node.node_id
        ],
    }


def _directories(client: Client) -> list[LogDirectory] | None:
    """Return the directories of all brokers; None if that is unsupported or not authorized."""
    try:
        return log_directories(client)
    except UnsupportedRequest:
        return None
    except KafkaError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return None


def _certificate_end(client: Client, node: int) -> tuple[int | None, str | None]:
    """Return when the certificate of a broker expires, in ms, or why the broker cannot be reached."""
    try:
        certificate = client.connection(node).certificate()
    except ClientError as error:
        return None, str(error)
    if not certificate or "notAfter" not in certificate:
        return None, None
    return int(ssl.cert_time_to_seconds(certificate["notAfter"]) * 1000), None


async def broker(request: Request) -> Response:
    """Show the settings of a broker, with what each means and where it comes from."""
    node: int = request.path_params["node"]
    query = request.query_params
    wanted = query.get("q", "").strip().lower()
    rows = await request.app.state.workers.run(request, _settings, node)
    shown = [row for row in rows if wanted in row["name"].lower()]
    if query.get("set", "") == "1":
        shown = [row for row in shown if not row["is_default"]]
    data = {"node": node, "configs": shown, "q": query.get("q", ""), "set": query.get("set", "") == "1"}
    return page(request, "broker.html", data)


def _settings(client: Client, node: int) -> list[dict[str, Any]]:
    if node not in [each.node_id for each in client.describe(topics=()).nodes]:
        raise forms.FormError(f"there is no broker {node}")
    found = Admin(client).configs.describe(ResourceType.BROKER, str(node), node=node, documented=True)
    return [config_row(each) for each in found]


ROUTES = [Route("/cluster", cluster), Route("/cluster/brokers/{node:number}", broker)]
