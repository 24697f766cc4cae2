"""Objects, requests and uploads per gigabyte, and ledger rows per terabyte."""

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from support.waiting import until

from bench.cluster.subjects import OVER_S3, ClusterOverS3
from bench.results import Metric
from bench.side_by_side.clients import Load, librdkafka
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.side_by_side.places import topics_of
from bench.subjects import Subject
from bench.workloads import Place, bulk_produce

OBJECTS, WRITES, READS, UPLOADED = "objects", "requests to write", "requests to read", "bytes uploaded"
ROWS, MERGED_ROWS = "rows before merging", "rows after merging"
BULK, BATCHES, TRANSACTIONS = "bulk", "batches of 16 KiB", "transactions of 5 × 10 records"
PARTITIONS = {BULK: 4, BATCHES: 4, TRANSACTIONS: 5}
PRODUCERS, RECORDS = 8, 10
TRANSACTIONS_SECONDS = 4
"""Seconds for each second of other measurements: merging needs a thousand batches."""
BATCH_BYTES, LIBRDKAFKA_BATCH_BYTES = 16_384, 1_000_000
GIGABYTE, TERABYTE = 1e9, 1e12
PATIENCE_SECONDS = 120.0
QUIET_SECONDS = 3.0

STORED = """
SELECT count(*) AS rows, coalesce(sum(length), 0)::bigint AS bytes, count(DISTINCT chunk_id) AS chunks,
    count(DISTINCT object_id) AS objects, count(*) - count(object_id) AS inline
FROM semel.batches JOIN semel.topics USING (topic_id) LEFT JOIN semel.chunks USING (chunk_id)
LEFT JOIN semel.merged USING (topic_id, partition_index)
WHERE name LIKE $1 AND ($2 OR base_offset < next_offset)
"""
"""Counts what the ledger has of topics: all their batches, or those that were merged."""


@dataclass(frozen=True)
class Kind(Cell):
    """How records are written."""

    what: str

    @property
    def label(self) -> str:
        return self.what

    def rounds(self, size: Size) -> int:
        """One round, because counts hardly vary."""
        return 1


@dataclass(frozen=True)
class Stored:
    """Batches in the ledger."""

    rows: int
    """Rows of batches, of the chunks they are in, and of objects."""
    size: int
    objects: int
    inline: int
    """Batches that are still in PostgreSQL."""


class Volume(Workload[Kind]):
    """Write, wait until everything is in objects, merge, and read with nothing in memory."""

    name = "cluster-volume"
    title = "Cluster: objects, requests and rows"
    subjects = OVER_S3
    text = (
        "Three brokers over PostgreSQL and SeaweedFS, with a proxy that counts requests. *Bulk*: one producer"
        " writes 1 KiB records as fast as it can, in batches as large as librdkafka makes them. *Batches of"
        " 16 KiB*: the same with `batch.size=16384`, the default of the Java client. *Transactions*: 8"
        " producers write 10 records of 100 bytes to each of 5 partitions. Objects, requests and bytes"
        " uploaded are for one gigabyte of batches, before merging. Requests to read are those of a consumer"
        " after a restart of all brokers, when batches have been merged. Rows are those of batches, chunks"
        " and objects, for one terabyte of batches."
    )
    metrics: ClassVar = (
        Metric(MERGED_ROWS, "per TB", False),
        Metric(ROWS, "per TB", False),
        Metric(OBJECTS, "per GB", False),
        Metric(WRITES, "per GB", False),
        Metric(UPLOADED, "GB per GB", False),
        Metric(READS, "per GB", False),
    )

    def cells(self, size: Size) -> list[Kind]:
        return [Kind(what) for what in PARTITIONS]

    def measure(self, subject: Subject, cell: Kind, size: Size) -> dict[str, float]:
        assert isinstance(subject, ClusterOverS3)
        topics = topics_of(self.fresh("topic"), PARTITIONS[cell.what])
        subject.create(topics)
        pattern = f"{next(iter(topics)).rpartition('-')[0]}-%"
        where = [(topic, at) for topic, count in topics.items() for at in range(count)]
        where = where[: PARTITIONS[cell.what]]
        writes, uploaded = subject.proxy.count("PUT"), _uploaded(subject)
        self._write(subject, cell.what, where, size)
        until(lambda: not _stored(subject, pattern).inline, PATIENCE_SECONDS, "bytes in objects")
        before = _stored(subject, pattern)
        writes, uploaded = subject.proxy.count("PUT") - writes, _uploaded(subject) - uploaded
        gigabytes = before.size / GIGABYTE
        found = {
            OBJECTS: before.objects / gigabytes,
            WRITES: writes / gigabytes,
            UPLOADED: uploaded / before.size,
            ROWS: before.rows / before.size * TERABYTE,
        }
        subject.restart(semel_merge_interval_ms=500)
        after = _merged(subject, pattern)
        if after.size:
            found[MERGED_ROWS] = after.rows / after.size * TERABYTE
        subject.restart(semel_merge_interval_ms=0)
        reads = subject.proxy.count("GET")
        _read(subject, where)
        found[READS] = (subject.proxy.count("GET") - reads) / gigabytes
        return found

    def _write(self, subject: ClusterOverS3, what: str, where: list[Place], size: Size) -> None:
        if what == TRANSACTIONS:
            seconds = size.seconds * TRANSACTIONS_SECONDS
            librdkafka(Load(subject.bootstrap, where, RECORDS, PRODUCERS, seconds, self.fresh("id")))
        else:
            largest = BATCH_BYTES if what == BATCHES else LIBRDKAFKA_BATCH_BYTES
            config: dict[str, Any] = {"batch.size": largest}
            bulk_produce(subject.bootstrap, where, size.records, **config)


def _stored(subject: ClusterOverS3, pattern: str, *, merged: bool = False) -> Stored:
    row = subject.cluster.query(STORED, pattern, not merged)[0]
    return Stored(row["rows"] + row["chunks"] + row["objects"], row["bytes"], row["objects"], row["inline"])


def _uploaded(subject: ClusterOverS3) -> int:
    """Return the bytes in all objects so far: none is deleted in the ten minutes in which it may be read."""
    return int(subject.cluster.query("SELECT coalesce(sum(size_bytes), 0)::bigint FROM semel.objects")[0][0])


def _read(subject: ClusterOverS3, where: list[Place]) -> None:
    """Read partitions to their ends. Markers have offsets too, so counting records would not do."""
    consumer = Consumer(
        {
            "bootstrap.servers": subject.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in where])
    left, deadline = set(where), time.perf_counter() + PATIENCE_SECONDS
    while left:
        messages = consumer.consume(1_000, timeout=1.0)
        assert time.perf_counter() < deadline, f"no end of {left}"
        for each in messages:
            error = each.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard((str(each.topic()), int(each.partition() or 0)))
    consumer.close()


def _merged(subject: ClusterOverS3, pattern: str) -> Stored:
    """Return what was merged, once merging has stopped."""
    last, since = _stored(subject, pattern, merged=True), time.perf_counter()
    while time.perf_counter() - since < QUIET_SECONDS:
        time.sleep(0.2)
        now = _stored(subject, pattern, merged=True)
        if now != last:
            last, since = now, time.perf_counter()
    return last
