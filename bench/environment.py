"""Where and with what a run was made: figures belong to it."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import confluent_kafka
import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]


def environment(kafka_version: str) -> dict[str, str]:
    """What a reader has to know to believe a figure, or to take it again."""
    return {
        "commit": _commit(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:,.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system": _file_system(ROOT),
        "python": platform.python_version(),
        "java": _java(),
        "librdkafka": confluent_kafka.libversion()[0],
        "apache kafka": kafka_version,
        "pyspark": _version("pyspark"),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


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
