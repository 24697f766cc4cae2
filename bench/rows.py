"""Measured values beside their targets."""

from dataclasses import dataclass


@dataclass
class Row:
    """One line of a table of targets."""

    what: str
    measured: str
    value: float
    target: float
    higher_is_better: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.higher_is_better else self.value <= self.target


def spread(values: list[float]) -> str:
    return f"{min(values):,.2f} to {max(values):,.2f}"


def table(rows: list[Row]) -> str:
    lines = ["| what | measured | value | target | met |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        sign = "≥" if row.higher_is_better else "≤"
        met = "yes" if row.met else "**no**"
        # Three digits, so that a value just short of its target is recognisable.
        lines.append(f"| {row.what} | {row.measured} | {row.value:,.3f} | {sign} {row.target:,.2f} | {met} |")
    return "\n".join(lines)
