"""Parses the options of the source and of the sink, and checks them before anything is sent.

Names and meanings are exactly those of Spark's own Kafka source and sink; `pipeline.id`, `snapshot`,
`newestByKey`, `delivery.guarantee` and `transaction.timeout.ms` are Semel's. `option_reader` parses single
values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

from semel.client import Codec, FetchLimits, Isolation
from semel.spark.errors import OptionError
from semel.spark.option_reader import COMMON, Address, AtTime, OptionReader, Topics, Where
from semel.spark.partition_offsets import PartitionOffsets
from semel.spark.relations import ALONE, RELATIONS, Relations
from semel.spark.sink.versions import Version

__all__ = [
    "COMMON",
    "Address",
    "AtTime",
    "Guarantee",
    "OptionReader",
    "SinkOptions",
    "SourceOptions",
    "Topics",
    "Where",
    "check_source_names",
]

SOURCE = (
    *COMMON,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafka.isolation.level",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    # These name the group of Spark's own source. This source uses no group, so they have no effect.
    "groupIdPrefix",
    "kafka.group.id",
)
ONLY_BATCH = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "snapshot", "newestByKey")
ONLY_STREAM = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "partition.metadata.cache.ttl.ms",
)
BATCH_SOURCE, STREAM_SOURCE = (*SOURCE, *ONLY_BATCH), (*SOURCE, *ONLY_STREAM)
SINK = (*COMMON, "topic", "delivery.guarantee", "transaction.timeout.ms", "kafka.compression.type")
STREAM_SINK = (*SINK, *RELATIONS, "checkpointLocation", "queryName")
VERSIONS = ("txnAppId", "txnVersion", "txnCompare")
BATCH_SINK = (*SINK, *VERSIONS, "checkpointLocation")
#: The options that a source shares with the batches of its query, in lower case.
BATCH = frozenset(name.lower() for name in COMMON)
VERSIONS_ELSEWHERE = dict.fromkeys(
    VERSIONS, "batch writes; the batches of a streaming query are numbered by its checkpoint"
)

#: The maximum that brokers allow by default. A decided transaction must stay open until a driver that died is
#: back. The next start aborts undecided transactions, whatever their timeout.
TRANSACTION_TIMEOUT_MS = 900_000
MAX_TRIGGER_DELAY_S = 15 * 60.0
RETRIES, RETRY_INTERVAL_MS = 3, 10


class Guarantee(Enum):
    """How often the output counts an input record."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class Portions:
    """The size of a streaming batch in offsets, and how long it may wait to reach it."""

    most: int | None = None
    least: int | None = None
    delay_s: float = MAX_TRIGGER_DELAY_S


@dataclass(frozen=True, slots=True)
class Retries:
    """How often the driver retries queries for the start and end of the log, and the pause between."""

    number: int = RETRIES
    pause_s: float = RETRY_INTERVAL_MS / 1000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of the source."""

    address: Address
    topics: Topics
    start: Where | PartitionOffsets | AtTime
    end: Where | PartitionOffsets | AtTime
    pipeline_id: str | None
    isolation: Isolation
    limits: FetchLimits
    fail_on_data_loss: bool
    has_headers: bool
    portions: Portions
    min_partitions: int | None
    max_records_per_partition: int | None
    poll_timeout_s: float | None
    retries: Retries
    partitions_age_s: float  # how long the list of partitions is cached
    is_snapshot: bool
    is_newest_by_key: bool

    @property
    def reading_address(self) -> Address:
        """How executors reach the cluster: their `patience_s` may differ from the driver's."""
        if self.poll_timeout_s is None:
            return self.address
        return replace(self.address, timeout_s=self.poll_timeout_s, patience_s=self.poll_timeout_s)

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Parse them; OptionError names an invalid one."""
        given = (
            OptionReader(options, STREAM_SOURCE, dict.fromkeys(ONLY_BATCH, "batches, not of streams"))
            if is_stream
            else OptionReader(options, BATCH_SOURCE, dict.fromkeys(ONLY_STREAM, "streams, not of batches"))
        )
        pipeline_id = given.pipeline_id()
        limits = FetchLimits()
        poll_timeout_ms = given.number("kafkaConsumer.pollTimeoutMs", 0)
        retries = Retries(
            given.number("fetchOffset.numRetries", RETRIES, least=0),
            given.number("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS, least=0) / 1000,
        )
        found = cls(
            address=given.address(),
            topics=given.topics(),
            start=_start(given, pipeline_id, is_stream),
            end=Where.LATEST if is_stream else _end(given),
            pipeline_id=pipeline_id,
            isolation=Isolation.of(
                given.choice(
                    "kafka.isolation.level", "read_committed", ("read_committed", "read_uncommitted")
                )
            ),
            limits=FetchLimits(
                max_bytes=given.number("kafka.fetch.max.bytes", limits.max_bytes),
                partition_max_bytes=given.number(
                    "kafka.max.partition.fetch.bytes", limits.partition_max_bytes
                ),
            ),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            has_headers=given.flag("includeHeaders", False),
            portions=_portions(given) if is_stream else Portions(),
            min_partitions=given.number("minPartitions", 0) or None,
            max_records_per_partition=given.number("maxRecordsPerPartition", 0) or None,
            poll_timeout_s=poll_timeout_ms / 1000 or None,
            retries=retries,
            partitions_age_s=given.number("partition.metadata.cache.ttl.ms", 0, least=0) / 1000,
            is_snapshot=not is_stream and given.flag("snapshot", False),
            is_newest_by_key=not is_stream and given.flag("newestByKey", False),
        )
        if found.is_snapshot:
            _check_snapshot(found)
        return found


def _start(
    given: OptionReader, pipeline_id: str | None, is_stream: bool
) -> Where | PartitionOffsets | AtTime:
    strategy = given.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    at_time = given.at_time("startingTimestamp", "startingOffsetsByTimestamp", or_latest=strategy == "latest")
    if at_time is not None:
        return at_time
    default = Where.LATEST if is_stream else Where.EARLIEST
    start = given.where("startingOffsets", default if pipeline_id is None else Where.COMMITTED)
    if start is Where.COMMITTED and pipeline_id is None:
        raise OptionError(
            "startingOffsets=committed continues where a pipeline stopped: give its pipeline.id"
        )
    if start is Where.LATEST and not is_stream:
        raise OptionError(
            "startingOffsets of a batch must be earliest, committed or JSON: there is nothing after latest"
        )
    return start


def _end(given: OptionReader) -> Where | PartitionOffsets | AtTime:
    at_time = given.at_time("endingTimestamp", "endingOffsetsByTimestamp", or_latest=True)
    if at_time is not None:
        return at_time
    end = given.where("endingOffsets", Where.LATEST)
    if end in (Where.EARLIEST, Where.COMMITTED):
        raise OptionError("endingOffsets must be latest, or JSON with the offset after the last record")
    return end


def _portions(given: OptionReader) -> Portions:
    most = given.number("maxOffsetsPerTrigger", 0) or None
    least = given.number("minOffsetsPerTrigger", 0) or None
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}")
    return Portions(most, least, given.span_s("maxTriggerDelay", MAX_TRIGGER_DELAY_S))


def _check_snapshot(options: SourceOptions) -> None:
    if options.end is not Where.LATEST:
        raise OptionError("a snapshot ends at the current end of the log: omit the ending options")
    if options.isolation is not Isolation.READ_COMMITTED:
        raise OptionError("a snapshot contains committed records: omit kafka.isolation.level")
    if not options.fail_on_data_loss:
        raise OptionError("a snapshot must be complete: omit failOnDataLoss")


def sink_reader(
    options: Mapping[str, str], stream: Sequence[str], batch: Sequence[str], *, is_stream: bool
) -> OptionReader:
    """Return a reader for the options of a sink: a streaming query accepts others than a batch write."""
    return OptionReader(options, stream, VERSIONS_ELSEWHERE) if is_stream else OptionReader(options, batch)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of the sink."""

    address: Address
    topic: str | None
    guarantee: Guarantee
    pipeline_id: str | None
    transaction_timeout_ms: int
    codec: Codec
    checkpoint: str | None
    version: Version | None
    relations: Relations = ALONE

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Parse them; OptionError names an invalid one."""
        given = sink_reader(options, STREAM_SINK, BATCH_SINK, is_stream=is_stream)
        guarantee = Guarantee(
            given.choice("delivery.guarantee", "exactly-once", tuple(each.value for each in Guarantee))
        )
        version = None if is_stream else write_version(given)
        pipeline_id = given.pipeline_id() or (version.app if version else None)
        checkpoint = given.text("checkpointLocation") if is_stream else None
        if guarantee is Guarantee.AT_LEAST_ONCE and version is not None:
            raise OptionError(
                "txnVersion lets a write count once: leave delivery.guarantee=at-least-once out"
            )
        if guarantee is Guarantee.EXACTLY_ONCE:
            if pipeline_id is None:
                raise OptionError(
                    "exactly-once needs the option pipeline.id, a name that stays the same as long as the "
                    "pipeline lives. Without one, set delivery.guarantee=at-least-once"
                )
            if is_stream and checkpoint is None:
                raise OptionError(missing_checkpoint(given))
        codecs = tuple(codec.name.lower() for codec in Codec)
        return cls(
            address=given.address(),
            topic=given.text("topic"),
            guarantee=guarantee,
            pipeline_id=pipeline_id,
            transaction_timeout_ms=given.number("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
            codec=Codec[given.choice("kafka.compression.type", "none", codecs).upper()],
            checkpoint=checkpoint,
            version=version,
            relations=Relations.of(given) if is_stream else ALONE,
        )


def missing_checkpoint(given: OptionReader) -> str:
    """Return the message for a query whose checkpoint is only set in the session.

    Spark passes only the options to a sink in Python: before the tasks of a batch start, no Python process
    can read the settings of the session.
    """
    setting = "spark.sql.streaming.checkpointLocation"
    text = (
        "exactly-once needs the option checkpointLocation on this query: Spark does not tell a sink in "
        f"Python its setting {setting}. "
    )
    name = given.text("queryName")
    if name is None:
        return (
            f"{text}Besides, Spark puts the checkpoint of a query without a name into a new directory at "
            "every start, so that the query never goes on where it stopped"
        )
    return (
        f"{text}Call semel.spark.session() in the driver, or add "
        f".option('checkpointLocation', spark.conf.get('{setting}') + '/{name}'), the same place"
    )


def write_version(given: OptionReader) -> Version | None:
    """Return the version of a batch write: both options, or neither."""
    app, number = given.name("txnAppId"), given.text("txnVersion")
    if app is None and number is None:
        for name in ("txnCompare", "checkpointLocation"):
            if given.text(name) is not None:
                raise OptionError(f"a batch write has the option {name} only with txnAppId and txnVersion")
        return None
    if app is None:
        raise OptionError("txnVersion counts the writes of an application: give its name as txnAppId")
    if number is None:
        raise OptionError(
            "txnAppId needs txnVersion, which grows with every write: in foreachBatch the batch id"
        )
    compares_input = given.choice("txnCompare", "input", ("input", "version")) == "input"
    checkpoint = given.text("checkpointLocation")
    return Version(app, given.number("txnVersion", 0, least=0), checkpoint, compares_input)


def check_source_names(options: Mapping[str, str]) -> None:
    """Refuse options that neither batch nor streaming reads know; Spark has yet to say which this one is."""
    OptionReader(options, (*SOURCE, *ONLY_BATCH, *ONLY_STREAM))
