"""Settings: every option and every limit, its default and its reason.

Names are Kafka's where Kafka has the setting, with dots for underscores (``auto.create.topics.enable``), and
start with ``semel.`` where it is ours. ``Settings.of`` takes the dotted names, from a TOML file, the command
line or ``semel.embedded``, and refuses an unknown one with the nearest known name.

Nothing reads the environment or a global: settings are passed in.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self


class UnknownSetting(ValueError):
    """A setting that does not exist; the message names the nearest one that does."""


def _setting(
    default: Any,
    why: str,
    name: str | None = None,
    choices: tuple[str, ...] = (),
    limits: tuple[int, int] | None = None,
) -> Any:
    return field(default=default, metadata={"why": why, "name": name, "choices": choices, "limits": limits})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, in the order in which an operator needs them."""

    node_id: int = _setting(
        0, "id of this broker; clients expect ids to start at 0", limits=(0, 2_147_483_647)
    )
    semel_lease_ms: int = _setting(
        3_000,
        "in a cluster: a broker that is silent for so long is replaced; renewed three times as often",
        limits=(500, 60_000),
    )
    broker_rack: str = _setting("", "rack or availability zone of this broker, shown to clients")
    cluster_id: str = _setting("", "generated when a data directory is first used, unless set")
    auto_create_topics_enable: bool = _setting(
        False, "a typo in a topic name should be an error, not a new topic"
    )
    num_partitions: int = _setting(1, "partitions of a topic that is created without a number")
    delete_topic_enable: bool = _setting(True, "whether topics can be deleted")
    semel_partitions_per_topic_max: int = _setting(
        10_000, "partitions of one topic, and partitions created by one request"
    )
    semel_partitions_max: int = _setting(200_000, "partitions of all topics; each has a row in the ledger")

    message_max_bytes: int = _setting(1_048_588, "largest batch; a topic's max.message.bytes overrides it")
    semel_validate_records: str = _setting(
        "all",
        "validate the records inside produced batches; a corrupt batch would block every reader",
        choices=("all", "uncompressed", "none"),
    )
    semel_batch_content_max_bytes: int = _setting(
        33_554_432, "decompressed size of a batch, or max.message.bytes if larger; readers hold it in memory"
    )
    log_retention_ms: int = _setting(604_800_000, "seven days; a topic's retention.ms overrides it")
    log_retention_bytes: int = _setting(-1, "no size limit; a topic's retention.bytes overrides it")
    log_retention_check_interval_ms: int = _setting(
        60_000, "how often retention runs and unused chunks are removed"
    )
    log_cleaner_enable: bool = _setting(True, "whether topics with cleanup.policy=compact are compacted")
    log_cleaner_backoff_ms: int = _setting(15_000, "how often the broker looks for partitions to compact")
    semel_compaction_keys_max: int = _setting(
        250_000, "keys held in memory by one compaction pass, about 50 MB; more keys need more passes"
    )
    semel_compaction_hold_ms: int = _setting(
        60_000, "how long a reader holds off compaction of a partition without renewing its request"
    )
    semel_compaction_hold_max_ms: int = _setting(
        3_600_000, "how long a due compaction pass waits for such readers before it runs anyway"
    )
    producer_id_expiration_ms: int = _setting(
        86_400_000, "the state of an idle producer is removed after this time"
    )
    producer_id_expiration_check_interval_ms: int = _setting(
        600_000, "how often expired producers are removed"
    )

    group_min_session_timeout_ms: int = _setting(6_000, "classic groups")
    group_max_session_timeout_ms: int = _setting(1_800_000, "classic groups")
    group_initial_rebalance_delay_ms: int = _setting(
        3_000, "an empty classic group waits this long for more members"
    )
    semel_groups_max: int = _setting(
        100_000, "groups, including those that only have offsets; counted every few seconds"
    )
    group_max_size: int = _setting(10_000, "members of one group")
    semel_group_member_bytes_max: int = _setting(
        1_048_576, "metadata of one member: its protocols and the names of its topics"
    )
    semel_group_bytes_max: int = _setting(
        16_777_216, "metadata of all members of a group, which is written as a whole"
    )
    group_consumer_session_timeout_ms: int = _setting(45_000, "KIP-848 groups")
    group_consumer_heartbeat_interval_ms: int = _setting(5_000, "KIP-848 groups")
    group_consumer_max_size: int = _setting(10_000, "members of one KIP-848 group")
    offsets_retention_minutes: int = _setting(
        10_080, "how long the offsets of a group without members are kept"
    )
    offset_metadata_max_bytes: int = _setting(4_096, "metadata that a client can commit with an offset")
    offsets_topic_num_partitions: int = _setting(
        50, "only determines the reported coordinator partition of a group"
    )

    transaction_max_timeout_ms: int = _setting(
        900_000, "longest transaction timeout that a producer can request"
    )
    semel_transactional_ids_max: int = _setting(
        1_000_000, "transactional ids; counted every few seconds; unused ones expire"
    )
    transactional_id_expiration_ms: int = _setting(
        604_800_000, "an unused transactional id is removed after this time"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _setting(
        1_000, "how often overdue transactions are aborted; the check is cheap because they are in memory"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _setting(
        3_600_000, "how often unused transactional ids are removed"
    )
    transaction_partition_verification_enable: bool = _setting(
        True, "reject a transactional batch for a partition that an older client did not add (KIP-890)"
    )
    transaction_two_phase_commit_enable: bool = _setting(
        False, "off, because transactions without a timeout can block readers forever (KIP-939)"
    )
    transaction_abort_on_disconnect: bool = _setting(
        False, "off, because most producers that lose a connection reconnect within their timeout"
    )
    semel_extensions_enable: bool = _setting(
        True,
        "serve CommitTransactions and BeginAttempt, which Kafka does not have; clients detect them",
    )
    semel_attempt_timeout_ms: int = _setting(
        86_400_000, "a task attempt is aborted if its pipeline neither ends it nor returns within this time"
    )
    semel_cluster_action_enable: bool = _setting(
        True, "accept inter-broker requests (AddPartitionsToTxn v4, WriteTxnMarkers); ACLs override it"
    )

    fetch_max_bytes: int = _setting(57_671_680, "largest Fetch response, even if the client asks for more")
    semel_fetch_wait_max_ms: int = _setting(
        300_000, "longest wait of a Fetch, even if the client asks for more; clients ask for half a second"
    )
    semel_fetch_waiting_partitions_max: int = _setting(
        250_000, "partitions in waiting Fetch requests of all clients, about 1 KB each; beyond it none waits"
    )
    semel_fetch_check_crcs: bool = _setting(
        True, "verify the checksums of batches read from disk before serving them; not every client does"
    )
    max_incremental_fetch_session_cache_slots: int = _setting(1_000, "cached fetch sessions")

    ssl_certificate_location: str = _setting(
        "", "PEM file with the broker's certificate chain; required by ssl:// listeners"
    )
    ssl_key_location: str = _setting(
        "", "PEM file with the unencrypted private key, if not in the certificate file"
    )
    ssl_ca_location: str = _setting(
        "", "PEM file with the CAs that issue the certificates of clients; see ssl.client.auth"
    )
    ssl_client_auth: str = _setting(
        "",
        "whether clients need a certificate; by default they do if ssl.ca.location is set",
        choices=("", "none", "requested", "required"),
    )
    ssl_principal_mapping_rules: str = _setting(
        "DEFAULT", "how the name in a client's certificate becomes its user: RULE:pattern/replacement/[LU],…"
    )
    ssl_enabled_protocols: str = _setting(
        "TLSv1.2,TLSv1.3", "TLS versions that listeners accept; older versions are insecure"
    )
    ssl_cipher_suites: str = _setting(
        "",
        "for TLS 1.2, in OpenSSL's or Java's names; default: ECDHE with AES-GCM or ChaCha20, no CBC, no RSA",
    )

    sasl_enabled_mechanisms: str = _setting(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "how clients of sasl listeners can authenticate; also PLAIN, OAUTHBEARER",
    )
    connections_max_reauth_ms: int = _setting(
        0, "a client of a sasl listener must authenticate again within this time (KIP-368); 0: never"
    )
    connection_failed_authentication_delay_ms: int = _setting(
        100, "how long a client waits for the answer that its authentication failed", limits=(0, 10_000)
    )
    sasl_oauthbearer_jwks_endpoint_url: str = _setting(
        "", "https:// or file:// URL of the keys that sign tokens; required by OAUTHBEARER"
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _setting(
        3_600_000, "how often the keys are read again", limits=(1_000, 86_400_000)
    )
    sasl_oauthbearer_expected_issuer: str = _setting("", "who issues tokens; required by OAUTHBEARER")
    sasl_oauthbearer_expected_audience: str = _setting(
        "", "whom tokens are for, one or several separated by commas; required by OAUTHBEARER"
    )
    semel_oauthbearer_algorithms: str = _setting(
        "", "the signatures that tokens may have, such as RS256,ES256; required by OAUTHBEARER"
    )
    sasl_oauthbearer_sub_claim_name: str = _setting("sub", "the claim of a token that names the user")
    sasl_oauthbearer_clock_skew_seconds: int = _setting(
        30, "how much the clock of the issuer may differ", limits=(0, 300)
    )

    semel_authorizer: str = _setting(
        "", "acl: clients may do what ACLs allow; otherwise they may do everything", choices=("", "acl")
    )
    super_users: str = _setting("", "who may do everything: User:admin;User:…")
    allow_everyone_if_no_acl_found: bool = _setting(False, "whether everybody may use what no ACL mentions")
    semel_policies_max: int = _setting(
        100_000, "ACLs, SCRAM users and quotas together; every broker has them in memory"
    )

    socket_request_max_bytes: int = _setting(
        104_857_600, "largest Produce request; larger ones are rejected before they are read"
    )
    semel_request_max_bytes: int = _setting(
        4_194_304, "largest request of any other API; only Produce carries records"
    )
    semel_request_elements_max: int = _setting(
        50_000, "entries in all arrays of a request; the cost of decoding and answering grows with them"
    )
    queued_max_request_bytes: int = _setting(268_435_456, "bytes of requests in progress, all clients")
    semel_queued_max_response_bytes: int = _setting(268_435_456, "bytes of unsent responses, all clients")
    max_connections: int = _setting(10_000, "concurrent connections; further ones are closed at once")
    max_connections_per_ip: int = _setting(
        5_000, "concurrent connections from one address, so that one address cannot lock out the others"
    )
    semel_connections_per_user_max: int = _setting(
        0, "concurrent connections of one authenticated user; 0: no limit"
    )
    max_connections_per_ip_overrides: str = _setting(
        "", "limits for individual addresses: 10.0.0.7:100,10.0.0.8:20000"
    )
    connections_max_idle_ms: int = _setting(600_000, "idle connections are closed after this time")
    semel_write_timeout_ms: int = _setting(
        60_000, "a connection is closed if its client does not read a response for this long"
    )
    semel_requests_in_flight_max: int = _setting(64, "requests in progress per connection")

    semel_durability: str = _setting(
        "early",
        "early: work inside a transaction is answered before the flush, its end flushes it; flush: after",
        choices=("early", "flush"),
    )
    semel_chunk_bytes_max: int = _setting(268_435_456, "a chunk is sealed at this size")
    semel_disk_reserve_bytes: int = _setting(
        67_108_864, "Produce is rejected below this much free disk space; reads continue"
    )
    semel_scrub_bytes_per_second: int = _setting(
        2_097_152,
        "rate at which stored data is read in the background to verify its checksums; 0 disables it",
    )
    semel_entities_max: int = _setting(
        100_000, "partitions, producers, groups and offsets cached in memory, each"
    )
    semel_tick_bytes_max: int = _setting(
        8_388_608,
        "bytes of batches in one commit; requests of all other clients wait while it is written",
    )

    semel_inline_bytes_max: int = _setting(
        262_144, "cluster: larger commits are uploaded as objects, smaller ones are first kept in PostgreSQL"
    )
    semel_object_bytes: int = _setting(
        8_388_608, "cluster: size of the objects that small commits are moved to, or large ones divided into"
    )
    semel_roll_interval_ms: int = _setting(
        3_000, "cluster: how long small commits stay in PostgreSQL, unless there are enough for an object"
    )
    semel_object_delete_delay_ms: int = _setting(
        600_000, "cluster: how long an unused object is kept, because other brokers may be reading it"
    )
    semel_object_reconcile_interval_ms: int = _setting(
        21_600_000, "cluster: how often the list of objects is compared with the ledger"
    )
    semel_block_cache_bytes: int = _setting(
        67_108_864, "cluster: memory for what was read from objects or is still in PostgreSQL"
    )
    semel_merge_interval_ms: int = _setting(
        60_000, "cluster: how often old batches are rewritten in runs, which need fewer rows; 0 disables it"
    )
    semel_merge_age_ms: int = _setting(
        600_000, "cluster: how old batches are when they are rewritten; readers are mostly past them then"
    )

    def __post_init__(self) -> None:
        """Refuse values beyond the choices or limits of a setting, whatever their source."""
        for each in fields(self):
            choices, limits = each.metadata["choices"], each.metadata["limits"]
            name, value = each.name.replace("_", "."), getattr(self, each.name)
            if choices and value not in choices:
                raise ValueError(f"{name} must be {' or '.join(choices)}, not {value!r}")
            if limits and not limits[0] <= value <= limits[1]:
                raise ValueError(f"{name} must be from {limits[0]:,} to {limits[1]:,}, not {value:,}")
        connections_by_host(self.max_connections_per_ip_overrides)
        principals(self.super_users)

    @classmethod
    def names(cls) -> dict[str, str]:
        """Map the dotted name to the field name of every setting."""
        return {each.metadata.get("name") or each.name.replace("_", "."): each.name for each in fields(cls)}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Build settings from dotted names. Text is converted to the type of the setting."""
        known = cls.names()
        types = {each.name: type(each.default) for each in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise UnknownSetting(f"there is no setting {name!r}{hint}")
            values[known[name]] = _coerce(name, value, types[known[name]])
        return cls(**values)

    def dotted(self) -> dict[str, Any]:
        """Return every setting by its dotted name."""
        return {name: getattr(self, attribute) for name, attribute in self.names().items()}


def connections_by_host(overrides: str) -> dict[str, int]:
    """Parse ``max.connections.per.ip.overrides``. ValueError if it is invalid."""
    limits: dict[str, int] = {}
    for each in filter(None, (part.strip() for part in overrides.split(","))):
        host, _, limit = each.rpartition(":")
        if not host or not limit.isdecimal():
            raise ValueError(f"max.connections.per.ip.overrides takes ADDRESS:NUMBER,…, not {each!r}")
        limits[host] = int(limit)
    return limits


def principals(super_users: str) -> frozenset[str]:
    """Parse ``super.users``. ValueError if it is invalid: a super user must not be one by mistake, or not."""
    found = frozenset(filter(None, (each.strip() for each in super_users.split(";"))))
    for each in found:
        kind, _, name = each.partition(":")
        if kind != "User" or name in ("", "*") or ",User:" in each:
            raise ValueError(f"super.users takes User:NAME;User:NAME;…, not {each!r}")
    return found


_CALLED = {int: "a whole number", bool: "true or false", str: "text"}


def _coerce(name: str, value: Any, kind: type) -> Any:
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    text = str(value).strip()
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {_CALLED[kind]}, not {value!r}") from None
