"""Runs tests of the suite in another process, and reads their report."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[1]


def run(*arguments: str, **environment: str) -> list[ElementTree.Element]:
    """Run pytest with these arguments; return a case for each test. A case with children did not pass."""
    with tempfile.TemporaryDirectory(prefix="semel-tests-") as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--junitxml", str(report), *arguments]
        environment = {**os.environ, **environment}
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
        return list(ElementTree.parse(report).iter("testcase"))


def is_skipped(case: ElementTree.Element) -> bool:
    """Whether the test was skipped, or failed as expected."""
    return case.find("skipped") is not None


def has_failed(case: ElementTree.Element) -> bool:
    """Whether the test or one of its fixtures failed."""
    return case.find("failure") is not None or case.find("error") is not None
