"""The table of settings: each with its type, default, reason and limits, and whether it can be changed later.

A setting that Kafka has keeps Kafka's name, with dots for underscores (``auto.create.topics.enable``); the
names of all others start with ``semel.``. ``Settings.of`` takes the dotted names, from a TOML file, the
command line or ``semel.embedded``, and rejects an unknown one with the nearest known name.

Settings are passed in: nothing reads the environment or a global. A setting can be changed while a broker
runs, unless the table says why not (``fixed``): the broker reads it each time it needs it. A broker's own
value takes precedence over the value for all brokers, which takes precedence over the value at startup
(``in_force``).

The functions at the top declare settings, check their values, and parse text.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from typing import Any, Final, Self

from semel.core import configs
from semel.principals import meant_principal

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
NOT_NEGATIVE: Final = (0, INT_MAX)
COUNT: Final = (1, INT_MAX)
INTERVAL: Final = (1, INT_MAX)
"""The limits of an interval or a timeout, in milliseconds."""
_TYPES: Final[Mapping[configs.ConfigKind, tuple[type, str]]] = {
    configs.LONG: (int, "a whole number"),
    configs.DOUBLE: (float, "a number"),
    configs.BOOLEAN: (bool, "true or false"),
    configs.STRING: (str, "text"),
    configs.LIST: (str, "text"),
}
# Bounded, because a thousand digits are slow to parse and cannot be in range.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{0,19})?([eE][+-]?[0-9]{1,3})?")


ELSEWHERE: Final[Mapping[str, str]] = {
    "advertised.listeners": "the option --advertise of semel serve",
    "authorizer.class.name": "semel.authorizer",
    "broker.id": "node.id",
    "listeners": "the option --listen of semel serve",
    "log.dir": "the option --data of semel serve",
    "log.dirs": "the option --data of semel serve",
    "log.retention.hours": "log.retention.ms",
    "log.retention.minutes": "log.retention.ms",
    "ssl.keystore.certificate.chain": "ssl.certificate.location",
    "ssl.keystore.key": "ssl.key.location",
    "ssl.keystore.location": "ssl.certificate.location",
    "ssl.truststore.certificates": "ssl.ca.location",
    "ssl.truststore.location": "ssl.ca.location",
}
"""Kafka's settings that have another name in Semel. Similarly spelled settings mean something else."""


class UnknownSetting(ValueError):
    """A setting that does not exist; the message names the nearest one that does."""


def unknown(name: str, known: Iterable[str]) -> UnknownSetting:
    """Return the error for an unknown name."""
    here = ELSEWHERE.get(name)
    hint = f"; here it is {here}" if here else nearest(name, known)
    return UnknownSetting(f"there is no setting {name!r}{hint}")


def setting(
    default: Any,
    doc: str,
    limits: tuple[int, int | None] | None = None,
    *,
    choices: tuple[str, ...] = (),
    is_list: bool = False,
    fixed: str = "",
) -> Any:
    """Declare a setting. Any: the type is that of the field."""
    kind = (
        configs.LIST
        if is_list
        else next(kind for kind, (type_, _) in _TYPES.items() if type_ is type(default))
    )
    low, high = limits or (None, None)
    return field(
        default=default,
        metadata={"config": configs.Config(text_of(default), kind, doc, low, high, choices, fixed=fixed)},
    )


def text_of(value: object) -> str:
    """Return a value of a setting as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(values: Mapping[str, Any], table: Mapping[str, configs.Config]) -> None:
    """Raise ValueError if a setting is outside its choices or limits, or cannot be parsed."""
    for name, value in values.items():
        _check_value(name, value, table[name])
    connections_by_host(values["max.connections.per.ip.overrides"])
    principals(values["super.users"])


def _check_value(name: str, value: Any, config: configs.Config) -> None:
    choices, low, high = config.choices, config.low, config.high
    chosen = configs.words(value) if config.kind is configs.LIST else (value,)
    if choices and not all(word in choices for word in chosen):
        raise ValueError(f"{name} must be {one_of(choices)}, not {value!r}{nearest(value, choices)}")
    if low is not None and high is None and value < low:
        raise ValueError(f"{name} must be at least {low:,}, not {value:,}")
    if low is not None and high is not None and not low <= value <= high:
        raise ValueError(f"{name} must be from {low:,} to {high:,}, not {value:,}")


def connections_by_host(overrides: str) -> dict[str, int]:
    """Parse ``max.connections.per.ip.overrides``. ValueError if it is invalid."""
    limits: dict[str, int] = {}
    for each in filter(None, (part.strip() for part in overrides.split(","))):
        host, _, limit = each.rpartition(":")
        if not host or not limit.isdecimal():
            raise ValueError(f"max.connections.per.ip.overrides takes ADDRESS:NUMBER,…, not {each!r}")
        try:
            # As connections report addresses: without brackets, and IPv6 in its shortest form.
            address = str(ip_address(host.removeprefix("[").removesuffix("]")))
        except ValueError:
            raise ValueError(
                f"max.connections.per.ip.overrides needs an IP address, not {host!r}: names are not looked up"
            ) from None
        limits[address] = int(limit)
    return limits


def principals(super_users: str) -> frozenset[str]:
    """Parse ``super.users``. ValueError if invalid: a typo must neither add nor lose a super user."""
    found = frozenset(filter(None, (each.strip() for each in super_users.split(";"))))
    for each in found:
        meant = meant_principal(each)
        if ",User:" in each or meant in (None, "User:*"):
            raise ValueError(f"super.users takes User:NAME;User:NAME;…, not {each!r}")
        if meant != each:
            raise ValueError(f"super.users takes User:NAME;…, not {each!r}; did you mean {meant!r}?")
    return found


def one_of(choices: Iterable[str]) -> str:
    """Return the choices as text, with `empty` for the empty choice."""
    known = tuple(choices)
    return " or ".join([*filter(None, known), *(["empty"] if "" in known else [])])


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the nearest known word; empty if none is near."""
    near = difflib.get_close_matches(word, list(filter(None, known)), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def coerce(name: str, value: Any, config: configs.Config) -> Any:
    """Convert a value to the type of its setting. ValueError if that is impossible."""
    kind, called = _TYPES[config.kind]
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    text = str(value).strip()
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is not str and not _NUMBER.fullmatch(text):
            raise ValueError(text)
        return kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {called}, not {value!r}") from None


__all__ = ["READ_ONLY", "SETTINGS", "Settings", "UnknownSetting", "in_force", "unchangeable", "value_problem"]

IDENTITY: Final = "it is the identity of the broker"
RIGHTS: Final = "it says who may do what, which is for the operator of the broker to say"
ADVERTISED: Final = "it decides which requests are advertised to clients that connect"
LISTENERS: Final = "listeners and their authentication are set up at the start"
MEMORY: Final = "memory is divided by it at the start"
IN_PROGRESS: Final = "work in progress relies on it"
STORE: Final = "the store is opened with it"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, in the order in which an operator needs them."""

    node_id: int = setting(
        0, "id of this broker; clients expect ids to start at 0", (0, 2_147_483_647), fixed=IDENTITY
    )
    semel_lease_ms: int = setting(
        3_000,
        "in a cluster: a broker that is silent for so long is replaced; renewed three times as often",
        (500, 60_000),
        fixed="brokers of a cluster rely on it while they watch each other",
    )
    semel_ledger_unsafe: str = setting(
        "",
        "in a cluster, for tests: settings of PostgreSQL that may be off: fsync,full_page_writes",
        choices=("fsync", "full_page_writes"),
        is_list=True,
        fixed="it is checked with every connection to PostgreSQL",
    )
    broker_rack: str = setting(
        "", "rack or availability zone of this broker, shown to clients", fixed=IDENTITY
    )
    cluster_id: str = setting("", "generated when a data directory is first used, unless set", fixed=IDENTITY)
    auto_create_topics_enable: bool = setting(
        False, "a typo in a topic name should be an error, not a new topic"
    )
    num_partitions: int = setting(1, "partitions of a topic that is created without a number", COUNT)
    delete_topic_enable: bool = setting(True, "whether topics can be deleted")
    semel_partitions_per_topic_max: int = setting(
        10_000, "partitions of one topic, and partitions created by one request", NOT_NEGATIVE
    )
    semel_partitions_max: int = setting(
        200_000, "partitions of all topics; each has a row in the ledger", NOT_NEGATIVE
    )

    message_max_bytes: int = setting(
        1_048_588, "largest batch; a topic's max.message.bytes overrides it", NOT_NEGATIVE
    )
    semel_validate_records: str = setting(
        "all",
        "validate the records inside produced batches; a corrupt batch would block every reader",
        choices=("all", "uncompressed", "none"),
    )
    semel_batch_content_max_bytes: int = setting(
        33_554_432,
        "decompressed size of a batch, or max.message.bytes if larger; readers hold it in memory",
        NOT_NEGATIVE,
    )
    log_cleanup_policy: str = setting(
        "delete",
        "delete old records, compact, or both; a topic's cleanup.policy overrides it",
        choices=("delete", "compact"),
        is_list=True,
    )
    log_retention_ms: int = setting(
        604_800_000,
        "seven days; negative: for ever; a topic's retention.ms overrides it",
        (-LONG_MAX, LONG_MAX),
    )
    log_retention_bytes: int = setting(
        -1, "no size limit; a topic's retention.bytes overrides it", (-LONG_MAX, LONG_MAX)
    )
    log_retention_check_interval_ms: int = setting(
        60_000, "how often retention runs and unused chunks are removed", INTERVAL
    )
    log_message_timestamp_type: str = setting(
        "CreateTime",
        "who sets timestamps, unless a topic's message.timestamp.type says so",
        choices=("CreateTime", "LogAppendTime"),
    )
    log_message_timestamp_before_max_ms: int = setting(
        LONG_MAX, "how far in the past timestamps can be; a topic can override it", (0, LONG_MAX)
    )
    log_message_timestamp_after_max_ms: int = setting(
        3_600_000, "how far in the future timestamps can be; a topic can override it", (0, LONG_MAX)
    )
    log_cleaner_enable: bool = setting(True, "whether topics with cleanup.policy=compact are compacted")
    log_cleaner_backoff_ms: int = setting(
        15_000, "how often the broker looks for partitions to compact", INTERVAL
    )
    log_cleaner_delete_retention_ms: int = setting(
        86_400_000, "how long tombstones are kept; a topic's delete.retention.ms overrides it", (0, LONG_MAX)
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        0, "a topic's min.compaction.lag.ms overrides it", (0, LONG_MAX)
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        LONG_MAX, "a topic's max.compaction.lag.ms overrides it", (1, LONG_MAX)
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        0.5, "a topic's min.cleanable.dirty.ratio overrides it", (0, 1)
    )
    semel_compaction_keys_max: int = setting(
        250_000, "keys held in memory by one compaction pass, about 50 MB; more keys need more passes", COUNT
    )
    semel_compaction_hold_ms: int = setting(
        60_000,
        "how long a reader holds off compaction of a partition without renewing its request",
        fixed=IN_PROGRESS,
    )
    semel_compaction_hold_max_ms: int = setting(
        3_600_000,
        "how long a due compaction pass waits for such readers before it runs anyway",
        fixed=IN_PROGRESS,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "the state of an idle producer is removed after this time", INTERVAL
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "how often expired producers are removed", INTERVAL
    )

    group_min_session_timeout_ms: int = setting(6_000, "classic groups", NOT_NEGATIVE)
    group_max_session_timeout_ms: int = setting(1_800_000, "classic groups", NOT_NEGATIVE)
    group_initial_rebalance_delay_ms: int = setting(
        3_000, "an empty classic group waits this long for more members", NOT_NEGATIVE
    )
    semel_groups_max: int = setting(
        100_000,
        "groups, including those that only have offsets; counted every five seconds to a minute",
        NOT_NEGATIVE,
    )
    group_max_size: int = setting(10_000, "members of one group", COUNT)
    semel_group_member_bytes_max: int = setting(
        1_048_576, "metadata of one member: its protocols and the names of its topics", COUNT
    )
    semel_group_bytes_max: int = setting(
        16_777_216, "metadata of all members of a group, which is written as a whole", COUNT
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000, "KIP-848 groups; a group's consumer.session.timeout.ms overrides it", INTERVAL
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "lowest value of a group's consumer.session.timeout.ms", INTERVAL
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "highest value of a group's consumer.session.timeout.ms", INTERVAL
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "KIP-848 groups; a group's consumer.heartbeat.interval.ms overrides it", INTERVAL
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "lowest value of a group's consumer.heartbeat.interval.ms", INTERVAL
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "highest value of a group's consumer.heartbeat.interval.ms", INTERVAL
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "whether a group with members may change from the classic protocol to KIP-848 (upgrade) and back",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_max_size: int = setting(10_000, "members of one KIP-848 group", COUNT)
    group_share_session_timeout_ms: int = setting(
        45_000, "share groups; a group's share.session.timeout.ms overrides it", INTERVAL
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000, "share groups; a group's share.heartbeat.interval.ms overrides it", INTERVAL
    )
    group_share_max_size: int = setting(200, "members of one share group", COUNT)
    group_share_partition_max_record_locks: int = setting(
        2_000, "records in flight in a partition, from the first that is not settled", (100, 10_000)
    )
    group_share_delivery_count_limit: int = setting(
        5, "deliveries of a record to a share group before it is given up", (2, 10)
    )
    group_share_record_lock_duration_ms: int = setting(
        30_000, "how long a member of a share group has for a record", (1_000, 3_600_000)
    )
    group_share_max_share_sessions: int = setting(2_000, "share sessions of this broker", COUNT, fixed=MEMORY)
    offsets_retention_minutes: int = setting(
        10_080, "how long the offsets of a group without members are kept", NOT_NEGATIVE
    )
    offset_metadata_max_bytes: int = setting(
        4_096, "metadata that a client can commit with an offset", NOT_NEGATIVE
    )
    offsets_topic_num_partitions: int = setting(
        50, "only determines the reported coordinator partition of a group", fixed=IN_PROGRESS
    )

    transaction_max_timeout_ms: int = setting(
        900_000, "longest transaction timeout that a producer can request", INTERVAL
    )
    semel_transactional_ids_max: int = setting(
        1_000_000,
        "transactional ids; counted every five seconds to a minute; unused ones expire",
        NOT_NEGATIVE,
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "an unused transactional id is removed after this time", INTERVAL
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        1_000,
        "how often overdue transactions are aborted; the check is cheap because they are in memory",
        INTERVAL,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "how often unused transactional ids are removed", INTERVAL
    )
    transaction_partition_verification_enable: bool = setting(
        True, "reject a transactional batch for a partition that an older client did not add (KIP-890)"
    )
    transaction_two_phase_commit_enable: bool = setting(
        False,
        "off, because transactions without a timeout can block readers forever (KIP-939)",
        fixed=ADVERTISED,
    )
    transaction_abort_on_disconnect: bool = setting(
        False,
        "off, because most producers that lose a connection reconnect within their timeout",
        fixed=IN_PROGRESS,
    )
    semel_extensions_enable: bool = setting(
        True,
        "serve CommitTransactions, BeginAttempt and TxnShareAcknowledge, which Kafka does not have;"
        " clients detect them",
        fixed=ADVERTISED,
    )
    semel_attempt_timeout_ms: int = setting(
        86_400_000,
        "a task attempt is aborted if its pipeline neither ends it nor returns within this time",
        INTERVAL,
    )
    semel_cluster_action_enable: bool = setting(
        True,
        "accept inter-broker requests (AddPartitionsToTxn v4, WriteTxnMarkers); ACLs override it",
        fixed=RIGHTS,
    )

    fetch_max_bytes: int = setting(
        57_671_680, "largest Fetch response, even if the client asks for more", COUNT
    )
    semel_fetch_wait_max_ms: int = setting(
        300_000,
        "longest wait of a Fetch, even if the client asks for more; clients ask for half a second",
        NOT_NEGATIVE,
    )
    semel_fetch_waiting_partitions_max: int = setting(
        250_000,
        "partitions in waiting Fetch requests of all clients, about 1 KB each; beyond it none waits",
        fixed=MEMORY,
    )
    semel_fetch_check_crcs: bool = setting(
        True, "verify the checksums of batches read from disk before serving them; not every client does"
    )
    max_incremental_fetch_session_cache_slots: int = setting(1_000, "cached fetch sessions", fixed=MEMORY)

    ssl_certificate_location: str = setting(
        "", "PEM file with the broker's certificate chain; required by ssl:// listeners", fixed=LISTENERS
    )
    ssl_key_location: str = setting(
        "", "PEM file with the unencrypted private key, if not in the certificate file", fixed=LISTENERS
    )
    ssl_ca_location: str = setting(
        "",
        "PEM file with the CAs that issue the certificates of clients; see ssl.client.auth",
        fixed=LISTENERS,
    )
    ssl_client_auth: str = setting(
        "",
        "whether clients need a certificate; by default they do if ssl.ca.location is set",
        choices=("", "none", "requested", "required"),
        fixed=LISTENERS,
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT",
        "how the name in a client's certificate becomes its user: RULE:pattern/replacement/[LU],…",
        fixed=LISTENERS,
    )
    ssl_enabled_protocols: str = setting(
        "TLSv1.2,TLSv1.3", "TLS versions that listeners accept; older versions are insecure", fixed=LISTENERS
    )
    ssl_cipher_suites: str = setting(
        "",
        "for TLS 1.2, in OpenSSL's or Java's names; default: ECDHE with AES-GCM or ChaCha20, no CBC, no RSA",
        fixed=LISTENERS,
    )

    sasl_enabled_mechanisms: str = setting(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "how clients of sasl listeners can authenticate; also PLAIN, OAUTHBEARER",
        fixed=LISTENERS,
    )
    connections_max_reauth_ms: int = setting(
        0,
        "a client of a sasl listener must authenticate again within this time (KIP-368); 0: never",
        (0, None),
        fixed=LISTENERS,
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "how long a client waits for the answer that its authentication failed", (0, 10_000)
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", "https:// or file:// URL of the keys that sign tokens; required by OAUTHBEARER", fixed=LISTENERS
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, "how often the keys are read again", (1_000, 86_400_000), fixed=LISTENERS
    )
    sasl_oauthbearer_expected_issuer: str = setting(
        "", "who issues tokens; required by OAUTHBEARER", fixed=LISTENERS
    )
    sasl_oauthbearer_expected_audience: str = setting(
        "",
        "whom tokens are for, one or several separated by commas; required by OAUTHBEARER",
        fixed=LISTENERS,
    )
    semel_oauthbearer_algorithms: str = setting(
        "",
        "the signatures that tokens may have, such as RS256,ES256; required by OAUTHBEARER",
        fixed=LISTENERS,
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        "sub", "the claim of a token that names the user", fixed=LISTENERS
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, "how much the clock of the issuer may differ", (0, 300), fixed=LISTENERS
    )

    semel_authorizer: str = setting(
        "",
        "acl: clients may do what ACLs allow; otherwise they may do everything",
        choices=("", "acl"),
        fixed=RIGHTS,
    )
    super_users: str = setting("", "who may do everything: User:admin;User:…", fixed=RIGHTS)
    allow_everyone_if_no_acl_found: bool = setting(
        False, "whether everybody may use what no ACL mentions", fixed=RIGHTS
    )
    semel_policies_max: int = setting(
        100_000,
        "ACLs, SCRAM users, quotas and the configs of groups and brokers together; all are in memory",
        NOT_NEGATIVE,
    )

    socket_request_max_bytes: int = setting(
        104_857_600, "largest Produce request; larger ones are rejected before they are read", fixed=MEMORY
    )
    semel_request_max_bytes: int = setting(
        4_194_304, "largest request of any other API; only Produce carries records", fixed=MEMORY
    )
    semel_request_elements_max: int = setting(
        50_000,
        "entries in all arrays of a request; the cost of decoding and answering grows with them",
        fixed=MEMORY,
    )
    queued_max_request_bytes: int = setting(
        268_435_456, "bytes of requests in progress, all clients", fixed=MEMORY
    )
    semel_queued_max_response_bytes: int = setting(
        268_435_456, "bytes of unsent responses, all clients", fixed=MEMORY
    )
    max_connections: int = setting(10_000, "concurrent connections; further ones are closed at once", COUNT)
    max_connections_per_ip: int = setting(
        5_000,
        "concurrent connections from one address, so that one address cannot lock out the others",
        NOT_NEGATIVE,
    )
    semel_connections_per_user_max: int = setting(
        0, "concurrent connections of one authenticated user; 0: no limit", fixed=MEMORY
    )
    max_connections_per_ip_overrides: str = setting(
        "", "limits for individual addresses: 10.0.0.7:100,10.0.0.8:20000"
    )
    connections_max_idle_ms: int = setting(600_000, "idle connections are closed after this time", INTERVAL)
    semel_write_timeout_ms: int = setting(
        60_000, "a connection is closed if its client does not read a response for this long", INTERVAL
    )
    semel_requests_in_flight_max: int = setting(64, "requests in progress per connection", fixed=MEMORY)

    semel_durability: str = setting(
        "on_commit",
        "on_commit: the end of a transaction flushes its work, which was answered before; always: every"
        " answer waits for the flush",
        choices=("on_commit", "always"),
        fixed=IN_PROGRESS,
    )
    semel_chunk_bytes_max: int = setting(268_435_456, "a chunk is sealed at this size", fixed=STORE)
    semel_disk_reserve_bytes: int = setting(
        67_108_864, "Produce is rejected below this much free disk space; reads continue", fixed=STORE
    )
    semel_scrub_bytes_per_second: int = setting(
        2_097_152,
        "rate at which stored data is read in the background to verify its checksums; 0 disables it",
        fixed=STORE,
    )
    semel_entities_max: int = setting(
        100_000, "partitions, producers, groups and offsets cached in memory, each", fixed=MEMORY
    )
    semel_tick_bytes_max: int = setting(
        8_388_608,
        "bytes of batches in one commit; requests of all other clients wait while it is written",
        fixed=MEMORY,
    )

    semel_inline_bytes_max: int = setting(
        262_144,
        "cluster: larger commits are uploaded as objects, smaller ones are first kept in PostgreSQL",
        fixed=STORE,
    )
    semel_object_bytes: int = setting(
        8_388_608,
        "cluster: size of the objects that small commits are moved to, or large ones divided into",
        fixed=STORE,
    )
    semel_roll_interval_ms: int = setting(
        3_000,
        "cluster: how long small commits stay in PostgreSQL, unless there are enough for an object",
        fixed=STORE,
    )
    semel_object_delete_delay_ms: int = setting(
        600_000,
        "cluster: how long an unused object is kept, because other brokers may be reading it",
        fixed=STORE,
    )
    semel_object_reconcile_interval_ms: int = setting(
        21_600_000, "cluster: how often the list of objects is compared with the ledger", fixed=STORE
    )
    semel_block_cache_bytes: int = setting(
        67_108_864, "cluster: memory for what was read from objects or is still in PostgreSQL", fixed=MEMORY
    )
    semel_merge_interval_ms: int = setting(
        60_000,
        "cluster: how often old batches are rewritten in runs, which need fewer rows; 0 disables it",
        fixed=STORE,
    )
    semel_merge_age_ms: int = setting(
        600_000,
        "cluster: how old batches are when they are rewritten; readers are mostly past them then",
        fixed=STORE,
    )

    def __post_init__(self) -> None:
        """Reject values outside the choices or limits of a setting, whatever their source."""
        check(self.dotted(), SETTINGS)

    @classmethod
    def names(cls) -> dict[str, str]:
        """Map the dotted name to the field name of every setting."""
        return dict(_ATTRIBUTES)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Build settings from dotted names. Text is converted to the type of the setting."""
        return cls(**_values(options))

    def value(self, name: str) -> Any:
        """Return a setting by its dotted name."""
        return getattr(self, _ATTRIBUTES[name])

    def dotted(self) -> dict[str, Any]:
        """Return every setting by its dotted name."""
        return {name: getattr(self, attribute) for name, attribute in _ATTRIBUTES.items()}


_ATTRIBUTES: Final = {field.name.replace("_", "."): field.name for field in fields(Settings)}
SETTINGS: Final[Mapping[str, configs.Config]] = {
    name: field.metadata["config"] for name, field in zip(_ATTRIBUTES, fields(Settings), strict=True)
}
"""The table, by dotted names."""
READ_ONLY: Final = {name: config.fixed for name, config in SETTINGS.items() if config.fixed}
"""Why a setting cannot be changed, by its name."""


def _values(options: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in SETTINGS:
            raise unknown(name, SETTINGS)
        values[_ATTRIBUTES[name]] = coerce(name, value, SETTINGS[name])
    return values


def unchangeable(name: str) -> str | None:
    """Return the error message for a setting that is unknown or cannot be changed; None if it can."""
    if name in READ_ONLY:
        return f"Cannot update {name} dynamically: {READ_ONLY[name]}. Change it where the broker is started."
    if name in SETTINGS:
        return None
    near = configs.suggestion(name, SETTINGS.keys() - READ_ONLY.keys())
    return f"Unknown broker config name: {name[: configs.NAME_SHOWN_MAX]}{near}"


def value_problem(name: str, value: str) -> str | None:
    """Return the error message for an invalid value of a setting; None if it is valid."""
    if len(value) > configs.VALUE_LENGTH_MAX:
        return f"The value for configuration {name} is longer than {configs.VALUE_LENGTH_MAX} characters"
    try:
        Settings.of({name: value})
    except ValueError as error:
        return f"Invalid value for configuration {name}: {error}"
    return None


def in_force(static: Settings, *layers: Mapping[str, str]) -> Settings:
    """Return the effective settings: those at startup, overridden by each layer of changed values in turn.

    Values that this version does not accept are skipped, because another version may have written them.
    """
    settings = static
    for layer in layers:
        for name, value in layer.items():
            if unchangeable(name) is None:
                try:
                    settings = replace(settings, **_values({name: value}))
                except ValueError:
                    continue
    return settings
