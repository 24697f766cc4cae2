"""The points of a batch at which a process can die, each named by a request that the broker gets there.

With Kafka's requests alone, a batch of two tasks sends these requests, in this order:

    InitProducerId (driver), then of each task InitProducerId and Produce, then of the driver
    AddOffsetsToTxn, TxnOffsetCommit and EndTxn, and last EndTxn for each task

With Semel's own requests, BeginAttempt replaces the tasks' InitProducerId, and CommitTransactions replaces
everything from AddOffsetsToTxn on. A request is caught on its way: either it does not reach the broker, or
its response does not come back. So a point depends only on what the pipeline requests, not on how it is
written.
"""

import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from semel.wire.messages import (
    AddOffsetsToTxnRequest,
    BeginAttemptRequest,
    CommitTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from support.faults.proxy import Act, Proxy, Rule, Seen
from support.waiting import until

WAIT_SECONDS = 180.0


@dataclass(frozen=True)
class Point:
    """A request of a batch, and whether it is caught before or after the broker answers it."""

    api_key: int
    is_of: Callable[[str], bool]
    is_answered: bool = False
    earlier: int = 0
    """How many requests of this kind precede it in the batch."""


def of_driver(transactional_id: str) -> bool:
    return transactional_id.endswith("/driver")


def of_task(transactional_id: str) -> bool:
    return "/" in transactional_id and not of_driver(transactional_id)


_END, _GROUP = EndTxnRequest.api_key, CommitTransactionsRequest.api_key

#: Requests to any Kafka-compatible broker. Batches have two tasks.
PORTABLE = {
    "while tasks write": Point(ProduceRequest.api_key, of_task),
    "before the decision": Point(AddOffsetsToTxnRequest.api_key, of_driver),
    "in the decision": Point(TxnOffsetCommitRequest.api_key, of_driver, is_answered=True),
    "at the end of the decision": Point(_END, of_driver),
    "when it is decided": Point(_END, of_driver, is_answered=True),
    "before the ends": Point(_END, of_task),
    "between the ends": Point(_END, of_task, earlier=1),
    "after the ends": Point(_END, of_task, is_answered=True, earlier=1),
}
#: Requests to Semel only.
EXTENDED = {
    "while tasks write": PORTABLE["while tasks write"],
    "before the decision": Point(_GROUP, of_driver),
    "after the ends": Point(_GROUP, of_driver, is_answered=True),
}


def cases(
    short: Collection[tuple[str, str]],
    slow: Collection[tuple[str, str]] = (),
    *,
    but: str = "",
    points: Mapping[str, Mapping[str, Any]] = {"portable": PORTABLE, "extended": EXTENDED},
) -> list[Any]:
    """Return protocols and points as parameters of a test. Most are for long runs only.

    Another broker than Semel has Kafka's requests alone.
    """
    protocols = ["portable"] if "SEMEL_PEER" in os.environ else list(points)
    marks: dict[tuple[str, str], Any] = {**dict.fromkeys(slow, pytest.mark.slow), **dict.fromkeys(short, ())}
    return [
        pytest.param(
            protocol,
            place,
            id=f"{protocol}, {place}",
            marks=marks.get((protocol, place), pytest.mark.long),
        )
        for protocol in protocols
        for place in points[protocol]
        if place != but
    ]


#: A task's request before it writes, which has no lasting effect.
BEGIN = "before a task writes"


def points(protocol: str) -> dict[str, Point]:
    if protocol == "portable":
        return PORTABLE | {BEGIN: Point(InitProducerIdRequest.api_key, of_task)}
    return EXTENDED | {BEGIN: Point(BeginAttemptRequest.api_key, of_task)}


def catch(proxy: Proxy, point: Point) -> Rule:
    """Catch the request of this point in the next batch."""
    return proxy.on(
        point.api_key,
        Act.DEAFEN if point.is_answered else Act.HOLD,
        after=point.earlier,
        where=lambda seen: point.is_of(transactional_id(seen)),
    )


def transactional_id(seen: Seen) -> str:
    """Return the transactional id of a request; "" if it has none."""
    return seen.body.transactional_id or ""


def await_caught(rule: Rule, check: Callable[[], None] = lambda: None) -> Seen:
    """Wait until the request is caught, or answered if the point says so; `check` may raise earlier."""

    def is_there() -> bool:
        check()
        return rule.answered.is_set() if rule.act is Act.DEAFEN else bool(rule.caught)

    until(is_there, WAIT_SECONDS, "the request at which something dies")
    return rule.caught[0]


def sender(seen: Seen) -> psutil.Process:
    """Find the process that sent a request."""
    return connected(*seen.ports)


def connected(port: int, to_port: int) -> psutil.Process:
    """Find the process that has a connection from one port to another."""
    for each in psutil.net_connections("tcp"):
        if each.raddr and (each.laddr.port, each.raddr.port) == (port, to_port) and each.pid is not None:
            return psutil.Process(each.pid)
    raise AssertionError(f"no process has a connection from port {port} to {to_port}")


class Killer(threading.Thread):
    """Kills the process that sends the caught request, while the test waits for Spark."""

    def __init__(self, caught: Rule) -> None:
        super().__init__(name="killer")
        self.has_killed = False
        self._caught = caught

    def run(self) -> None:
        sender(await_caught(self._caught)).kill()
        self.has_killed = True
