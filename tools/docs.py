"""Generates parts of the docs: ``make docs`` writes them, a house test checks them."""

from pathlib import Path

from semel.config import SETTINGS
from semel.core.groups.configs import GROUP_CONFIGS, allowed
from semel.core.topic_configs import TOPIC_CONFIGS
from semel.core.transactions.states import ENDS, TRANSITIONS, End, Event, Presented
from semel.core.types import TransactionState
from semel.handlers import served
from semel.handlers.transaction_errors import SENT_SINCE
from semel.wire.errors import ErrorCode
from semel.wire.messages import APIS
from semel.wire.messages.semel import FIRST_OWN_KEY
from semel.wire.spec import members
from tools.limits import limits_page
from tools.picture import architecture

DOCS = Path(__file__).parents[1] / "docs"

OPERATING = """# Operating

<!-- written by tools/docs.py: make docs -->

`semel serve` runs one broker on one data directory, which this page is about, or a broker of a [cluster](cluster.md). A second process on the same
directory refuses to start. The directory contains the WAL (two
files, 32 MiB), `ledger.db` (SQLite) and `chunks/`. Stop the broker with SIGTERM or kill it: the result is the same, and the next start recovers
automatically.

If a disk write fails, the state on disk is unknown, so the process exits with code 70 without answering; start it again. On a full disk, the broker
rejects Produce requests with a retriable error and continues to serve reads.

**Backup.** `semel backup DIR TARGET` copies a data directory, of a running or a stopped broker. It verifies the checksum of every batch in the copy,
writes to `TARGET.partial` and renames it when it is complete. A copy of a running broker's directory is the state after one commit, which includes
everything that was acknowledged before the command started. To restore, start a broker on the copy; no repair is needed. A copy of a
running broker starts a new term, so transactions that were open are aborted. Never exchange files between a copy and its original after both have been started: Semel
cannot detect that. The directory of a stopped broker can also be copied with other tools. Files of a running broker that were copied in another way do
not belong together, and the broker refuses to start with them.

**Looking into the ledger.** Open `ledger.db` with `sqlite3 -readonly`. Its pages have checksums that other programs do not write, so the broker refuses a
ledger that another program opened for writing, or that was copied by SQLite's own backup or `VACUUM INTO`. If SQLite finds such a ledger sound,
`semel repair DIR` offers to renew the checksums. The ledger is up to 100 milliseconds behind the WAL.

**Repair.** If the broker refuses to start with a directory, `semel check-storage DIR` and `semel repair DIR` report what is wrong and what can be done.
Without `--apply` nothing is changed.

**Priority.** On a machine with few cores that it shares with busy clients, give the broker a higher priority: `nice -n -15 semel serve …` (requires the
privilege) or `Nice=-15` in a systemd service. A producer of large batches never leaves its cores idle, so the broker's threads wait for a core at every
step. On two cores, priority alone made such a producer 40 % faster. Transactions gain nothing from it.

**Limits.** The resources that clients can use are bounded: [limits](limits.md) lists every limit and what happens beyond it.

**Monitoring.** `semel serve --metrics HOST:PORT` serves `/metrics` for Prometheus and `/health` for load balancers. [Clusters](cluster.md#operating) have
metrics of their own.

**Logs** go to standard error (`--log-level`, `--log-format json`). A sentence that repeats is written twenty times a minute at most; the next line has the
number of the others, as `suppressed`. Lines that a client can cause have stricter limits, by client or by reason.

## TLS

`semel serve --listen ssl://0.0.0.0:9093 --set ssl.certificate.location=broker.pem --set ssl.key.location=broker.key` starts a TLS listener. Listeners
without `ssl://` stay unencrypted. With `ssl.ca.location`, clients need a certificate that one of these CAs has issued (`ssl.client.auth`).
[Security](security.md) says how clients authenticate and what they may do.

Certificate files are in PEM format. The broker checks them every ten seconds and reloads them when they change: open connections stay open, new
connections use the new certificate and are verified against the new CAs. If the new files are invalid, the broker logs an error and keeps the old ones.
Key and certificate can be replaced in any order.

`ssl.enabled.protocols` accepts TLSv1.2 and TLSv1.3. `ssl.cipher.suites` selects the cipher suites for TLS 1.2, in OpenSSL's or Java's names. The default
only includes suites with forward secrecy and authenticated encryption, so neither CBC nor static RSA. All suites of TLS 1.3 are secure and stay enabled.
A failed handshake is logged with its reason and the client's address, a few times in ten seconds, and counted as `tls handshake` among the closed
connections in the metrics.

The command line connects to such a broker with client settings before the command: `semel -X security.protocol=SSL -X ssl.ca.location=ca.pem topics list`,
or `--command-config FILE` (or the environment variable `SEMEL_COMMAND_CONFIG`) with one `name=value` per line. The settings are those of Kafka's clients:
`security.protocol` (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL); `ssl.ca.location`, `ssl.certificate.location`, `ssl.key.location`, `ssl.key.password`,
`ssl.endpoint.identification.algorithm`; `sasl.mechanism` (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER), `sasl.username`, `sasl.password`
or `sasl.jaas.config`. `semel.client` takes the same settings: `Client(…, security=Security.of({{…}}))`.

## Settings

Settings are given at startup, by `semel serve --set name=value`, by `[settings]` in the `--config` file, or by `semel.embedded(settings={{…}})`.
Unknown names are rejected.

Most of them (*yes* in the table) can be changed while the broker runs, for one broker or for all, with `semel configs`, Kafka's `kafka-configs`, or any
client's admin API:

```
$ semel configs alter --all-brokers log.retention.ms=86400000
$ semel configs alter --broker 0 max.connections=20000
$ semel configs describe --all-brokers
$ semel configs alter --all-brokers --delete log.retention.ms
```

A change is stored in the ledger. It is in force at every broker when the command returns, and after a restart. What was set for a broker has precedence
over what was set for all, and that over the value at startup. Other settings need a restart, and a request to change them is refused with the reason.

{settings}

## Group configs

A group that uses the consumer protocol (KIP-848) and a [share group](share-groups.md) can have values of their own: `semel configs alter --group NAME name=value`.
They hold from the next heartbeat or fetch of a member on. Some bounds are settings; if such a bound is changed, groups beyond it use the bound.

{groups}

## Topic configs

Set them with `semel topics create NAME --config name=value`, `semel topics alter NAME --set name=value`, or any client's admin API.
*Inert* configs are accepted, because clients commonly set them, but have no effect.

{configs}

## Clocks

Broker timestamps, the limits on producers' timestamps, `retention.ms` and the expiry of offsets, producers and transactional ids follow the system
clock, even if it is changed while the broker runs. Session and transaction timeouts use a monotonic clock: changing the system clock or suspending
the machine neither ends nor prolongs them. If the system clock is set far ahead by mistake, records look old and retention deletes them, as in Kafka.

## Validation

The broker validates the records in every produced batch and rejects batches that readers could not decode with INVALID_RECORD. Records
that can be decoded but that the topic does not take (no key in a compacted topic, a timestamp outside `message.timestamp.before.max.ms` and
`message.timestamp.after.max.ms`) are rejected with their batch, too. From version 8 of Produce on, the response names up to 1,000 of the invalid
records and says why (KIP-467), so that clients can tell them from the other records of the batch. `semel.validate.records` restricts validation to
uncompressed batches or disables it, for the broker or for a topic; header and checksum are always checked. The decompressed size of a batch is
limited to `semel.batch.content.max.bytes`, or to the topic's
`max.message.bytes` if that is larger. Large requests are validated in a small thread pool, so other clients do not wait.

The table shows the cost of validation. It compares the broker before and after the check was added, in alternating rounds: one producer with five
requests in flight, records of 100 bytes, two cores, and no disk, so that disk time does not hide the difference. Values are medians of 40 rounds with the
compiled validator. The machine was shared, and rounds of the same broker differ by up to 20 %.

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

For compressed batches, the cost is mostly decompression, as in Kafka. If you trust the producers of a topic, create it with
`semel.validate.records=uncompressed`.

## Compaction

`cleanup.policy=compact` keeps the newest record of each key; `compact,delete` also applies time and size retention. Records on a compacted topic need a
key; a record without one is rejected (INVALID_RECORD). A record with a null value, a tombstone, deletes its key. Tombstones are kept for
`delete.retention.ms` after they were first compacted, so that lagging readers see them.

Every `log.cleaner.backoff.ms` the broker looks for partitions to compact: those in which more than `min.cleanable.dirty.ratio` of the bytes is dirty, or
in which the oldest dirty record is older than `max.compaction.lag.ms`. Records younger than `min.compaction.lag.ms`, and all records from the first open
transaction on, are left for a later pass. Records of aborted transactions are removed, and their markers later. As in Kafka, a partition without new
records is not compacted.

Offsets never change; removed records leave gaps. Compaction needs disk space before it frees any, so it pauses on a full disk. A pass keeps at most
`semel.compaction.keys.max` keys in memory; a partition with more keys is compacted in several passes. See
[ADR 0030](adr/0030-compaction-swaps-batches.md).

Readers of [snapshots](spark.md#snapshots) hold off compaction of the partitions that they read, until `semel.compaction.hold.ms` after their last
request. A due pass waits at most `semel.compaction.hold.max.ms` for them. Then it runs, and their read fails with a message to read again. If snapshots
take longer, raise that setting at the cost of disk space. A broker restart ends all holds ([ADR 0034](adr/0034-readers-hold-compaction.md)).
"""

PROTOCOL = """# Protocol

<!-- written by tools/docs.py: make docs -->

Semel serves the APIs below in the versions of Kafka 4.3. Clients discover them with ApiVersions, which is answered in any version. Produce is advertised
from version 0, because some older clients otherwise stop compressing (KAFKA-18659); as in Kafka, requests of versions 0 to 2 close the connection.
InitProducerId 6 (two-phase commit) is served and advertised if `transaction.two.phase.commit.enable` is set.

As in Kafka, a request of an API or a version that is not served closes the connection, before and after authentication. ApiVersions of an unknown version is
answered in version 0 with UNSUPPORTED_VERSION. Requests that ask for what Semel does not have are answered with what is true of it, see
[what Semel does not do](unsupported.md).

{apis}

## What is not Kafka's

API keys from 20000 on are Semel's own extensions. ApiVersions lists them, together with the finalized feature `semel.commit.transactions`, which
shows that the keys are Semel's. Clients send these requests only if they find both; other clients ignore them. `semel.extensions.enable=false` disables the
extensions and hides all features that begin with `semel.`. Requests and responses use the flexible encoding from version 0 on.
[ADR 0026](adr/0026-group-commit.md) and [0027](adr/0027-attempts-belong-to-a-run.md) give the reasons.

{own}
"""

MARK = "<!-- generated from core/transactions/states.py by make docs -->"
END_MARK = "<!-- end of what is generated -->"
ENDS_INTRODUCTION = """The next table shows the result of a request to end a transaction. Version 1 is EndTxn up to 4, version 2 is EndTxn from 5 on.
In version 2 every end changes the producer id and epoch, so a retry presents the previous ones."""


def settings_table() -> str:
    """Return a table of all settings: default, whether it can change at run time, and reason."""
    rows = ["| name | default | at run time | description |", "| --- | --- | --- | --- |"]
    for name, config in SETTINGS.items():
        changes = "" if config.fixed else "yes"
        rows.append(f"| `{name}` | {config.default or '(none)'} | {changes} | {config.doc} |")
    return "\n".join(rows)


def groups_table() -> str:
    """Return a table of all group configs."""
    rows = ["| name | default | bounds | description |", "| --- | --- | --- | --- |"]
    for name, row in GROUP_CONFIGS.items():
        bounds = allowed(name) if row.choices else f"{_bound(row.low)}, {_bound(row.high)}"
        rows.append(f"| `{name}` | `{row.setting or row.default}` | {bounds} | {row.doc} |")
    return "\n".join(rows)


def _bound(bound: str | int | None) -> str:
    return f"`{bound}`" if isinstance(bound, str) else str(bound)


def configs_table() -> str:
    """Return a table of all topic configs."""
    rows = ["| name | default | description |", "| --- | --- | --- |"]
    for name, config in TOPIC_CONFIGS.items():
        doc = f"*inert*: {config.doc}" if config.inert else config.doc
        rows.append(f"| `{name}` | {config.default or '(none)'} | {doc} |")
    return "\n".join(rows)


def apis_table() -> str:
    """Return a table of all APIs that have a handler."""
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
    """Return tables of Semel's own APIs, field by field."""
    parts = []
    for api in served():
        if api.key >= FIRST_OWN_KEY:
            rows = [f"**{api.key} {api.name}** {api.min_version}", "", "| | fields |", "| --- | --- |"]
            rows += [
                f"| {kind} | {_fields(each)} |"
                for kind, each in (("request", api.request), ("response", api.response))
            ]
            parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _fields(struct: type) -> str:
    """Return the fields of a struct in wire order, those of nested structs in parentheses."""
    shown = []
    for name, field in ((each.name, each.field) for each in members(struct)):
        inner = f" of ({_fields(field.element)})" if isinstance(field.element, type) else ""
        shown.append(f"`{name}` {field.kind}{inner}")
    return ", ".join(shown)


def state_diagram() -> str:
    """Return the states of a transactional id as a mermaid diagram."""
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
    """Return a table of the events of a transactional id: in which states they happen, and the next state."""
    rows = ["| event | cause | in states | next state |", "| --- | --- | --- | --- |"]
    for event in Event:
        befores: dict[str, list[str]] = {}
        for (state, happens), following in TRANSITIONS.items():
            if happens is event:
                befores.setdefault(_label(following), []).append(_label(state))
        for after, before in befores.items():
            rows.append(f"| {_words(event.name)} | {event.value} | {', '.join(before)} | {after} |")
    return "\n".join(rows)


def ends_table() -> str:
    """Return a table of the results of requests to end a transaction."""
    rows = ["| version | state | producer id and epoch | commit | abort |", "| --- | --- | --- | --- | --- |"]
    for version, state, shown, is_commit in ENDS:
        if is_commit:
            commit, abort = (_end(ENDS[version, state, shown, outcome]) for outcome in (True, False))
            presented = "previous" if shown is Presented.BEFORE else "current"
            rows.append(f"| {version} | {state.label} | {presented} | {commit} | {abort} |")
    meanings = [f"*{_words(each.name)}*: {each.value}." for each in End]
    return "\n".join([*rows, "", " ".join(meanings)])


REFUSED = """### When a producer is refused

A replaced producer, with an epoch that is not the current one, is refused with PRODUCER_FENCED. Some APIs send
another error, as in Kafka:

{table}

A producer id that is not that of the transactional id is INVALID_PRODUCER_ID_MAPPING: also that of a zombie whose
producer id has used up its epochs. Up to version 4 of EndTxn and TxnOffsetCommit, a request on a superseded
connection is not answered: the connection is
closed. An idempotent producer without transactions that presents an older epoch is INVALID_PRODUCER_EPOCH."""


def refusals_table() -> str:
    """Return a table of the errors that a fenced producer gets."""
    instead, since = SENT_SINCE[ErrorCode.PRODUCER_FENCED]
    rows = ["| API | versions | error |", "| --- | --- | --- |"]
    for api_key, first in since.items():
        api = APIS[api_key]
        older = f"{api.min_version} to {min(first - 1, api.advertised_max)}"
        rows.append(f"| {api.name} | {older} | {instead.name} |")
        if first <= api.advertised_max:
            rows.append(f"| {api.name} | from {first} on | {ErrorCode.PRODUCER_FENCED.name} |")
    return "\n".join(rows)


def _end(end: End | ErrorCode) -> str:
    return f"*{_words(end.name)}*" if isinstance(end, End) else end.name


def _label(state: TransactionState | None) -> str:
    return "unknown" if state is None else state.label


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def transactions_page() -> str:
    """Return the page on transactions, with the part between its two marks regenerated."""
    before, _, rest = (DOCS / "transactions.md").read_text().partition(MARK)
    _, _, after = rest.partition(END_MARK)
    refused = REFUSED.format(table=refusals_table())
    tables = "\n\n".join([state_diagram(), transitions_table(), ENDS_INTRODUCTION, ends_table(), refused])
    return f"{before}{MARK}\n{tables}\n{END_MARK}{after}"


def generated() -> dict[Path, str]:
    """Return every generated file with its content."""
    return {
        DOCS / "operating.md": OPERATING.format(
            settings=settings_table(), groups=groups_table(), configs=configs_table()
        ),
        DOCS / "protocol.md": PROTOCOL.format(apis=apis_table(), own=own_tables()),
        DOCS / "transactions.md": transactions_page(),
        DOCS / "limits.md": limits_page(),
        DOCS / "architecture.svg": architecture(),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
