"""`semel.spark.pipeline.verify` finds what is lost, doubled, foreign or torn, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.spark.jobs import Pipeline, create, fill

from semel.client import Client, Producer
from semel.spark import OptionError, PipelineError
from semel.spark.pipeline.verify import Answer, Question, check, verify

pytestmark = pytest.mark.spark

TEXT = "CAST(value AS STRING)"


@pytest.fixture
def copied(pipeline: Pipeline) -> Pipeline:
    """A pipeline that has copied the numbers up to 60 from `in` to `out`, in three batches."""
    pipeline.source_options |= {"maxOffsetsPerTrigger": "20"}
    fill(pipeline.bootstrap, "in", range(60))
    pipeline.run()
    return pipeline


def ask(pipeline: Pipeline, *outputs: str, **question: Any) -> Answer:
    assert pipeline.spark is not None
    with Client(pipeline.bootstrap) as client:
        asked = Question(pipeline.bootstrap, pipeline.name, outputs, **question)
        check(client, asked)
        return verify(pipeline.spark, client, asked)


def test_what_is_right(copied: Pipeline) -> None:
    fill(copied.bootstrap, "in", range(60, 80))  # what is not read yet is not missing
    for question in ({}, {"input_identity": TEXT, "output_identity": TEXT}):
        answer = ask(copied, "out", **question)
        assert answer == Answer(60, 60, 60, 0, 0, 0, 0, 0, torn_batches=(), unended=())
        assert answer.is_right


def test_how_many_outputs_an_input_makes(copied: Pipeline) -> None:
    answer = ask(copied, "out", expect="if(CAST(substring(CAST(value AS STRING), 7) AS INT) < 50, 1, 2)")
    assert (answer.expected, answer.found, answer.lost, answer.doubled) == (70, 60, 10, 0)
    answer = ask(copied, "out", expect="if(CAST(substring(CAST(value AS STRING), 7) AS INT) < 50, 1, 0)")
    assert (answer.expected, answer.lost, answer.doubled) == (50, 0, 10)


def test_what_is_wrong(copied: Pipeline) -> None:
    create(copied.bootstrap, ("damaged", 1))
    with Client(copied.bootstrap) as client, Producer(client) as producer:
        for number in [*range(4, 60), 7, 7, 99]:
            producer.send("damaged", b"value %d" % number, key=b"key %d" % number)
    answer = ask(copied, "damaged")
    assert not answer.is_right
    assert (answer.lost, answer.doubled, answer.foreign) == (4, 2, 1)
    assert {name: sorted(found) for name, found in answer.examples.items()} == {
        "lost": [f"key {number}" for number in range(4)],
        "doubled": ["key 7"],
        "foreign": ["key 99"],
    }
    assert answer.torn_batches is None, "without the checkpoint nobody knows what was a batch"


def test_torn_batches(copied: Pipeline) -> None:
    """Of the first batch some records are missing; the second is lost as a whole, which is not torn."""
    spark, bootstrap = copied.spark, copied.bootstrap
    assert spark is not None
    create(bootstrap, ("damaged", 1))
    table = spark.read.format("semel").option("kafka.bootstrap.servers", bootstrap)
    rows = table.option("subscribe", "in").load().select("key", "partition", "offset").collect()
    ends = batch_ends(copied.checkpoint)
    with Client(bootstrap) as client, Producer(client) as producer:
        for row in rows:
            partition, offset = row["partition"], row["offset"]
            batch = next(number for number, end in enumerate(ends) if offset < end[partition])
            if (batch == 0 and offset > 0) or batch == 2:
                producer.send("damaged", b"", key=bytes(row["key"]))
    answer = ask(copied, "damaged", checkpoint=str(copied.checkpoint))
    assert answer.torn_batches == (0,)
    assert answer.lost > 2


def batch_ends(checkpoint: Path) -> list[dict[int, int]]:
    from semel.spark.checkpoint import Checkpoint

    kept = Checkpoint(str(checkpoint))
    return [
        {partition: at for (_, partition), at in kept.step(batch).end.items()}
        for batch in range(kept.newest_batch() + 1)
    ]


def test_questions_that_do_not_fit(copied: Pipeline, spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="topic gone"):
        ask(copied, "gone")
    rows = spark.createDataFrame([("a",)], "value STRING")
    rows.write.format("semel").mode("append").options(
        **{"kafka.bootstrap.servers": copied.bootstrap, "topic": "out", "pipeline.id": "copy"[::-1]}
    ).save()
    copied.name = "ypoc"
    with pytest.raises(OptionError, match="'ypoc'"):
        ask(copied, "out")
    copied.name = "nobody"
    with pytest.raises(PipelineError, match="'nobody'"):
        ask(copied, "out")
