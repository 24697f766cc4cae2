"""Where and with what a run was made: figures belong to it."""

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
    """What a reader has to know to believe a figure, or to take it again."""
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
    """Of the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def flush_seconds(directory: Path) -> float:
    """The median of appends of 4 KiB to a file that are flushed, one after the other, where data goes."""
    took: list[float] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(FLUSHES):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def _processor() -> str:
    """Its model, where the system tells it."""
    try:
        said = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        said = ""
    models = [line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _commit() -> str:
    """The commit; with a sign if something is changed that is not committed."""
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
    """The kind of file system that data is written to: the longest mount point that the path begins with."""
    mounts = [each for each in psutil.disk_partitions(all=True) if path.is_relative_to(each.mountpoint)]
    return max(mounts, key=lambda each: len(each.mountpoint)).fstype if mounts else "unknown"
