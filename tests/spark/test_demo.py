"""The demonstration: a small one runs, and its checks find what is wrong."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo import checking
from demo.orders import LATER, invoice, order, window

ROOT = Path(__file__).parents[2]


@pytest.fixture
def orders() -> list[dict[str, Any]]:
    return [order(number) for number in [*range(2000), 2000 + LATER]]


def totals(orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"customer": customer, "since": since, "orders": count, "amount": amount}
        for (customer, since), (count, amount) in checking.expected_totals(orders).items()
    ]


def found(verdict: checking.Verdict) -> tuple[int, int, int]:
    return verdict.lost, verdict.doubled, verdict.wrong


def test_acknowledged_orders(orders: list[dict[str, Any]]) -> None:
    numbers = {each["order"] for each in orders}
    assert checking.check_orders(orders, numbers).is_right
    assert found(checking.check_orders([*orders[5:], orders[7]], numbers)) == (5, 1, 0)


def test_invoices(orders: list[dict[str, Any]]) -> None:
    right = [invoice(each) for each in orders]
    assert checking.check_invoices("here", orders, right).is_right
    damaged = copy.deepcopy([*right[3:], right[9], right[9]])
    damaged[0]["amount"] += 1
    damaged.append(invoice(order(5000)))
    assert found(checking.check_invoices("here", orders, damaged)) == (3, 2, 2)


def test_totals(orders: list[dict[str, Any]]) -> None:
    right = totals(orders)
    assert {each["since"] for each in right} == {window(each) for each in orders[:-1]}, (
        "all but the last time"
    )
    assert checking.check_totals("here", orders, right).is_right
    damaged = copy.deepcopy([*right[2:], right[4]])
    damaged[0]["orders"] -= 1
    assert found(checking.check_totals("here", orders, damaged)) == (2, 1, 1)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_small_demonstration() -> None:
    """One kill of the Spark driver and one of the broker, each in the middle of a batch."""
    ran = subprocess.run(
        [sys.executable, "-m", "demo", "--kills", "2", "--rate", "100"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 kills, lost 0, doubled 0, wrong 0." in ran.stdout
