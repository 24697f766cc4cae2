"""The command line as its users have it, beside a broker.

Commands run in this process, from `run` to the exit code, because that takes a tenth of the time of a
process of their own. What needs a process, such as signals and pipes, has one in its test.
"""

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import semel
from semel.cli.main import run


@dataclass
class Ran:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="module")
def broker() -> Iterator[semel.Embedded]:
    """One broker for all tests of a file; each test has topics of its own."""
    with semel.embedded(settings={"auto.create.topics.enable": False}) as broker:
        yield broker


@pytest.fixture
def cli(
    broker: semel.Embedded, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Ran]:
    """Run `semel` with these arguments. It succeeds unless the test expects another exit code."""

    def execute(*arguments: str, stdin: bytes = b"", code: int = 0, bootstrap: str | None = None) -> Ran:
        monkeypatch.setenv("SEMEL_BOOTSTRAP", bootstrap or broker.bootstrap_servers)
        monkeypatch.setattr(sys, "argv", ["semel", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capfdbinary.readouterr()
        ran = Ran(int(ended.value.code or 0), out.decode(), err.decode())
        assert ran.code == code, ran
        return ran

    return execute
