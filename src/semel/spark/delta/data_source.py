"""The data source of format "semel-delta". It only writes; other tools read the tables.

Its options are checked before anything is written.
"""

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from types import ModuleType
from typing import Self

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from semel.spark.edge import faces_spark
from semel.spark.errors import OptionError
from semel.spark.options import COMMON, VERSIONS, Address, missing_checkpoint, sink_reader, write_version
from semel.spark.relations import ALONE, RELATIONS, Relations
from semel.spark.sink.versions import Version

SINK = ("path", "pipeline.id", "partitionBy", "mergeSchema", "mode")
BATCH_SINK = (*SINK, *VERSIONS, "checkpointLocation")
STREAM_SINK = (
    *SINK,
    *(name for name in COMMON if name not in SINK),
    *RELATIONS,
    "checkpointLocation",
    "queryName",
)


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """The parsed options of the sink."""

    location: str
    pipeline_id: str
    partition_by: tuple[str, ...]
    merge_schema: bool
    address: Address | None  # of the cluster whose group follows the table; None for a batch write
    checkpoint: str
    version: Version | None = None
    relations: Relations = ALONE

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Parse them; OptionError names an invalid one."""
        # Late: Spark also loads this module when it looks for other formats.
        from semel.spark.delta.storage import location_of

        given = sink_reader(options, STREAM_SINK, BATCH_SINK, is_stream=is_stream)
        version = None if is_stream else write_version(given)
        path = given.text("path")
        pipeline_id = given.pipeline_id() or (version.app if version else None)
        if path is None:
            raise OptionError("the option path is missing: the table's directory, or a URL such as s3://…")
        if pipeline_id is None:
            raise OptionError(
                "the option pipeline.id is missing: a name that stays the same as long as the pipeline "
                "lives. The table records under it what it has of the pipeline"
            )
        given.choice("mode", "append", ("append",))
        checkpoint = given.text("checkpointLocation") if is_stream else None
        if is_stream and checkpoint is None:
            raise OptionError(missing_checkpoint(given))
        columns = [each for each in re.split(r"\s*,\s*", given.text("partitionBy") or "") if each]
        if len(set(columns)) < len(columns):
            raise OptionError(f"partitionBy names a column twice: {', '.join(columns)}")
        return cls(
            location=location_of(path),
            pipeline_id=pipeline_id,
            partition_by=tuple(columns),
            merge_schema=given.flag("mergeSchema", False),
            address=given.address() if is_stream else None,
            checkpoint=checkpoint or "",
            version=version,
            relations=Relations.of(given) if is_stream else ALONE,
        )


@faces_spark
class DeltaDataSource(DataSource):
    """Delta tables as sinks."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "semel-delta"

    def schema(self) -> str:
        """Called only for reads."""
        raise OptionError(_READS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reading is not supported."""
        raise OptionError(_READS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Reading is not supported."""
        raise OptionError(_READS)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create a writer for a batch write."""
        _check_mode(overwrite)
        found: DataSourceWriter = import_sink().BatchWriter(
            DeltaOptions.of(self.options, is_stream=False), schema
        )
        return found

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Create a writer for a streaming query."""
        _check_mode(overwrite)
        found: DataSourceStreamWriter = import_sink().StreamWriter(
            DeltaOptions.of(self.options, is_stream=True), schema
        )
        return found


_READS = "format semel-delta only writes. Read the table with deltalake.DeltaTable, or with Spark's own Delta"


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise OptionError("rows are only ever added to the table: use mode('append') or outputMode('append')")


def import_sink() -> ModuleType:
    """Import the sink late: Spark also loads this module where deltalake is not installed.

    OptionError if it is not.
    """
    try:
        from semel.spark.delta import sink
    except ModuleNotFoundError as error:
        if error.name != "deltalake":
            raise
        raise OptionError(
            "format semel-delta needs the package deltalake: pip install 'semel[delta]'"
        ) from None
    return sink
