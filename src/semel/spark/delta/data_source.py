"""The data source of format "semel-delta". It only writes; other tools read the tables."""

from collections.abc import MutableMapping
from types import ModuleType

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from semel.spark.delta.options import DeltaOptions
from semel.spark.edge import faces_spark
from semel.spark.errors import OptionError


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
        found: DataSourceWriter = _sink().BatchWriter(DeltaOptions.of(self.options, is_stream=False), schema)
        return found

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Create a writer for a streaming query."""
        _check_mode(overwrite)
        found: DataSourceStreamWriter = _sink().StreamWriter(
            DeltaOptions.of(self.options, is_stream=True), schema
        )
        return found


_READS = "format semel-delta only writes. Read the table with deltalake.DeltaTable, or with Spark's own Delta"


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise OptionError("rows are only ever added to the table: use mode('append') or outputMode('append')")


def _sink() -> ModuleType:
    """Import the sink late: Spark also loads this module where deltalake is not installed."""
    try:
        from semel.spark.delta import sink
    except ModuleNotFoundError as error:
        if error.name != "deltalake":
            raise
        raise OptionError(
            "format semel-delta needs the package deltalake: pip install 'semel[delta]'"
        ) from None
    return sink
