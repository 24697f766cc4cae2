"""Runs commands of `semel` that need more than a client: comparing a pipeline, checking a directory.

A command runs in its own process, as the user of the console's process. So it is offered only if the console
requires no login: then only users of this machine can reach it.
"""

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import IO, Any

from semel.client import Client

LINES_MAX = 1000
LINE_MAX = 4000
OUTPUT_MAX = 1 << 20
STOP_SECONDS = 5.0


def run_command(
    client: Client,
    stop: threading.Event,
    arguments: Sequence[str],
    settings: Mapping[str, str],
    seconds: float,
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Run `semel ARGUMENTS --json`; report its lines as they come, then its result."""
    started = time.monotonic()
    with _settings_file(settings) as options, _running([*options, *arguments, "--json"]) as process:
        lines: queue.Queue[str] = queue.Queue(LINES_MAX)
        output: list[str] = []
        readers = [
            threading.Thread(target=_read_lines, args=(process.stderr, lines), daemon=True),
            threading.Thread(target=_read_all, args=(process.stdout, output), daemon=True),
        ]
        for each in readers:
            each.start()
        while process.poll() is None or not lines.empty():
            elapsed = time.monotonic() - started
            if stop.is_set():
                return
            if elapsed > seconds:
                yield "result", {"good": False, "text": f"Stopped after {elapsed:.0f} seconds."}
                return
            try:
                yield "progress", {"at": lines.get(timeout=0.5)}
            except queue.Empty:
                yield "progress", {"elapsed_seconds": round(elapsed)}
        for each in readers:
            each.join(STOP_SECONDS)
        yield "result", _result(process.returncode, "".join(output))


def _result(code: int, output: str) -> dict[str, Any]:
    try:
        details = json.loads(output)
    except ValueError:
        details = None
    text = "Everything is as it should be." if code == 0 else "Something is wrong; see the details."
    return {"good": code == 0, "text": text, "details": details if details is not None else output[:LINE_MAX]}


def _read_lines(stream: IO[str], lines: "queue.Queue[str]") -> None:
    for line in stream:
        with contextlib.suppress(queue.Full):  # Drop lines that come faster than they are read.
            lines.put_nowait(line[:LINE_MAX].rstrip("\n"))


def _read_all(stream: IO[str], output: list[str]) -> None:
    output.append(stream.read(OUTPUT_MAX))
    while stream.read(OUTPUT_MAX):
        pass  # Drain the pipe, so that the process does not block.


@contextlib.contextmanager
def _settings_file(settings: Mapping[str, str]) -> Iterator[list[str]]:
    """Write security settings to a file that only this user can read: all users can see a command line."""
    if not settings:
        yield []
        return
    with tempfile.NamedTemporaryFile("w", prefix="semel-console-", suffix=".properties") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
        file.flush()
        yield ["--command-config", file.name]


@contextlib.contextmanager
def _running(arguments: Sequence[str]) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
