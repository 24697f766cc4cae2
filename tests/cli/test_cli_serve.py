"""`semel serve`: one line when it is ready, options and a file with the same names, an end without loss."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semel.cli.main import app
from semel.client import Admin, Client, Producer

READY = re.compile(r"Semel is ready on (\S+):(\d+)\n")


@contextmanager
def serving(*arguments: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-W", "error", "-m", "semel", "serve", *arguments]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = READY.fullmatch(line)
            assert found, (line, process.communicate(timeout=10)[1])
            yield process, f"{found[1]}:{found[2]}"
        finally:
            process.kill()


def stop(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_data_directory_survives_both_ends(tmp_path: Path) -> None:
    """SIGTERM and SIGKILL leave the same: everything that was acknowledged."""
    for number, end in enumerate([signal.SIGTERM, signal.SIGKILL, signal.SIGINT]):
        with serving("--data", "data", "--listen", "127.0.0.1:0", cwd=tmp_path) as (process, address):
            with Client(address) as client:
                if number == 0:
                    Admin(client).topics.create("t")
                with Producer(client) as producer:
                    assert producer.send("t", b"x").result().offset == number
            code, out, err = stop(process, end)
            assert code == (-signal.SIGKILL if end is signal.SIGKILL else 0)
            assert out == ""  # the one line was all
            assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_memory_keeps_no_file(tmp_path: Path) -> None:
    with serving("--memory", "--listen", "127.0.0.1:0", cwd=tmp_path) as (process, address):
        with Client(address) as client:
            Admin(client).topics.create("t")
        assert stop(process)[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_the_second_broker_on_a_directory_is_told_why(tmp_path: Path) -> None:
    with serving("--data", "data", "--listen", "127.0.0.1:0", cwd=tmp_path):
        command = [sys.executable, "-m", "semel", "serve", "--data", "data", "--listen", "127.0.0.1:0"]
        second = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30
        )
    assert second.returncode == 75
    assert "Error: The data directory is in use" in second.stderr
    assert "choose another --data" in second.stderr
    assert second.stdout == ""


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "semel", "serve", "--memory", "--listen", address]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert ran.returncode == 69
    assert "Choose another --listen" in ran.stderr


def test_a_file_has_the_same_names_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text(
        """
data = "from-file"
listen = ["127.0.0.1:0", "INSIDE=127.0.0.1:0"]
advertise = "INSIDE=inside.example:1234"
metrics = "127.0.0.1:0"
log-level = "info"
log-format = "json"

[settings]
num.partitions = 3
"auto.create.topics.enable" = true
"""
    )
    arguments = ("--config", "semel.toml", "--data", "chosen", "--set", "num.partitions=5")
    with serving(*arguments, cwd=tmp_path) as (process, address):
        with Client(address) as client:
            assert Admin(client).topics.create("t")[0].partitions == 5
            with Producer(client) as producer:
                producer.send("made-by-itself", b"x")
        _, _, err = stop(process)
    assert (tmp_path / "chosen").is_dir()
    assert not (tmp_path / "from-file").exists()
    assert all(line.startswith("{") for line in err.splitlines())
    assert "inside.example:1234" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--lissen", "x"], "--listen"),
        (["--listen", "host:port"], "is not an address"),
        (["--listen", "A=127.0.0.1:0", "--listen", "A=127.0.0.1:0"], "two listeners named A"),
        (["--advertise", "B=h:1"], "there is no listener B, only PLAINTEXT"),
        (["--memory", "--data", "d"], "choose one"),
        (["--set", "num.partitionss=3"], "did you mean 'num.partitions'"),
        (["--set", "num.partitions=many"], "num.partitions must be a whole number"),
        (["--set", "node.id=-1"], "node.id must be from 0 to 2,147,483,647, not -1"),
        (["--set", "semel.lease.ms=10"], "semel.lease.ms must be from 500 to 60,000, not 10"),
        (["--internal", "127.0.0.1:0"], "for the other brokers of a cluster"),
        (["--set", "num.partitions"], "NAME=VALUE"),
        (["--config", "no-such.toml"], "cannot be read"),
        (["--metrics", "nowhere:x"], "nowhere"),
        (["--log-level", "loud"], "loud"),
    ],
)
def test_wrong_options_are_refused_by_name(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2, result.output
    assert sentence in result.output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lissen = '127.0.0.1:0'", "did you mean 'listen'"),
        ("num.partitions = 3", "belong under [settings]"),
        ("log-level = 'loud'", "one of debug, info, warning, error"),
        ("[settings]\nnum.partitionss = 3", "did you mean 'num.partitions'"),
        ("listen = ", "is not TOML"),
        ("data = " + "[" * 3_000, "is not TOML"),
        ("data = 7", "must be a directory, not 7"),
        ("settings = 3", "must be a table, not 3"),
        ("listen = [1]", "or a list of them"),
    ],
)
def test_wrong_names_in_the_file(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["serve", "--config", str(path)])
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.output.split())


def test_the_help_is_quick() -> None:
    """A command line is judged by this, so nothing heavy may be imported for it."""
    program = "import sys; from semel.cli import main; print([n for n in sys.modules if n in {heavy!r}])"
    heavy = {"semel.wire", "semel.server", "semel.client", "rich.table", "asyncio", "apsw", "cramjam"}
    ran = subprocess.run(
        [sys.executable, "-c", program.format(heavy=heavy)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env=dict(os.environ),
    )
    assert ran.stdout.strip() == "[]"
