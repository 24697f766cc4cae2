"""docs/spark.md, word for word: its example runs, and its tables have the options that there are."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.pages import blocks

from semel.client import FetchLimits
from semel.spark import option_reader, options

PAGE = Path(__file__).parents[2] / "docs/spark.md"


@pytest.mark.spark
@pytest.mark.parametrize("example", blocks(PAGE, "python"))
def test_examples(spark: SparkSession, example: str) -> None:
    exec(compile(example, str(PAGE), "exec"), {})


def test_tables_have_every_option_and_its_default() -> None:
    tables = re.findall(r"^\| (`.+?`) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    rows = {name: default for names, default in tables for name in re.findall(r"`([\w.]+)`", names)}
    assert set(rows) == {
        *options.BATCH_SOURCE,
        *options.STREAM_SOURCE,
        *options.STREAM_SINK,
        *options.BATCH_SINK,
    }
    assert rows["transaction.timeout.ms"] == str(options.TRANSACTION_TIMEOUT_MS)
    assert rows["kafka.request.timeout.ms"] == str(option_reader.REQUEST_TIMEOUT_MS)
    assert rows["kafka.default.api.timeout.ms"] == str(option_reader.DEFAULT_API_TIMEOUT_MS)
    assert rows["kafka.client.id"] == option_reader.CLIENT_ID
    assert rows["maxTriggerDelay"] == f"{options.MAX_TRIGGER_DELAY_S / 60:g}m"
    assert rows["fetchOffset.numRetries"] == f"{options.RETRIES}, {options.RETRY_INTERVAL_MS}"
    limits = FetchLimits()
    assert rows["kafka.fetch.max.bytes"] == f"{limits.max_bytes}, {limits.partition_max_bytes}"
