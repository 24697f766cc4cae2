"""The demonstration: a small one runs, and its checks find what is wrong."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo import checking
from demo.orders import (
    CHUNK,
    PER_WINDOW,
    PRICES,
    WATERMARK_SECONDS,
    Feeder,
    closing_numbers,
    invoice,
    is_good,
    order,
    window,
    write_products,
)
from demo.watching import STALL_FACTOR, STALL_SECONDS_MIN, START_SECONDS, Step, Watch, account, last_error
from semel.client import Client, Consumer, Security
from semel.embedded import embedded

ROOT = Path(__file__).parents[2]


@pytest.fixture
def orders() -> list[dict[str, Any]]:
    return [order(number) for number in [*range(2000), closing_numbers(2000)[0]]]


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
    right = [invoice(each) for each in orders if is_good(each)]
    assert checking.check_invoices("here", orders, right).is_right
    damaged = copy.deepcopy([*right[3:], right[9], right[9]])
    damaged[0]["amount"] += 1
    damaged.append(invoice(order(5000)))
    assert found(checking.check_invoices("here", orders, damaged)) == (3, 2, 2)


def test_the_newest_order_of_each_customer(orders: list[dict[str, Any]]) -> None:
    last = {each["customer"]: invoice(each) for each in orders if is_good(each)}
    right = list(last.values())
    assert checking.check_newest("here", orders, right).is_right
    older = invoice(next(each for each in orders if each["customer"] == right[0]["customer"]))
    assert found(checking.check_newest("here", orders, [older, *right[2:], right[3]])) == (1, 1, 1)


def test_dead_letters(orders: list[dict[str, Any]]) -> None:
    right = [each for each in orders if not is_good(each)]
    assert len(right) == 50
    assert checking.check_letters("here", orders, right).is_right
    damaged = [orders[0], {**right[1], "product": "plum?"}, *right[2:], right[2]]
    assert found(checking.check_letters("here", orders, damaged)) == (1, 1, 2)


def test_totals(orders: list[dict[str, Any]]) -> None:
    right = totals(orders)
    assert {each["since"] for each in right} == {window(each) for each in orders[:-1]}, (
        "all but the last time"
    )
    assert checking.check_totals("here", orders, right).is_right
    damaged = copy.deepcopy([*right[2:], right[4]])
    damaged[0]["orders"] -= 1
    assert found(checking.check_totals("here", orders, damaged)) == (2, 1, 1)


@pytest.mark.parametrize("sent", [1, CHUNK, PER_WINDOW])
def test_closing_orders_close_every_window_but_their_own(sent: int) -> None:
    """Wherever the orders end, and however many closing orders it takes."""
    for after in range(1, PER_WINDOW + 1):
        ordinary = [order(number) for number in (0, after - 1)]
        closing = [order(number) for number in closing_numbers(after)[:sent:24]]
        expected = checking.expected_totals([*ordinary, *closing])
        assert {since for _, since in expected} == {window(each) for each in ordinary}
        assert len({window(each) for each in closing}) == 1
        watermark = closing[0]["at"] - WATERMARK_SECONDS
        assert all(since + 10 <= watermark for _, since in expected)


def test_no_total_is_expected_that_the_watermark_has_not_passed() -> None:
    """Orders of two windows after the others: the earlier one is closed by none of them."""
    orders = [order(number) for number in [*range(100), *range(2990, 3010)]]
    assert {since for _, since in checking.expected_totals(orders)} == {window(orders[0])}


def test_the_pipeline_has_the_watermark_that_is_reckoned_with() -> None:
    text = (ROOT / "demo/shop.py").read_text()
    assert f'withWatermark("at", "{WATERMARK_SECONDS} seconds")' in text


def test_closing_orders_come_after_all_that_were_begun() -> None:
    """Also after those that the broker never acknowledged; and each is sent once."""
    with embedded() as broker, Client(broker.bootstrap_servers) as client:
        nowhere = Feeder("127.0.0.1:1", Security(), 1000)
        assert not nowhere.close_windows(), "nothing was acknowledged"
        feeder = Feeder(broker.bootstrap_servers, Security(), 1000)
        begun = [next(feeder._numbers) for _ in range(3 * PER_WINDOW)]  # without an answer
        assert feeder.close_windows()
        assert feeder.close_windows()
        closing = closing_numbers(begun[-1] + 1)[: 2 * CHUNK]
        assert feeder.acknowledged == set(closing)
        with Consumer(client, "orders") as consumer:
            found = [json.loads(each.value or b"")["order"] for each in consumer.read_to_end()]
        assert sorted(found) == list(closing)


def test_products_have_keys() -> None:
    with embedded() as broker, Client(broker.bootstrap_servers) as client:
        write_products(client)
        with Consumer(client, "products") as consumer:
            rows = {each.key: json.loads(each.value or b"") for each in consumer.read_to_end()}
    assert rows == {name.encode(): {"product": name, "price": price} for name, price in PRICES.items()}


def test_a_query_stalls_when_it_takes_no_step() -> None:
    """Every step starts its clock again; others do not."""
    watch = Watch(["a", "b"], 0.0)
    end = int(STALL_SECONDS_MIN)
    for now in range(0, end + 10, 10):
        assert watch.stalled(["a", "b"], now) == []
        watch.see({"a": now, "b": 0}, now)
    assert watch.stalled(["a", "b"], end + 1) == ["b"]
    assert watch.stalled(["a"], end + 1) == [], "who has nothing to do may rest"
    watch.restart(end + 1)
    assert watch.stalled(["a", "b"], end + 2) == []


def test_a_slow_machine_has_more_time() -> None:
    """A query may be several times slower than it ever was."""
    watch = Watch(["a"], 0.0)
    watch.see({"a": 1}, 0.0)
    assert watch.stalled(["a"], START_SECONDS) == [], "nothing is known of the machine"
    assert watch.stalled(["a"], START_SECONDS + 1) == ["a"]
    slow = STALL_SECONDS_MIN - 1
    watch.see({"a": 2}, slow)
    assert watch.limit_seconds == STALL_FACTOR * slow
    assert watch.stalled(["a"], slow + STALL_FACTOR * slow) == []
    assert watch.stalled(["a"], slow + STALL_FACTOR * slow + 1) == ["a"]


def test_the_account_of_a_stalled_query(tmp_path: Path) -> None:
    for name in ("offsets/0", "offsets/1", "offsets/.1.crc", "commits/0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert Step.of(tmp_path / "none", 0) == Step(0, -1, -1)
    step = Step.of(tmp_path, 1200)
    assert step == Step(counted=1200, planned=1, committed=0)
    log = [
        '{"event": "restart", "pipeline": "shop", "why": "the disk is full"}',
        '{"event": "restart", "pipeline": "other", "why": "no broker answers"}',
        '{"event": "batch", "pipeline": "shop", "batch": 7}',
        "Killed",
    ]
    said = account("shop", step, 1700, log)
    assert "1,200 orders and has 500 waiting" in said
    assert "the disk is full" in said
    assert "no failure" in account("third", step, None, log)


def test_the_last_error_of_spark(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    assert last_error(log) == "Spark's log has no error"
    log.write_text(
        "26/11/16 23:33:06 ERROR First: gone\n"
        "26/11/16 23:33:07 ERROR MicroBatchExecution: Query a terminated with error\n"
        "org.apache.spark.SparkException: Traceback (most recent call last):\n"
        '  File "source.py", line 3\n'
        "semel.client.errors.BrokerUnreachable: no broker answers\n"
        "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
    )
    assert last_error(log).endswith(
        "Query a terminated with error | semel.client.errors.BrokerUnreachable: no broker answers"
    )


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
    assert "2 kills, lost 0, doubled 0, torn or wrong 0." in ran.stdout
