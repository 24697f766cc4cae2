"""A pipeline through TLS, and through SASL as far as the door: options reach the driver and the executors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.certificates import Certificate, make_certificate, needs_openssl
from support.process import BrokerProcess
from support.sasl_broker import SaslBroker

from semel.client import Admin, Client, NewTopic, Producer, Security

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
        with pytest.raises(PySparkException, match="rejected user 'ann'") as told:
            spark.read.format("semel").options(**options).load().collect()
        assert "hush-hush" not in str(told.value)
        broker.password = "hush-hush"
        with pytest.raises(PySparkException, match="there is no topic in"):
            spark.read.format("semel").options(**options).load().collect()
        assert broker.authenticated == 1
