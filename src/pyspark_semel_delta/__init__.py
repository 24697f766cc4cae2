"""Makes `format("semel-delta")` known to Spark, which looks for modules `pyspark_…` with `DefaultSource`."""

from semel.spark.delta.data_source import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
