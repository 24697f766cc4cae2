"""Where and with what a run was made: figures are meaningful only with it."""

import os
import platform
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import confluent_kafka
import psutil

from semel.wire.columns import IS_COMPILED

ROOT = Path(__file__).parents[1]
FLUSHES = 200


def environment(kafka_version: str) -> dict[str, str]:
    """Return what a reader needs to judge a figure, or to measure it again."""
    return {
        "commit": _commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:,.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system": _file_system(ROOT),
        "flush of 4 KiB": f"{flush_seconds(ROOT) * 1e3:.2f} ms",
        "python": platform.python_version(),
        "compiled codec": "yes" if IS_COMPILED else "no",
        "java": _java(),
        "librdkafka": confluent_kafka.libversion()[0],
        "apache kafka": kafka_version,
        "pyspark": _version("pyspark"),
        "load before": load(),
    }


def load() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def flush_seconds(directory: Path) -> float:
    """Return the median time to append 4 KiB to a file and flush it, on the file system of the data."""
    took: list[float] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(FLUSHES):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def _processor() -> str:
    """Return the processor's model, where the system reports it."""
    try:
        said = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        said = ""
    models = [line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _commit() -> str:
    """Return the commit; with a plus sign if there are uncommitted changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    except FileNotFoundError:
        return "none"
    return said.splitlines()[0] if said else "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _file_system(path: Path) -> str:
    """Return the type of file system for a path: that of the longest mount point that contains it."""
    mounts = [each for each in psutil.disk_partitions(all=True) if path.is_relative_to(each.mountpoint)]
    return max(mounts, key=lambda each: len(each.mountpoint)).fstype if mounts else "unknown"
