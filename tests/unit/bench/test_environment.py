"""What is written down about the machine."""

from pathlib import Path

from bench.environment import environment, flush_seconds


def test_everything_about_a_run_is_said() -> None:
    found = environment("4.3.1")
    assert all(found.values())
    assert {"commit", "date", "processor", "compiled codec", "flush of 4 KiB", "load before"} <= set(found)


def test_a_flush_takes_time_and_leaves_nothing(tmp_path: Path) -> None:
    assert flush_seconds(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
