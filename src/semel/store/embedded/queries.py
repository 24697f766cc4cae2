"""Load the statements of the embedded ledger, by name. All its SQL is in the files beside this one.

``ManyRows`` runs a statement for many rows in few steps. Each step of SQLite releases the GIL, and getting it
back from a busy event loop may take milliseconds, so a thousand steps would take seconds. Therefore a row of
question marks is repeated to a power of two, which keeps the number of different statements small (each is
compiled once). Surplus rows are NULLs, which the statement skips.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

_HERE: Final = Path(__file__).parent
_NAME: Final = re.compile(r"^-- name: (\w+)\n((?:-- .*\n)+)", re.MULTILINE)
_ROW: Final = re.compile(r"\((?:\?, )*\?\)")
ROWS_MAX: Final = 256
"""Rows per step: enough to make the steps negligible, few enough to keep the statement's text cached."""


def parse(text: str) -> dict[str, str]:
    """Parse a file of statements, each preceded by its name and at least one sentence."""
    parts = _NAME.split(text)
    statements: dict[str, str] = {}
    for name, _sentence, statement in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if name in statements:
            raise ValueError(f"there are two queries named {name!r}")
        statements[name] = statement.strip()
    return statements


SCHEMA: Final = (_HERE / "schema.sql").read_text(encoding="utf-8")
QUERIES: Final[Mapping[str, str]] = parse((_HERE / "queries.sql").read_text(encoding="utf-8"))


class Statements:
    """The named statements on one connection. Each is finished when its method returns."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def run(self, name: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Run a statement that returns nothing."""
        self.connection.execute(QUERIES[name], bindings)

    def rows(self, name: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        return self.connection.execute(QUERIES[name], bindings).fetchall()

    def each(self, name: str) -> Iterator[Any]:
        """Yield the rows of a query that returns more rows than should be in memory."""
        yield from self.connection.execute(QUERIES[name])

    def value(self, name: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """Return the only value of a query."""
        return self.rows(name, bindings)[0][0]


class ManyRows:
    """A statement for any number of rows."""

    def __init__(self, name: str) -> None:
        self._text = QUERIES[name]
        row = _ROW.search(self._text)
        if row is None:
            raise ValueError(f"query {name!r} has no row of question marks")
        self._before = self._text[: row.start()]
        self._row = row.group()
        self._after = self._text[row.end() :]
        self._width = self._row.count("?")
        self._statements: dict[int, str] = {}

    def run(self, statements: Statements, values: Sequence[Any]) -> None:
        """Run the statement for all rows, whose values are concatenated."""
        width = self._width
        for start in range(0, len(values), ROWS_MAX * width):
            part = list(values[start : start + ROWS_MAX * width])
            rows = len(part) // width
            assert rows * width == len(part)
            size = 1 << (rows - 1).bit_length()
            part += (None,) * ((size - rows) * width)
            statements.connection.execute(self._statement(size), part)

    def _statement(self, rows: int) -> str:
        statement = self._statements.get(rows)
        if statement is None:
            statement = self._before + ", ".join([self._row] * rows) + self._after
            self._statements[rows] = statement
        return statement
