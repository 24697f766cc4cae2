"""`semel console` and `semel serve --console`: starting, addresses, and what is refused."""

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.browser.console import Browsing
from support.waiting import until

import semel


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command until the test is over; returns its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_the_console_says_where_it_is_and_stops(broker: semel.Embedded) -> None:
    with started("console", "--bootstrap", broker.bootstrap_servers, "--listen", "127.0.0.1:0") as (
        process,
        line,
    ):
        address = line.removeprefix("The console is ready on ")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        assert Browsing(address).get("/topics.json").status == 200
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_a_broker_serves_a_console_beside_it() -> None:
    with started("serve", "--memory", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0") as (
        process,
        line,
    ):
        assert line.startswith("Semel is ready on ")
        assert process.stderr is not None
        said = next(text for text in process.stderr if "The console is ready on" in text)
        browsing = Browsing(said.split()[-1])
        assert browsing.post_json("/topics.json", {"name": "made"}).status == 200
        assert until(lambda: browsing.get("/topics.json").json["total"]) == 1
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_a_broker_goes_on_if_the_address_of_its_console_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with started("serve", "--memory", "--listen", "127.0.0.1:0", "--console", address) as (process, line):
            assert line.startswith("Semel is ready on ")
            assert process.stderr is not None
            assert "runs without it" in next(text for text in process.stderr if "cannot listen" in text)
            assert process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("console", "--listen", "0.0.0.0:8080"), "wants a login"),
        (("console", "--listen", "nowhere:x"), "not an address"),
        (("-X", "security.protocol=SASL_SSL", "console", "--login"), "sasl.mechanism must be one of"),
        (("serve", "--memory", "--console", "0.0.0.0:8080"), "wants a login"),
    ],
)
def test_what_would_be_open_to_strangers_is_refused(
    cli: Callable[..., Any], arguments: tuple[str, ...], said: str
) -> None:
    assert said in " ".join(cli(*arguments, code=2).err.replace("│", " ").split())


def test_a_taken_address_has_its_exit_code(cli: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in cli("console", "--listen", address, code=69).err


def test_without_its_packages_it_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['uvicorn'] = None; sys.argv = ['semel', 'console']; "
    program += "from semel.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "semel[console]" in done.stderr
