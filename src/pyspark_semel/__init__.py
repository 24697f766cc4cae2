"""Makes `format("semel")` known to Spark, which looks for modules `pyspark_…` with a `DefaultSource`."""

from semel.spark.data_source import SemelDataSource as DefaultSource

__all__ = ["DefaultSource"]
