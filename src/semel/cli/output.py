"""The output of commands: data to standard output, everything else to standard error.

At a terminal, tables are drawn by rich, which is imported only then. In a pipe or a file, a table is plain
columns, so that nothing is truncated or coloured. With `--json`, data is one JSON value.

Names and texts come from the broker and from other clients, so everything that is printed here is escaped.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from semel.printable import as_json, printable, printable_lines

PROGRESS_EVERY_S = 0.5


def say(text: str) -> None:
    """Print a remark for the user."""
    sys.stderr.write(printable_lines(text) + "\n")


def say_error(text: str) -> None:
    """Print an error, starting with a capital letter unless it starts with a path."""
    is_path = bool({"/", "."} & set(text.partition(" ")[0].rstrip(".:")))
    sys.stderr.write(f"Error: {printable_lines(text if is_path else text[:1].upper() + text[1:])}\n")


def show(text: str) -> None:
    """Print a sentence that is the result."""
    sys.stdout.write(printable_lines(text) + "\n")


def show_json(value: Any) -> None:
    """Print a value for programs."""
    sys.stdout.write(as_json(value, indent=2) + "\n")


def show_rows(rows: Sequence[Mapping[str, Any]], *, empty: str, title: str | None = None) -> None:
    """Print rows with the same columns as a table; `empty` is printed if there are none."""
    if not rows:
        say(empty)
        return
    names = [printable(name.replace("_", " ")) for name in rows[0]]
    cells = [[_cell(value) for value in row.values()] for row in rows]
    if sys.stdout.isatty():
        _draw(names, cells, rows[0], title)
        return
    if title:
        sys.stdout.write(printable_lines(title) + "\n")
    lines = [[name.upper() for name in names], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    for line in lines:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write(padded.rstrip() + "\n")


def show_pairs(values: Mapping[str, Any]) -> None:
    """Print names and values in two columns."""
    names = [printable(name.replace("_", " ")) for name in values]
    width = max(map(len, names))
    for name, value in zip(names, values.values(), strict=True):
        sys.stdout.write(f"{name.ljust(width)}  {_cell(value)}\n")


def _draw(
    names: Sequence[str], cells: Sequence[Sequence[str]], first: Mapping[str, Any], title: str | None
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = None if title is None else Text(printable_lines(title))
    table = Table(title=shown, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, value in zip(names, first.values(), strict=True):
        table.add_column(name, justify="right" if isinstance(value, int) else "left", overflow="fold")
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value))) or "-"
    return printable(str(value))


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
