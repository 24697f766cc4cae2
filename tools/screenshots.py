"""Takes pictures of the console for docs/console.md: a broker with sample data, a console, and a browser.

The pages are rendered 1280 pixels wide in light mode, and some 390 pixels wide in dark mode. They are reduced
to few colours, so that they stay small in the repository.
"""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import semel
from semel.client import Admin, Client, GroupMetadata, NewTopic, Producer, TransactionalProducer
from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings
from semel.spark.partition_offsets import Span
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import BatchDecision

FOLDER = Path(__file__).parent.parent / "docs" / "console"
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/topics/orders/messages",
    "produce": "/topics/orders/produce",
    "configuration": "/topics/orders/configs",
    "groups": "/groups",
    "group": "/groups/billing",
    "reset": "/groups/reporting/reset?to=earliest",
    "transactions": "/transactions",
    "transaction": "/transactions/payments%2Fworker-1",
    "why": "/topics/payments/why/1",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/invoicing",
    "cluster": "/cluster",
    "security": "/security",
    "checks": "/checks",
}
ON_PHONE = ("overview", "transactions", "messages", "group")
#: Charts need some samples, and the timeline needs transactions of some age.
SETTLE_SECONDS = 25.0


def main() -> None:
    """Write all pictures."""
    chromium = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
    if chromium is None:
        sys.exit("chromium is not installed: make browser installs it on Debian")
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with _sample() as bootstrap, Beside(ConsoleSettings(bootstrap=bootstrap, port=0)) as console:
        time.sleep(SETTLE_SECONDS)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for viewport, scheme, names in ((WIDE, "light", list(PAGES)), (PHONE, "dark", list(ON_PHONE))):
                _shoot(browser, console.address, viewport, scheme, names)
            _shoot(browser, console.address, WIDE, "dark", ["transactions"])
            browser.close()


def _shoot(browser: Any, address: str, viewport: dict[str, int], scheme: str, names: list[str]) -> None:
    context = browser.new_context(base_url=address, viewport=viewport, color_scheme=scheme)
    page = context.new_page()
    for name in names:
        page.goto(PAGES[name])
        page.wait_for_timeout(1500)  # for charts and the first live update
        suffix = "" if (viewport, scheme) == (WIDE, "light") else "-dark" if viewport is WIDE else "-phone"
        file = FOLDER / f"{name}{suffix}.png"
        page.screenshot(path=file)
        _reduce(file)
    context.close()


def _reduce(file: Path) -> None:
    """Keep the 255 most frequent colours: text and flat areas need no more."""
    from PIL import Image

    image = Image.open(file).convert("RGB")
    colours: Any = image.getcolors(1 << 24) or ()
    frequent = sorted(colours, reverse=True)[:255]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in frequent for part in colour])
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(file, optimize=True)


@contextlib.contextmanager
def _sample() -> Iterator[str]:
    """Run a broker with topics, groups, open transactions and a pipeline, and threads that write."""
    with semel.embedded() as broker, Client(broker.bootstrap_servers) as client:
        _prepare(client)
        stop = threading.Event()
        threads = [
            threading.Thread(target=each, args=(broker.bootstrap_servers, stop))
            for each in (_write, _transact, _decide)
        ]
        for each in threads:
            each.start()
        try:
            yield broker.bootstrap_servers
        finally:
            stop.set()
            for each in threads:
                each.join()


def _prepare(client: Client) -> None:
    admin = Admin(client)
    admin.topics.create(
        NewTopic("orders", 4),
        NewTopic("payments", 3),
        NewTopic("invoices", 2, configs={"cleanup.policy": "compact"}),
        NewTopic("journal", 1, configs={"semel.visibility": "journal"}),
        NewTopic("returns", 2),
    )
    with Producer(client) as producer:
        for number in range(400):
            value = b'{"order": %d, "amount": %d, "currency": "EUR"}' % (number, number % 97)
            producer.send("orders", value, key=b"customer-%d" % (number % 20))
    admin.groups.set_offsets("billing", {("orders", number): 60 for number in range(4)})
    admin.groups.set_offsets("reporting", {("orders", 0): 25, ("orders", 1): 40, ("returns", 0): 0})
    for number in range(3):
        timeout_ms = (600_000, 150_000, 900_000)[number]
        task = TransactionalProducer(client, f"payments/worker-{number}", transaction_timeout_ms=timeout_ms)
        task.begin()
        task.send("payments", b'{"paid": true}', partition=number)
        task.send("invoices", b"{}", key=b"%d" % number)
        task.flush()
        if number == 1:
            task.send_offsets({("orders", 0): 70}, GroupMetadata("billing"))


def _decide(bootstrap: str, stop: threading.Event) -> None:
    """Run a pipeline that commits a batch every few seconds, and writes the next."""
    with Client(bootstrap) as client:
        run = decisions.take_over(client, "invoicing")
        for number in range(1, 1000):
            first, last = 20 * number, 20 * number + 15 + number % 5
            spans = {("orders", partition): Span(first, last) for partition in range(4)}
            decisions.make(client, "invoicing", BatchDecision(number, run, "query", number - 1, (), spans))
            task = TransactionalProducer(client, f"invoicing/{run.producer_id}.{run.epoch + 1}/0.{number}")
            task.begin()
            task.send("journal", b"{}", key=b"new")
            task.flush()
            is_over = stop.wait(4.0)
            task.abort()
            if is_over:
                return


def _write(bootstrap: str, stop: threading.Event) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        number = 0
        while not stop.wait(0.2):
            for _ in range(15 + number % 11):
                producer.send("orders", b'{"order": %d}' % number, key=b"customer-%d" % (number % 20))
                number += 1
            producer.flush()


def _transact(bootstrap: str, stop: threading.Event) -> None:
    with Client(bootstrap) as client, TransactionalProducer(client, "shipping") as producer:
        number = 0
        while not stop.wait(0.5):
            producer.begin()
            producer.send("returns", b"{}", key=b"%d" % number)
            producer.flush()
            stop.wait(3.0)
            number += 1
            if number % 4:
                producer.commit()
            else:
                producer.abort()


if __name__ == "__main__":
    main()
