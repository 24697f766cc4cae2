"""Which Python the environment is made of."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = f"python3.{sys.version_info.minor}"


def chosen(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "interpreter.py"],
        env=os.environ | {"PATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_what_was_called_is_taken_where_it_is_alone(tmp_path: Path) -> None:
    assert chosen(tmp_path) == sys.executable


def test_what_cannot_be_run_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"\x7fELF and nothing more")
    (tmp_path / NAME).chmod(0o755)
    assert chosen(tmp_path) == sys.executable


def test_what_cannot_make_an_environment_is_not_taken(tmp_path: Path) -> None:
    # Far faster than any Python, but it has no modules.
    (tmp_path / NAME).symlink_to("/bin/true")
    assert chosen(tmp_path) == sys.executable


def test_a_wrapper_is_not_taken_for_another_one(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / NAME).chmod(0o755)
    assert chosen(tmp_path) == sys.executable
