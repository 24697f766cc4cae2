"""The data source of format "semel": parses the options and creates readers and writers.

Spark starts a Python process each to find this module, to ask for the columns, to plan the reading and to
plan the writing. So a method imports only what it needs.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from semel.spark.edge import faces_spark
from semel.spark.errors import OptionError
from semel.spark.options import SinkOptions, SourceOptions, check_source_names

if TYPE_CHECKING:
    from semel.spark.delta.resume import ResumingReader
    from semel.spark.sink.sink import BatchWriter, StreamWriter
    from semel.spark.source.newest import NewestReader
    from semel.spark.source.source import BatchReader

#: The columns of Spark's Kafka source, in its order.
COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


@faces_spark
class SemelDataSource(DataSource):
    """Topics as tables and streams."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "semel"

    def schema(self) -> str:
        """The columns of the source; headers only if requested."""
        check_source_names(self.options)
        wants_headers = (self.options.get("includeHeaders") or "").lower() == "true"
        names = [name for name in COLUMNS if name != "headers" or wants_headers]
        return ", ".join(f"{name} {COLUMNS[name]}" for name in names)

    def reader(self, schema: StructType) -> "BatchReader | NewestReader":
        """Create a reader for a batch query."""
        from semel.spark.source.newest import NewestReader
        from semel.spark.source.source import BatchReader

        options = SourceOptions.of(self.options, is_stream=False)
        return (NewestReader if options.is_newest_by_key else BatchReader)(options, _columns(schema))

    def streamReader(self, schema: StructType) -> "ResumingReader":  # noqa: N802 - Spark's name
        """Create a reader for a streaming query."""
        from semel.spark.delta.resume import ResumingReader

        return ResumingReader(SourceOptions.of(self.options, is_stream=True), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        """Create a writer for a batch write."""
        from semel.spark.sink.sink import BatchWriter

        if overwrite:
            raise OptionError("a topic cannot be overwritten; use mode('append')")
        return BatchWriter(SinkOptions.of(self.options, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        """Create a writer for a streaming query."""
        from semel.spark.sink.sink import StreamWriter

        return StreamWriter(SinkOptions.of(self.options, is_stream=True), schema)


def _columns(schema: StructType) -> list[str]:
    """Return the requested columns: all of ours, or some of them."""
    for field in schema.fields:
        if COLUMNS.get(field.name) != field.dataType.simpleString():
            known = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise OptionError(f"the source has no column {field.simpleString()}; it has {known}")
    return schema.fieldNames()
