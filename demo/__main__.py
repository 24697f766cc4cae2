"""Run the demonstration: `python -m demo`. It exits with 1 if anything was lost, doubled or wrong.

The Spark driver and the broker are killed in turn, each time in the middle of a batch, while transactions of
the pipeline are open. All connections use TLS, and every client has a password and the least rights.
"""

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.markup import escape

from demo import checking, processes
from demo.orders import Feeder, write_products
from demo.processes import Program
from demo.report import Kill, Report
from demo.security import ADMIN, FEEDER, Secured
from demo.shop import shop
from demo.watching import Step, Watch, account, last_error
from semel.client import LATEST, Admin, Client, ClientError, KafkaError, NewTopic
from semel.client.admin.transactions import list_transactions
from semel.server.run import EXIT_BROKEN

KILLS = 6
ORDERS_PER_SECOND = 400
PAUSE_SECONDS = 0.05
#: How often the queries are checked during a wait.
LOOK_SECONDS = 1.0
#: If queries make progress for this long without completing, the wait has failed.
WAIT_SECONDS_MAX = 3600.0
#: How long to wait for new totals before the query gets more input.
NUDGE_SECONDS = 10.0
#: The pipeline is one query.
QUERIES = (shop.pipeline_id,)
#: The driver may also stop by itself and is then restarted, as a supervisor would, but not forever.
OWN_STOPS_MAX = 3

T = TypeVar("T")


class Failed(Exception):
    """The demonstration cannot continue; the text says why."""


class Victim(Protocol):
    """A process that is killed and started again."""

    name: str

    def kill(self) -> None:
        """End it without warning."""

    def start(self) -> None:
        """Start it again."""


class Demo:
    """One run, in one directory."""

    def __init__(
        self,
        secured: Secured,
        report: Report,
        per_second: int,
        brokers: Mapping[str, Program],
        victims: Sequence[Victim] = (),
    ) -> None:
        """`brokers` are keyed by address. `victims` are killed in turn, by default driver and brokers."""
        self._secured = secured
        self._directory = secured.directory
        self._report = report
        self._bootstrap = ",".join(brokers)
        self._brokers = list(brokers.values())
        self._driver = processes.driver(self._bootstrap, secured)
        self._victims = victims or [self._driver, *self._brokers]
        self._feeder = Feeder(self._bootstrap, secured.security(FEEDER), per_second)
        self._watch = Watch(QUERIES, time.monotonic())
        self._own_stops = 0

    def run(self, kills: int) -> bool:
        """Run everything; return whether every record counts once."""
        try:
            self._begin()
            killed = [self._kill(each) for each in islice(cycle(self._victims), kills)]
            self._end()
            verdicts = self._check()
        finally:
            for program in (self._driver, *self._brokers):
                program.kill()
        self._report.end(killed, verdicts, self._feeder.longest_wait_seconds)
        return all(each.is_right for each in verdicts)

    def _begin(self) -> None:
        for broker in self._brokers:
            broker.start()
        self._until("the broker", lambda: self._ask(lambda client: client.describe(topics=())))
        with self._administrator() as client:
            self._secured.add_users(client)
            topics = ("orders", 2), ("products", 1), ("invoices", 2), ("totals", 2), ("orders-dead", 1)
            Admin(client).topics.create(*(NewTopic(name, partitions=count) for name, count in topics))
            write_products(client)
        self._feeder.start()
        self._start_driver()
        brokers = "a broker" if len(self._brokers) == 1 else f"{len(self._brokers)} brokers"
        self._report.say(f"{brokers}, a stream of orders and a pipeline on Spark were started")
        self._until_past("the first batch", dict.fromkeys(QUERIES, 0))
        self._report.say(f"the pipeline has counted its first batch in {', '.join(shop.sinks)}")

    def _kill(self, program: Victim) -> Kill:
        open_, before = self._until("a batch", self._batch_under_way)
        program.kill()
        at, clock = self._report.seconds, time.monotonic()
        self._report.say(f"killed [bold]{program.name}[/] with {open_} transactions open")
        program.start()
        self._watch.restart(time.monotonic())
        self._until_past(f"a new batch after {program.name} was killed", before)
        took = time.monotonic() - clock
        self._report.say(f"the pipeline has counted a batch again, {took:.1f} s later")
        return Kill(program.name, at, open_, took)

    def _end(self) -> None:
        self._feeder.stop()
        # If a query read an order in a later batch than a closing order, it would be too late for its window.
        self._catch_up("all orders to be counted")
        self._until("the closing orders", self._feeder.close_windows)
        self._report.say(f"no more orders; {len(self._feeder.acknowledged):,} were acknowledged")
        orders = self._until("the orders", lambda: self._read("orders"))
        self._wait_for_totals(len(checking.expected_totals(orders)))
        self._catch_up("the closing orders to be counted")
        self._stop_driver()
        self._report.say("the pipeline has caught up, and was stopped")

    def _catch_up(self, what: str) -> None:
        end = self._until("the end of the orders", self._end_of_orders)
        self._until_past(what, dict.fromkeys(QUERIES, end - 1))

    def _wait_for_totals(self, expected: int) -> None:
        """Wait until this many totals exist.

        A batch without rows emits them, after the batch that read the closing orders. A query that was
        restarted between the two waits for input before its next batch, so it gets some.
        """
        nudged_at = time.monotonic()

        def are_there() -> bool:
            nonlocal nudged_at
            found = self._read("totals")
            is_complete = found is not None and len(found) >= expected
            if not is_complete and time.monotonic() - nudged_at > NUDGE_SECONDS:
                self._feeder.close_windows()
                nudged_at = time.monotonic()
            return is_complete

        self._until(f"{expected:,} totals", are_there, lambda: QUERIES, LOOK_SECONDS)

    def _stop_driver(self) -> None:
        code = self._driver.stop()
        if code is None:
            raise Failed("the pipeline was asked to stop, and did not")
        if code != 0:
            raise Failed(f"the pipeline did not stop in order: exit code {code}: {self._driver.last_words()}")

    def _check(self) -> list[checking.Verdict]:
        with self._administrator() as client:
            orders = checking.read(client, "orders")
            invoices = checking.read(client, "invoices")
            totals = checking.read(client, "totals")
            letters = checking.read(client, "orders-dead")
        return [
            checking.check_orders(orders, self._feeder.acknowledged),
            checking.check_invoices("topic invoices", orders, invoices),
            checking.check_totals("topic totals", orders, totals),
            checking.check_newest("Delta table", orders, checking.read_lake(self._directory / "lake")),
            checking.check_letters("dead letters", orders, letters),
        ]

    # ---- what the broker knows

    def _administrator(self, timeout_s: float = 30.0) -> Client:
        return Client(self._bootstrap, timeout_s=timeout_s, security=self._secured.security(ADMIN))

    def _ask(self, question: Callable[[Client], T]) -> T | None:
        """Return the broker's answer; None while it is away."""
        try:
            with self._administrator(timeout_s=5.0) as client:
                return question(client)
        except (KafkaError, ClientError):
            return None

    def _positions(self) -> dict[str, int] | None:
        """Return how many orders each query has counted; None while the broker is away."""
        return self._ask(lambda client: {name: _position(client, name) for name in QUERIES})

    def _batch_under_way(self) -> tuple[int, dict[str, int]] | None:
        """Return the number of open transactions of tasks, if any, and the position of each query."""
        pattern = re.escape(f"{shop.pipeline_id}/") + r"\d.*"
        listed = self._ask(lambda client: list_transactions(client, ["Ongoing"], pattern=pattern))
        positions = self._positions() if listed else None
        return None if not listed or positions is None else (len(listed), positions)

    def _end_of_orders(self) -> int | None:
        keys = [("orders", 0), ("orders", 1)]
        found = self._ask(lambda client: Admin(client).topics.offsets(dict.fromkeys(keys, LATEST)))
        return None if found is None else sum(each.offset for each in found.values())

    def _read(self, topic: str) -> list[dict[str, Any]] | None:
        return self._ask(lambda client: checking.read(client, topic))

    # ---- waiting

    def _until_past(self, what: str, before: Mapping[str, int]) -> None:
        """Wait until every query has counted more orders than before."""

        def lacking() -> list[str]:
            now = self._positions() or before
            return [name for name in before if now[name] <= before[name]]

        self._until(what, lambda: not lacking(), lacking)

    def _until(
        self,
        what: str,
        ask: Callable[[], T | None],
        lacking: Callable[[], Sequence[str]] = lambda: QUERIES,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> T:
        """Return the first true answer. `lacking` names the queries that still have work to do.

        The wait goes on while these make progress.
        """
        began_at = looked_at = time.monotonic()
        while not (answer := ask()):
            now = time.monotonic()
            self._check_processes()
            if now - looked_at > LOOK_SECONDS:
                looked_at = now
                self._look(what, lacking, now)
            if now - began_at > WAIT_SECONDS_MAX:
                raise Failed(f"waited {now - began_at:.0f} s for {what}. {self._account(QUERIES)}")
            time.sleep(pause_seconds)
        return answer

    def _check_processes(self) -> None:
        for broker in self._brokers:
            if broker.exit_code == EXIT_BROKEN and len(self._brokers) > 1:
                # The broker was replaced while it could not reach PostgreSQL. A supervisor would restart it.
                self._report.say(f"{broker.name} is started again: {broker.last_words()}")
                broker.start()
            elif broker.exit_code is not None:
                raise Failed(f"{broker.name} has stopped by itself: {broker.last_words()}")
        if self._feeder.has_failed:
            raise Failed("orders are no longer sent; the traceback above says why")
        if self._driver.exit_code is None:
            return
        self._own_stops += 1
        if self._own_stops > OWN_STOPS_MAX:
            raise Failed(f"the pipeline stops again and again: {self._driver.last_words()}")
        self._report.say(f"the pipeline has stopped by itself: {self._driver.last_words()}")
        self._start_driver()

    def _start_driver(self) -> None:
        self._driver.start()
        self._watch.restart(time.monotonic())

    def _look(self, what: str, lacking: Callable[[], Sequence[str]], now: float) -> None:
        steps = self._steps()
        if steps is not None:
            self._watch.see(steps, now)
        if stalled := self._watch.stalled(lacking(), now):
            seconds = self._watch.limit_seconds
            raise Failed(f"waited for {what}; nothing happened for {seconds:.0f} s. {self._account(stalled)}")

    def _steps(self) -> dict[str, Step] | None:
        counted = self._positions()
        if counted is None:
            return None
        return {name: Step.of(self._directory / "checkpoints" / name, counted[name]) for name in QUERIES}

    def _account(self, names: Iterable[str]) -> str:
        """Return where these queries are, and the last words of all processes."""
        steps, log, orders = self._steps(), self._driver.words(), self._end_of_orders()
        said = ["the broker does not answer"] if steps is None else []
        said += [account(name, steps[name], orders, log) for name in names if steps is not None]
        said += [last_error(self._directory / "spark.log")]
        return escape(". ".join(said)) + f". The driver's last line: {self._driver.last_words()}"


def _position(client: Client, name: str) -> int:
    offsets = Admin(client).groups.offsets(name)
    return sum(at.offset for (topic, _), at in offsets.items() if topic == "orders")


def main() -> int:
    """Run the demonstration with one broker."""
    return run(__doc__, KILLS, _alone)


@contextmanager
def _alone(directory: Path, report: Report, per_second: int) -> Iterator[Demo]:
    port = processes.free_port()
    secured = Secured.prepare(directory)
    broker = processes.broker(directory, port, secured)
    yield Demo(secured, report, per_second, {f"127.0.0.1:{port}": broker})


def run(
    description: str | None,
    kills: int,
    prepare: Callable[[Path, Report, int], AbstractContextManager[Demo]],
) -> int:
    """Read the arguments, prepare a demonstration and run it. Return the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=description)
    parser.add_argument("--kills", type=int, default=kills, help="how often something is killed")
    parser.add_argument("--rate", type=int, default=ORDERS_PER_SECOND, help="orders in a second")
    given = parser.parse_args()
    report = Report()
    # A user who stops the demonstration does not want its processes to keep running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = Path(tempfile.mkdtemp(prefix="semel-demo-"))
    try:
        with prepare(directory, report, given.rate) as demo:
            is_right = demo.run(given.kills)
    except Failed as error:
        report.say(f"[bold red]failed[/]: {error}")
        is_right = False
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if is_right:
        shutil.rmtree(directory, ignore_errors=True)
        return 0
    report.say(f"data and logs are kept in {directory}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
