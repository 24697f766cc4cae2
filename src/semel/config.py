"""Settings: every option and every limit, its default and its reason.

A setting that Kafka has keeps Kafka's name, with dots for underscores (``auto.create.topics.enable``); the
names of all others start with ``semel.``. ``Settings.of`` takes the dotted names, from a TOML file, the
command line or ``semel.embedded``, and rejects an unknown one with the nearest known name.

Settings are passed in: nothing reads the environment or a global.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from semel.log_settings import LogSettings
from semel.setting_values import COUNT, INT_MAX, INTERVAL, UnknownSetting, check, coerce, setting, unknown

__all__ = ["Settings", "UnknownSetting"]


@dataclass(frozen=True, slots=True)
class Settings(LogSettings):
    """All settings, in the order in which an operator needs them; those of `LogSettings` come first."""

    transaction_max_timeout_ms: int = setting(
        900_000, "longest transaction timeout that a producer can request", limits=INTERVAL
    )
    semel_transactional_ids_max: int = setting(
        1_000_000, "transactional ids; counted every few seconds; unused ones expire", limits=(0, INT_MAX)
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "an unused transactional id is removed after this time", limits=INTERVAL
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        1_000,
        "how often overdue transactions are aborted; the check is cheap because they are in memory",
        limits=INTERVAL,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "how often unused transactional ids are removed", limits=INTERVAL
    )
    transaction_partition_verification_enable: bool = setting(
        True, "reject a transactional batch for a partition that an older client did not add (KIP-890)"
    )
    transaction_two_phase_commit_enable: bool = setting(
        False, "off, because transactions without a timeout can block readers forever (KIP-939)"
    )
    transaction_abort_on_disconnect: bool = setting(
        False, "off, because most producers that lose a connection reconnect within their timeout"
    )
    semel_extensions_enable: bool = setting(
        True,
        "serve CommitTransactions, BeginAttempt and TxnShareAcknowledge, which Kafka does not have;"
        " clients detect them",
    )
    semel_attempt_timeout_ms: int = setting(
        86_400_000,
        "a task attempt is aborted if its pipeline neither ends it nor returns within this time",
        limits=INTERVAL,
    )
    semel_cluster_action_enable: bool = setting(
        True, "accept inter-broker requests (AddPartitionsToTxn v4, WriteTxnMarkers); ACLs override it"
    )

    fetch_max_bytes: int = setting(
        57_671_680, "largest Fetch response, even if the client asks for more", limits=COUNT
    )
    semel_fetch_wait_max_ms: int = setting(
        300_000,
        "longest wait of a Fetch, even if the client asks for more; clients ask for half a second",
        limits=(0, INT_MAX),
    )
    semel_fetch_waiting_partitions_max: int = setting(
        250_000, "partitions in waiting Fetch requests of all clients, about 1 KB each; beyond it none waits"
    )
    semel_fetch_check_crcs: bool = setting(
        True, "verify the checksums of batches read from disk before serving them; not every client does"
    )
    max_incremental_fetch_session_cache_slots: int = setting(1_000, "cached fetch sessions")

    ssl_certificate_location: str = setting(
        "", "PEM file with the broker's certificate chain; required by ssl:// listeners"
    )
    ssl_key_location: str = setting(
        "", "PEM file with the unencrypted private key, if not in the certificate file"
    )
    ssl_ca_location: str = setting(
        "", "PEM file with the CAs that issue the certificates of clients; see ssl.client.auth"
    )
    ssl_client_auth: str = setting(
        "",
        "whether clients need a certificate; by default they do if ssl.ca.location is set",
        choices=("", "none", "requested", "required"),
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT", "how the name in a client's certificate becomes its user: RULE:pattern/replacement/[LU],…"
    )
    ssl_enabled_protocols: str = setting(
        "TLSv1.2,TLSv1.3", "TLS versions that listeners accept; older versions are insecure"
    )
    ssl_cipher_suites: str = setting(
        "",
        "for TLS 1.2, in OpenSSL's or Java's names; default: ECDHE with AES-GCM or ChaCha20, no CBC, no RSA",
    )

    sasl_enabled_mechanisms: str = setting(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "how clients of sasl listeners can authenticate; also PLAIN, OAUTHBEARER",
    )
    connections_max_reauth_ms: int = setting(
        0,
        "a client of a sasl listener must authenticate again within this time (KIP-368); 0: never",
        limits=(0, None),
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "how long a client waits for the answer that its authentication failed", limits=(0, 10_000)
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", "https:// or file:// URL of the keys that sign tokens; required by OAUTHBEARER"
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, "how often the keys are read again", limits=(1_000, 86_400_000)
    )
    sasl_oauthbearer_expected_issuer: str = setting("", "who issues tokens; required by OAUTHBEARER")
    sasl_oauthbearer_expected_audience: str = setting(
        "", "whom tokens are for, one or several separated by commas; required by OAUTHBEARER"
    )
    semel_oauthbearer_algorithms: str = setting(
        "", "the signatures that tokens may have, such as RS256,ES256; required by OAUTHBEARER"
    )
    sasl_oauthbearer_sub_claim_name: str = setting("sub", "the claim of a token that names the user")
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, "how much the clock of the issuer may differ", limits=(0, 300)
    )

    semel_authorizer: str = setting(
        "", "acl: clients may do what ACLs allow; otherwise they may do everything", choices=("", "acl")
    )
    super_users: str = setting("", "who may do everything: User:admin;User:…")
    allow_everyone_if_no_acl_found: bool = setting(False, "whether everybody may use what no ACL mentions")
    semel_policies_max: int = setting(
        100_000,
        "ACLs, SCRAM users, quotas and the configs of groups and brokers together; all are in memory",
        limits=(0, INT_MAX),
    )

    socket_request_max_bytes: int = setting(
        104_857_600, "largest Produce request; larger ones are rejected before they are read"
    )
    semel_request_max_bytes: int = setting(
        4_194_304, "largest request of any other API; only Produce carries records"
    )
    semel_request_elements_max: int = setting(
        50_000, "entries in all arrays of a request; the cost of decoding and answering grows with them"
    )
    queued_max_request_bytes: int = setting(268_435_456, "bytes of requests in progress, all clients")
    semel_queued_max_response_bytes: int = setting(268_435_456, "bytes of unsent responses, all clients")
    max_connections: int = setting(
        10_000, "concurrent connections; further ones are closed at once", limits=COUNT
    )
    max_connections_per_ip: int = setting(
        5_000,
        "concurrent connections from one address, so that one address cannot lock out the others",
        limits=(0, INT_MAX),
    )
    semel_connections_per_user_max: int = setting(
        0, "concurrent connections of one authenticated user; 0: no limit"
    )
    max_connections_per_ip_overrides: str = setting(
        "", "limits for individual addresses: 10.0.0.7:100,10.0.0.8:20000"
    )
    connections_max_idle_ms: int = setting(
        600_000, "idle connections are closed after this time", limits=INTERVAL
    )
    semel_write_timeout_ms: int = setting(
        60_000, "a connection is closed if its client does not read a response for this long", limits=INTERVAL
    )
    semel_requests_in_flight_max: int = setting(64, "requests in progress per connection")

    semel_durability: str = setting(
        "early",
        "early: work inside a transaction is answered before the flush, its end flushes it; flush: after",
        choices=("early", "flush"),
    )
    semel_chunk_bytes_max: int = setting(268_435_456, "a chunk is sealed at this size")
    semel_disk_reserve_bytes: int = setting(
        67_108_864, "Produce is rejected below this much free disk space; reads continue"
    )
    semel_scrub_bytes_per_second: int = setting(
        2_097_152,
        "rate at which stored data is read in the background to verify its checksums; 0 disables it",
    )
    semel_entities_max: int = setting(
        100_000, "partitions, producers, groups and offsets cached in memory, each"
    )
    semel_tick_bytes_max: int = setting(
        8_388_608,
        "bytes of batches in one commit; requests of all other clients wait while it is written",
    )

    semel_inline_bytes_max: int = setting(
        262_144, "cluster: larger commits are uploaded as objects, smaller ones are first kept in PostgreSQL"
    )
    semel_object_bytes: int = setting(
        8_388_608, "cluster: size of the objects that small commits are moved to, or large ones divided into"
    )
    semel_roll_interval_ms: int = setting(
        3_000, "cluster: how long small commits stay in PostgreSQL, unless there are enough for an object"
    )
    semel_object_delete_delay_ms: int = setting(
        600_000, "cluster: how long an unused object is kept, because other brokers may be reading it"
    )
    semel_object_reconcile_interval_ms: int = setting(
        21_600_000, "cluster: how often the list of objects is compared with the ledger"
    )
    semel_block_cache_bytes: int = setting(
        67_108_864, "cluster: memory for what was read from objects or is still in PostgreSQL"
    )
    semel_merge_interval_ms: int = setting(
        60_000, "cluster: how often old batches are rewritten in runs, which need fewer rows; 0 disables it"
    )
    semel_merge_age_ms: int = setting(
        600_000, "cluster: how old batches are when they are rewritten; readers are mostly past them then"
    )

    def __post_init__(self) -> None:
        """Reject values outside the choices or limits of a setting, whatever their source."""
        check(self)

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
                raise unknown(name, known)
            values[known[name]] = coerce(name, value, types[known[name]])
        return cls(**values)

    def dotted(self) -> dict[str, Any]:
        """Return every setting by its dotted name."""
        return {name: getattr(self, attribute) for name, attribute in self.names().items()}
