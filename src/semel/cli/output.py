"""The output of commands: data to standard output, everything else to standard error.

A command returns an `Answer`, which is printed as one JSON value with `--json`, and else as tables and
sentences. `Columns` say what a row of a table, or an object of JSON, has.

At a terminal, tables are drawn by rich, which is imported only then. In a pipe or a file, a table is plain
columns, so that nothing is truncated or coloured.

Names and texts come from the broker and from other clients, so everything that is printed here is escaped.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import typer

from semel.printable import as_json, printable, printable_lines

PROGRESS_EVERY_S = 0.5
REPORT_EVERY_S = 1.0

T = TypeVar("T")
Row = Mapping[str, Any]
"""A value for each column. Any, because JSON has no type."""
Cells = Mapping[str, Callable[[Any], object]]
"""How a table shows the values of some columns, by the names of these."""
NO_CELLS: Final[Cells] = {}


def say(text: str) -> None:
    """Print a remark for the user."""
    sys.stderr.write(printable_lines(text) + "\n")


def say_error(text: str) -> None:
    """Print an error, starting with a capital letter unless it starts with a path."""
    is_path = bool({"/", "."} & set(text.partition(" ")[0].rstrip(".:")))
    sys.stderr.write(f"Error: {printable_lines(text if is_path else text[:1].upper() + text[1:])}\n")


def discard_output() -> None:
    """Discard what is printed from now on: the reader of standard output, such as `head`, has closed it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def show(text: str) -> None:
    """Print a sentence that is the result."""
    sys.stdout.write(printable_lines(text) + "\n")


class Table(NamedTuple):
    """Rows with the same columns; `empty` is printed if there are none."""

    rows: Sequence[Row]
    empty: str
    title: str | None = None
    cells: Cells = NO_CELLS

    def print(self) -> None:
        """Print the table."""
        if not self.rows:
            say(self.empty)
            return
        rows = [_in_words(row, self.cells) for row in self.rows]
        names = [printable(name.replace("_", " ")) for name in rows[0]]
        lines = [[_cell(value) for value in row.values()] for row in rows]
        if sys.stdout.isatty():
            _draw(names, lines, rows[0], self.title)
            return
        if self.title:
            sys.stdout.write(printable_lines(self.title) + "\n")
        lines.insert(0, [name.upper() for name in names])
        widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
        for line in lines:
            padded = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            sys.stdout.write(padded.rstrip() + "\n")


class Pairs(NamedTuple):
    """Names and values, in two columns."""

    values: Row
    cells: Cells = NO_CELLS

    def print(self) -> None:
        """Print the pairs."""
        values = _in_words(self.values, self.cells)
        names = [printable(name.replace("_", " ")) for name in values]
        width = max(map(len, names))
        for name, value in zip(names, values.values(), strict=True):
            sys.stdout.write(f"{name.ljust(width)}  {_cell(value)}\n")


class Remark(NamedTuple):
    """A sentence for the user, on standard error."""

    text: str

    def print(self) -> None:
        """Print the sentence."""
        say(self.text)


class Answer:
    """The result of a command: `data` for programs, what is shown to people, and the exit code.

    With a `failure` the command failed, although it has a result: it is reported after that.
    """

    def __init__(
        self, data: object, *shown: Table | Pairs | Remark | str, failure: str | None = None, code: int = 0
    ) -> None:
        self._data = data
        self._shown = shown
        self._failure = failure
        self._code = code

    def print(self, with_json: bool) -> None:
        """Print the result. Exits if the exit code is not 0."""
        if with_json:
            sys.stdout.write(as_json(self._data, indent=2) + "\n")
        else:
            for part in self._shown:
                if isinstance(part, str):
                    show(part)
                else:
                    part.print()
        if self._failure is not None:
            say_error(self._failure)
        if self._code:
            raise typer.Exit(self._code)


class Columns(Generic[T]):
    """What is shown of items of a kind: a column has a name, and a function that gets its value.

    The first columns can be names of attributes. JSON has the value under the name. A table shows it as it
    is, or as `cells` say: then a column of milliseconds (`_ms`) is titled without this unit.
    """

    def __init__(self, *names: str, cells: Cells = NO_CELLS, **getters: Callable[[T], object]) -> None:
        self.cells = cells
        self._getters = {name: attrgetter(name) for name in names} | getters

    def row(self, item: T) -> dict[str, Any]:
        """Return the columns of an item."""
        return {name: get(item) for name, get in self._getters.items()}

    def rows(self, items: Iterable[T]) -> list[dict[str, Any]]:
        """Return the columns of each item."""
        return [self.row(item) for item in items]

    def table(self, items: Iterable[T], empty: str, title: str | None = None) -> Table:
        """Return a table of items."""
        return Table(self.rows(items), empty, title, self.cells)

    def answer(self, items: Iterable[T], empty: str) -> Answer:
        """Return the answer of a command that lists items."""
        table = self.table(items, empty)
        return Answer(table.rows, table)


def _in_words(row: Row, cells: Cells) -> Row:
    shown: dict[str, object] = {}
    for name, value in row.items():
        if name in cells:
            shown[name.removesuffix("_ms")] = None if value is None else cells[name](value)
        else:
            shown[name] = value
    return shown


def _draw(names: Sequence[str], lines: Sequence[Sequence[str]], first: Row, title: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = None if title is None else Text(printable_lines(title))
    table = Table(title=shown, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, value in zip(names, first.values(), strict=True):
        table.add_column(name, justify="right" if isinstance(value, int) else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    Console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value))) or "-"
    return printable(str(value))


def partition_names(partitions: Iterable[tuple[str, int]]) -> list[str]:
    """Return partitions as TOPIC/NUMBER."""
    return [f"{topic}/{partition}" for topic, partition in partitions]


class Progress:
    """A counter on standard error; silent if that is not a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._shown_at = time.monotonic()
        self._is_shown = False
        self._is_seen = sys.stderr.isatty()

    def step(self) -> None:
        """Count one more."""
        self._count += 1
        if self._is_seen and self._count % 64 == 0 and time.monotonic() - self._shown_at >= PROGRESS_EVERY_S:
            self._shown_at = time.monotonic()
            self._is_shown = True
            sys.stderr.write(f"\r{self._count:,} {self._what}")
            sys.stderr.flush()

    def end(self) -> None:
        """Erase the counter."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")


class ByteProgress:
    """Says on standard error how many bytes a command has processed, at most once a second."""

    def __init__(self) -> None:
        self._reported_at = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report the bytes that are done."""
        if time.monotonic() - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = time.monotonic()
            say(f"{what} {done >> 20} of {max(total, done) >> 20} MiB")
