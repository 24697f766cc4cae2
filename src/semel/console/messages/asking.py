"""Parses what a user asks to see of a topic from the address of the page.

The query holds the whole state, so every view is a link that can be kept and shared:

    q            the search, see `query`
    partition    `0,2-5`; all if it is missing
    from, to     an offset, a time (ISO 8601, UTC if it has no zone) or an age (`-15m`, `-2h`, `-1d`)
    order        newest or oldest first; by default newest, but oldest if there is a `from`
    isolation    committed, or uncommitted for the records of open and aborted transactions too
    control      1 to see the markers that end transactions
    view         auto, json, text, hex or raw
    limit        records on the page
    left         the remaining ranges of a scan that stopped at a limit
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from semel.client import Admin, Client
from semel.console.messages.decoding import View
from semel.console.messages.limits import ROWS_DEFAULT, ROWS_MAX
from semel.console.messages.reading import Bounds, bounds_of
from semel.console.messages.scanning import Order, ScanRange

LEFT_CHARS_MAX: Final = 20_000
"""The longest `left`: it is part of an address, whose length servers limit."""
DIGITS_MAX: Final = 19
_AGE: Final = re.compile(r"-(\d{1,9})(ms|s|m|h|d|w)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LEFT: Final = re.compile(r"(\d{1,7}):(\d{1,19})-(\d{1,19})")


class AskingError(ValueError):
    """A part of the address cannot be understood; the text says which."""


def is_number(text: str) -> bool:
    """Whether a text is a number that is short enough for an offset or a partition."""
    return text.isdecimal() and len(text) <= DIGITS_MAX


@dataclass(frozen=True, slots=True)
class Ask:
    """The state of a page of messages."""

    q: str = ""
    partition: str = ""
    begin: str = ""
    end: str = ""
    order: Order = Order.NEWEST
    committed: bool = True
    control: bool = False
    view: View = View.AUTO
    limit: int = ROWS_DEFAULT
    left: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Ask":
        """Read the query of an address. AskingError if it has a wrong value."""
        begin, isolation = query.get("from", "").strip(), query.get("isolation", "committed")
        if isolation not in ("committed", "uncommitted"):
            raise AskingError(f"isolation must be committed or uncommitted, not {isolation!r}")
        try:
            order = Order(query.get("order") or (Order.OLDEST if begin else Order.NEWEST))
            view = View(query.get("view") or View.AUTO)
        except ValueError as error:
            raise AskingError(
                f"{error}: order is newest or oldest; view is auto, json, text, hex or raw"
            ) from None
        limit = query.get("limit") or str(ROWS_DEFAULT)
        if not is_number(limit) or not 1 <= int(limit) <= ROWS_MAX:
            raise AskingError(f"limit must be a number from 1 to {ROWS_MAX}, not {limit[:50]!r}")
        return cls(
            q=query.get("q", "").strip(),
            partition=query.get("partition", "").strip(),
            begin=begin,
            end=query.get("to", "").strip(),
            order=order,
            committed=isolation == "committed",
            control=query.get("control", "") in ("1", "true", "on"),
            view=view,
            limit=int(limit),
            left=query.get("left", ""),
        )

    def query(self) -> str:
        """Return this state as the query of an address, without default values."""
        default = Order.OLDEST if self.begin else Order.NEWEST
        pairs = {
            "q": self.q,
            "partition": self.partition,
            "from": self.begin,
            "to": self.end,
            "order": "" if self.order is default else self.order.value,
            "isolation": "" if self.committed else "uncommitted",
            "control": "1" if self.control else "",
            "view": "" if self.view is View.AUTO else self.view.value,
            "limit": "" if self.limit == ROWS_DEFAULT else str(self.limit),
            "left": self.left,
        }
        return urlencode({name: value for name, value in pairs.items() if value}, safe=":,")

    def continued(self, left: Mapping[int, ScanRange]) -> "Ask | None":
        """Return the state that continues a scan; None if that is too long for an address."""
        text = ",".join(f"{n}:{r.begin}-{r.end}" for n, r in left.items() if r.size)
        return replace(self, left=text) if len(text) <= LEFT_CHARS_MAX else None

    def partitions(self, count: int) -> list[int]:
        """Return the chosen partitions of a topic with `count` partitions."""
        if not self.partition:
            return list(range(count))
        chosen: set[int] = set()
        for part in self.partition.split(","):
            first, dash, last = part.strip().partition("-")
            if not is_number(first) or (dash and not is_number(last)):
                raise AskingError(f"partition is a list like 0,2-5, not {self.partition[:50]!r}")
            if int(last or first) >= count:
                raise AskingError(f"there is no partition {last or first}, only 0 to {count - 1}")
            chosen.update(range(int(first), int(last or first) + 1))
        return sorted(chosen)


@dataclass(frozen=True, slots=True)
class Asked:
    """A resolved state: the bounds of the chosen partitions, and the ranges to scan."""

    bounds: dict[int, Bounds]
    ranges: dict[int, ScanRange]
    #: Chosen partitions without a leader, which cannot be read now.
    offline: list[int]


def resolve(client: Client, topic: str, ask: Ask, now_ms: int | None = None) -> Asked:
    """Look up the offsets. AskingError if a value is wrong; KafkaError if there is no such topic."""
    known = client.topic(topic, anew=True).partitions
    leaderless = {each.partition for each in known if each.leader < 0}
    chosen = ask.partitions(len(known))
    partitions = [number for number in chosen if number not in leaderless]
    bounds = bounds_of(client, topic, partitions)
    tops = {number: each.stable if ask.committed else each.end for number, each in bounds.items()}
    now = int(time.time() * 1000) if now_ms is None else now_ms
    begins = _offsets(client, topic, bounds, ask.begin, now, {n: each.start for n, each in bounds.items()})
    ends = _offsets(client, topic, bounds, ask.end, now, tops)
    ranges = {
        number: ScanRange(max(each.start, begins[number]), min(tops[number], ends[number]))
        for number, each in bounds.items()
    }
    if ask.left:
        ranges = _narrowed(ranges, ask.left)
    return Asked(bounds, ranges, [number for number in chosen if number in leaderless])


def _offsets(
    client: Client,
    topic: str,
    bounds: Mapping[int, Bounds],
    text: str,
    now_ms: int,
    default: Mapping[int, int],
) -> Mapping[int, int]:
    if not text:
        return default
    if is_number(text):
        return dict.fromkeys(bounds, int(text))
    at = moment(text, now_ms)
    found = Admin(client).topics.offsets({(topic, number): at for number in bounds})
    # No record is that late: use the end of the partition.
    return {
        number: offset if (offset := found[topic, number].offset) >= 0 else each.end
        for number, each in bounds.items()
    }


def moment(text: str, now_ms: int) -> int:
    """Return a time or an age as milliseconds since the epoch."""
    if age := _AGE.fullmatch(text):
        return max(0, now_ms - int(age[1]) * _UNITS_MS[age[2]])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise AskingError(
            f"{text[:50]!r} is no offset, no time like 2026-11-18T09:30:00Z and no age like -15m"
        ) from None
    at = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    if at < 0:
        raise AskingError(f"{text!r} is before 1970, where no time of a record can be")
    return at


def _narrowed(ranges: Mapping[int, ScanRange], left: str) -> dict[int, ScanRange]:
    if len(left) > LEFT_CHARS_MAX:
        raise AskingError("left is too long")
    found = {}
    for part in left.split(","):
        match = _LEFT.fullmatch(part)
        if match is None:
            raise AskingError(f"left is a list like 0:12-50, not {part!r}")
        number = int(match[1])
        if number in ranges:
            kept = ranges[number]
            found[number] = ScanRange(max(kept.begin, int(match[2])), min(kept.end, int(match[3])))
    return found
