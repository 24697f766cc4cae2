"""The README, word for word: what it shows is run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess
from support.pages import blocks, sessions

README = Path(__file__).parents[2] / "README.md"


def test_the_first_minute(tmp_path: Path) -> None:
    install, first_use, *_ = sessions(README)
    assert [command for command, _ in install] == ["pip install .", "semel serve"]
    with BrokerProcess(tmp_path / "semel-data") as broker:
        assert install[1][1] == f"Semel is ready on {broker.bootstrap}".replace(str(broker.port), "9092")
        scripts = str(Path(sys.executable).parent)
        environment = os.environ | {
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "SEMEL_BOOTSTRAP": broker.bootstrap,
        }
        assert len(first_use) == 3
        for command, printed in first_use:
            done = subprocess.run(
                command, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            if printed:
                assert done.stdout.strip() == printed


@pytest.mark.parametrize("example", blocks(README, "python"))
def test_python_examples(example: str) -> None:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_test_command_is_what_ci_runs() -> None:
    assert [("make test", "")] in sessions(README)
    assert re.search(r"^ci:.* test\b", (README.parent / "Makefile").read_text(), re.MULTILINE)
    assert (README.parent / ".ci/run").read_text().splitlines()[-1] == "make ci"
