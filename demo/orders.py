"""The input: a stream of orders that is different in every record and the same in every run."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from semel.client import Client, ClientError, KafkaError, Producer

CUSTOMERS = 50
PRICES = {"apple": 3, "pear": 4, "plum": 2, "quince": 11, "medlar": 17}
CHUNK = 25
#: The time of an order is that of the shop: a hundred of them make a second there.
OPENED_AT = 1_800_000_000
PER_SECOND = 100
WINDOW_SECONDS = 10
LATER = 100 * PER_SECOND * WINDOW_SECONDS


def order(number: int) -> dict[str, Any]:
    """One order."""
    products = sorted(PRICES)
    return {
        "order": number,
        "at": OPENED_AT + number // PER_SECOND,
        "customer": f"customer-{number * 7919 % CUSTOMERS}",
        "product": products[number * 31 % len(products)],
        "quantity": number % 9 + 1,
    }


def invoice(bought: dict[str, Any]) -> dict[str, Any]:
    """What the pipeline has to make of an order."""
    amount = bought["quantity"] * PRICES[bought["product"]]
    return {
        "order": bought["order"],
        "customer": bought["customer"],
        "product": bought["product"],
        "amount": amount,
    }


def window(bought: dict[str, Any]) -> int:
    """Where the ten seconds of an order begin."""
    return int(bought["at"]) // WINDOW_SECONDS * WINDOW_SECONDS


def write_products(client: Client) -> None:
    """The table in which the pipeline looks up prices."""
    with Producer(client) as producer:
        for product, price in PRICES.items():
            producer.send("products", json.dumps({"product": product, "price": price}).encode())


class Feeder(threading.Thread):
    """Sends orders at an even pace until it is stopped, also while the broker dies and comes back."""

    def __init__(self, bootstrap: str, per_second: int) -> None:
        super().__init__(name="orders", daemon=True)
        self.acknowledged: set[int] = set()
        self._servers = bootstrap
        self._pause_seconds = CHUNK / per_second
        self._is_stopping = threading.Event()

    def run(self) -> None:
        """Send. An order whose answer got lost is not sent again: it is in the log, or it is not."""
        numbers = self._numbers()
        while not self._is_stopping.is_set():
            try:
                with Client(self._servers) as client, Producer(client, linger_s=0.0) as producer:
                    while not self._is_stopping.wait(self._pause_seconds):
                        chunk = [next(numbers) for _ in range(CHUNK)]
                        sent = [self._send(producer, number) for number in chunk]
                        producer.flush()
                        self.acknowledged.update(
                            number for number, each in zip(chunk, sent, strict=True) if each.result()
                        )
            except (KafkaError, ClientError):
                time.sleep(self._pause_seconds)

    def stop(self) -> None:
        """Send what was begun, and end: with orders of much later, by which Spark knows what is complete."""
        self._is_stopping.set()
        self.join()
        last = max(self.acknowledged) + LATER
        with Client(self._servers) as client, Producer(client) as producer:
            for number in range(last, last + CUSTOMERS):
                self._send(producer, number).result()
                self.acknowledged.add(number)

    def _send(self, producer: Producer, number: int) -> Any:
        bought = order(number)
        return producer.send("orders", json.dumps(bought).encode(), key=bought["customer"].encode())

    def _numbers(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1
