"""Compares the schema of a DataFrame with that of a table.

Spark's JSON for a schema is Delta's as well, so there is little to translate. A table accepts a DataFrame
whose columns it has, with the same types. Missing columns are null; new ones need `mergeSchema`.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from semel.spark.errors import OptionError

#: A type in Delta's JSON: a name, or an object.
Json: TypeAlias = Any

SIMPLE: tuple[type[DataType], ...] = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
#: Types whose values cannot be part of a directory name.
NOT_IN_A_NAME = (BinaryType, ArrayType, MapType, StructType)
#: Characters that column names in the Parquet files of Delta tables cannot contain.
FORBIDDEN = " ,;{}()\n\t="


def delta_schema(schema: StructType, partition_by: Sequence[str]) -> dict[str, Json]:
    """Return the schema of a new table for these rows. All columns are nullable: a stream may bring nulls."""
    names = [field.name.lower() for field in schema.fields]
    for field in schema.fields:
        if names.count(field.name.lower()) > 1:
            raise OptionError(f"the column {field.name!r} appears twice; names must differ in more than case")
        if wrong := sorted(set(field.name) & set(FORBIDDEN)):
            raise OptionError(f"a column name of a Delta table cannot contain {wrong[0]!r}: {field.name!r}")
    _check_partitions(schema, partition_by)
    return {
        "type": "struct",
        "fields": [_field(field.name, _delta_type(field.dataType, field.name)) for field in schema.fields],
    }


def _check_partitions(schema: StructType, partition_by: Sequence[str]) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    for name in partition_by:
        if name not in types:
            raise OptionError(f"partitionBy names {name!r}; there are {', '.join(types) or 'no columns'}")
        if isinstance(types[name], NOT_IN_A_NAME):
            raise OptionError(f"a table cannot be partitioned by {name!r}, which is {_text(types[name])}")
    if types and len(partition_by) == len(types):
        raise OptionError("a table cannot be partitioned by all of its columns")


def _field(name: str, kind: Json) -> dict[str, Json]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _delta_type(kind: DataType, name: str) -> Json:
    if isinstance(kind, StructType):
        fields = [
            _field(each.name, _delta_type(each.dataType, f"{name}.{each.name}")) for each in kind.fields
        ]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, ArrayType):
        return {"type": "array", "elementType": _delta_type(kind.elementType, name), "containsNull": True}
    if isinstance(kind, MapType):
        return {
            "type": "map",
            "keyType": _delta_type(kind.keyType, name),
            "valueType": _delta_type(kind.valueType, name),
            "valueContainsNull": True,
        }
    if isinstance(kind, CharType | VarcharType):
        return "string"
    if not isinstance(kind, SIMPLE):
        raise OptionError(f"a Delta table has no type for {name!r}, which is {_text(kind)}; cast it")
    return kind.jsonValue()


def _text(kind: DataType) -> str:
    return kind.simpleString()


def new_columns(
    rows: dict[str, Json], table: dict[str, Json], partition_by: Iterable[str]
) -> list[dict[str, Json]]:
    """Return the columns that the rows have and the table has not. OptionError if they are incompatible."""
    known = {field["name"]: field for field in table["fields"]}
    cases = {name.lower(): name for name in known}
    new = []
    for field in rows["fields"]:
        name = field["name"]
        if name not in known:
            if name.lower() in cases:
                raise OptionError(f"the table has a column {cases[name.lower()]!r}, not {name!r}; rename it")
            new.append(field)
        elif _plain(field["type"]) != _plain(known[name]["type"]):
            raise OptionError(
                f"the column {name!r} is {_short(field['type'])}, and {_short(known[name]['type'])} in the "
                "table; cast it"
            )
    given = {field["name"] for field in rows["fields"]}
    if given <= set(partition_by):
        raise OptionError("the rows have only columns by which the table is partitioned; give one more")
    for name, field in known.items():
        if name not in given and (not field["nullable"] or name in partition_by):
            raise OptionError(f"the table has a column {name!r}, which cannot be left out")
    return new


def required_columns(table: dict[str, Json]) -> list[str]:
    """Return the columns of a table that are not nullable."""
    return [field["name"] for field in table["fields"] if not field["nullable"]]


def _plain(kind: Json) -> Json:
    """Return a type without nullability and comments, which may differ."""
    if not isinstance(kind, dict):
        return kind
    kept = {name: _plain(value) for name, value in kind.items() if name not in ("containsNull", "fields")}
    kept.pop("valueContainsNull", None)
    if "fields" in kind:
        kept["fields"] = [(each["name"], _plain(each["type"])) for each in kind["fields"]]
    return kept


def _short(kind: Json) -> str:
    return kind if isinstance(kind, str) else json.dumps(_plain(kind))


def in_utc(schema: pa.Schema) -> pa.Schema:
    """Return the schema with timestamps in UTC, as Delta has them; Spark sends them in the session's zone."""
    return pa.schema([pa.field(each.name, _in_utc(each.type), each.nullable) for each in schema])


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _in_utc(each.type), each.nullable) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_in_utc(kind.value_type))
    return kind
