"""The steps of an administrator with each of Kafka's tools.

A step is a tool and its arguments. Words in braces stand for what differs between brokers: ``{folder}`` is
the directory with a broker's files for the tools. docs/compatibility.md says which tools have no steps, and
why.
"""

from typing import Final, NamedTuple

PACKAGE = "org.apache.kafka.tools"
TOPICS = f"{PACKAGE}.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = f"{PACKAGE}.GroupsCommand"
CONSUMERS = f"{PACKAGE}.consumer.group.ConsumerGroupCommand"
SHARERS = f"{PACKAGE}.consumer.group.ShareGroupCommand"
STREAMERS = f"{PACKAGE}.streams.StreamsGroupCommand"
PRODUCER = f"{PACKAGE}.ConsoleProducer"
CONSUMER = f"{PACKAGE}.consumer.ConsoleConsumer"
SHARE_CONSUMER = f"{PACKAGE}.consumer.ConsoleShareConsumer"
OFFSETS = f"{PACKAGE}.GetOffsetShell"
DELETE_RECORDS = f"{PACKAGE}.DeleteRecordsCommand"
LOG_DIRS = f"{PACKAGE}.LogDirsCommand"
ELECTION = f"{PACKAGE}.LeaderElectionCommand"
REASSIGN = f"{PACKAGE}.reassign.ReassignPartitionsCommand"
CLUSTER = f"{PACKAGE}.ClusterTool"
FEATURES = f"{PACKAGE}.FeatureCommand"
QUORUM = f"{PACKAGE}.MetadataQuorumCommand"
METRICS = f"{PACKAGE}.ClientMetricsCommand"
TOKENS = f"{PACKAGE}.DelegationTokenCommand"
VERIFIABLE_PRODUCER = f"{PACKAGE}.VerifiableProducer"
VERIFIABLE_CONSUMER = f"{PACKAGE}.VerifiableConsumer"
VERIFIABLE_SHARE_CONSUMER = f"{PACKAGE}.VerifiableShareConsumer"
PRODUCER_TEST = f"{PACKAGE}.ProducerPerformance"
CONSUMER_TEST = f"{PACKAGE}.ConsumerPerformance"
SHARE_CONSUMER_TEST = f"{PACKAGE}.ShareConsumerPerformance"
LATENCY = f"{PACKAGE}.EndToEndLatency"
RESETTER = f"{PACKAGE}.StreamsResetter"
TRANSACTIONS = f"{PACKAGE}.TransactionsCommand"


class Step(NamedTuple):
    """One call of a tool."""

    tool: str
    words: tuple[str, ...]
    reads: bool = False
    """Whether the step changes nothing, so that it can be repeated until Apache Kafka shows a change."""
    typed: str = ""
    """The tool's standard input."""


def steps(tool: str, **calls: str) -> dict[str, Step]:
    """Build steps by name; underscores become spaces. Steps that list or describe may be repeated."""
    found = {}
    for name, words in calls.items():
        split = tuple(words.split())
        reads = bool({"--list", "--describe", "describe", "list", "--time", "--verify"} & set(split))
        found[name.replace("_", " ")] = Step(tool, split, reads or tool in (OFFSETS, LOG_DIRS))
    return found


T_CONFIGS = "--entity-type topics --entity-name shown"
READ = "--from-beginning --timeout-ms 8000"
SHARE = "--topic single --timeout-ms 8000 --group sharers"


def from_the_start(group: str) -> Step:
    """Let a share group begin with the first record instead of the next one."""
    words = (
        f"--alter --entity-type groups --entity-name {group} --add-config share.auto.offset.reset=earliest"
    )
    return Step(CONFIGS, tuple(words.split()))


STEPS: Final[dict[str, dict[str, Step]]] = {
    "kafka-topics": steps(
        TOPICS,
        create="--create --topic shown --partitions 3 --config retention.ms=1000000",
        create_again="--create --topic shown --partitions 3",
        create_if_it_is_not_there="--create --topic shown --if-not-exists",
        a_name_with_a_period="--create --topic a.name --partitions 1",
        a_name_that_is_not_one="--create --topic a*name --partitions 1",
        no_partitions="--create --topic none --partitions 0",
        a_config_that_is_not_one="--create --topic none --config no.such=1",
        a_value_that_is_not_one="--create --topic none --config retention.ms=soon",
        an_assignment="--create --topic assigned --replica-assignment 0,0",
        one_partition="--create --topic single --partitions 1",
        list="--list",
        list_some="--list --topic shown",
        list_by_a_pattern="--list --topic a.*",
        describe="--describe --topic shown",
        describe_all="--describe --exclude-internal",
        describe_nothing="--describe --topic missing",
        describe_overrides="--describe --topics-with-overrides",
        describe_unavailable="--describe --unavailable-partitions",
        describe_under_replicated="--describe --under-replicated-partitions",
        describe_at_the_least="--describe --at-min-isr-partitions --topic shown",
        more_partitions="--alter --topic shown --partitions 5",
        describe_more="--describe --topic shown",
        fewer_partitions="--alter --topic shown --partitions 2",
        as_many_partitions="--alter --topic shown --partitions 5",
        partitions_of_nothing="--alter --topic missing --partitions 2",
        delete="--delete --topic a.name",
        delete_nothing="--delete --topic missing",
        delete_if_it_is_there="--delete --topic missing --if-exists",
        list_what_is_left="--list --exclude-internal",
    ),
    "kafka-configs": steps(
        CONFIGS,
        describe_a_topic=f"--describe {T_CONFIGS}",
        alter_a_topic=f"--alter {T_CONFIGS} --add-config max.message.bytes=100000,cleanup.policy=compact",
        describe_it_again=f"--describe {T_CONFIGS}",
        remove_a_config=f"--alter {T_CONFIGS} --delete-config cleanup.policy",
        remove_it_again=f"--alter {T_CONFIGS} --delete-config cleanup.policy",
        describe_what_is_left=f"--describe {T_CONFIGS}",
        describe_all_of_a_topic=f"--describe --all {T_CONFIGS}",
        a_name_that_is_not_one=f"--alter {T_CONFIGS} --add-config no.such=1",
        a_value_that_is_not_one=f"--alter {T_CONFIGS} --add-config retention.ms=soon",
        a_topic_that_is_not_there="--describe --entity-type topics --entity-name missing",
        describe_a_broker="--describe --entity-type brokers --entity-name 0",
        alter_a_broker="--alter --entity-type brokers --entity-name 0 --add-config message.max.bytes=2000000",
        describe_the_broker_again="--describe --entity-type brokers --entity-name 0",
        remove_the_config_of_a_broker=(
            "--alter --entity-type brokers --entity-name 0 --delete-config message.max.bytes"
        ),
        alter_all_brokers="--alter --entity-type brokers --entity-default --add-config message.max.bytes=3000000",
        describe_all_brokers="--describe --entity-type brokers --entity-default",
        remove_it_from_all_brokers=(
            "--alter --entity-type brokers --entity-default --delete-config message.max.bytes"
        ),
        describe_a_group="--describe --entity-type groups --entity-name readers",
        alter_a_group=(
            "--alter --entity-type groups --entity-name readers --add-config consumer.session.timeout.ms=46000"
        ),
        describe_the_group_again="--describe --entity-type groups --entity-name readers",
        describe_groups="--describe --entity-type groups",
        remove_the_config_of_a_group=(
            "--alter --entity-type groups --entity-name readers --delete-config consumer.session.timeout.ms"
        ),
        describe_users="--describe --entity-type users",
        describe_clients="--describe --entity-type clients",
        describe_addresses="--describe --entity-type ips",
        describe_client_metrics="--describe --entity-type client-metrics",
    ),
    "kafka-console-producer": {
        "write": Step(PRODUCER, ("--topic", "single"), typed="one\ntwo\nthree\n"),
        "write keys": Step(
            PRODUCER,
            (
                "--topic",
                "shown",
                "--reader-property",
                "parse.key=true",
                "--reader-property",
                "key.separator=:",
            ),
            typed="k:four\nl:five\nm:six\n",
        ),
        "write to one that is not there": Step(
            PRODUCER,
            ("--topic", "missing", "--command-property", "max.block.ms=2000"),
            typed="one\n",
        ),
    },
    "kafka-console-consumer": steps(
        CONSUMER,
        read=f"--topic single {READ} --max-messages 3",
        read_keys=f"--topic shown {READ} --max-messages 3 --formatter-property print.key=true",
        read_committed=f"--topic shown {READ} --max-messages 3 --isolation-level read_committed",
        read_one_partition="--topic assigned --partition 0 --offset earliest --timeout-ms 3000",
        read_in_a_group=f"--topic shown {READ} --max-messages 3 --group readers",
    ),
    "kafka-get-offsets": steps(
        OFFSETS,
        of_a_topic="--topic shown",
        the_first="--topic shown --time -2",
        the_latest_time="--topic shown --time -3",
        by_time="--topic shown --time 1",
        some_partitions="--topic-partitions shown:0-2",
        nothing="--topic missing",
        without_internal="--exclude-internal-topics",
    ),
    "kafka-consumer-groups": steps(
        CONSUMERS,
        list="--list",
        list_states="--list --state",
        list_types="--list --type",
        list_empty_ones="--list --state Empty",
        list_of_a_type="--list --type classic",
        describe="--describe --group readers",
        describe_its_state="--describe --group readers --state",
        describe_its_members="--describe --group readers --members",
        describe_verbosely="--describe --group readers --members --verbose",
        describe_nobody="--describe --group nobody",
        describe_all="--describe --all-groups",
        reset_without_doing_it="--reset-offsets --group readers --topic shown --to-earliest --dry-run",
        reset="--reset-offsets --group readers --topic shown --to-earliest --execute",
        reset_by="--reset-offsets --group readers --topic shown:0,1 --shift-by 1 --execute",
        reset_to="--reset-offsets --group readers --topic shown:2 --to-offset 0 --execute",
        reset_to_a_time="--reset-offsets --group readers --all-topics --to-datetime 2020-01-01T00:00:00.000 --execute",
        reset_to_the_end="--reset-offsets --group readers --all-topics --to-latest --execute",
        reset_a_new_group="--reset-offsets --group later --topic shown --to-latest --execute",
        describe_the_new_group="--describe --group later",
        delete_offsets="--delete-offsets --group readers --topic shown",
        describe_without_offsets="--describe --group readers",
        delete_offsets_of_nothing="--delete-offsets --group readers --topic missing",
        delete="--delete --group later",
        delete_nobody="--delete --group nobody",
        list_what_is_left="--list",
    ),
    "kafka-groups": steps(
        GROUPS,
        list="--list",
        list_consumers="--list --consumer",
        list_a_type="--list --group-type classic",
        list_a_protocol="--list --protocol consumer",
        list_share="--list --share",
    ),
    "kafka-console-share-consumer": {
        "begin at the start": from_the_start("sharers"),
        **steps(
            SHARE_CONSUMER,
            release=f"{SHARE} --max-messages 1 --release",
            read=f"{SHARE} --max-messages 2",
            read_with_keys=f"{SHARE} --max-messages 1 --formatter-property print.key=true",
            nothing_is_left="--topic single --timeout-ms 3000 --group sharers",
            a_topic_that_is_not_there="--topic missing --timeout-ms 3000 --group sharers",
        ),
    },
    "kafka-share-groups": steps(
        SHARERS,
        list="--list",
        list_states="--list --state",
        list_empty_ones="--list --state Empty",
        describe_nobody="--describe --group nobody",
        describe="--describe --group sharers",
        describe_verbosely="--describe --group sharers --verbose",
        describe_its_state="--describe --group sharers --state",
        describe_its_members="--describe --group sharers --members",
        describe_all="--describe --all-groups",
        reset_without_doing_it="--reset-offsets --group sharers --topic single --to-earliest --dry-run",
        reset="--reset-offsets --group sharers --topic single --to-earliest --execute",
        describe_it_again="--describe --group sharers",
        reset_to_the_end="--reset-offsets --group sharers --all-topics --to-latest --execute",
        describe_the_end="--describe --group sharers",
        delete_offsets="--delete-offsets --group sharers --topic single",
        describe_without_offsets="--describe --group sharers",
        delete_offsets_of_nothing="--delete-offsets --group sharers --topic missing",
        delete="--delete --group sharers",
        delete_nobody="--delete --group nobody",
        list_what_is_left="--list",
    ),
    "kafka-streams-groups": steps(STREAMERS, list="--list", describe_nobody="--describe --group nobody"),
    "kafka-delete-records": steps(DELETE_RECORDS, delete="--offset-json-file {folder}/delete.json"),
    "kafka-log-dirs": steps(
        LOG_DIRS,
        describe="--describe --topic-list shown",
        describe_a_broker="--describe --broker-list 0 --topic-list single",
    ),
    "kafka-transactions": steps(
        TRANSACTIONS,
        list="list",
        describe_nothing="describe --transactional-id nobody",
        describe_producers="describe-producers --topic assigned --partition 0",
        find_hanging="find-hanging --broker-id 0",
    ),
    "kafka-leader-election": steps(
        ELECTION,
        one="--election-type preferred --topic shown --partition 0",
        all="--election-type preferred --all-topic-partitions",
        without_a_topic="--election-type preferred --topic missing --partition 0",
        unclean="--election-type unclean --topic shown --partition 0",
    ),
    "kafka-reassign-partitions": steps(
        REASSIGN,
        list="--list",
        generate="--generate --broker-list 0 --topics-to-move-json-file {folder}/topics.json",
        execute="--execute --reassignment-json-file {folder}/reassign.json",
        verify="--verify --reassignment-json-file {folder}/reassign.json",
        cancel="--cancel --reassignment-json-file {folder}/reassign.json",
        to_a_broker_that_is_not_there="--execute --reassignment-json-file {folder}/elsewhere.json",
    ),
    "kafka-cluster": steps(
        CLUSTER,
        id="cluster-id",
        endpoints="list-endpoints",
        unregister="unregister --id 77",
    ),
    "kafka-features": steps(
        FEATURES,
        describe="describe",
        downgrade="downgrade --feature transaction.version=1",
        describe_the_older="describe",
        upgrade="upgrade --feature transaction.version=2",
        upgrade_too_far="upgrade --feature transaction.version=99",
        a_feature_that_is_not_one="upgrade --feature no.such.feature=1",
        mapping="version-mapping",
        dependencies="feature-dependencies --feature transaction.version=2",
    ),
    "kafka-metadata-quorum": steps(QUORUM, status="describe --status", replication="describe --replication"),
    "kafka-client-metrics": steps(METRICS, list="--list", describe="--describe"),
    "kafka-delegation-tokens": steps(
        TOKENS, describe="--describe --command-config {folder}/empty.properties"
    ),
    "kafka-verifiable-producer": steps(
        VERIFIABLE_PRODUCER,
        write="--topic single --max-messages 20 --acks -1",
        write_at_a_rate="--topic single --max-messages 5 --throughput 50",
    ),
    "kafka-verifiable-consumer": steps(
        VERIFIABLE_CONSUMER,
        read="--topic single --group-id verifiable --reset-policy earliest --max-messages 20",
        read_by_the_other_protocol=(
            "--topic single --group-id verifiable-848 --reset-policy earliest --max-messages 20 "
            "--group-protocol consumer"
        ),
    ),
    "kafka-verifiable-share-consumer": {
        "begin at the start": from_the_start("verifiable-sharers"),
        "begin at the start with the other mode": from_the_start("verifiable-sync"),
        **steps(
            VERIFIABLE_SHARE_CONSUMER,
            read="--topic single --group-id verifiable-sharers --max-messages 20",
            read_and_acknowledge_at_once=(
                "--topic single --group-id verifiable-sync --max-messages 20 --acknowledgement-mode sync"
            ),
        ),
    },
    "kafka-producer-perf-test": steps(
        PRODUCER_TEST,
        write="--topic assigned --num-records 500 --record-size 100 --throughput -1",
        write_in_transactions=(
            "--topic assigned --num-records 500 --record-size 100 --throughput -1 --transaction-duration-ms 100"
        ),
    ),
    "kafka-consumer-perf-test": steps(
        CONSUMER_TEST,
        read="--topic assigned --num-records 500 --timeout 20000",
        read_in_detail="--topic assigned --num-records 500 --timeout 20000 --show-detailed-stats --hide-header",
    ),
    "kafka-share-consumer-perf-test": {
        "begin at the start": from_the_start("share-test"),
        **steps(
            SHARE_CONSUMER_TEST,
            read="--topic assigned --num-records 500 --timeout 20000 --group share-test",
        ),
    },
    "kafka-e2e-latency": steps(
        LATENCY, measure="--topic latency --num-records 100 --producer-acks all --record-size 20"
    ),
    "kafka-streams-application-reset": steps(
        RESETTER,
        reset_without_doing_it="--application-id readers --input-topics shown --dry-run",
        reset="--application-id readers --input-topics shown",
        topics_that_are_not_there="--application-id readers --input-topics missing",
    ),
}

NUMBERED: Final = (
    "kafka-producer-perf-test",
    "kafka-consumer-perf-test",
    "kafka-e2e-latency",
    "kafka-verifiable-consumer",
    "kafka-verifiable-share-consumer",
    "kafka-share-consumer-perf-test",
    "kafka-log-dirs",
)
"""Tools that print measurements or sizes: all numbers count as the same."""
