"""Compares every record of the outputs with every record of the input."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from demo.orders import OPENED_AT, WATERMARK_SECONDS, WINDOW_SECONDS, invoice, is_good, window
from semel.client import Client, Consumer


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings in one output."""

    where: str
    expected: int
    found: int
    lost: int
    doubled: int
    wrong: int  # contradicts the input, or comes from no input

    @property
    def is_right(self) -> bool:
        """Whether everything is there once, and nothing else."""
        return not (self.lost or self.doubled or self.wrong)


def read(client: Client, topic: str) -> list[dict[str, Any]]:
    """Return the committed records of a topic; those of each partition are in order."""
    with Consumer(client, topic) as consumer:
        return [json.loads(record.value or b"{}") for record in consumer.read_to_end()]


def read_lake(path: Path) -> list[dict[str, Any]]:
    """The rows of the Delta table."""
    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return rows


def check_orders(orders: Iterable[Mapping[str, Any]], acknowledged: set[int]) -> Verdict:
    """Check the input itself: every acknowledged order is there, once."""
    found = Counter(int(each["order"]) for each in orders)
    return Verdict(
        where="orders (acknowledged)",
        expected=len(acknowledged),
        found=len(acknowledged & found.keys()),
        lost=len(acknowledged - found.keys()),
        doubled=sum(count - 1 for count in found.values()),
        wrong=0,
    )


def _verdict(where: str, expected: Mapping[Any, Any], found: Counter[Any], wrong: int) -> Verdict:
    return Verdict(
        where=where,
        expected=len(expected),
        found=found.total(),
        lost=len(expected.keys() - found.keys()),
        doubled=sum(count - 1 for count in found.values()),
        wrong=wrong,
    )


def check_invoices(
    where: str, orders: Iterable[dict[str, Any]], invoices: Iterable[Mapping[str, Any]]
) -> Verdict:
    """One invoice for every good order, with the right amount."""
    return _compare(where, "order", [invoice(each) for each in orders if is_good(each)], invoices)


def check_newest(where: str, orders: Iterable[dict[str, Any]], rows: Iterable[Mapping[str, Any]]) -> Verdict:
    """One row for every customer, with the newest good order."""
    good = sorted(filter(is_good, orders), key=lambda each: int(each["order"]))
    return _compare(where, "customer", [invoice(each) for each in good], rows)


def check_letters(
    where: str, orders: Iterable[dict[str, Any]], letters: Iterable[Mapping[str, Any]]
) -> Verdict:
    """One dead letter for every other order, unchanged."""
    return _compare(where, "order", [each for each in orders if not is_good(each)], letters)


def _compare(
    where: str, key: str, wanted: Iterable[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]]
) -> Verdict:
    """Compare rows by key. The last of the wanted ones with a key counts."""
    expected = {each[key]: each for each in wanted}
    found: Counter[Any] = Counter()
    wrong = 0
    for each in rows:
        found[each[key]] += 1
        wrong += expected.get(each[key]) != each
    return _verdict(where, expected, found, wrong)


def expected_totals(orders: Iterable[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return number and amount of orders by customer and window, for windows that the watermark has closed.

    The watermark follows the latest order at a fixed distance, and closes the windows that end before or at
    it. Spark emits these windows, and no others.
    """
    found: dict[tuple[str, int], tuple[int, int]] = {}
    latest = OPENED_AT
    for each in filter(is_good, orders):
        latest = max(latest, int(each["at"]))
        key = (str(each["customer"]), window(each))
        count, amount = found.get(key, (0, 0))
        found[key] = (count + 1, amount + invoice(each)["amount"])
    watermark = latest - WATERMARK_SECONDS
    return {key: total for key, total in found.items() if key[1] + WINDOW_SECONDS <= watermark}


def check_totals(
    where: str, orders: Iterable[dict[str, Any]], totals: Iterable[Mapping[str, Any]]
) -> Verdict:
    """One total for every customer and time, with the right sum."""
    expected = expected_totals(orders)
    found: Counter[tuple[str, int]] = Counter()
    wrong = 0
    for each in totals:
        key = (str(each["customer"]), int(each["since"]))
        found[key] += 1
        wrong += expected.get(key) != (each["orders"], each["amount"])
    return _verdict(where, expected, found, wrong)
