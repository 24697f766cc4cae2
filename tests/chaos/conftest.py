"""What the tests of this folder did is told at the end, also when they pass: how much load there was."""

import os

import pytest

GIVEN = os.environ.get("SEMEL_KILLS")
MANY = int(GIVEN or 4)
"""The most kills of a test, from which its time limit follows."""
FEW = pytest.mark.parametrize("kills", [MANY] if GIVEN else [2, pytest.param(MANY, marks=pytest.mark.slow)])
"""``make test`` kills twice, and ``make verify`` more often. ``SEMEL_KILLS`` says how often instead."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each property that a test has recorded."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties if report.when == "call" else ():
                terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")
