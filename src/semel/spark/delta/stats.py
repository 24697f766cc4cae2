"""Computes the file statistics of a commit, so that readers can skip files: counts, minimum, maximum.

They come from the Parquet footer. A bound that cannot be exact in JSON is left out: a missing bound is
harmless, but a wrong one would make readers skip rows.
"""

import datetime as dt
import json
import math
from collections.abc import Collection
from decimal import Decimal
from typing import Any

import pyarrow as pa

#: Columns with statistics, and characters of text in them, both as in Delta by default.
COLUMNS_MAX = 32
TEXT_MAX = 32
#: Digits that survive as a JSON number.
DIGITS_MAX = 15
LAST_CHARACTER = "\U0010ffff"


def stats_of(footer: Any, schema: pa.Schema, with_nan: Collection[str]) -> str:
    """Return the statistics of a file as Delta's JSON. Columns that contain NaN have no bounds."""
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(schema)[:COLUMNS_MAX]:
        if pa.types.is_nested(field.type) or paths.count(field.name) != 1:
            continue
        index = paths.index(field.name)
        found = [footer.row_group(number).column(index).statistics for number in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[field.name] = sum(each.null_count for each in found)
        if field.name not in with_nan and _has_bounds(field.type):
            _add_bounds(field.name, found, least, greatest)
    content = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(content, allow_nan=False, ensure_ascii=False)


def _has_bounds(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= DIGITS_MAX)
    return not (pa.types.is_boolean(kind) or pa.types.is_binary(kind))


def _add_bounds(name: str, found: list[Any], least: dict[str, Any], greatest: dict[str, Any]) -> None:
    # A row group of nulls has no bounds and needs none.
    bounded = [each for each in found if each.has_min_max]
    if not bounded or any(each.num_values and not each.has_min_max for each in found):
        return
    try:
        low, high = min(each.min for each in bounded), max(each.max for each in bounded)
    except (ValueError, OverflowError):
        return  # a date outside Python's range
    below, above = lower_bound(low), upper_bound(high)
    if below is not None:
        least[name] = below
    if above is not None:
        greatest[name] = above


def lower_bound(value: Any) -> Any:
    """Return a JSON value that is not above this one; None if there is none."""
    return value[:TEXT_MAX] if isinstance(value, str) else _exact(value)


def upper_bound(value: Any) -> Any:
    """Return a JSON value that is not below this one; None if there is none."""
    if not isinstance(value, str):
        return _exact(value)
    if len(value) <= TEXT_MAX:
        return value
    return None if value[TEXT_MAX] == LAST_CHARACTER else value[:TEXT_MAX] + LAST_CHARACTER


def _exact(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value)
        case dt.datetime(tzinfo=None):
            return value.isoformat("T", "microseconds")
        case dt.datetime():
            return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat("T", "microseconds") + "Z"
        case dt.date():
            return value.isoformat()
        case int():
            return value
        case _:
            return None
