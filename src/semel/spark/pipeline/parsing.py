"""Parses the values of a source, and separates the records that cannot be parsed.

The function of a pipeline gets the columns of the schema, and if it wants, the record itself. A record whose
value is null has null in all columns of the schema, and is no bad record: it deletes its key.
"""

from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import StringType, StructField, StructType

from semel.pipeline import DeclarationError, Json

#: What a row has of its record.
OF_RECORD: Final = ("key", "topic", "partition", "offset", "timestamp")
#: Columns of the query between the source and the function.
_PARSED: Final = "_parsed"
_CORRUPT: Final = "_corrupt"
#: JSON objects of which no field is read.
_OBJECTS: Final = "array<struct<_none:string>>"


class Parsing:
    """How the records of one source are parsed."""

    def __init__(self, name: str, parse: Json, bad: str) -> None:
        self.bad_go_to = bad
        try:
            found = StructType.fromDDL(parse.schema)
        except PySparkException as error:
            raise DeclarationError(
                f"the schema of source {name!r} cannot be read: {str(error).partition(chr(10))[0]}"
            ) from None
        if not isinstance(found, StructType):
            raise DeclarationError(f"the schema of source {name!r} is {found.simpleString()}, not columns")
        self.schema = found
        self._record = parse.record
        for reserved in (parse.record, _CORRUPT):
            if reserved in self.schema.names:
                raise DeclarationError(f"the schema of source {name!r} cannot have a column {reserved!r}")

    def parsed(self, records: DataFrame) -> DataFrame:
        """Return the records with a column that has their parsed values."""
        schema = StructType([*self.schema.fields, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        text = records.value.cast("string")
        return records.withColumn(_PARSED, functions.from_json(text, schema, options))

    def good(self, parsed: DataFrame) -> DataFrame:
        """Return the rows for the function of the pipeline."""
        record = [] if self._record is None else [functions.struct(*OF_RECORD).alias(self._record)]
        columns = [functions.col(_PARSED).getField(name).alias(name) for name in self.schema.names]
        return parsed.where(~self._is_bad(parsed)).select(*columns, *record)

    @property
    def types(self) -> dict[str, str]:
        """The types of the columns, by their names."""
        return {each.name: each.dataType.simpleString() for each in self.schema.fields}

    def bad(self, parsed: DataFrame) -> DataFrame:
        """Return the records that cannot be parsed."""
        headers = [name for name in parsed.columns if name == "headers"]
        return parsed.where(self._is_bad(parsed)).select("value", *OF_RECORD, *headers)

    def _is_bad(self, parsed: DataFrame) -> Column:
        row, value = functions.col(_PARSED), functions.col("value")
        # Spark ignores what follows an object. In brackets, only a single object is an array of one.
        text = functions.concat(functions.lit("["), value.cast("string"), functions.lit("]"))
        objects = functions.from_json(text, _OBJECTS)
        is_object = (functions.size(objects) == 1) & functions.get(objects, functions.lit(0)).isNotNull()
        return value.isNotNull() & (
            row.isNull()
            | row.getField(_CORRUPT).isNotNull()
            | ~functions.coalesce(is_object, functions.lit(False))
        )
