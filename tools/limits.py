"""Generates the page on limits: every limit of the broker, its default, and what happens beyond it.

Settings have their dotted names here and their defaults from ``semel.config``; fixed limits are shown with
their constants. A house test checks that no setting with a maximum is missing.
"""

from semel.broker.commit.pending_commands import COMMANDS_MAX
from semel.broker.reads.fetch_planner import BATCHES_MAX, BATCHES_OF_ALL_MAX
from semel.config import Settings
from semel.core.groups.migration import TOPICS_MAX
from semel.core.names import CLIENT_ID_CHARS_MAX, ID_CHARS_MAX
from semel.core.topics import NAME_LENGTH_MAX
from semel.handlers.commit_transactions import TRANSACTIONS_MAX
from semel.handlers.configs import DESCRIBED_AT_ONCE
from semel.handlers.metadata import PARTITIONS_PER_RESPONSE_MAX
from semel.handlers.offsets import COMMITTED_AT_ONCE
from semel.handlers.produce import PARTITIONS_AT_ONCE
from semel.server.dispatch import ELEMENTS_MAX
from semel.wire.consumer_protocol import ENTRIES_MAX
from semel.wire.invalid_records import NAMED_MAX
from semel.wire.primitives import HEADER_TAGS_MAX, MAX_STRING

PAGE = """# Limits

<!-- written by tools/docs.py: make docs -->

Semel bounds every resource that a client can use. This page lists the limits, their defaults, and what happens beyond them. Limits with a dotted name are
settings (`semel serve --set name=value`, see [operating](operating.md)); the others are fixed. In a [cluster](cluster.md), the limits of requests and clients hold
for each broker, those of what is stored for all brokers together.

*Closed* means that the broker closes the connection, logs the reason (at a bounded rate), and counts it in `semel_connections_closed_total`. *Waits* means
that the broker stops reading from the connection, so the client's sends block; nothing is lost.

## One request

{request}

## All clients together

{shared}

## What is stored

{stored}

## Fairness

The broker schedules clients in turn, so a client at its limit slows down itself and not the others:

- The commit loop takes one request per client in turn, at most {commands} commands (ten partitions or offsets of one
  command count as another) and `semel.tick.bytes.max` bytes per commit.
- When more than half of `queued.max.request.bytes` is in use, only clients that hold more than their share of that half wait.
- Requests with many entries are decoded, answered and encoded in slices of about a millisecond. Each iteration of the event loop runs one slice in total.
- Threads validate the batches of a connection for 10 ms, then those of the next.
- The metadata of all topics is encoded once and reused for all clients until a topic changes.

[ADR 0037](adr/0037-clients-take-turns.md) gives the reasons; the noisy-neighbour workload in [benchmarks](benchmarks.md) measures the remaining effect.
"""

CLOSED = "closed"

REQUEST: dict[str, str] = {
    "socket.request.max.bytes": f"{CLOSED}, before the rest of the frame is read",
    "semel.request.max.bytes": f"{CLOSED}, before the rest of the frame is read",
    "semel.request.elements.max": f"{CLOSED}; the log line names the API",
    "message.max.bytes": "MESSAGE_TOO_LARGE",
    "semel.batch.content.max.bytes": "INVALID_RECORD",
    "offset.metadata.max.bytes": "OFFSET_METADATA_TOO_LARGE",
    "fetch.max.bytes": "the response is cut at that size; the client continues from there",
    "semel.fetch.wait.max.ms": "an empty response after that time",
    "transaction.max.timeout.ms": "INVALID_TRANSACTION_TIMEOUT",
    "group.max.session.timeout.ms": "INVALID_SESSION_TIMEOUT",
    "group.consumer.max.session.timeout.ms": "INVALID_CONFIG for the config of a group",
    "group.consumer.max.heartbeat.interval.ms": "INVALID_CONFIG for the config of a group",
    "log.message.timestamp.before.max.ms": "INVALID_TIMESTAMP",
    "log.message.timestamp.after.max.ms": "INVALID_TIMESTAMP",
    "semel.partitions.per.topic.max": "INVALID_PARTITIONS for a topic, POLICY_VIOLATION for a request",
    "semel.requests.in.flight.max": "further requests of the connection wait",
}
SHARED: dict[str, str] = {
    "max.connections": CLOSED,
    "max.connections.per.ip": CLOSED,
    "semel.connections.per.user.max": CLOSED,
    "connections.max.reauth.ms": f"{CLOSED} unless the client authenticates again before",
    "semel.policies.max": "POLICY_VIOLATION for a new ACL, user, quota, or config of a group or broker",
    "connections.max.idle.ms": CLOSED,
    "semel.write.timeout.ms": f"{CLOSED}; after a second if other clients wait for the memory",
    "queued.max.request.bytes": "waits; above half of it, clients that hold more than their share",
    "semel.queued.max.response.bytes": "the next request waits, unless it is Produce; a Fetch waits before it reads, and gets a smaller response",
    "semel.fetch.waiting.partitions.max": "a Fetch with many partitions is answered at once with the data available",
    "max.incremental.fetch.session.cache.slots": "Fetch works without a session; its requests are longer",
    "semel.tick.bytes.max": "the rest goes into the next commit",
    "semel.entities.max": "COORDINATOR_NOT_AVAILABLE for groups with members; other entities are reloaded from the ledger",
    "semel.compaction.keys.max": "compaction takes another pass",
    "semel.compaction.hold.max.ms": "compaction continues; the read of an affected snapshot fails",
}
STORED: dict[str, str] = {
    "semel.partitions.max": "POLICY_VIOLATION",
    "semel.groups.max": "COORDINATOR_NOT_AVAILABLE for a new group",
    "semel.transactional.ids.max": "POLICY_VIOLATION for a new transactional id",
    "group.max.size": "GROUP_MAX_SIZE_REACHED",
    "group.consumer.max.size": "GROUP_MAX_SIZE_REACHED",
    "group.share.max.size": "GROUP_MAX_SIZE_REACHED",
    "group.share.max.share.sessions": "SHARE_SESSION_LIMIT_REACHED",
    "group.share.partition.max.record.locks": "no more records until some are acknowledged",
    "semel.group.member.bytes.max": "INVALID_REQUEST",
    "semel.group.bytes.max": "GROUP_MAX_SIZE_REACHED",
    "semel.disk.reserve.bytes": "KAFKA_STORAGE_ERROR for Produce, COORDINATOR_NOT_AVAILABLE for groups",
}
NO_LIMITS = frozenset(
    {
        "max.connections.per.ip.overrides",
        "semel.chunk.bytes.max",
        "semel.inline.bytes.max",
        "log.cleaner.max.compaction.lag.ms",
    }
)
"""Settings with a maximum that no client can reach."""

FIXED_REQUEST: list[tuple[str, str, str]] = [
    ("bytes in a string", f"{MAX_STRING:,}", CLOSED),
    ("tagged fields in a request header", str(HEADER_TAGS_MAX), CLOSED),
    ("partitions in OffsetCommit or TxnOffsetCommit", f"{COMMITTED_AT_ONCE:,}", "INVALID_COMMIT_OFFSET_SIZE"),
    (
        "elements in AddPartitionsToTxn",
        f"{ELEMENTS_MAX[24]:,}",
        f"{CLOSED}; a transaction is decided and written as a whole",
    ),
    ("invalid records that a Produce response names", f"{NAMED_MAX:,}", "the first of each further batch"),
    (
        "partitions in Produce that become durable together",
        f"{PARTITIONS_AT_ONCE:,}",
        "more are written in several commits",
    ),
    ("resources in DescribeConfigs", f"{DESCRIBED_AT_ONCE:,}", "INVALID_REQUEST for the rest"),
    ("transactions in CommitTransactions", f"{TRANSACTIONS_MAX:,}", "INVALID_REQUEST"),
    (
        "partitions in a DescribeTopicPartitions response",
        f"{PARTITIONS_PER_RESPONSE_MAX:,}",
        "a cursor for the next page",
    ),
    (
        "batches per partition and per Fetch response",
        f"{BATCHES_MAX:,}, {BATCHES_OF_ALL_MAX:,}",
        "the response is cut there; the client continues from there",
    ),
]
FIXED_STORED: list[tuple[str, str, str]] = [
    ("characters in a topic name", str(NAME_LENGTH_MAX), "INVALID_TOPIC_EXCEPTION"),
    ("characters in a group id", f"{ID_CHARS_MAX:,}", "INVALID_GROUP_ID; INVALID_REQUEST in KIP-848 groups"),
    ("characters in a transactional id", f"{ID_CHARS_MAX:,}", "INVALID_REQUEST"),
    ("characters in a member id or instance id", f"{ID_CHARS_MAX:,}", "INVALID_REQUEST"),
    ("characters in a client id", str(CLIENT_ID_CHARS_MAX), "truncated"),
    (
        "topics that a member of the classic protocol subscribes to in a KIP-848 group",
        f"{TOPICS_MAX:,}",
        "INCONSISTENT_GROUP_PROTOCOL; a classic group with such a member stays classic",
    ),
    (
        "topics and partitions in the different subscriptions and the assignments of a classic group that"
        " becomes a KIP-848 group",
        f"{ENTRIES_MAX:,}",
        "GROUP_ID_NOT_FOUND for the KIP-848 member; the group stays classic",
    ),
    (
        "partitions of one share session",
        "a tenth of `semel.entities.max`",
        "SHARE_SESSION_LIMIT_REACHED",
    ),
]


def limits_page() -> str:
    """Return the page."""
    return PAGE.format(
        request=_table(REQUEST, FIXED_REQUEST),
        shared=_table(SHARED, []),
        stored=_table(STORED, FIXED_STORED),
        commands=COMMANDS_MAX,
    )


def _table(settings: dict[str, str], fixed: list[tuple[str, str, str]]) -> str:
    defaults = Settings().dotted()
    rows = ["| limit | default | beyond it |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | {defaults[name]:,} | {beyond} |" for name, beyond in settings.items()]
    rows += [f"| {name} | {value} | {beyond} |" for name, value, beyond in fixed]
    return "\n".join(rows)
