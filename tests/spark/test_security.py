"""A pipeline through TLS and SASL, with the least rights: options reach the driver and the executors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.brokers.process import BrokerProcess
from support.brokers.sasl_broker import SaslBroker
from support.brokers.secured_broker import secured as secured_broker
from support.certificates import Certificate, make_certificate, needs_openssl

from semel.client import Admin, Client, Consumer, Isolation, NewTopic, Producer, Security
from semel.client.admin.acls import Acl

pytestmark = [pytest.mark.spark, needs_openssl]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "broker")


@pytest.fixture
def secured(tmp_path: Path, certificate: Certificate) -> Iterator[str]:
    settings = {
        "ssl.certificate.location": certificate.certificate,
        "ssl.key.location": certificate.key,
        "ssl.ca.location": certificate.certificate,  # of clients, which have the same here
    }
    process = BrokerProcess(
        tmp_path / "data", *(text for item in settings.items() for text in ("--set", "{}={}".format(*item)))
    )
    process.scheme = "ssl://"
    with process:
        yield process.bootstrap


def test_a_pipeline_runs_through_tls(
    spark: SparkSession, secured: str, certificate: Certificate, tmp_path: Path
) -> None:
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificate.certificate),
        "ssl.certificate.location": str(certificate.certificate),
        "ssl.key.location": str(certificate.key),
    }
    with Client(secured, security=Security.of(settings)) as client:
        Admin(client).topics.create(NewTopic("in", partitions=2), NewTopic("out", partitions=2))
        with Producer(client) as producer:
            for number in range(20):
                producer.send("in", b"%d" % number)
    cluster = {f"kafka.{name}": value for name, value in settings.items()}
    cluster |= {"kafka.bootstrap.servers": secured, "pipeline.id": "copy"}
    source = spark.readStream.format("semel").options(**cluster).option("subscribe", "in").load()
    writer = source.select("value").writeStream.format("semel").options(**cluster).option("topic", "out")
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    del cluster["pipeline.id"]
    rows = spark.read.format("semel").options(**cluster).option("subscribe", "out").load().collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(20))


def test_a_user_that_is_not_known_is_told_and_the_password_is_not(spark: SparkSession) -> None:
    with SaslBroker("ann", "right") as broker:
        options = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.username": "ann",
            "kafka.sasl.password": "hush-hush",
            "subscribe": "in",
        }
        with pytest.raises(PySparkException, match="'ann'") as told:
            spark.read.format("semel").options(**options).load().collect()
        assert "hush-hush" not in str(told.value)
        broker.password = "hush-hush"
        with pytest.raises(PySparkException, match=r"topic in\b"):
            spark.read.format("semel").options(**options).load().collect()
        assert broker.authenticated == 1


def test_a_pipeline_runs_through_sasl_ssl_with_least_rights_and_stops_when_one_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The rights of docs/security.md, and no others."""
    who = "User:pipeline"
    rights = {
        "source": Acl.of(who, "Read", topic="in"),
        "sink": Acl.of(who, "Write", topic="out"),
        "group": Acl.of(who, "Read", group="copy", is_prefix=True),
        "transactions": Acl.of(who, "Write", transactional_id="copy", is_prefix=True),
    }
    with secured_broker(tmp_path / "broker") as broker, broker.admin() as admin:
        admin.topics.create(NewTopic("in", 2), NewTopic("out", 2))
        admin.users.put("pipeline", "s3cret")
        settings = broker.settings("SASL_SSL", "SCRAM-SHA-256", "pipeline", "s3cret")
        cluster = {f"kafka.{name}": value for name, value in settings.items()}
        cluster |= {"kafka.bootstrap.servers": broker.address("SASL_SSL"), "pipeline.id": "copy"}

        def copy() -> None:
            source = spark.readStream.format("semel").options(**cluster).option("subscribe", "in").load()
            writer = source.select("value").writeStream.format("semel").options(**cluster)
            query = (
                writer.option("topic", "out")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        def write(first: int) -> None:
            with Producer(admin._client) as producer:
                for number in range(first, first + 10):
                    producer.send("in", b"%d" % number)

        write(0)
        admin.acls.add(*rights.values())
        copy()
        for first, (name, right) in enumerate(rights.items(), 1):
            write(10 * first)
            admin.acls.remove([right])
            with pytest.raises(PySparkException, match="AUTHORIZATION_FAILED") as told:
                copy()
            assert "s3cret" not in str(told.value), name
            admin.acls.add(right)
            copy()
        with Consumer(admin._client, "out", isolation=Isolation.READ_COMMITTED) as consumer:
            found = sorted(int(record.value or b"") for record in consumer.read_to_end())
        assert found == list(range(50))
