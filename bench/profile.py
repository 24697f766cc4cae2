"""``make profile``: a flame graph of the broker under each workload, so that one starts from what is slow.

    python -m bench.profile --only transactions bulk --native

A Semel of its own for each workload does what the quick size does, again and again for a while, and py-spy
looks at it. The pictures are results/profiles/NAME.svg; see docs/profiles.md.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.environment import environment
from bench.results import Results
from bench.side_by_side.catalogue import WORKLOADS
from bench.side_by_side.measuring import QUICK, measure
from bench.side_by_side.starting import Starting
from bench.subjects import KAFKA_VERSION, ROOT, Semel, running

PROFILES = ROOT / "results" / "profiles"
PER_SECOND = 200
#: A start is over before anything can look at it, and it uses processes of its own.
NAMES = [each.name for each in WORKLOADS if each is not Starting]


@contextmanager
def looked_at(pid: int, picture: Path, options: Sequence[str]) -> Iterator[None]:
    """py-spy looks at a process, from here to the end of the block."""
    command = [str(Path(sys.executable).parent / "py-spy"), "record", "--pid", str(pid)]
    command += ["--output", str(picture), "--rate", str(PER_SECOND), "--nonblocking", *options]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield
    finally:
        if watcher.poll() is None:
            watcher.send_signal(signal.SIGINT)
        said, _ = watcher.communicate(timeout=120)
        if not picture.exists():
            raise SystemExit(f"py-spy made no picture. It has to be allowed to look at processes:\n{said}")


def profile(name: str, seconds: float, options: Sequence[str]) -> Path:
    """The picture of one workload, which goes on for at least so long."""
    make = next(each for each in WORKLOADS if each.name == name)
    PROFILES.mkdir(parents=True, exist_ok=True)
    picture = PROFILES / f"{name}.svg"
    picture.unlink(missing_ok=True)
    results = Results(QUICK.name, environment(KAFKA_VERSION))
    with running(Semel) as subject, looked_at(subject.pid, picture, options):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            measure(make(), [subject], QUICK, results)
    if results.failed:
        raise SystemExit(f"{results.failed[0].what}: {results.failed[0].why}")
    return picture


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
