"""docs/architecture.svg, drawn from the boxes and arrows below.

The picture has its own background, so it reads the same in light and dark themes. Coordinates are pixels from
the upper left corner.
"""

from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 1000, 540
PAPER, INK, AREA, EDGE = "#ffffff", "#24292f", "#f3f5f7", "#8c959f"
WRITE, READ = "#0b7a5b", "#2f6fb0"
FONT = "font-family='Helvetica, Arial, sans-serif'"

Point = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """A component: a title, and lines of text below it."""

    at: Point
    size: Point
    title: str
    lines: tuple[str, ...] = ()
    colour: str = INK
    is_area: bool = False
    """An area holds other boxes; its title is at the top."""
    title_at: int = 0
    """The start of an area's title, from the left; the baseline of another box's title, from the top."""


@dataclass(frozen=True)
class Arrow:
    """A line through some points, with a head at its end."""

    points: tuple[Point, ...]
    colour: str = INK
    label: str = ""
    label_at: Point = (0, 0)
    is_both_ways: bool = False
    is_dashed: bool = False


BOXES = (
    Box((225, 20), (755, 315), "Semel: one process", is_area=True, title_at=15),
    Box((450, 375), (530, 145), "One data directory", is_area=True, title_at=115),
    Box((20, 85), (150, 80), "Kafka clients", ("any language",)),
    Box((20, 205), (150, 80), "Spark", ("exactly once",)),
    Box((245, 85), (165, 200), "Protocol server", ("frames, limits,", "TLS")),
    Box((470, 75), (150, 80), "Handlers", ("one per API",)),
    Box((470, 215), (150, 80), "Readers", ("durable data only",), READ),
    Box((735, 65), (225, 230), "Commit loop", ("one writer, one order",), WRITE, title_at=32),
    Box(
        (755, 145),
        (185, 130),
        "Pure core",
        ("idempotence,", "transactions, groups:", "command → facts"),
        WRITE,
    ),
    Box((735, 420), (225, 80), "Write-ahead log", ("one flush per commit",), WRITE),
    Box((470, 415), (150, 40), "SQLite ledger", (), READ),
    Box((470, 468), (150, 40), "Chunk files", (), READ),
)

ARROWS = (
    Arrow(((170, 125), (245, 125)), is_both_ways=True),
    Arrow(((170, 245), (245, 245)), is_both_ways=True),
    Arrow(((410, 115), (470, 115)), is_both_ways=True),
    Arrow(((620, 115), (735, 115)), WRITE, "commands", (677, 103)),
    Arrow(((847, 295), (847, 420)), WRITE, "facts, batches", (910, 358)),
    Arrow(((735, 435), (620, 435)), WRITE, "applied", (677, 466), is_dashed=True),
    Arrow(((735, 488), (620, 488)), WRITE, is_dashed=True),
    Arrow(((735, 255), (620, 255)), READ, "after flush", (677, 243)),
    Arrow(((545, 415), (545, 295)), READ),
    Arrow(((545, 215), (545, 155)), READ, "records", (583, 190)),
)

LEGEND = (
    (WRITE, "Write path: requests of a commit share a", "flush. A transaction needs one, at its end."),
    (READ, "Read path: readers see only what has", "been flushed."),
)


def architecture() -> str:
    """Return the SVG text."""
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}'"
            f" height='{HEIGHT}' role='img' aria-label='How requests pass through Semel'>",
            f"<defs>{''.join(_head(colour) for colour in (INK, WRITE, READ))}</defs>",
            f"<rect width='{WIDTH}' height='{HEIGHT}' rx='10' fill='{PAPER}'/>",
            *(_box(each) for each in BOXES),
            *(_arrow(each) for each in ARROWS),
            *_legend((30, 400)),
            "</svg>",
            "",
        ]
    )


def _head(colour: str) -> str:
    return (
        f"<marker id='{_name(colour)}' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7'"
        f" orient='auto-start-reverse'><path d='M0,0 L10,5 L0,10 z' fill='{colour}'/></marker>"
    )


def _name(colour: str) -> str:
    return f"head-{colour.removeprefix('#')}"


def _box(box: Box) -> str:
    (x, y), (width, height) = box.at, box.size
    if box.is_area:
        area = (
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='8' fill='{AREA}' stroke='{EDGE}'/>"
        )
        return area + _text((x + box.title_at, y + 26), box.title, INK, "start", 16, "bold")
    shape = (
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{PAPER}'"
        f" stroke='{box.colour}' stroke-width='2'/>"
    )
    middle = x + width // 2
    first = y + (box.title_at or height // 2 + 6 - 11 * len(box.lines))
    words = [_text((middle, first), box.title, box.colour, "middle", 17, "bold")]
    for number, line in enumerate(box.lines, 1):
        words.append(_text((middle, first + 22 * number), line, INK))
    return shape + "".join(words)


def _arrow(arrow: Arrow) -> str:
    line = " ".join(f"{x},{y}" for x, y in arrow.points)
    dashes = " stroke-dasharray='7 5'" if arrow.is_dashed else ""
    start = f" marker-start='url(#{_name(arrow.colour)})'" if arrow.is_both_ways else ""
    drawn = (
        f"<polyline points='{line}' fill='none' stroke='{arrow.colour}' stroke-width='2.5'{dashes}{start}"
        f" marker-end='url(#{_name(arrow.colour)})'/>"
    )
    return drawn + (_text(arrow.label_at, arrow.label, INK) if arrow.label else "")


def _legend(at: Point) -> list[str]:
    x, y = at
    parts = []
    for number, (colour, *lines) in enumerate(LEGEND):
        top = y + 62 * number
        parts.append(f"<rect x='{x}' y='{top - 12}' width='16' height='16' rx='3' fill='{colour}'/>")
        parts += [_text((x + 28, top + 2 + 22 * n), line, INK, "start") for n, line in enumerate(lines)]
    return parts


def _text(
    at: Point, words: str, colour: str, anchor: str = "middle", size: int = 15, weight: str = "normal"
) -> str:
    return (
        f"<text x='{at[0]}' y='{at[1]}' {FONT} font-size='{size}' font-weight='{weight}' fill='{colour}'"
        f" text-anchor='{anchor}'>{escape(words)}</text>"
    )
