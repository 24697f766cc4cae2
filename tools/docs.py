"""The parts of the docs that are generated: ``make docs`` writes them, a house test checks them."""

from dataclasses import fields
from pathlib import Path

from semel.config import Settings
from semel.core.topic_configs import TOPIC_CONFIGS
from semel.core.transactions.states import ENDS, TRANSITIONS, End, Event
from semel.core.types import TransactionState
from semel.handlers import served
from semel.wire.errors import ErrorCode

DOCS = Path(__file__).parents[1] / "docs"

OPERATING = """# Operating

One process owns a data directory; a second one is refused. Everything is in it: the journal (two files, 32 MiB), `ledger.db` (SQLite) and `chunks/`. Stop with
SIGTERM, or kill it: the outcome is the same, and the next start recovers by itself. On an error of the disk the process exits with code
70 without answering, because nobody can know what was written; start it again. A full disk refuses produce with a retriable
error while reads go on.

Back up by copying a stopped directory, or by copying `ledger.db` with SQLite's backup first and `chunks/` after it: chunks only grow,
so later chunks hold all that an earlier ledger points at (pause retention meanwhile). Leave the journal out of such a copy: it belongs to
the directory as a whole. The ledger is some milliseconds behind the journal.

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
as in Kafka. InitProducerId 6 (two-phase commit) is served and advertised with `transaction.two.phase.commit.enable`.

{apis}
"""

MARK = "<!-- generated from core/transactions/states.py by make docs -->"
END_MARK = "<!-- end of what is generated -->"
ENDS_INTRODUCTION = """What a request to end comes to. Version 1 is EndTxn up to 4, version 2 is EndTxn from 5 on, where the pair of
producer id and epoch moves with every end, so that a retry shows the pair before."""


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


def state_diagram() -> str:
    """The states of a transactional id, drawn by mermaid."""
    events: dict[tuple[str, str], list[str]] = {}
    for (state, event), following in TRANSITIONS.items():
        arrow = (
            state.label if state is not None else "[*]",
            following.label if following is not None else "[*]",
        )
        events.setdefault(arrow, []).append(_words(event.name))
    lines = [f"    {before} --> {after}: {', '.join(names)}" for (before, after), names in events.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def transitions_table() -> str:
    """What may happen to a transactional id, in which states, and what follows."""
    rows = ["| event | what happens | in the states | becomes |", "| --- | --- | --- | --- |"]
    for event in Event:
        befores: dict[str, list[str]] = {}
        for (state, happens), following in TRANSITIONS.items():
            if happens is event:
                befores.setdefault(_label(following), []).append(_label(state))
        for after, before in befores.items():
            rows.append(f"| {_words(event.name)} | {event.value} | {', '.join(before)} | {after} |")
    return "\n".join(rows)


def ends_table() -> str:
    """What a request to end a transaction comes to."""
    rows = ["| version | state | pair shown | commit | abort |", "| --- | --- | --- | --- | --- |"]
    for version, state, shown, is_commit in ENDS:
        if is_commit:
            commit, abort = (_end(ENDS[version, state, shown, outcome]) for outcome in (True, False))
            rows.append(f"| {version} | {state.label} | {_words(shown.name)} | {commit} | {abort} |")
    meanings = [f"*{_words(each.name)}*: {each.value}." for each in End]
    return "\n".join([*rows, "", " ".join(meanings)])


def _end(end: End | ErrorCode) -> str:
    return f"*{_words(end.name)}*" if isinstance(end, End) else end.name


def _label(state: TransactionState | None) -> str:
    return "unknown" if state is None else state.label


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def transactions_page() -> str:
    """The page on transactions, with what is between its two marks written anew."""
    before, _, rest = (DOCS / "transactions.md").read_text().partition(MARK)
    _, _, after = rest.partition(END_MARK)
    tables = "\n\n".join([state_diagram(), transitions_table(), ENDS_INTRODUCTION, ends_table()])
    return f"{before}{MARK}\n{tables}\n{END_MARK}{after}"


def generated() -> dict[Path, str]:
    """Every generated page with what it should say."""
    return {
        DOCS / "operating.md": OPERATING.format(settings=settings_table(), configs=configs_table()),
        DOCS / "protocol.md": PROTOCOL.format(apis=apis_table()),
        DOCS / "transactions.md": transactions_page(),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
