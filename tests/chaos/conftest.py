"""What the tests of this folder did is told at the end, also when they pass: how much load there was."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each property that a test has recorded."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties if report.when == "call" else ():
                terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")
