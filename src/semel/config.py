"""Settings: every option and every limit, its default and its reason.

Names are Kafka's where Kafka has the thing, with dots for underscores (``auto.create.topics.enable``), and
begin with ``semel.`` where it is ours. ``Settings.of`` takes the dotted names, from a TOML file, the command
line or ``semel.embedded``, and refuses what it does not know by name, with the nearest name it does know.

Nobody reads the environment and nobody keeps a global: settings are given from above.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self


class UnknownSetting(ValueError):
    """A setting that does not exist; the message names the nearest one that does."""


def _setting(default: Any, why: str, name: str | None = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"why": why, "name": name, "choices": choices})


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set, in the order in which an operator meets it."""

    node_id: int = _setting(0, "this broker's number; clients expect them to start at 0")
    cluster_id: str = _setting("", "set at the first start of a data directory when left empty")
    auto_create_topics_enable: bool = _setting(
        False, "a typo in a topic name should be an error, not a topic"
    )
    num_partitions: int = _setting(1, "partitions of a topic that is created without a number")
    delete_topic_enable: bool = _setting(True, "whether topics may be deleted at all")
    semel_partitions_per_topic_max: int = _setting(10_000, "partitions of a topic, and made by one request")
    semel_partitions_max: int = _setting(200_000, "partitions of all topics; each has a row in the ledger")

    message_max_bytes: int = _setting(1_048_588, "largest batch; a topic's max.message.bytes overrides it")
    semel_validate_records: str = _setting(
        "all",
        "open batches when they are produced: one that is damaged inside stops every reader",
        choices=("all", "uncompressed", "none"),
    )
    semel_batch_content_max_bytes: int = _setting(
        33_554_432, "what a batch may unpack to, or max.message.bytes if larger; readers have to hold it"
    )
    log_retention_ms: int = _setting(604_800_000, "seven days; a topic's retention.ms overrides it")
    log_retention_bytes: int = _setting(-1, "no limit by size; a topic's retention.bytes overrides it")
    log_retention_check_interval_ms: int = _setting(60_000, "how often retention and sweeping run")
    log_cleaner_enable: bool = _setting(True, "whether topics with cleanup.policy compact are compacted")
    log_cleaner_backoff_ms: int = _setting(15_000, "how often a partition worth compacting is looked for")
    semel_compaction_keys_max: int = _setting(
        250_000, "keys that one pass of compaction knows, about 50 MB; more take more passes"
    )
    semel_compaction_hold_ms: int = _setting(
        60_000, "how long a reader keeps compaction away from a partition unless it asks again"
    )
    semel_compaction_hold_max_ms: int = _setting(
        3_600_000, "a pass of compaction that is due waits this long for such readers, then it goes first"
    )
    producer_id_expiration_ms: int = _setting(86_400_000, "a producer that is silent this long is forgotten")
    producer_id_expiration_check_interval_ms: int = _setting(600_000, "how often that is looked for")

    group_min_session_timeout_ms: int = _setting(6_000, "classic groups")
    group_max_session_timeout_ms: int = _setting(1_800_000, "classic groups")
    group_initial_rebalance_delay_ms: int = _setting(
        3_000, "an empty classic group waits this long for more members"
    )
    semel_groups_max: int = _setting(
        100_000, "groups, also those that only have offsets; counted every few seconds"
    )
    group_max_size: int = _setting(10_000, "members of one group")
    semel_group_member_bytes_max: int = _setting(
        1_048_576, "what a member says of itself: metadata of its protocols, names of its topics"
    )
    semel_group_bytes_max: int = _setting(
        16_777_216, "the same of all members of a group, which is written as a whole"
    )
    group_consumer_session_timeout_ms: int = _setting(45_000, "KIP-848 groups")
    group_consumer_heartbeat_interval_ms: int = _setting(5_000, "KIP-848 groups")
    group_consumer_max_size: int = _setting(10_000, "members of one KIP-848 group")
    offsets_retention_minutes: int = _setting(10_080, "a group's offsets outlive its last member this long")
    offset_metadata_max_bytes: int = _setting(4_096, "the note a client may keep with an offset")
    offsets_topic_num_partitions: int = _setting(50, "only names the coordinator partition of a group")

    transaction_max_timeout_ms: int = _setting(900_000, "longest transaction timeout a producer may ask for")
    semel_transactional_ids_max: int = _setting(
        1_000_000, "transactional ids; counted every few seconds; unused ones are forgotten in time"
    )
    transactional_id_expiration_ms: int = _setting(
        604_800_000, "a transactional id that is not used this long is forgotten"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _setting(
        1_000, "how often overdue transactions are looked for; they are in memory, so often is cheap"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _setting(
        3_600_000, "how often unused transactional ids are looked for"
    )
    transaction_partition_verification_enable: bool = _setting(
        True, "refuse a transactional batch for a partition that an older client did not add (KIP-890)"
    )
    transaction_two_phase_commit_enable: bool = _setting(
        False, "transactions that never time out can block readers for ever (KIP-939)"
    )
    transaction_abort_on_disconnect: bool = _setting(
        False, "a lost connection is no proof of a dead producer; most come back within the timeout"
    )
    semel_extensions_enable: bool = _setting(
        True,
        "serve what is not Kafka's: group commit and the attempts of pipelines; clients ask if it is there",
    )
    semel_attempt_timeout_ms: int = _setting(
        86_400_000, "a task attempt whose pipeline neither ends it nor comes back this long is aborted"
    )
    semel_cluster_action_enable: bool = _setting(
        True, "take what is between brokers in Kafka (AddPartitionsToTxn 4, WriteTxnMarkers) from clients"
    )

    fetch_max_bytes: int = _setting(57_671_680, "largest Fetch response, whatever the client asks for")
    semel_fetch_wait_max_ms: int = _setting(
        300_000, "longest wait of a Fetch, whatever the client asks for; clients ask for half a second"
    )
    semel_fetch_waiting_partitions_max: int = _setting(
        250_000, "partitions in Fetch requests that wait, all clients, about 1 KB each; beyond it none waits"
    )
    semel_fetch_check_crcs: bool = _setting(
        True, "compare checksums of what is read from disk before it is served; not every client does"
    )
    max_incremental_fetch_session_cache_slots: int = _setting(1_000, "fetch sessions that are remembered")

    ssl_certificate_location: str = _setting(
        "", "PEM file with the certificates of this broker; needed by listeners with ssl://"
    )
    ssl_key_location: str = _setting("", "PEM file with its key, if not in the same file; not encrypted")
    ssl_ca_location: str = _setting("", "PEM file; only clients with a certificate of these issuers get in")

    ssl_enabled_protocols: str = _setting(
        "TLSv1.2,TLSv1.3", "versions of TLS that listeners speak; older ones are not sound"
    )
    ssl_cipher_suites: str = _setting(
        "",
        "for TLS 1.2, by OpenSSL's or Java's names; empty is ECDHE with AES-GCM or ChaCha20, no CBC, no RSA",
    )

    socket_request_max_bytes: int = _setting(
        104_857_600, "largest Produce request; refused before it is read"
    )
    semel_request_max_bytes: int = _setting(
        4_194_304, "largest request of any other API; only Produce carries records"
    )
    semel_request_elements_max: int = _setting(
        50_000, "entries of all arrays of one request: what decoding and answering it takes grows with them"
    )
    queued_max_request_bytes: int = _setting(
        268_435_456, "bytes of requests that are being worked on, all clients"
    )
    semel_queued_max_response_bytes: int = _setting(
        268_435_456, "bytes of responses not yet sent, all clients"
    )
    max_connections: int = _setting(10_000, "clients at the same time; one more is closed at once")
    max_connections_per_ip: int = _setting(
        5_000, "clients of one address at the same time, so that one address cannot keep all others out"
    )
    max_connections_per_ip_overrides: str = _setting(
        "", "other limits for single addresses: 10.0.0.7:100,10.0.0.8:20000"
    )
    connections_max_idle_ms: int = _setting(600_000, "a silent client is closed after this")
    semel_write_timeout_ms: int = _setting(
        60_000, "a client that does not take its response is closed after this"
    )
    semel_requests_in_flight_max: int = _setting(64, "requests of one client that may be under way")

    semel_durability: str = _setting(
        "early",
        "answer work inside a transaction before it is flushed, its end flushes all; or flush every answer",
        choices=("early", "flush"),
    )
    semel_chunk_bytes_max: int = _setting(268_435_456, "a chunk is sealed at this size")
    semel_disk_reserve_bytes: int = _setting(
        67_108_864, "produce is refused below this much free disk; reads go on"
    )
    semel_scrub_bytes_per_second: int = _setting(
        2_097_152, "how fast everything at rest is read to compare its checksums, round after round; 0 is off"
    )
    semel_entities_max: int = _setting(100_000, "partitions, producers, groups, offsets kept in memory, each")
    semel_tick_bytes_max: int = _setting(
        8_388_608,
        "bytes of batches in one commit; the requests of all other clients wait while it is written",
    )

    def __post_init__(self) -> None:
        """A word that is not among the choices of a setting is refused here, whoever gave it."""
        for each in fields(self):
            choices = each.metadata["choices"]
            if choices and getattr(self, each.name) not in choices:
                name = each.name.replace("_", ".")
                raise ValueError(f"{name} is {' or '.join(choices)}, not {getattr(self, each.name)!r}")
        connections_by_host(self.max_connections_per_ip_overrides)

    @classmethod
    def names(cls) -> dict[str, str]:
        """Dotted name to field name, of every setting."""
        return {each.metadata.get("name") or each.name.replace("_", "."): each.name for each in fields(cls)}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Settings from dotted names. Text is taken for what the setting's type says."""
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
        """Every setting by its dotted name."""
        return {name: getattr(self, attribute) for name, attribute in self.names().items()}


def connections_by_host(overrides: str) -> dict[str, int]:
    """The limits that ``max.connections.per.ip.overrides`` names. ValueError if it cannot be read."""
    limits: dict[str, int] = {}
    for each in filter(None, (part.strip() for part in overrides.split(","))):
        host, _, limit = each.rpartition(":")
        if not host or not limit.isdecimal():
            raise ValueError(f"max.connections.per.ip.overrides takes ADDRESS:NUMBER,…, not {each!r}")
        limits[host] = int(limit)
    return limits


def _coerce(name: str, value: Any, kind: type) -> Any:
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    text = str(value).strip()
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} takes {kind.__name__}, not {value!r}") from None
