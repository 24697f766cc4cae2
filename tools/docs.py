"""The parts of the docs that are generated: ``make docs`` writes them, a house test checks them."""

from dataclasses import fields
from pathlib import Path

from semel.config import Settings
from semel.core.topic_configs import TOPIC_CONFIGS
from semel.handlers import served

DOCS = Path(__file__).parents[1] / "docs"

OPERATING = """# Operating

One process owns a data directory; a second one is refused. Everything is in it: `ledger.db` (SQLite) and `chunks/`. Stop with
SIGTERM, or kill it: the outcome is the same, and the next start recovers by itself. On an error of the disk the process exits with code
70 without answering, because nobody can know what was written; start it again. A full disk refuses produce with a retriable
error while reads go on.

Back up by copying a stopped directory, or by copying `ledger.db` with SQLite's backup first and `chunks/` after it: chunks only grow,
so later chunks hold all that an earlier ledger points at (pause retention meanwhile).

Watch `semel serve --metrics HOST:PORT`: `/metrics` for Prometheus, `/health` for a load balancer.

## Settings

Give them as `semel serve --set name=value`, under `[settings]` in the file of `--config`, or to `semel.embedded(settings={{…}})`.
A name that does not exist is refused.

{settings}

## Topic configs

`semel topics create NAME --config name=value`, `semel topics alter NAME --set name=value`, or any client's admin API.
*Inert* ones are accepted and shown because clients set them by habit; here they change nothing.

{configs}
"""

PROTOCOL = """# Protocol

The APIs that are served, in the versions of Kafka 4.3. A client learns them from ApiVersions, which answers any version. Produce is
advertised from version 0, because older clients would stop compressing otherwise (KAFKA-18659); versions 0 to 2 close the connection,
as in Kafka.

{apis}
"""


def settings_table() -> str:
    """Every setting, its default and its reason."""
    rows = ["| name | default | why |", "| --- | --- | --- |"]
    dotted = {attribute: name for name, attribute in Settings.names().items()}
    for each in fields(Settings):
        default = str(each.default).lower() if isinstance(each.default, bool) else str(each.default)
        rows.append(f"| `{dotted[each.name]}` | {default or '(none)'} | {each.metadata['why']} |")
    return "\n".join(rows)


def configs_table() -> str:
    """Every topic config."""
    rows = ["| name | default | what it does |", "| --- | --- | --- |"]
    for name, config in TOPIC_CONFIGS.items():
        doc = f"*inert*: {config.doc}" if config.inert else config.doc
        rows.append(f"| `{name}` | {config.default or '(none)'} | {doc} |")
    return "\n".join(rows)


def apis_table() -> str:
    """Every API that has a handler."""
    rows = ["| key | API | versions |", "| --- | --- | --- |"]
    for api in sorted(served(), key=lambda each: each.key):
        versions = (
            f"{api.min_version}–{api.advertised_max}"
            if api.min_version != api.advertised_max
            else str(api.min_version)
        )
        rows.append(f"| {api.key} | {api.name} | {versions} |")
    return "\n".join(rows)


def generated() -> dict[Path, str]:
    """Every generated page with what it should say."""
    return {
        DOCS / "operating.md": OPERATING.format(settings=settings_table(), configs=configs_table()),
        DOCS / "protocol.md": PROTOCOL.format(apis=apis_table()),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
