"""Lines of the log: a sentence and fields, and never more than a few of a kind."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from semel.rate_limit import RateLimit
from semel.server.logs import FewOfEach, configure, event

log = logging.getLogger("semel.test")


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    root = logging.getLogger("semel")
    before = (list(root.handlers), root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]
    root.setLevel(before[1])


def test_text() -> None:
    stream = io.StringIO()
    configure("info", "text", stream)
    event(log, logging.WARNING, "connection closed", reason="idle", client="127.0.0.1", seconds=1.5)
    line = stream.getvalue()
    assert line.endswith(" warning semel.test connection closed reason=idle client=127.0.0.1 seconds=1.5\n")


def test_what_a_client_sent_cannot_forge_a_line() -> None:
    stream = io.StringIO()
    configure("info", "text", stream)
    event(log, logging.INFO, "connection closed", client_id="a\n2026 critical semel.x all=lost")
    assert stream.getvalue().count("\n") == 1
    assert r'client_id="a\n2026' in stream.getvalue()


def test_json() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    event(log, logging.INFO, "listening", port=9092, detail=ValueError("odd"))
    line = json.loads(stream.getvalue())
    assert line["event"] == "listening"
    assert line["port"] == 9092
    assert line["detail"] == "odd"
    assert line["level"] == "info"


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_a_traceback_is_kept(fmt: str) -> None:
    stream = io.StringIO()
    configure("info", fmt, stream)  # type: ignore[arg-type]
    try:
        raise ZeroDivisionError("a mistake")
    except ZeroDivisionError:
        log.exception("a request failed")
    assert "ZeroDivisionError: a mistake" in stream.getvalue()


def test_below_the_level_nothing_is_written() -> None:
    stream = io.StringIO()
    configure("warning", "text", stream)
    event(log, logging.INFO, "listening")
    assert stream.getvalue() == ""


def test_a_few_lines_pass_and_the_rest_is_counted() -> None:
    now = 0.0
    limit = RateLimit(lines=2, seconds=10, clock=lambda: now)
    assert [limit.suppressed("idle") for _ in range(5)] == [0, 0, None, None, None]
    assert limit.suppressed("other") == 0
    now = 11.0
    assert limit.suppressed("idle") == 3
    assert limit.suppressed("idle") == 0


def test_kinds_are_bounded() -> None:
    limit = RateLimit()
    for number in range(RateLimit.KINDS_MAX * 3):
        limit.suppressed(str(number))
    assert len(limit._kinds) <= RateLimit.KINDS_MAX


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_nothing_that_a_terminal_obeys_is_written(fmt: str) -> None:
    """Whoever follows the log sits at a terminal: in fields, in sentences and in tracebacks."""
    evil = "\x1b]0;owned\x07\x9b2J\u202e\x7f\r"
    stream = io.StringIO()
    configure("info", fmt, stream)  # type: ignore[arg-type]
    event(log, logging.INFO, "connection closed", client_id=evil, other=f"{evil} with spaces")
    log.info("about %s", evil)
    try:
        raise ValueError(evil)
    except ValueError:
        log.exception("a request of %s failed", evil)
    written = stream.getvalue()
    assert "owned" in written
    assert [sign for sign in written if not sign.isprintable() and sign != "\n"] == []


def test_a_sentence_that_is_repeated_is_suppressed_and_counted() -> None:
    stream, seconds = io.StringIO(), [0.0]
    configure("info", "text", stream)
    handler = logging.getLogger("semel").handlers[0]
    handler.filters[:] = [FewOfEach(RateLimit(3, 60.0, lambda: seconds[0]))]
    for number in range(10):
        log.warning("object %d cannot be read", number)
        log.warning("object %d cannot be written", number)
        event(log, logging.WARNING, "limited where it is logged", number=number)
        log.critical("the broker stops")
    written = stream.getvalue().splitlines()
    assert [line.rpartition("semel.test ")[2] for line in written if "be read" in line] == [
        f"object {number} cannot be read" for number in range(3)
    ]
    assert sum("be written" in line for line in written) == 3
    assert sum("limited" in line for line in written) == sum("stops" in line for line in written) == 10
    seconds[0] = 61.0
    log.warning("object %d cannot be read", 10)
    log.warning("object %d cannot be read", 11)
    *_, last, newest = stream.getvalue().splitlines()
    assert last.endswith("object 10 cannot be read suppressed=7")
    assert newest.endswith("object 11 cannot be read")
