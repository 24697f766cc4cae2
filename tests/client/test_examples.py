"""Every example runs, by itself and against a broker that is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from semel.embedded import Embedded

EXAMPLES = Path(__file__).parents[2] / "examples"
# Those that need Spark are run where Spark is (tests/spark).
OTHERS = ("*_test.py", "lake_*.py")
PROGRAMS = sorted(
    path.name for path in EXAMPLES.glob("*.py") if not any(path.match(pattern) for pattern in OTHERS)
)
EXPECTED = {
    "produce_consume.py": "three apples are at offset 0",
    "groups.py": "100 events were read, 100 of them different",
    "transactions.py": "10 words were copied, 10 of them different",
    "prepared_transaction.py": "committed: [b'three apples']",
    "queue_worker.py": "30 jobs have 30 results, 30 of them different",
}

# The warning of a broker that is part of the example.
SAID_ON_A_BUSY_MACHINE = {"the event loop was held up"}


def run(*command: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", *command], capture_output=True, text=True, check=False, timeout=100
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert set(ran.stderr.splitlines()) <= SAID_ON_A_BUSY_MACHINE
    return ran.stdout


def test_every_example_is_known_here() -> None:
    assert set(EXPECTED) == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_example(name: str) -> None:
    assert EXPECTED[name] in run(str(EXAMPLES / name))


@pytest.mark.parametrize(
    "name",
    [each if each == "groups.py" else pytest.param(each, marks=pytest.mark.slow) for each in PROGRAMS],
)
def test_example_against_a_running_broker(name: str, semel_broker: Embedded) -> None:
    assert EXPECTED[name] in run(str(EXAMPLES / name), semel_broker.bootstrap_servers)


def test_example_of_a_test() -> None:
    out = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "embedded_test.py"))
    assert "1 passed" in out
