"""``make profile``: a flame graph of the broker under each workload, as a start for optimisation.

    python -m bench.profile --only transactions bulk --native

For each workload, py-spy samples a separate Semel that repeats the work of the quick size for a while. At a
start it samples from the first moment, and for the pipeline it samples all its Python processes. The pictures
are results/profiles/NAME.svg; see docs/profiles.md.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from bench.environment import environment
from bench.results import Results
from bench.side_by_side.catalogue import WORKLOADS
from bench.side_by_side.measuring import QUICK, measure
from bench.side_by_side.pipeline import Pipeline
from bench.side_by_side.starting import Starting
from bench.subjects import KAFKA_VERSION, READY, ROOT, Semel, running, serve

PROFILES = ROOT / "results" / "profiles"
PY_SPY = str(Path(sys.executable).parent / "py-spy")
PER_SECOND = 200
PER_SECOND_OF_A_START = 1000
"""Higher, because a start is short."""
NAMES = [each.name for each in WORKLOADS]


@contextmanager
def looked_at(pid: int, picture: Path, options: Sequence[str]) -> Iterator[None]:
    """Sample a process with py-spy until the end of the block."""
    command = [PY_SPY, "record", "--pid", str(pid), "--output", str(picture)]
    command += ["--rate", str(PER_SECOND), "--nonblocking", *options]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield
    finally:
        if watcher.poll() is None:
            watcher.send_signal(signal.SIGINT)
        said, _ = watcher.communicate(timeout=120)
        _check(picture, said)


def _check(picture: Path, said: str) -> None:
    if not picture.exists():
        raise SystemExit(f"py-spy made no picture. It has to be allowed to look at processes:\n{said}")


def profile(name: str, seconds: float, options: Sequence[str]) -> Path:
    """Return the picture of one workload."""
    PROFILES.mkdir(parents=True, exist_ok=True)
    picture = PROFILES / f"{name}.svg"
    picture.unlink(missing_ok=True)
    if name == Starting.name:
        start(picture, options)
    else:
        work(name, picture, seconds, options)
    return picture


def start(picture: Path, options: Sequence[str]) -> None:
    """Sample an empty broker, from its first import until it is ready."""
    looking = [PY_SPY, "record", "--output", str(picture), "--rate", str(PER_SECOND_OF_A_START)]
    looking += ["--nonblocking", *options]
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=ROOT) as directory:
        watcher = subprocess.Popen(
            [*looking, "--", *serve(Path(directory) / "data")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert watcher.stdout is not None
        said = []
        for line in watcher.stdout:
            said.append(line)
            if line.startswith(READY):
                for each in psutil.Process(watcher.pid).children():
                    each.kill()
        watcher.wait(timeout=120)
    _check(picture, "".join(said))


def work(name: str, picture: Path, seconds: float, options: Sequence[str]) -> None:
    """Sample a workload that runs for at least this long."""
    make = next(each for each in WORKLOADS if each.name == name)
    results = Results(QUICK.name, environment(KAFKA_VERSION))
    with ExitStack() as stack:
        subject = stack.enter_context(running(Semel))
        if make is Pipeline:
            # Sources and sinks run in processes that Spark starts. They and the broker are descendants of
            # this process.
            stack.enter_context(looked_at(os.getpid(), picture, ["--subprocesses", *options]))
        else:
            stack.enter_context(looked_at(subject.pid, picture, options))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            measure(make(), [subject], QUICK, results)
    if results.failed:
        raise SystemExit(f"{results.failed[0].what}: {results.failed[0].why}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make profile")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each workload, at least")
    parser.add_argument("--native", action="store_true", help="show what compiled code does, too")
    options = parser.parse_args()
    for name in options.only:
        print(f"{profile(name, options.seconds, ['--native'] if options.native else [])}", flush=True)


if __name__ == "__main__":
    main()
