"""Plots as SVG: ratios as dots with whiskers, amounts as bars, growth as lines.

Each function takes figures and returns the text of a picture. A picture needs no external files, and equal
figures give equal text, so a changed plot means changed measurements.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from bench.figures import Estimate

WIDTH = 860
LABEL_WIDTH = 330
RIGHT = 30
TOP, BOTTOM = 60, 40
LINE = 18
FONT = "font-family='sans-serif' font-size='11'"
INK, FAINT = "#222222", "#dddddd"
COLOURS = {
    "semel": "#0b7a5b",
    "kafka": "#c4472b",
    "kafka-flush": "#e0a03a",
    "mock": "#7a7a7a",
    "kafka-3": "#c4472b",
    "cluster-1": "#a9c6e8",
    "cluster-2": "#6f9bd1",
    "cluster-3": "#3a6ea5",
    "cluster-4": "#1d4677",
}
OTHER_COLOUR = "#3a6ea5"

Point = tuple[float, float]


@dataclass
class Drawing:
    """A picture under construction."""

    height: float
    parts: list[str] = field(default_factory=list)

    def line(self, begin: Point, end: Point, colour: str = INK, width: float = 1) -> None:
        (x1, y1), (x2, y2) = begin, end
        self.parts.append(
            f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'"
            f" stroke-width='{width:g}'/>"
        )

    def dot(self, at: Point, colour: str) -> None:
        self.parts.append(f"<circle cx='{at[0]:.1f}' cy='{at[1]:.1f}' r='4' fill='{colour}'/>")

    def box(self, at: Point, width: float, height: float, colour: str) -> None:
        self.parts.append(
            f"<rect x='{at[0]:.1f}' y='{at[1]:.1f}' width='{width:.1f}' height='{height:.1f}'"
            f" fill='{colour}'/>"
        )

    def text(self, at: Point, words: str, anchor: str = "start", weight: str = "normal") -> None:
        self.parts.append(
            f"<text x='{at[0]:.1f}' y='{at[1]:.1f}' {FONT} fill='{INK}' text-anchor='{anchor}'"
            f" font-weight='{weight}'>{escape(words)}</text>"
        )

    def head(self, title: str, names: Sequence[str]) -> None:
        """Draw the title and the legend."""
        self.text((10, 20), title, weight="bold")
        x = 10.0
        for name in names:
            self.box((x, 30), 10, 10, colour_of(name))
            self.text((x + 14, 39), name)
            x += 30 + 7 * len(name)

    def svg(self) -> str:
        head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{self.height:.0f}'>"
        paper = f"<rect width='{WIDTH}' height='{self.height:.0f}' fill='white'/>"
        return "\n".join([head, paper, *self.parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class Axis:
    """Maps values between two ends to positions, by logarithm or linearly."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool

    def at(self, value: float) -> float:
        low, high, value = (self._of(each) for each in (self.low, self.high, value))
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    def _of(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value

    def ticks(self) -> list[float]:
        """Round values from end to end: 1, 2 and 5 times powers of ten, or about five even steps."""
        if not self.logarithmic:
            step = _round_up((self.high - self.low) / 5)
            first = math.ceil(self.low / step - 1e-9)
            return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if len(powers) <= 4 else (1,)
        every = [step * 10.0**power for power in powers for step in steps]
        return [each for each in every if self.low <= each * 1.0001 and each <= self.high * 1.0001]


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def colour_of(name: str) -> str:
    return COLOURS.get(name, OTHER_COLOUR)


def ratio_plot(title: str, rows: Mapping[str, Mapping[str, Estimate]]) -> str:
    """Draw a row for each cell: dots for the subjects' ratios to a base, whiskers for their confidence."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    drawing = Drawing(TOP + LINE * len(rows) + BOTTOM)
    drawing.head(title, names)
    ends = [end for row in rows.values() for each in row.values() for end in (each.low, each.high)]
    known = [end for end in ends if 0 < end < math.inf]
    low, high = min([0.9, *known]) / 1.1, max([1.1, *known]) * 1.1
    axis = Axis(low, high, LABEL_WIDTH, WIDTH - RIGHT, logarithmic=True)
    bottom = TOP + LINE * len(rows)
    for tick in axis.ticks():
        drawing.line((axis.at(tick), TOP - 8), (axis.at(tick), bottom), INK if tick == 1 else FAINT)
        drawing.text((axis.at(tick), bottom + 14), f"{tick:g} ×", "middle")
    for number, (label, row) in enumerate(rows.items()):
        y = TOP + LINE * number + LINE / 2
        drawing.text((LABEL_WIDTH - 10, y + 4), label, "end")
        for name, each in row.items():
            if each.low > 0 and each.high < math.inf:
                drawing.line((axis.at(each.low), y), (axis.at(each.high), y), colour_of(name), 2)
                drawing.dot((axis.at(each.value), y), colour_of(name))
    return drawing.svg()


def bar_plot(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """A group of bars for each cell, one for each subject."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    thick = 9
    height = TOP + sum(thick * len(row) + LINE / 2 for row in rows.values())
    drawing = Drawing(height + BOTTOM)
    drawing.head(title, names)
    values = [value for row in rows.values() for value in row.values()]
    low, high = min([0.0, *values]), max([0.0, *values])
    axis = Axis(low, high if high > low else low + 1, LABEL_WIDTH, WIDTH - RIGHT, logarithmic=False)
    for tick in axis.ticks():
        drawing.line((axis.at(tick), TOP - 8), (axis.at(tick), height), FAINT)
        drawing.text((axis.at(tick), height + 14), f"{tick:,g}", "middle")
    y = float(TOP)
    for label, row in rows.items():
        drawing.text((LABEL_WIDTH - 10, y + thick * len(row) / 2 + 4), label, "end")
        for name, value in row.items():
            begin, end = sorted((axis.at(0), axis.at(value)))
            drawing.box((begin, y), max(end - begin, 1), thick - 1, colour_of(name))
            y += thick
        y += LINE / 2
    return drawing.svg()


def line_plot(title: str, across: str, up: str, series: Mapping[str, Sequence[Point]]) -> str:
    """Draw cost against work, both logarithmic: proportional cost is a straight line upward."""
    drawing = Drawing(360)
    drawing.head(title, list(series))
    points = [point for each in series.values() for point in each if point[0] > 0 and point[1] > 0]
    if not points:
        return drawing.svg()
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_axis = Axis(min(xs) / 1.1, max(xs) * 1.1, 70, WIDTH - RIGHT, logarithmic=True)
    y_axis = Axis(min(ys) / 1.1, max(ys) * 1.1, 360 - 50, TOP, logarithmic=True)
    for tick in x_axis.ticks():
        drawing.line((x_axis.at(tick), TOP), (x_axis.at(tick), 310), FAINT)
        drawing.text((x_axis.at(tick), 326), f"{tick:,g}", "middle")
    for tick in y_axis.ticks():
        drawing.line((70, y_axis.at(tick)), (WIDTH - RIGHT, y_axis.at(tick)), FAINT)
        drawing.text((64, y_axis.at(tick) + 4), f"{tick:,g}", "end")
    drawing.text((WIDTH / 2, 346), across, "middle")
    drawing.text((10, TOP - 8), up)
    for name, each in series.items():
        shown = [(x_axis.at(x), y_axis.at(y)) for x, y in each if x > 0 and y > 0]
        for begin, end in pairwise(shown):
            drawing.line(begin, end, colour_of(name), 2)
        for point in shown:
            drawing.dot(point, colour_of(name))
    return drawing.svg()
