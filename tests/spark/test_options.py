"""Options and offsets: good ones are read, wrong ones are refused by name, before anything is sent."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import Codec, Isolation
from semel.spark import OptionError
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.option_reader import IGNORED, REFUSED
from semel.spark.options import (
    BATCH_SINK,
    BATCH_SOURCE,
    STREAM_SINK,
    STREAM_SOURCE,
    AtTime,
    Guarantee,
    Portions,
    SinkOptions,
    SourceOptions,
    Where,
)
from semel.spark.partition_offsets import admit, began_of, of_json, to_json
from semel.spark.sink.versions import Version
from semel.spark.source.reading import OffsetRange
from semel.spark.source.source import Admission, StreamReader, split

SOURCE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "in"}
SINK = {"kafka.bootstrap.servers": "localhost:9092", "pipeline.id": "p", "checkpointlocation": "/tmp/c"}


def test_the_source_has_the_defaults_of_sparks_and_reads_what_is_committed() -> None:
    stream, batch = SourceOptions.of(SOURCE, is_stream=True), SourceOptions.of(SOURCE, is_stream=False)
    assert (stream.start, batch.start, batch.end) == (Where.LATEST, Where.EARLIEST, Where.LATEST)
    assert stream.isolation is Isolation.READ_COMMITTED
    assert stream.fail_on_data_loss
    assert not stream.has_headers
    assert stream.portions.most is None
    assert SourceOptions.of({**SOURCE, "pipeline.id": "p"}, is_stream=True).start is Where.COMMITTED


def test_case_does_not_matter() -> None:
    options = {"KAFKA.Bootstrap.Servers": "a:1", "subscribepattern": "x.*", "MAXOFFSETSPERTRIGGER": "5"}
    assert SourceOptions.of(options, is_stream=True).portions.most == 5


def test_the_sink_is_exactly_once_unless_told() -> None:
    options = SinkOptions.of({**SINK, "kafka.compression.type": "zstd"}, is_stream=True)
    assert (options.guarantee, options.codec) == (Guarantee.EXACTLY_ONCE, Codec.ZSTD)


@pytest.mark.parametrize(
    ("change", "is_stream", "message"),
    [
        ({"startingOffset": "earliest"}, True, "did you mean 'startingOffsets'"),
        ({"kafka.default.consumer": "x"}, True, "there is no option 'kafka.default.consumer'"),
        ({"kafka.session.timeout": "1"}, True, "did you mean 'kafka.session.timeout.ms'"),
        ({"kafka.acks": "1"}, True, "writes always wait for all replicas"),
        ({"kafka.transaction.timeout.ms": "1"}, True, "the sink's own option transaction.timeout.ms"),
        ({"kafka.partitioner.class": "x"}, True, "give the rows a column partition"),
        ({"kafka.ssl.cipher.suites": "x"}, True, "TLS is that of Python here"),
        ({"kafka.config.providers": "x"}, True, "names Java classes"),
        ({"endingOffsets": "latest"}, True, "the option 'endingOffsets' belongs to batches"),
        ({"endingTimestamp": "1"}, True, "the option 'endingTimestamp' belongs to batches"),
        ({"snapshot": "true"}, True, "the option 'snapshot' belongs to batches"),
        ({"maxOffsetsPerTrigger": "5"}, False, "the option 'maxOffsetsPerTrigger' belongs to streams"),
        ({"kafka.auto.offset.reset": "latest"}, True, "is not supported: choose where a query starts with"),
        ({"kafka.enable.auto.commit": "true"}, True, "is stored under pipeline.id"),
        ({"kafka.key.deserializer": "x"}, True, "keys and values are bytes here"),
        ({"kafka.interceptor.classes": "x"}, True, "it names Java classes"),
        ({"kafka.ssl.truststore.password": "x"}, True, "a PEM file of certificates has no password"),
        ({"startingTimestamp": "yesterday"}, True, "startingTimestamp must be a whole number of 0 or more"),
        ({"startingOffsetsByTimestamp": '{"in":{"0":-1}}'}, True, "startingOffsetsByTimestamp must be JSON"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, True, "error or latest, not 'guess'"),
        ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, True, "6 is more than max.* 5"),
        ({"maxTriggerDelay": "soon"}, True, "a time span such as 500ms, 30s or 15m"),
        (
            {"kafka.request.timeout.ms": "5000", "kafka.default.api.timeout.ms": "4999"},
            True,
            "kafka.default.api.timeout.ms, 4999, .* cannot be less than kafka.request.timeout.ms, 5000",
        ),
        ({"minPartitions": "0"}, False, "minPartitions must be a whole number above 0"),
        ({"fetchOffset.numRetries": "-1"}, False, "a whole number of 0 or more"),
        ({"snapshot": "true", "endingTimestamp": "1"}, False, "omit the ending options"),
        (
            {"snapshot": "true", "kafka.isolation.level": "read_uncommitted"},
            False,
            "contains committed records",
        ),
        ({"snapshot": "true", "failOnDataLoss": "false"}, False, "must be complete"),
        ({"kafka.security.protocol": "TLS"}, True, "security.protocol must be one of PLAINTEXT, SSL"),
        ({"kafka.sasl.username": "ann"}, True, "sasl.username has no meaning with security.protocol=PLAIN"),
        ({"maxOffsetsPerTrigger": "-5"}, True, "a whole number above 0"),
        ({"failOnDataLoss": "maybe"}, True, "true or false, not 'maybe'"),
        ({"startingOffsets": "committed"}, True, "give its pipeline.id"),
        ({"startingOffsets": "soon"}, True, "earliest or latest or committed, not 'soon'"),
        ({"startingOffsets": '{"in":{"0":-3}}'}, True, "startingOffsets must be JSON such as"),
        ({"startingOffsets": '{"in":'}, True, "startingOffsets must be JSON such as"),
        ({"startingOffsets": "latest"}, False, "nothing after latest"),
        ({"endingOffsets": "earliest"}, False, "endingOffsets must be latest, or JSON"),
        ({"subscribe": ""}, True, "exactly one of"),
        ({"subscribePattern": "a"}, True, "exactly one of"),
        ({"subscribe": "", "subscribePattern": "("}, True, "not a regular expression"),
        ({"subscribe": "", "assign": '{"in":0}'}, True, "assign must be JSON such as"),
        ({"kafka.bootstrap.servers": ""}, True, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "a:b"}, True, "is not an address"),
        ({"pipeline.id": "a/b"}, True, "pipeline.id must be 1 to 200"),
        ({"kafka.isolation.level": "serializable"}, True, "read_committed or read_uncommitted"),
    ],
)
def test_what_the_source_refuses(change: dict[str, str], is_stream: bool, message: str) -> None:
    options = {name.lower(): value for name, value in (SOURCE | change).items()}
    with pytest.raises(OptionError, match=message):
        SourceOptions.of(options, is_stream=is_stream)


def test_a_sink_needs_a_checkpoint_that_it_can_see() -> None:
    unseen = {**SINK, "checkpointlocation": ""}
    table = {**unseen, "path": "/tmp/t"}
    for read in (
        lambda more: SinkOptions.of(unseen | more, is_stream=True),
        lambda more: DeltaOptions.of(table | more, is_stream=True),
    ):
        with pytest.raises(OptionError, match="a new directory at every start"):
            read({})
        with pytest.raises(OptionError, match=r"checkpointLocation'\) \+ '/billing'\), the same place"):
            read({"queryname": "billing"})


@pytest.mark.parametrize(
    ("change", "is_stream", "message"),
    [
        ({"txnVersion": "1"}, False, "give its name as txnAppId"),
        ({"txnAppId": "a"}, False, "txnAppId needs txnVersion"),
        ({"txnAppId": "a", "txnVersion": "-1"}, False, "must be a whole number of 0 or more, not '-1'"),
        ({"txnAppId": "a", "txnVersion": "1.5"}, False, "txnVersion must be a whole number of 0 or more"),
        (
            {"txnAppId": "a", "txnVersion": str(1 << 63)},
            False,
            f"txnVersion must be .* {(1 << 63) - 1} at most",
        ),
        ({"txnAppId": "a", "txnVersion": "9" * 5_000}, False, "txnVersion must be a whole number of 64 bits"),
        ({"txnAppId": "a b", "txnVersion": "1"}, False, "txnAppId must be 1 to 200 letters"),
        ({"txnAppId": "a", "txnVersion": "1"}, True, "'txnAppId' belongs to batch writes"),
        ({"txnCompare": "version"}, False, "option txnCompare only with txnAppId and txnVersion"),
        ({"checkpointLocation": "/c"}, False, "option checkpointLocation only with txnAppId and txnVersion"),
        (
            {"txnAppId": "a", "txnVersion": "1", "txnCompare": "no"},
            False,
            "txnCompare must be input or version, not 'no'",
        ),
        ({"txnCompare": "version"}, True, "'txnCompare' belongs to batch writes"),
        (
            {"txnAppId": "a", "txnVersion": "1", "delivery.guarantee": "at-least-once"},
            False,
            "leave delivery.guarantee=at-least-once out",
        ),
    ],
)
def test_what_the_sink_refuses_of_versions(change: dict[str, str], is_stream: bool, message: str) -> None:
    options = {name: value for name, value in SINK.items() if is_stream or name != "checkpointlocation"}
    with pytest.raises(OptionError, match=message):
        SinkOptions.of({**options, **change}, is_stream=is_stream)


def test_an_application_is_a_pipeline_unless_one_is_named() -> None:
    options = {"kafka.bootstrap.servers": "localhost:9092", "txnappid": "app", "txnversion": "7"}
    assert SinkOptions.of(options, is_stream=False).pipeline_id == "app"
    both = SinkOptions.of({**options, "pipeline.id": "p"}, is_stream=False)
    assert (both.pipeline_id, both.version) == ("p", Version("app", 7))


def test_vectors_are_written_as_spark_does() -> None:
    vector = {("b", 1): 5, ("a", 0): 3, ("b", 0): 4}
    written = to_json(vector, began={("a", 0): 1})
    assert written == {"a": {"0": 3}, "b": {"0": 4, "1": 5}, "began:": {"a": {"0": 1}}}
    assert (of_json(written), began_of(written), began_of(to_json(vector))) == (vector, {("a", 0): 1}, None)


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({"startingOffsets": "earliest"}, Where.EARLIEST, Where.LATEST),
        ({"startingOffsetsByTimestamp": '{"in":{"0":7}}'}, AtTime({("in", 0): 7}, False), Where.LATEST),
        (
            {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"in":{"0":7}}'},
            AtTime({("in", 0): 7}, False),
            Where.LATEST,
        ),
        (
            {
                "startingTimestamp": "5",
                "startingOffsetsByTimestamp": '{"in":{"0":7}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            AtTime(5, True),
            Where.LATEST,
        ),
        (
            {
                "endingTimestamp": "6",
                "endingOffsetsByTimestamp": '{"in":{"0":7}}',
                "endingOffsets": '{"in":{"0":1}}',
            },
            Where.EARLIEST,
            AtTime(6, True),
        ),
        (
            {"endingOffsetsByTimestamp": '{"in":{"0":7}}', "endingOffsets": '{"in":{"0":1}}'},
            Where.EARLIEST,
            AtTime({("in", 0): 7}, True),
        ),
    ],
)
def test_times_go_before_offsets_and_one_time_before_many(
    options: dict[str, str], start: object, end: object
) -> None:
    found = SourceOptions.of(SOURCE | options, is_stream=False)
    assert (found.start, found.end) == (start, end)


@pytest.mark.parametrize(
    ("text", "seconds"), [("250", 0.25), ("250ms", 0.25), ("3s", 3.0), ("15m", 900.0), ("2 min", 120.0)]
)
def test_time_spans_are_written_as_in_spark(text: str, seconds: float) -> None:
    assert SourceOptions.of(SOURCE | {"maxTriggerDelay": text}, is_stream=True).portions.delay_s == seconds


def test_the_group_of_sparks_own_source_is_taken_and_has_no_effect() -> None:
    plain = SourceOptions.of(SOURCE, is_stream=True)
    named = {"groupIdPrefix": "x", "kafka.group.id": "y"}
    assert SourceOptions.of(SOURCE | named, is_stream=True) == plain


def test_settings_that_tune_a_java_client_are_accepted_with_a_warning() -> None:
    named = {"kafka.session.timeout.ms": "1", "kafka.Linger.ms": "2", "kafka.compression.type": "zstd"}
    with pytest.warns(UserWarning, match="kafka.compression.type, kafka.linger.ms, kafka.session"):
        found = SourceOptions.of(SOURCE | named, is_stream=True)
    assert found == SourceOptions.of(SOURCE, is_stream=True)
    with pytest.warns(UserWarning, match=r"here: kafka.isolation.level, kafka.linger.ms, kafka.session.+ms$"):
        sink = SinkOptions.of(SINK | named | {"kafka.isolation.level": "read_committed"}, is_stream=True)
    assert sink.codec is Codec.ZSTD


def test_no_setting_is_both_ignored_and_refused_or_an_option_of_its_own() -> None:
    assert not IGNORED & set(REFUSED)
    assert not set(REFUSED) & {*STREAM_SOURCE, *BATCH_SOURCE, *STREAM_SINK, *BATCH_SINK}


def test_executors_may_be_more_patient_than_the_driver() -> None:
    options = SourceOptions.of(SOURCE | {"kafkaConsumer.pollTimeoutMs": "120000"}, is_stream=False)
    assert (options.address.timeout_s, options.reading_address.timeout_s) == (30.0, 120.0)
    assert options.reading_address.patience_s == 120.0


def test_an_operation_is_tried_for_at_least_as_long_as_an_answer_may_take() -> None:
    def patience_s(**timeouts: str) -> float:
        given = {f"kafka.{name.replace('_', '.')}.timeout.ms": text for name, text in timeouts.items()}
        return SourceOptions.of(SOURCE | given, is_stream=True).address.patience_s

    assert patience_s() == 120.0
    assert patience_s(default_api="45000") == 45.0
    assert patience_s(request="240000") == 240.0


def test_security_is_read_and_passwords_are_not_shown() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    secured = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": f'{module} required username="ann" password="hush-hush";',
    }
    for options in (
        SourceOptions.of(SOURCE | secured, is_stream=True),
        SinkOptions.of(SINK | secured, is_stream=True),
    ):
        security = options.address.security
        assert security is not None
        assert (security.username, security.password) == ("ann", "hush-hush")
        assert "hush-hush" not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options


def test_a_batch_waits_for_enough_but_not_for_ever() -> None:
    admission = Admission(Portions(least=10, most=15, delay_s=60.0))
    start, few, many = {("t", 0): 0}, {("t", 0): 3}, {("t", 0): 40}

    def end(end: dict[Any, int], now: float, *, may_wait: bool = True) -> int:
        return admission.end(start, end, may_wait=may_wait, now=now)["t", 0]

    assert end(few, 100.0) == 3  # the first does not wait
    assert end(few, 101.0) == 0
    assert end(few, 101.0, may_wait=False) == 3
    assert end(many, 102.0) == 15
    assert end(few, 161.0) == 0
    assert end(few, 162.0) == 3
    assert end(few, 163.0) == 0


@given(
    ranges=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1_000)), max_size=6),
    min_partitions=st.none() | st.integers(1, 40),
    max_records=st.none() | st.integers(1, 200),
)
def test_ranges_are_cut_without_loss(
    ranges: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    whole = [OffsetRange("t", number, start, start + size) for number, (start, size) in enumerate(ranges)]
    pieces = split(whole, min_partitions, max_records)
    for each in whole:
        mine = [piece for piece in pieces if piece.partition == each.partition]
        offsets = [offset for piece in mine for offset in range(piece.start, piece.end)]
        assert offsets == list(range(each.start, each.end))
    assert all(piece.end > piece.start for piece in pieces)
    if max_records is not None:
        assert all(piece.end - piece.start <= max_records for piece in pieces)
    if min_partitions is None and max_records is None:
        assert len(pieces) == sum(size > 0 for _, size in ranges)


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "expected"),
    [
        ([100], 4, [25, 25, 25, 25]),
        ([100, 100], 1, [100, 100]),
        ([10, 100], 3, [10, 50, 50]),  # the small one stays whole
        ([400, 100, 1], 6, [100, 100, 100, 100, 100, 1]),
        ([10], 4, [2, 3, 2, 3]),
        ([2], 4, [1, 1]),
    ],
)
def test_large_ranges_are_cut_by_their_size(
    sizes: list[int], min_partitions: int, expected: list[int]
) -> None:
    whole = [OffsetRange("t", number, 0, size) for number, size in enumerate(sizes)]
    assert [piece.end - piece.start for piece in split(whole, min_partitions, None)] == expected


def test_every_partition_gets_its_share() -> None:
    start = {("t", 0): 0, ("t", 1): 100}
    end = {("t", 0): 900, ("t", 1): 200, ("t", 2): 1}
    assert admit(start, end, 100) == {("t", 0): 89, ("t", 1): 109, ("t", 2): 1}
    assert admit(start, end, 1001) == end


def test_a_first_batch_that_is_done_again_begins_where_it_did_and_no_other_does() -> None:
    reader = StreamReader(SourceOptions.of(SOURCE, is_stream=True), ["value"])
    first = to_json({("in", 0): 5}, began={("in", 0): 2})
    begun_now, later = to_json({("in", 0): 9}), to_json({("in", 0): 7, ("in", 1): 1})

    def ranges(start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return [found for each in reader.partitions(start, end) for found in each.value]

    assert ranges(begun_now, first) == [OffsetRange("in", 0, 2, 5)]
    assert ranges(first, first) == []
    assert ranges(first, later) == [OffsetRange("in", 0, 5, 7), OffsetRange("in", 1, 0, 1)]
