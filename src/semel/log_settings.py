"""The settings of topics, logs and groups: the first part of `Settings` (``config``)."""

from dataclasses import dataclass

from semel.setting_values import COUNT, INT_MAX, INTERVAL, LONG_MAX, setting


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The identity of a broker, and the limits and defaults of its topics, logs and groups."""

    node_id: int = setting(
        0, "id of this broker; clients expect ids to start at 0", limits=(0, 2_147_483_647)
    )
    semel_lease_ms: int = setting(
        3_000,
        "in a cluster: a broker that is silent for so long is replaced; renewed three times as often",
        limits=(500, 60_000),
    )
    semel_ledger_unsafe: str = setting(
        "",
        "in a cluster, for tests: settings of PostgreSQL that may be off: fsync,full_page_writes",
        choices=("fsync", "full_page_writes"),
        is_list=True,
    )
    broker_rack: str = setting("", "rack or availability zone of this broker, shown to clients")
    cluster_id: str = setting("", "generated when a data directory is first used, unless set")
    auto_create_topics_enable: bool = setting(
        False, "a typo in a topic name should be an error, not a new topic"
    )
    num_partitions: int = setting(1, "partitions of a topic that is created without a number", limits=COUNT)
    delete_topic_enable: bool = setting(True, "whether topics can be deleted")
    semel_partitions_per_topic_max: int = setting(
        10_000, "partitions of one topic, and partitions created by one request", limits=(0, INT_MAX)
    )
    semel_partitions_max: int = setting(
        200_000, "partitions of all topics; each has a row in the ledger", limits=(0, INT_MAX)
    )

    message_max_bytes: int = setting(
        1_048_588, "largest batch; a topic's max.message.bytes overrides it", limits=(0, INT_MAX)
    )
    semel_validate_records: str = setting(
        "all",
        "validate the records inside produced batches; a corrupt batch would block every reader",
        choices=("all", "uncompressed", "none"),
    )
    semel_batch_content_max_bytes: int = setting(
        33_554_432,
        "decompressed size of a batch, or max.message.bytes if larger; readers hold it in memory",
        limits=(0, INT_MAX),
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
        limits=(-LONG_MAX, LONG_MAX),
    )
    log_retention_bytes: int = setting(
        -1, "no size limit; a topic's retention.bytes overrides it", limits=(-LONG_MAX, LONG_MAX)
    )
    log_retention_check_interval_ms: int = setting(
        60_000, "how often retention runs and unused chunks are removed", limits=INTERVAL
    )
    log_message_timestamp_type: str = setting(
        "CreateTime",
        "who sets timestamps, unless a topic's message.timestamp.type says so",
        choices=("CreateTime", "LogAppendTime"),
    )
    log_message_timestamp_before_max_ms: int = setting(
        LONG_MAX, "how far in the past timestamps can be; a topic can override it", limits=(0, LONG_MAX)
    )
    log_message_timestamp_after_max_ms: int = setting(
        3_600_000, "how far in the future timestamps can be; a topic can override it", limits=(0, LONG_MAX)
    )
    log_cleaner_enable: bool = setting(True, "whether topics with cleanup.policy=compact are compacted")
    log_cleaner_backoff_ms: int = setting(
        15_000, "how often the broker looks for partitions to compact", limits=INTERVAL
    )
    log_cleaner_delete_retention_ms: int = setting(
        86_400_000,
        "how long tombstones are kept; a topic's delete.retention.ms overrides it",
        limits=(0, LONG_MAX),
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        0, "a topic's min.compaction.lag.ms overrides it", limits=(0, LONG_MAX)
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        LONG_MAX, "a topic's max.compaction.lag.ms overrides it", limits=(1, LONG_MAX)
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        0.5, "a topic's min.cleanable.dirty.ratio overrides it", limits=(0, 1)
    )
    semel_compaction_keys_max: int = setting(
        250_000,
        "keys held in memory by one compaction pass, about 50 MB; more keys need more passes",
        limits=COUNT,
    )
    semel_compaction_hold_ms: int = setting(
        60_000, "how long a reader holds off compaction of a partition without renewing its request"
    )
    semel_compaction_hold_max_ms: int = setting(
        3_600_000, "how long a due compaction pass waits for such readers before it runs anyway"
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "the state of an idle producer is removed after this time", limits=INTERVAL
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "how often expired producers are removed", limits=INTERVAL
    )

    group_min_session_timeout_ms: int = setting(6_000, "classic groups", limits=(0, INT_MAX))
    group_max_session_timeout_ms: int = setting(1_800_000, "classic groups", limits=(0, INT_MAX))
    group_initial_rebalance_delay_ms: int = setting(
        3_000, "an empty classic group waits this long for more members", limits=(0, INT_MAX)
    )
    semel_groups_max: int = setting(
        100_000,
        "groups, including those that only have offsets; counted every few seconds",
        limits=(0, INT_MAX),
    )
    group_max_size: int = setting(10_000, "members of one group", limits=COUNT)
    semel_group_member_bytes_max: int = setting(
        1_048_576, "metadata of one member: its protocols and the names of its topics", limits=COUNT
    )
    semel_group_bytes_max: int = setting(
        16_777_216, "metadata of all members of a group, which is written as a whole", limits=COUNT
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000, "KIP-848 groups; a group's consumer.session.timeout.ms overrides it", limits=INTERVAL
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "lowest value of a group's consumer.session.timeout.ms", limits=INTERVAL
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "highest value of a group's consumer.session.timeout.ms", limits=INTERVAL
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "KIP-848 groups; a group's consumer.heartbeat.interval.ms overrides it", limits=INTERVAL
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "lowest value of a group's consumer.heartbeat.interval.ms", limits=INTERVAL
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "highest value of a group's consumer.heartbeat.interval.ms", limits=INTERVAL
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "whether a group with members may change from the classic protocol to KIP-848 (upgrade) and back",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_max_size: int = setting(10_000, "members of one KIP-848 group", limits=COUNT)
    group_share_session_timeout_ms: int = setting(
        45_000, "share groups; a group's share.session.timeout.ms overrides it", limits=INTERVAL
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000, "share groups; a group's share.heartbeat.interval.ms overrides it", limits=INTERVAL
    )
    group_share_max_size: int = setting(200, "members of one share group", limits=COUNT)
    group_share_partition_max_record_locks: int = setting(
        2_000, "records in flight in a partition, from the first that is not settled", limits=(100, 10_000)
    )
    group_share_delivery_count_limit: int = setting(
        5, "deliveries of a record to a share group before it is given up", limits=(2, 10)
    )
    group_share_record_lock_duration_ms: int = setting(
        30_000, "how long a member of a share group has for a record", limits=(1_000, 3_600_000)
    )
    group_share_max_share_sessions: int = setting(2_000, "share sessions of this broker", limits=COUNT)
    offsets_retention_minutes: int = setting(
        10_080, "how long the offsets of a group without members are kept", limits=(0, INT_MAX)
    )
    offset_metadata_max_bytes: int = setting(
        4_096, "metadata that a client can commit with an offset", limits=(0, INT_MAX)
    )
    offsets_topic_num_partitions: int = setting(
        50, "only determines the reported coordinator partition of a group"
    )
