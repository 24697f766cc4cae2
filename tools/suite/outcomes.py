"""A plugin for pytest: writes the outcomes of tests to a file, or runs only the failed ones of a file."""

import json
from collections import Counter
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options."""
    parser.addoption("--outcomes", type=Path, help="write the failed and the skipped tests to this file")
    parser.addoption("--failed-in", type=Path, help="run only the tests that this file names as failed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests except those that the file names as failed."""
    path: Path | None = config.getoption("--failed-in")
    if path is None:
        return
    wanted = set(json.loads(path.read_text())["failed"])
    left_out = [each for each in items if each.nodeid not in wanted]
    items[:] = [each for each in items if each.nodeid in wanted]
    config.hook.pytest_deselected(items=left_out)


def pytest_configure(config: pytest.Config) -> None:
    """Register the listener, but not in xdist's workers: they send their reports to the main process."""
    path: Path | None = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Listener(path))


class _Listener:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, None] = {}
        self._passed: dict[str, None] = {}
        self._skipped: Counter[str] = Counter()
        self._crashes = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # A test can fail twice: in its call, and in its teardown.
            self._failed[report.nodeid] = None
            # xdist reports a crash during the test with another `when`.
            self._crashes -= report.when not in ("setup", "call", "teardown")
        elif report.when == "call" and report.passed:
            self._passed[report.nodeid] = None
        self._note_skipped(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note_skipped(report)

    def _note_skipped(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            self._skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """Note that an xdist worker has exited."""
        self._crashes += bool(error)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_cut_short = bool(session.shouldfail or session.shouldstop)
        found = {
            "failed": list(self._failed),
            "passed": [each for each in self._passed if each not in self._failed],
            "skipped": dict(self._skipped.most_common()),
            "is_whole": not is_cut_short and self._crashes <= 0,
        }
        self._path.write_text(json.dumps(found))
