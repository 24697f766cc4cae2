"""The configuration of a topic: every value, where it comes from, what it means, and editing it."""

import re
from html import unescape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Admin, Client, ConfigValue, ResourceType
from semel.console import forms
from semel.console.access import changes
from semel.console.rendering import page, segment

HELP_MAX = 400
#: Where a value comes from, in words.
REASONS = {
    "topic": "set on this topic",
    "broker": "set on this broker while it runs",
    "broker default": "set on all brokers while they run",
    "static": "from the settings that the broker was started with",
    "default": "the default",
    "group": "set on this group",
}


async def configs(request: Request) -> Response:
    """Show the configuration of a topic. `q` filters by name, `set=1` hides defaults."""
    name: str = request.path_params["topic"]
    query = request.query_params
    wanted = query.get("q", "").strip().lower()
    found = await request.app.state.workers.run(request, _read, name)
    rows = [config_row(each) for each in found if wanted in each.name.lower()]
    if query.get("set", "") == "1":
        rows = [row for row in rows if not row["is_default"]]
    data = {"topic": name, "configs": rows, "q": query.get("q", ""), "set": query.get("set", "") == "1"}
    return page(request, "topic_configs.html", data)


def _read(client: Client, name: str) -> list[ConfigValue]:
    Admin(client).topics.describe(name)
    return Admin(client).configs.describe(ResourceType.TOPIC, name, documented=True)


def config_row(each: ConfigValue) -> dict[str, Any]:
    """Return a config as a row. The value of a secret is None."""
    return {
        "name": each.name,
        "value": None if each.is_sensitive else each.value,
        "source": each.source,
        "reason": REASONS.get(each.source, each.source),
        "is_default": each.is_default,
        "is_sensitive": each.is_sensitive,
        "read_only": each.read_only,
        "help": plain_text(each.documentation),
    }


def plain_text(documentation: str) -> str:
    """Return the documentation of a config, shortened, without its HTML markup."""
    text = " ".join(unescape(re.sub(r"<[^>]*>", "", documentation)).split())
    return text if len(text) <= HELP_MAX else text[:HELP_MAX].rsplit(" ", 1)[0] + " …"


async def change(request: Request) -> Response:
    """Set one value of a topic, or reset it if `reset` is given."""
    name: str = request.path_params["topic"]
    fields = await forms.read(request)
    key = forms.needed(fields, "name")
    value = None if forms.flag(fields, "reset") else fields.get("value", "")
    await request.app.state.workers.run(request, _change, name, key, value)
    done = f"Reset {key} of {name}." if value is None else f"Set {key} of {name} to {value}."
    return forms.done(request, f"/topics/{segment(name)}/configs", done, {"name": key, "value": value})


def _change(client: Client, topic: str, key: str, value: str | None) -> None:
    if value is None:
        Admin(client).configs.alter_topic(topic, remove=[key])
    else:
        Admin(client).configs.alter_topic(topic, values={key: value})


ROUTES = [
    Route("/topics/{topic}/configs", configs, methods=["GET"]),
    changes("/topics/{topic}/configs", change),
]
