"""Configs of groups and brokers that change while the broker runs (KIP-226, KIP-339, KIP-848)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, make_topic, send
from support.clients.transactional import produce_request, produced
from support.waiting import until_async

from semel.broker.broker import Broker
from semel.config import READ_ONLY, Settings, in_force, unchangeable, value_problem
from semel.core.configs import APPEND, DELETE, SET, SUBTRACT
from semel.core.dynamic_configs import BROKER, GROUP
from semel.core.types import ErrorCode
from semel.handlers.configs import TOPIC
from semel.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from semel.wire.messages.groups import ConsumerGroupHeartbeatRequest
from semel.wire.records import Record, encode_batch

OF_BROKER, OF_ALL, STATIC, DEFAULT, OF_GROUP = 2, 3, 4, 5, 8
DESCRIBE, REPLACE, ALTER, HEARTBEAT = 32, 33, 44, 68
SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
DYNAMIC = sorted(Settings.names().keys() - READ_ONLY.keys())

Step = tuple[str, int, str | None]


async def alter(
    broker: Broker, kind: int, name: str, *steps: Step, validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [
        IncrementalAlterConfigsAlterableConfig(name=config, config_operation=operation, value=value)
        for config, operation, value in steps
    ]
    resource = IncrementalAlterConfigsAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (answer,) = (await send(broker, ALTER, request)).responses
    return answer.error_code, answer.error_message


async def set_(broker: Broker, kind: int, name: str, **configs: str) -> None:
    steps = [(config.replace("_", "."), SET, value) for config, value in configs.items()]
    assert await alter(broker, kind, name, *steps) == (ErrorCode.NONE, None)


async def replace(broker: Broker, kind: int, name: str, **configs: str) -> int:
    given = [AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=given)
    (answer,) = (await send(broker, REPLACE, AlterConfigsRequest(resources=[resource]))).responses
    code: int = answer.error_code
    return code


async def shown(broker: Broker, kind: int, name: str, *configs: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(configs) or None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = (await send(broker, DESCRIBE, request)).results
    assert result.error_code == ErrorCode.NONE, result.error_message
    return {
        each.name: [(synonym.name, synonym.value, synonym.source) for synonym in each.synonyms]
        for each in result.configs
        if each.value == each.synonyms[0].value and each.config_source == each.synonyms[0].source
    }


async def test_kip_226_a_broker_before_all_brokers_before_the_start_before_the_default() -> None:
    async with broker_in_memory(log_retention_ms=77) as broker:
        await make_topic(broker, "t")
        await set_(broker, BROKER, "", log_retention_ms="88")
        assert broker.settings.log_retention_ms == 88
        await set_(broker, BROKER, "0", log_retention_ms="99")
        assert broker.settings.log_retention_ms == 99
        synonyms = [
            ("log.retention.ms", "99", OF_BROKER),
            ("log.retention.ms", "88", OF_ALL),
            ("log.retention.ms", "77", STATIC),
            ("log.retention.ms", "604800000", DEFAULT),
        ]
        assert await shown(broker, BROKER, "0", "log.retention.ms") == {"log.retention.ms": synonyms}
        assert await shown(broker, TOPIC, "t", "retention.ms") == {"retention.ms": synonyms}
        # With the empty name, only what was set for all brokers is shown.
        assert await shown(broker, BROKER, "") == {"log.retention.ms": [synonyms[1]]}
        for name, left in (("0", 88), ("", 77)):
            assert await alter(broker, BROKER, name, ("log.retention.ms", DELETE, None)) == (0, None)
            assert broker.settings.log_retention_ms == left
        assert await shown(broker, BROKER, "") == {}


async def test_the_defaults_of_topics_have_the_names_that_kafka_gives_them() -> None:
    """LogConfig's TOPIC_CONFIG_SYNONYMS; also for those that change nothing here."""
    async with broker_in_memory() as broker:
        await make_topic(broker, "t")
        found = {name: synonyms[-1][0] for name, synonyms in (await shown(broker, TOPIC, "t")).items()}
        expected = {
            "cleanup.policy": "log.cleanup.policy",
            "retention.ms": "log.retention.ms",
            "retention.bytes": "log.retention.bytes",
            "max.message.bytes": "message.max.bytes",
            "message.timestamp.type": "log.message.timestamp.type",
            "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
            "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
            "delete.retention.ms": "log.cleaner.delete.retention.ms",
            "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
            "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
            "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
            "segment.bytes": "log.segment.bytes",
            "compression.type": "compression.type",
            "min.insync.replicas": "min.insync.replicas",
        }
        assert {name: found[name] for name in expected} == expected


async def test_a_change_is_in_force_for_every_topic_that_does_not_say_otherwise() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "t")
        await make_topic(broker, "own", message_timestamp_before_max_ms="9223372036854775807")
        old = encode_batch([Record(0, 1_000, b"k", b"v")])

        async def codes() -> list[int]:
            request = produce_request({("t", 0): old, ("own", 0): old}, None)
            return [each.error_code for each in await produced(broker, request, 9)]

        assert await codes() == [0, 0]
        await set_(broker, BROKER, "", log_message_timestamp_before_max_ms="60000")
        assert await codes() == [ErrorCode.INVALID_TIMESTAMP, 0]
        await set_(broker, BROKER, "0", log_message_timestamp_before_max_ms="9223372036854775807")
        assert await codes() == [0, 0]
        await set_(broker, BROKER, "", message_max_bytes="10")
        assert await codes() == [ErrorCode.MESSAGE_TOO_LARGE] * 2


async def test_a_list_is_appended_to_and_subtracted_from() -> None:
    """As Kafka does: from the value of the start if nothing was set for the resource."""
    async with broker_in_memory() as broker:
        policy = "log.cleanup.policy"
        assert await alter(broker, BROKER, "", (policy, APPEND, "compact")) == (0, None)
        assert broker.settings.log_cleanup_policy == "delete,compact"
        assert await alter(broker, BROKER, "0", (policy, SUBTRACT, "delete")) == (0, None)
        assert broker.settings.log_cleanup_policy == ""
        code, message = await alter(broker, BROKER, "0", (policy, APPEND, "compress"))
        assert (code, "delete or compact" in str(message)) == (ErrorCode.INVALID_REQUEST, True)
        code, message = await alter(broker, BROKER, "0", ("log.retention.ms", APPEND, "1"))
        assert (code, "not LIST" in str(message)) == (ErrorCode.INVALID_CONFIG, True)


async def test_alter_configs_replaces_what_was_set_before() -> None:
    async with broker_in_memory() as broker:
        await set_(broker, BROKER, "", num_partitions="7", log_retention_ms="5")
        await set_(broker, GROUP, "g", **{"consumer_session_timeout_ms": "50000"})
        assert await replace(broker, BROKER, "", log_retention_ms="6") == ErrorCode.NONE
        assert await replace(broker, GROUP, "g", consumer_heartbeat_interval_ms="6000") == ErrorCode.NONE
        assert (broker.settings.num_partitions, broker.settings.log_retention_ms) == (1, 6)
        assert broker.policies.configs.group("g") == (45_000, 6_000)
        assert await replace(broker, BROKER, "") == await replace(broker, GROUP, "g") == ErrorCode.NONE
        assert len(broker.policies) == 0
        assert broker.settings == Settings()


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        ("node.id", "7", ErrorCode.INVALID_REQUEST, "it is the identity of the broker"),
        ("super.users", "User:me", ErrorCode.INVALID_REQUEST, "for the operator"),
        ("semel.durability", "always", ErrorCode.INVALID_REQUEST, "where the broker is started"),
        ("num.partition", "7", ErrorCode.INVALID_CONFIG, "did you mean num.partitions?"),
        ("listener.name.x.ssl.keystore.location", "/x", ErrorCode.INVALID_CONFIG, "Unknown"),
        ("num.partitions", "many", ErrorCode.INVALID_REQUEST, "whole number"),
        ("num.partitions", "0", ErrorCode.INVALID_REQUEST, "from 1"),
        ("num.partitions", "9" * 30, ErrorCode.INVALID_REQUEST, "whole number"),
        ("log.cleaner.min.cleanable.ratio", "1.5", ErrorCode.INVALID_REQUEST, "from 0 to 1"),
        ("log.segment.bytes", "5", ErrorCode.INVALID_CONFIG, "Unknown broker config name"),
        ("max.connections.per.ip.overrides", "here", ErrorCode.INVALID_REQUEST, "ADDRESS:NUMBER"),
        ("auto.create.topics.enable", "perhaps", ErrorCode.INVALID_REQUEST, "true or false"),
        ("max.connections.per.ip.overrides", "x" * 5_000, ErrorCode.INVALID_REQUEST, "longer than"),
    ],
)
async def test_what_cannot_be_changed_is_refused_with_the_reason(
    name: str, value: str, error: ErrorCode, says: str
) -> None:
    async with broker_in_memory() as broker:
        for resource in ("", "0"):
            code, message = await alter(
                broker, BROKER, resource, ("log.retention.ms", SET, "5"), (name, SET, value)
            )
            assert code == error
            assert says in str(message)
        assert broker.settings == Settings()
        assert len(broker.policies) == 0


@pytest.mark.parametrize("kind", [BROKER, GROUP])
async def test_what_was_never_set_can_be_deleted(kind: int) -> None:
    """As in Kafka: kafka-reassign-partitions removes throttles whether or not there are any."""
    async with broker_in_memory() as broker:
        for name in ("leader.replication.throttled.rate", "node.id", "log.retention.ms", SESSION):
            assert await alter(broker, kind, "0", (name, DELETE, None)) == (ErrorCode.NONE, None)
        assert len(broker.policies) == 0


async def test_to_validate_only_changes_nothing() -> None:
    async with broker_in_memory() as broker:
        step = ("num.partitions", SET, "3")
        assert await alter(broker, BROKER, "0", step, validate_only=True) == (ErrorCode.NONE, None)
        code, _ = await alter(broker, GROUP, "g", (SESSION, SET, "1"), validate_only=True)
        assert code == ErrorCode.INVALID_CONFIG
        assert len(broker.policies) == 0


async def test_configs_count_as_policies() -> None:
    async with broker_in_memory(semel_policies_max=1) as broker:
        await set_(broker, GROUP, "g", consumer_session_timeout_ms="50000")
        await set_(broker, GROUP, "g", consumer_session_timeout_ms="51000")
        code, message = await alter(broker, GROUP, "h", (SESSION, SET, "50000"))
        assert (code, "semel.policies.max" in str(message)) == (ErrorCode.POLICY_VIOLATION, True)
        assert (await alter(broker, BROKER, "", ("num.partitions", SET, "3")))[
            0
        ] == ErrorCode.POLICY_VIOLATION
        assert await alter(broker, GROUP, "g", (SESSION, DELETE, None)) == (ErrorCode.NONE, None)
        await set_(broker, BROKER, "", num_partitions="3")


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([(SESSION, SET, "44999")], "at least 45000 (group.consumer.min.session.timeout.ms)"),
        ([(SESSION, SET, "60001")], "at most 60000 (group.consumer.max.session.timeout.ms)"),
        ([(INTERVAL, SET, "4999")], "at least 5000"),
        ([(INTERVAL, SET, "15001")], "at most 15000"),
        ([(SESSION, SET, "soon")], "not a number"),
        ([(SESSION, APPEND, "50000")], "not LIST"),
        ([("consumer.session.timeout", SET, "50000")], "did you mean consumer.session.timeout.ms?"),
        ([("nothing.like.it", SET, "1")], "Unknown group config name"),
        ([("share.session.timeout.ms", SET, "999")], "at least 1000, not 999"),
        ([("share.session.timeout.ms", SET, "5000")], "greater than share.heartbeat.interval.ms (5000)"),
        ([("share.delivery.count.limit", SET, "26")], "at most 25, not 26"),
        ([("share.isolation.level", SET, "serializable")], "not read_uncommitted or read_committed"),
        ([("share.auto.offset.reset", SET, "by_duration:P" + "9" * 5_000 + "D")], "or by_duration:"),
        ([("streams.num.standby.replicas", SET, "1")], "there are no streams groups"),
    ],
)
async def test_the_bounds_of_group_configs_are_kafkas(steps: list[Step], says: str) -> None:
    async with broker_in_memory() as broker:
        code, message = await alter(broker, GROUP, "g", *steps)
        assert code == ErrorCode.INVALID_CONFIG
        assert says in str(message)
        assert len(broker.policies) == 0


async def test_a_session_must_be_longer_than_the_interval_of_heartbeats() -> None:
    bounds = {"group_consumer_min_session_timeout_ms": 1, "group_consumer_min_heartbeat_interval_ms": 1}
    async with broker_in_memory(**bounds) as broker:
        code, message = await alter(broker, GROUP, "g", (SESSION, SET, "5000"))
        assert (code, "must be greater" in str(message)) == (ErrorCode.INVALID_CONFIG, True)
        steps = (SESSION, SET, "5000"), (INTERVAL, SET, "4999")
        assert await alter(broker, GROUP, "g", *steps) == (ErrorCode.NONE, None)
        assert (await alter(broker, GROUP, "g", (INTERVAL, DELETE, None)))[0] == ErrorCode.INVALID_CONFIG


async def test_settings_that_contradict_each_other_do_not_lose_members() -> None:
    async with broker_in_memory() as broker:
        for kind in ("consumer", "share"):
            settings = {
                f"group_{kind}_session_timeout_ms": "1000",
                f"group_{kind}_heartbeat_interval_ms": "9000",
            }
            await set_(broker, BROKER, "", **settings)
        assert broker.policies.configs.group("g") == (1_000, 333)
        assert broker.policies.configs.share_group("g")[:2] == (1_000, 333)


async def test_a_limit_below_the_number_of_policies_can_be_taken_back() -> None:
    async with broker_in_memory() as broker:
        await set_(broker, GROUP, "g", consumer_session_timeout_ms="50000")
        await set_(broker, BROKER, "", semel_policies_max="0")
        assert (await alter(broker, GROUP, "h", (SESSION, SET, "50000")))[0] == ErrorCode.POLICY_VIOLATION
        assert await alter(broker, GROUP, "g", (SESSION, SET, "51000")) == (ErrorCode.NONE, None)
        assert await alter(broker, BROKER, "", ("semel.policies.max", DELETE, None)) == (ErrorCode.NONE, None)
        await set_(broker, GROUP, "h", consumer_session_timeout_ms="50000")


async def test_group_configs_are_shown_with_their_sources_and_used_for_the_next_heartbeat() -> None:
    async with broker_in_memory() as broker:
        assert (await shown(broker, GROUP, "g"))[SESSION] == [
            ("group.consumer.session.timeout.ms", "45000", DEFAULT)
        ]
        await set_(
            broker, GROUP, "g", consumer_session_timeout_ms="50000", consumer_heartbeat_interval_ms="7000"
        )
        assert (await shown(broker, GROUP, "g"))[INTERVAL] == [
            (INTERVAL, "7000", OF_GROUP),
            ("group.consumer.heartbeat.interval.ms", "5000", DEFAULT),
        ]
        assert await interval(broker, "g") == 7_000
        assert await interval(broker, "other") == 5_000
        # The settings of brokers hold where the group sets nothing, and their bounds for what it sets.
        await set_(broker, BROKER, "", group_consumer_heartbeat_interval_ms="6000")
        await set_(broker, BROKER, "", group_consumer_max_heartbeat_interval_ms="6500")
        assert await interval(broker, "other") == 6_000
        assert await interval(broker, "g") == 6_500


async def interval(broker: Broker, group_id: str) -> int:
    """What a member that joins is told."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=f"member-{broker.now()}",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    answer = await send(broker, HEARTBEAT, request, 1)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    milliseconds: int = answer.heartbeat_interval_ms
    return milliseconds


async def test_changes_survive_a_restart(tmp_path: Path) -> None:
    broker = await Broker.open(Settings(), tmp_path)
    await set_(broker, BROKER, "", num_partitions="7")
    await set_(broker, BROKER, "0", log_retention_ms="5")
    await set_(broker, GROUP, "g", consumer_session_timeout_ms="50000")
    await broker.close()
    broker = await Broker.open(Settings(num_partitions=2), tmp_path)
    try:
        assert (broker.settings.num_partitions, broker.settings.log_retention_ms) == (7, 5)
        assert broker.policies.configs.group("g").session_timeout_ms == 50_000
        assert broker.policies.configs.static.num_partitions == 2
    finally:
        await broker.close()
    other = await Broker.open(Settings(node_id=1), tmp_path)
    try:
        assert (other.settings.num_partitions, other.settings.log_retention_ms) == (7, 604_800_000)
    finally:
        await other.close()


async def test_a_round_of_housekeeping_is_due_after_its_new_interval() -> None:
    """The old one is an hour; the round that waits for it waits no longer."""
    async with broker_in_memory(log_retention_check_interval_ms=3_600_000) as broker:
        topic = await make_topic(broker, "t", retention_ms="1000")
        batch = encode_batch([Record(0, 1_000, b"k", b"v")])
        (appended,) = await produced(broker, produce_request({("t", 0): batch}, None), 9)
        assert appended.error_code == ErrorCode.NONE
        await set_(broker, BROKER, "", log_retention_check_interval_ms="10")
        (key,) = broker.catalog.limits(topic).partitions

        async def is_gone() -> bool:
            partition = await broker.reads.partition(key)
            return partition is not None and partition.log_start_offset == 1

        await until_async(is_gone)


async def test_all_topics_can_be_compacted_by_one_change() -> None:
    """The decision that swaps batches asks for the policy again, and must know the changed default."""
    async with broker_in_memory(log_cleaner_backoff_ms=10, log_cleaner_min_cleanable_ratio=0.0) as broker:
        await make_topic(broker, "t")
        for value in (b"1", b"2", b"3"):
            batch = encode_batch([Record(0, broker.time_of_day(), b"k", value)])
            (appended,) = await produced(broker, produce_request({("t", 0): batch}, None), 9)
            assert appended.error_code == ErrorCode.NONE
        await set_(broker, BROKER, "", log_cleanup_policy="compact")

        async def is_compacted() -> bool:
            return broker.metrics.compactions > 0

        await until_async(is_compacted)
        keyless = encode_batch([Record(0, broker.time_of_day(), None, b"v")])
        (refused,) = await produced(broker, produce_request({("t", 0): keyless}, None), 9)
        assert refused.error_code == ErrorCode.INVALID_RECORD


def test_every_setting_is_either_read_only_or_can_be_changed() -> None:
    assert set(Settings.names()) >= READ_ONLY.keys()
    for name, attribute in Settings.names().items():
        assert (unchangeable(name) is None) == (name not in READ_ONLY)
        default = getattr(Settings(), attribute)
        text = str(default).lower() if isinstance(default, bool) else str(default)
        assert value_problem(name, text) is None


@pytest.mark.parametrize("name", DYNAMIC)
def test_numbers_that_can_be_changed_have_limits(name: str) -> None:
    """A client may set them: nothing may overflow, and no round may run without a pause."""
    attribute = Settings.names()[name]
    if isinstance(getattr(Settings(), attribute), int) and not isinstance(
        getattr(Settings(), attribute), bool
    ):
        assert value_problem(name, str(2**64)) is not None
        assert value_problem(name, str(-(2**64))) is not None
        assert not name.endswith(("interval.ms", "backoff.ms")) or value_problem(name, "0") is not None


def test_values_that_this_version_does_not_take_are_left_out() -> None:
    """They may come from a newer version, or from one with other limits."""
    start = Settings(num_partitions=2)
    layers = {"num.partitions": "-5", "no.such.setting": "1", "node.id": "9"}, {"log.retention.ms": "5"}
    assert in_force(start, *layers) == Settings(num_partitions=2, log_retention_ms=5)


async def test_two_administrators_at_once_lose_no_change() -> None:
    async with broker_in_memory() as broker:
        await asyncio.gather(
            *(set_(broker, GROUP, f"g{n}", consumer_session_timeout_ms=str(50_000 + n)) for n in range(20)),
            *(set_(broker, BROKER, "", num_partitions=str(n + 1)) for n in range(20)),
        )
        assert [broker.policies.configs.group(f"g{n}").session_timeout_ms for n in range(20)] == [
            50_000 + n for n in range(20)
        ]
        assert broker.policies.configs.resources(GROUP) == sorted(f"g{n}" for n in range(20))
        assert broker.settings.num_partitions in range(1, 21)
