"""The output of the demonstration: events as they happen, and a report at the end."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from demo.checking import Verdict


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL, and how long it took until every query had counted a batch again."""

    what: str
    at_seconds: float
    open_transactions: int
    recovered_seconds: float


class Report:
    """Prints the output of the demonstration."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._began_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began_at

    def say(self, text: str) -> None:
        """Print a line with the time since the beginning."""
        self._console.print(f"[dim]{self.seconds:6.1f} s[/]  {text}")

    def end(self, kills: Sequence[Kill], verdicts: Sequence[Verdict], waited_seconds: float) -> None:
        """Print the report. A torn batch shows as lost invoices, or as wrong totals."""
        killed = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="killed with SIGKILL", title_justify="left")
        for name, justify in (("what", "left"), ("at", "right"), ("open transactions", "right")):
            killed.add_column(name, justify="right" if justify == "right" else "left")
        killed.add_column("counted again after", justify="right")
        for kill in kills:
            killed.add_row(
                kill.what,
                f"{kill.at_seconds:.1f} s",
                str(kill.open_transactions),
                f"{kill.recovered_seconds:.1f} s",
            )
        checked = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, title="every record against the input", title_justify="left"
        )
        checked.add_column("where")
        for name in ("expected", "found", "lost", "doubled", "torn or wrong"):
            checked.add_column(name, justify="right")
        for each in verdicts:
            style = "green" if each.is_right else "bold red"
            numbers = (each.expected, each.found, each.lost, each.doubled, each.wrong)
            checked.add_row(each.where, *(f"{number:,}" for number in numbers), style=style)
        self._console.print()
        self._console.print(killed)
        self._console.print(checked)
        lost, doubled = sum(each.lost for each in verdicts), sum(each.doubled for each in verdicts)
        wrong = sum(each.wrong for each in verdicts)
        style = "bold green" if all(each.is_right for each in verdicts) else "bold red"
        self._console.print(
            f"[{style}]{len(kills)} kills, lost {lost}, doubled {doubled}, torn or wrong {wrong}.[/]  "
            f"{self.seconds:.0f} seconds."
        )
        self._console.print(f"The producer of orders never waited longer than {waited_seconds:.1f} seconds.")
