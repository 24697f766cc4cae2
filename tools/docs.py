"""The parts of the docs that are generated: ``make docs`` writes them, a house test checks them."""

from dataclasses import fields
from pathlib import Path

from semel.config import Settings
from semel.core.topic_configs import TOPIC_CONFIGS
from semel.core.transactions.states import ENDS, TRANSITIONS, End, Event
from semel.core.types import TransactionState
from semel.handlers import served
from semel.wire.errors import ErrorCode
from semel.wire.messages.semel import FIRST_OWN_KEY
from semel.wire.spec import members
from tools.limits import limits_page

DOCS = Path(__file__).parents[1] / "docs"

OPERATING = """# Operating

One process owns a data directory; a second one is refused. Everything is in it: the WAL (two files, 32 MiB), `ledger.db` (SQLite) and `chunks/`. Stop with
SIGTERM, or kill it: the outcome is the same, and the next start recovers by itself. On an error of the disk the process exits with code
70 without answering, because nobody can know what was written; start it again. A full disk refuses produce with a retriable
error while reads go on.

`semel backup DIR TARGET` copies a data directory, while a broker runs on it or when it is stopped. It compares the checksum of every
batch in the copy, makes it in `TARGET.partial` and renames it when it is complete. The copy of a running broker's directory is one commit:
everything acknowledged before the command began is in it. Of a stopped or killed directory every file is copied, the WAL included. To
restore, start a broker on the copy; it needs no repair. A copy of a running broker's directory begins a new term: transactions that were
open are aborted at its start. Do not start both the copy and the original and exchange files between them: Semel does not notice that.
Copying a stopped directory with other tools works too. The files of a running broker that are copied in another way are of different
moments; a start refuses them if they do not belong together.

Read `ledger.db` with `sqlite3 -readonly`. Its pages have checksums that other programs do not write, so the broker refuses a ledger that
was opened for writing elsewhere, or copied with SQLite's own backup or `VACUUM INTO`. If SQLite finds such a ledger sound,
`semel repair DIR` offers to renew the checksums.

When a start refuses a directory, `semel check-storage DIR` and `semel repair DIR` say what is wrong and what can be done; without `--apply`
nothing is changed.

On a machine with few cores that busy clients share, let the broker go first: `nice -n -15 semel serve …` (it needs the right to) or
`Nice=-15` in a service. A producer of large batches never lets its cores idle, and the broker's threads then wait for one at every step: on
two cores, priority alone made such a producer 40 % faster. Transactions gain nothing from it.

What clients can take of the broker is bounded: [limits](limits.md) lists every limit and what a client gets beyond it.

Watch `semel serve --metrics HOST:PORT`: `/metrics` for Prometheus, `/health` for a load balancer.

## TLS

`semel serve --listen ssl://0.0.0.0:9093 --set ssl.certificate.location=broker.pem --set ssl.key.location=broker.key` speaks TLS on that
address; a listener without `ssl://` beside it does not. With `ssl.ca.location` only clients whose certificate comes from one of these
issuers get in; beyond that, every client may do everything.

Files are PEM. The broker looks at them every ten seconds and reads them again when they change: open connections stay, new ones get the new
certificate and are held against the new issuers. Files that cannot be used are logged, and the old ones stay in use. Replace the key and the
certificate in any order.

`ssl.enabled.protocols` takes TLSv1.2 and TLSv1.3. `ssl.cipher.suites` chooses for TLS 1.2, by OpenSSL's names or Java's; the default has
forward secrecy and authenticated encryption only, so neither CBC nor static RSA. All suites of TLS 1.3 are sound, and stay enabled with it.
A handshake that fails is logged with its reason and the client's address, a few times in ten seconds, and counted as
`tls handshake` among the closed connections of the metrics page.

Commands reach such a broker with settings before the command: `semel -X security.protocol=SSL -X ssl.ca.location=ca.pem topics list`, or
`--command-config FILE` (also in the environment as `SEMEL_COMMAND_CONFIG`) with a `name=value` on each line. They are those of Kafka's clients: `security.protocol`
(PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL); `ssl.ca.location`, `ssl.certificate.location`, `ssl.key.location`, `ssl.key.password`,
`ssl.endpoint.identification.algorithm`; `sasl.mechanism` (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), `sasl.username`, `sasl.password` or
`sasl.jaas.config`. `semel.client` takes the same: `Client(…, security=Security.of({{…}}))`. Semel itself asks for no SASL; other brokers do.

## Settings

Give them as `semel serve --set name=value`, under `[settings]` in the file of `--config`, or to `semel.embedded(settings={{…}})`.
A name that does not exist is refused.

{settings}

## Topic configs

`semel topics create NAME --config name=value`, `semel topics alter NAME --set name=value`, or any client's admin API.
*Inert* ones are accepted and shown because clients set them by habit; here they change nothing.

{configs}

## Clocks

Timestamps that the broker writes, its limits on the timestamps of producers, `retention.ms` and the expiry of offsets, producers and
transactional ids follow the machine's clock, also when it is set while the broker runs. Session and transaction timeouts count the time that
passes: setting the clock neither ends nor prolongs them, and neither does the sleep of a laptop. A clock that is set far ahead by mistake makes
records look old, and retention deletes them, as it would in Kafka.

## Validation

The broker opens every batch that is produced and refuses one that readers could not read: INVALID_RECORD, and the response names the first
record that is wrong. `semel.validate.records` limits this to uncompressed batches or switches it off, for the broker or for a topic; the
header and the checksum are always checked. A compressed batch may unpack to `semel.batch.content.max.bytes`, or to the topic's
`max.message.bytes` if that is larger. Requests with much to validate are handed to a small pool of threads, so other clients do not wait.

What it costs, measured on the broker before this check and with it in turn, one producer with five requests under way, records of 100 bytes, on
two cores and in memory, so that no disk hides it (medians of 40 rounds with the same pass written in C; the machine was shared, and rounds of one
broker differ by 20 %):

| | broker's processor time per batch, before → after | time of the run |
| --- | --- | --- |
| uncompressed, 8,000 records per batch | 0.93 → 1.05 ms | × 1.0 to 1.2 |
| uncompressed, 950 records of 1 KiB per batch | 1.18 → 1.18 ms | × 0.8 to 0.9 |
| uncompressed, 130 records per batch | 0.09 → 0.10 ms | × 1.1 |
| transactions, 5 partitions × 10 records: per transaction | 0.86 → 0.85 ms | × 0.9 to 1.05 |
| snappy, 8,000 records, 0.94 MB unpacked | 0.5 → 1.9 ms | × 2.0 |
| lz4, the same | 0.5 → 1.7 ms | × 2.8 |
| zstd, the same | 0.3 → 2.3 ms | × 5.6 |
| gzip, the same | 0.3 → 3.0 ms | × 10.6 |
| compressed, 130 records, 15 kB unpacked | 0.08 → 0.12 to 0.14 ms | × 1.4 to 1.5 |

Producers that compress pay for the decompression, as with Kafka. A topic whose producers are trusted can be created with
`semel.validate.records=uncompressed`.

## Compaction

`cleanup.policy=compact` keeps the newest record of each key; `compact,delete` also deletes what is old or too much. Every record needs a key
then: one without is refused (INVALID_RECORD). A record whose value is null, a tombstone, deletes its key. It is kept for `delete.retention.ms`
after it was first compacted, so that readers which are behind see it.

Every `log.cleaner.backoff.ms` the broker looks for partitions that are worth it: those in which more than `min.cleanable.dirty.ratio` of the
bytes was not compacted yet, or in which the oldest of that is older than `max.compaction.lag.ms`. Records younger than
`min.compaction.lag.ms`, and everything from the first open transaction on, wait. Records of aborted transactions go, and their markers later.
Where nothing new is written nothing is compacted, as in Kafka.

Offsets never change; where records are gone there are gaps. Compaction needs room before it frees some, so it waits on a full disk. A pass keeps
`semel.compaction.keys.max` keys in memory; a partition with more is compacted in several passes. How it works:
[ADR 0030](adr/0030-compaction-swaps-batches.md).

Readers of [snapshots](spark.md#snapshots) hold the partitions that they read: compaction leaves a partition alone for
`semel.compaction.hold.ms` after the last request to hold it. A pass that is due waits at most `semel.compaction.hold.max.ms` for such readers,
then it runs and their read fails with the advice to read again. Raise that setting if snapshots take longer; the price is disk space. A
restart of the broker ends all holds ([ADR 0034](adr/0034-readers-hold-compaction.md)).
"""

PROTOCOL = """# Protocol

The APIs that are served, in the versions of Kafka 4.3. A client learns them from ApiVersions, which answers any version. Produce is
advertised from version 0, because older clients would stop compressing otherwise (KAFKA-18659); versions 0 to 2 close the connection,
as in Kafka. InitProducerId 6 (two-phase commit) is served and advertised with `transaction.two.phase.commit.enable`.

{apis}

## What is not Kafka's

API keys from 20000 on are Semel's own. ApiVersions lists them, and its finalized feature `semel.commit.transactions` says whose they are; a client sends
them only if it finds both. All other clients pass over them. `semel.extensions.enable=false` hides them, and all features that begin with `semel.`;
then they are not served either. Requests and responses are flexible from version 0 on. [ADR 0026](adr/0026-group-commit.md) and
[0027](adr/0027-attempts-belong-to-a-run.md) have the reasons.

{own}
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
    for api in sorted(served(extensions=False), key=lambda each: each.key):
        versions = (
            f"{api.min_version}–{api.advertised_max}"
            if api.min_version != api.advertised_max
            else str(api.min_version)
        )
        rows.append(f"| {api.key} | {api.name} | {versions} |")
    return "\n".join(rows)


def own_tables() -> str:
    """Our own APIs, field by field."""
    parts = []
    for api in served():
        if api.key >= FIRST_OWN_KEY:
            rows = [f"**{api.key} {api.name}** {api.min_version}", "", "| | fields |", "| --- | --- |"]
            rows += [
                f"| {kind} | {_fields(each)} |"
                for kind, each in (("asks", api.request), ("answers", api.response))
            ]
            parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _fields(struct: type) -> str:
    """The fields of a struct in wire order, those of the structs in it in brackets."""
    shown = []
    for name, field in ((each.name, each.field) for each in members(struct)):
        inner = f" of ({_fields(field.element)})" if isinstance(field.element, type) else ""
        shown.append(f"`{name}` {field.kind}{inner}")
    return ", ".join(shown)


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
        DOCS / "protocol.md": PROTOCOL.format(apis=apis_table(), own=own_tables()),
        DOCS / "transactions.md": transactions_page(),
        DOCS / "limits.md": limits_page(),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
