"""The suites, those left out and why, and the known differences with their reasons."""

from typing import Final

from suites import connect, franz_go, kafka_python, programs
from suites.outcomes import Suite

ACLS: Final = {"super.users": "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true"}

SUITES: Final = {
    "kafka-python": Suite(
        f"the integration tests in the source distribution of kafka-python {kafka_python.VERSION} (PyPI)",
        kafka_python.run_tests,
        900,
        settings=ACLS | {"num.partitions": "4"},
        only_semel={"semel.authorizer": "acl"},
        only_kafka={"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"},
    ),
    "franz-go": Suite(
        f"the tests in the module github.com/twmb/franz-go {franz_go.version()} (Go proxy) that use a broker",
        franz_go.run_tests,
        900,
    ),
    "franz-go program": Suite("a program of ours with franz-go: transactions", programs.go_client, 300),
    "Java client": Suite(
        "a program of ours with Kafka's Java client: transactions", programs.java_client, 300
    ),
    "KafkaJS": Suite("a program of ours with KafkaJS 2.2.4 (npm)", programs.kafkajs, 300),
    "Kafka Streams": Suite(
        "a program of ours with Kafka Streams: word count with state, exactly_once_v2", programs.streams, 600
    ),
    "Kafka Connect": Suite(
        "Connect workers with an exactly-once file source, killed; a sink; a standalone worker",
        connect.connect,
        420,
    ),
    "MirrorMaker 2": Suite("MirrorMaker 2: records, configs and group offsets", connect.mirror, 240),
    "Flink": Suite("a program of ours with Flink 2.2's exactly-once Kafka sink", programs.flink, 300),
}

LEFT_OUT: Final = {
    "aiokafka": "its source distribution contains no tests; `tests/client` uses the client",
    "confluent-kafka": "its source distribution contains no tests; `tests/client` uses the client, and "
    "`tests/client/test_librdkafka_*.py` have exchanges of librdkafka's tests",
    "librdkafka": "no registry has its test programs",
    "KafkaJS's own tests": "the package on npm does not contain them",
    "Apache Kafka's own integration tests": "those in the test jars start brokers in their own process, and cannot be "
    "pointed at another broker",
    "kafka-python's tests of SASL and TLS": "they start brokers from an unpacked release of Apache Kafka; `make test` "
    "and `make peers` use kafka-python with SASL and TLS",
}

NO_INTERNAL_TOPICS: Final = (
    "it looks for an internal topic of the broker; Semel keeps offsets in its ledger, and has none"
)

DIFFERENCES: Final[dict[str, dict[str, str]]] = {
    "kafka-python": {
        "test_admin_integration::test_describe_metadata_quorum": "there is no quorum of controllers, and Semel says so",
    },
    "franz-go": {
        "Test848RegexBrokerResolves": NO_INTERNAL_TOPICS,
        "TestConsumeRegexShareSkipsInternal": NO_INTERNAL_TOPICS,
        "TestConsumeRegex": NO_INTERNAL_TOPICS,
    },
    "Kafka Streams": {
        "the streams protocol": "Semel has no streams groups; Streams works with its classic protocol",
    },
}
"""By suite and the beginning of a case's name: why the outcome on Semel differs from that on Apache Kafka."""

ELSEWHERE: Final[dict[str, dict[str, str]]] = {}
"""Cases that pass on neither broker, or only on Semel, and why."""
