"""Options and offsets: good ones are read, wrong ones are refused by name, before anything is sent."""

from typing import Any

import pytest

from semel.client import Codec, Isolation
from semel.spark import OptionError
from semel.spark.options import Guarantee, SinkOptions, SourceOptions, Where
from semel.spark.reading import Range
from semel.spark.source import StreamReader
from semel.spark.vectors import admit, began_of, of_json, to_json

SOURCE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "in"}
SINK = {"kafka.bootstrap.servers": "localhost:9092", "pipeline.id": "p", "checkpointlocation": "/tmp/c"}


def test_the_source_has_the_defaults_of_sparks_and_reads_what_is_committed() -> None:
    stream, batch = SourceOptions.of(SOURCE, is_stream=True), SourceOptions.of(SOURCE, is_stream=False)
    assert (stream.start, batch.start, batch.end) == (Where.LATEST, Where.EARLIEST, Where.LATEST)
    assert stream.isolation is Isolation.READ_COMMITTED
    assert stream.fail_on_data_loss
    assert not stream.has_headers
    assert stream.max_per_trigger is None
    assert SourceOptions.of({**SOURCE, "pipeline.id": "p"}, is_stream=True).start is Where.COMMITTED


def test_case_does_not_matter() -> None:
    options = {"KAFKA.Bootstrap.Servers": "a:1", "subscribepattern": "x.*", "MAXOFFSETSPERTRIGGER": "5"}
    assert SourceOptions.of(options, is_stream=True).max_per_trigger == 5


def test_the_sink_is_exactly_once_unless_told() -> None:
    options = SinkOptions.of({**SINK, "kafka.compression.type": "zstd"}, is_stream=True)
    assert (options.guarantee, options.codec) == (Guarantee.EXACTLY_ONCE, Codec.ZSTD)


@pytest.mark.parametrize(
    ("change", "is_stream", "message"),
    [
        ({"startingOffset": "earliest"}, True, "did you mean 'startingOffsets'"),
        ({"kafka.group.instance.id": "x"}, True, "there is no option 'kafka.group.instance.id'"),
        ({"endingOffsets": "latest"}, True, "there is no option 'endingoffsets'"),
        ({"maxOffsetsPerTrigger": "5"}, False, "there is no option 'maxoffsetspertrigger'"),
        ({"maxOffsetsPerTrigger": "-5"}, True, "a whole number above 0"),
        ({"failOnDataLoss": "maybe"}, True, "true or false, not 'maybe'"),
        ({"startingOffsets": "committed"}, True, "give its pipeline.id"),
        ({"startingOffsets": "soon"}, True, "earliest or latest or committed, not 'soon'"),
        ({"startingOffsets": '{"in":{"0":-3}}'}, True, "startingOffsets is JSON such as"),
        ({"startingOffsets": '{"in":'}, True, "startingOffsets is JSON such as"),
        ({"startingOffsets": "latest"}, False, "nothing behind latest"),
        ({"endingOffsets": "earliest"}, False, "endingOffsets is latest or JSON"),
        ({"subscribe": ""}, True, "exactly one of"),
        ({"subscribePattern": "a"}, True, "exactly one of"),
        ({"subscribe": "", "subscribePattern": "("}, True, "no regular expression"),
        ({"subscribe": "", "assign": '{"in":0}'}, True, "assign is JSON such as"),
        ({"kafka.bootstrap.servers": ""}, True, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "a:b"}, True, "is not an address"),
        ({"pipeline.id": "a/b"}, True, "pipeline.id has 1 to 200"),
        ({"kafka.isolation.level": "serializable"}, True, "read_committed or read_uncommitted"),
    ],
)
def test_what_the_source_refuses(change: dict[str, str], is_stream: bool, message: str) -> None:
    options = {name.lower(): value for name, value in (SOURCE | change).items()}
    with pytest.raises(OptionError, match=message):
        SourceOptions.of(options, is_stream=is_stream)


def test_a_sink_needs_a_checkpoint_that_it_can_see() -> None:
    with pytest.raises(OptionError, match="needs the option checkpointLocation"):
        SinkOptions.of({**SINK, "checkpointlocation": ""}, is_stream=True)


def test_vectors_are_written_as_spark_does() -> None:
    vector = {("b", 1): 5, ("a", 0): 3, ("b", 0): 4}
    written = to_json(vector, began={("a", 0): 1})
    assert written == {"a": {"0": 3}, "b": {"0": 4, "1": 5}, "began:": {"a": {"0": 1}}}
    assert (of_json(written), began_of(written), began_of(to_json(vector))) == (vector, {("a", 0): 1}, None)


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
        return [each.value for each in reader.partitions(start, end)]

    assert ranges(begun_now, first) == [Range("in", 0, 2, 5)]
    assert ranges(first, first) == []
    assert ranges(first, later) == [Range("in", 0, 5, 7), Range("in", 1, 0, 1)]
