"""Ports of servers that tests start: two test runs on one machine never get the same one."""

import subprocess
import sys
from pathlib import Path

from support.brokers.process import PORTS, free_port

TESTS = Path(__file__).parents[1]


def reserved_elsewhere(port: int) -> bool:
    """Whether another process is refused this port."""
    code = f"from support.brokers.process import reserve; print(reserve({port}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=True)
    return run.stdout == "False\n"


def test_a_port_belongs_to_the_process_that_asked_for_it_although_nothing_listens() -> None:
    first, second = free_port(), free_port()
    assert first != second
    assert reserved_elsewhere(first)
    assert reserved_elsewhere(second)


def test_a_port_that_nobody_asked_for_can_be_had() -> None:
    assert any(not reserved_elsewhere(port) for port in PORTS[:5])
