"""The input: a stream of orders, each different, and the same in every run."""

import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from semel.client import Client, ClientError, KafkaError, Producer, Security

CUSTOMERS = 50
PRICES = {"apple": 3, "pear": 4, "plum": 2, "quince": 11, "medlar": 17}
CHUNK = 25
#: One of so many orders has no number for a quantity. The pipeline must make a dead letter of it.
BAD_EVERY = 40
#: The time of an order is the shop's: a hundred orders make a second there.
OPENED_AT = 1_800_000_000
PER_SECOND = 100
WINDOW_SECONDS = 10
PER_WINDOW = PER_SECOND * WINDOW_SECONDS
#: How far the watermark of the pipeline stays behind the latest order; see `shop`.
WATERMARK_SECONDS = 10
#: How many windows after the last order the closing orders are. The watermark needs two.
LATER_WINDOWS = 100


def order(number: int) -> dict[str, Any]:
    """One order."""
    products = sorted(PRICES)
    return {
        "order": number,
        "at": OPENED_AT + number // PER_SECOND,
        "customer": f"customer-{number * 7919 % CUSTOMERS}",
        "product": products[number * 31 % len(products)],
        "quantity": "many" if number % BAD_EVERY == BAD_EVERY - 1 else number % 9 + 1,
    }


def is_good(bought: dict[str, Any]) -> bool:
    """Whether an order can be read."""
    return isinstance(bought["quantity"], int)


def invoice(bought: dict[str, Any]) -> dict[str, Any]:
    """Return what the pipeline must make of a good order."""
    amount = bought["quantity"] * PRICES[bought["product"]]
    return {
        "order": bought["order"],
        "customer": bought["customer"],
        "product": bought["product"],
        "amount": amount,
    }


def window(bought: dict[str, Any]) -> int:
    """Return the start of the window that contains an order."""
    return int(bought["at"]) // WINDOW_SECONDS * WINDOW_SECONDS


def closing_numbers(after: int) -> range:
    """The numbers of the closing window: one whole window, far later than the order with number `after`.

    An order of this window moves the watermark past all earlier windows. None of them moves it past the
    closing window itself, and there is no window between.
    """
    first = (after // PER_WINDOW + LATER_WINDOWS) * PER_WINDOW
    return range(first, first + PER_WINDOW)


def write_products(client: Client) -> None:
    """Write the table in which the pipeline looks up prices, with the name of the product as key."""
    with Producer(client) as producer:
        for product, price in PRICES.items():
            row = json.dumps({"product": product, "price": price})
            producer.send("products", row.encode(), key=product.encode())


class Feeder(threading.Thread):
    """Sends orders at an even pace until it is stopped, even while the broker is killed and restarted.

    An order whose answer was lost is not sent again: it is in the log, or it is not. The next order has
    another number.
    """

    def __init__(self, bootstrap: str, security: Security, per_second: int) -> None:
        super().__init__(name="orders", daemon=True)
        self.acknowledged: set[int] = set()
        self.longest_wait_seconds = 0.0
        """The longest time between two acknowledgements."""
        self._acknowledged_at: float | None = None
        self._servers = bootstrap
        self._security = security
        self._pause_seconds = CHUNK / per_second
        self._is_stopping = threading.Event()
        self._numbers = itertools.count()
        self._closing: Iterator[int] | None = None

    def run(self) -> None:
        """Send until `stop`."""
        while not self._is_stopping.is_set():
            try:
                self._send_until_stopped()
            except (KafkaError, ClientError):
                time.sleep(self._pause_seconds)

    @property
    def has_failed(self) -> bool:
        """Whether the thread has ended without being stopped; the traceback is on standard error."""
        return self.ident is not None and not self.is_alive() and not self._is_stopping.is_set()

    def stop(self) -> None:
        """Finish what was begun, and stop."""
        self._is_stopping.set()
        self.join()
        self._acknowledged_at = None

    def close_windows(self) -> bool:
        """Send some orders of the closing window, which tell Spark that all other windows are complete.

        Call it after `stop`, and again if it returns False: the broker has not acknowledged them all.
        """
        if self._closing is None:
            # Every order ever begun, acknowledged or not, has a lower number than the next.
            self._closing = iter(closing_numbers(next(self._numbers)))
        try:
            with self._client() as client, Producer(client) as producer:
                return self._send(producer, list(itertools.islice(self._closing, CHUNK)))
        except (KafkaError, ClientError):
            return False

    def _client(self) -> Client:
        return Client(self._servers, security=self._security)

    def _send_until_stopped(self) -> None:
        with self._client() as client, Producer(client, linger_s=0.0) as producer:
            while not self._is_stopping.wait(self._pause_seconds):
                self._send(producer, list(itertools.islice(self._numbers, CHUNK)))

    def _send(self, producer: Producer, numbers: Sequence[int]) -> bool:
        """Send orders, and wait until they are acknowledged; return whether there were any."""
        deliveries = []
        for bought in map(order, numbers):
            key = bought["customer"].encode()
            deliveries.append(producer.send("orders", json.dumps(bought).encode(), key=key))
        producer.flush()
        for each in deliveries:
            each.result()
        self.acknowledged.update(numbers)
        now = time.monotonic()
        if self._acknowledged_at is not None:
            self.longest_wait_seconds = max(self.longest_wait_seconds, now - self._acknowledged_at)
        self._acknowledged_at = now
        return bool(numbers)
