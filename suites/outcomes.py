"""Suites, the outcomes of their cases, and running another program within a time limit."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
REASON_MAX = 300
"""The longest stored reason, in characters."""


class Case(NamedTuple):
    """The outcome of one case of a suite, and the reason if it did not pass."""

    outcome: str
    why: str = ""


Report = dict[str, Case]


class Target(NamedTuple):
    """The broker that a suite is run against."""

    name: str
    bootstrap: str
    directory: Path
    """Where the suite may write."""
    class_path: str
    """The jars of Apache Kafka, its tools, Streams, Connect and MirrorMaker."""

    @property
    def is_semel(self) -> bool:
        """Whether it is Semel."""
        return self.name == "semel"


class Suite(NamedTuple):
    """Cases from another project, or scenarios for a program of another project."""

    what: str
    """A description: the package, and the part of it that is run."""
    run: Callable[[Target, float], Report]
    """Takes the broker and the time limit in seconds."""
    seconds: float
    settings: Mapping[str, str] = {}
    """Settings of both brokers, beside the common ones."""
    only_semel: Mapping[str, str] = {}
    only_kafka: Mapping[str, str] = {}


class Ended(NamedTuple):
    """A program's output, and whether it exited by itself in time."""

    output: str
    in_time: bool


def run_within(
    command: Sequence[str],
    seconds: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program; kill it and its children when time is up."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
            in_time = True
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            # This also kills the processes that it left running.
            _kill_session(process.pid)
            process.wait()
        output.seek(0)
        return Ended(output.read(), in_time)


def _kill_session(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def of_lines(ended: Ended) -> Report:
    """Read the report of a program of ours: each line has an outcome, the name of a case, and the reason."""
    report: Report = {}
    for line in ended.output.splitlines():
        outcome, _, rest = line.partition(" ")
        if outcome in (PASSED, FAILED, SKIPPED):
            name, _, why = rest.partition(": ")
            report[name] = Case(outcome, why[:REASON_MAX])
    return with_its_end(report, ended)


def with_its_end(report: Report, ended: Ended) -> Report:
    """Count a suite that did not end in time, or reported nothing, as a failed case."""
    if not ended.in_time:
        report["the suite ends in time"] = Case(FAILED, "its time was up")
    elif not report:
        report["the suite runs"] = Case(FAILED, ended.output.strip()[-REASON_MAX:])
    return report


def of_junit(path: Path) -> Report:
    """Read a report in JUnit's format."""
    report: Report = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"
        report[name] = _of_element(case)
    return report


def _of_element(case: ElementTree.Element) -> Case:
    for outcome, tags in ((FAILED, ("failure", "error")), (SKIPPED, ("skipped",))):
        for tag in tags:
            if (found := case.find(tag)) is not None:
                return Case(outcome, " ".join(found.get("message", "").split())[:REASON_MAX])
    return Case(PASSED)
