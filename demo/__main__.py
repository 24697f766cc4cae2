"""Run the demonstration: `python -m demo`. It exits with 1 if anything was lost, doubled or wrong.

The Spark driver and the broker are killed in turn, each time in the middle of a batch: while transactions of
the pipeline are open.
"""

import argparse
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

from demo import checking, processes
from demo.orders import Feeder, write_products
from demo.processes import Program
from demo.report import Kill, Report
from demo.shop import shop
from semel.client import LATEST, Admin, Client, ClientError, KafkaError, NewTopic
from semel.client.transactions_admin import list_transactions

KILLS = 6
ORDERS_PER_SECOND = 400
WAIT_SECONDS = 300.0
PAUSE_SECONDS = 0.01
#: The driver may also stop by itself and be started again, as a supervisor would; not for ever.
OWN_STOPS_MAX = 3

T = TypeVar("T")


class Failed(Exception):
    """The demonstration cannot go on; the text says why."""


class Demo:
    """One run, in one directory."""

    def __init__(self, directory: Path, report: Report, per_second: int) -> None:
        self._directory = directory
        self._report = report
        port = processes.free_port()
        self._bootstrap = f"127.0.0.1:{port}"
        self._broker = processes.broker(directory, port)
        self._driver = processes.driver(directory, self._bootstrap)
        self._feeder = Feeder(self._bootstrap, per_second)
        self._own_stops = 0

    def run(self, kills: int) -> bool:
        """All of it; whether every record counts once."""
        try:
            self._begin()
            killed = [self._kill(each) for each in islice(cycle([self._driver, self._broker]), kills)]
            self._end()
            verdicts = self._check()
        finally:
            self._driver.kill()
            self._broker.kill()
        self._report.end(killed, verdicts)
        return all(each.is_right for each in verdicts)

    def _begin(self) -> None:
        self._broker.start()
        self._until("the broker", lambda: self._ask(lambda client: client.describe(topics=())))
        with Client(self._bootstrap) as client:
            topics = ("orders", 2), ("products", 1), ("invoices", 2), ("totals", 2)
            Admin(client).topics.create(*(NewTopic(name, partitions=count) for name, count in topics))
            write_products(client)
        self._feeder.start()
        self._driver.start()
        self._report.say("a broker, a stream of orders and a pipeline on Spark were started")
        self._until("the first batch of every query", lambda: min(self._positions().values()) > 0)
        self._report.say(f"{', '.join(shop.sinks)} have counted their first batch")

    def _kill(self, program: Program) -> Kill:
        open_ = self._until("a batch", self._open_transactions)
        before = self._positions()
        program.kill()
        at, clock = self._report.seconds, time.monotonic()
        self._report.say(f"killed [bold]{program.name}[/] with {open_} transactions open")
        program.start()
        self._until(
            f"a new batch of every query after {program.name} was killed",
            lambda: all(now > before[name] for name, now in self._positions().items()),
        )
        took = time.monotonic() - clock
        self._report.say(f"every query has counted a batch again, {took:.1f} s later")
        return Kill(program.name, at, open_, took)

    def _end(self) -> None:
        self._feeder.stop()
        end = self._until("the end of the orders", self._end_of_orders)
        self._report.say(f"no more orders; {len(self._feeder.acknowledged):,} were acknowledged")
        self._until("the pipeline to catch up", lambda: min(self._positions().values()) >= end)
        with Client(self._bootstrap) as client:
            orders = checking.read(client, "orders")
            expected = len(checking.expected_totals(orders))
            self._until("the last totals", lambda: len(checking.read(client, "totals")) >= expected)
        code = self._driver.stop()
        if code != 0:
            raise Failed(f"the pipeline did not stop in order: exit code {code}")
        self._report.say("the pipeline has caught up, and was stopped")

    def _check(self) -> list[checking.Verdict]:
        with Client(self._bootstrap) as client:
            orders = checking.read(client, "orders")
            invoices = checking.read(client, "invoices")
            totals = checking.read(client, "totals")
        return [
            checking.check_orders(orders, self._feeder.acknowledged),
            checking.check_invoices("topic invoices", orders, invoices),
            checking.check_totals("topic totals", orders, totals),
            checking.check_invoices("Delta table", orders, checking.read_lake(self._directory / "lake")),
        ]

    # ---- what the broker knows

    def _ask(self, question: Callable[[Client], T]) -> T | None:
        """An answer of the broker; None while it is away."""
        try:
            with Client(self._bootstrap, timeout_s=5.0) as client:
                return question(client)
        except (KafkaError, ClientError):
            return None

    def _positions(self) -> dict[str, int]:
        """How many orders each query has counted."""
        return {name: self._position(name) for name in shop.sinks}

    def _position(self, name: str) -> int:
        offsets = self._ask(lambda client: Admin(client).groups.offsets(name)) or {}
        return sum(at.offset for (topic, _), at in offsets.items() if topic == "orders")

    def _open_transactions(self) -> int:
        pattern = re.escape(f"{shop.id}.") + r".*/\d.*"
        listed = self._ask(lambda client: list_transactions(client, ["Ongoing"], pattern=pattern))
        return len(listed or ())

    def _end_of_orders(self) -> int:
        keys = [("orders", 0), ("orders", 1)]
        found = self._ask(lambda client: Admin(client).topics.offsets(dict.fromkeys(keys, LATEST)))
        return sum(each.offset for each in (found or {}).values())

    def _until(self, what: str, ask: Callable[[], T]) -> T:
        """The first true answer."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (answer := ask()):
            if self._driver.exit_code is not None:
                self._start_driver_again()
            if time.monotonic() > deadline:
                raise Failed(f"waited for {what}, and it did not come: {self._driver.last_words()}")
            time.sleep(PAUSE_SECONDS)
        return answer

    def _start_driver_again(self) -> None:
        self._own_stops += 1
        if self._own_stops > OWN_STOPS_MAX:
            raise Failed(f"the pipeline stops again and again: {self._driver.last_words()}")
        self._report.say(f"the pipeline has stopped by itself: {self._driver.last_words()}")
        self._driver.start()


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="how often something is killed")
    parser.add_argument("--rate", type=int, default=ORDERS_PER_SECOND, help="orders in a second")
    given = parser.parse_args()
    report = Report()
    # Who stops the demonstration does not want to keep what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as name:
        try:
            return 0 if Demo(Path(name), report, given.rate).run(given.kills) else 1
        except Failed as error:
            report.say(f"[bold red]failed[/]: {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
