"""Programs that use other clients: built once, run as one process per broker, one line per request."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
BUILD = HERE / "build"
"""Everything that is fetched or compiled; git ignores it, and it can be deleted."""


class CannotBuild(Exception):
    """A tool or a registry is missing; the message says which."""


class Program:
    """A running program: it reads a scenario from one line, and writes the result in one line."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def kill(self) -> None:
        """End the program; a caller that waits for its answer gets an error."""
        self._process.kill()

    def play(self, scenario: str, visibility: str, patience_seconds: float) -> None:
        """Run a scenario; fail with the program's error."""
        answer = self.ask(f"{scenario} {visibility} {patience_seconds}")
        assert answer == "ok", f"{answer}\n{self._log.read_text()[-4_000:]}"

    def ask(self, line: str) -> str:
        """Return the program's answer to one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, f"the program ended\n{self._log.read_text()[-4_000:]}"
        return answer


def fetch_kafka(version: str | None = None) -> str:
    """Return the class path of Apache Kafka's broker, clients and tools, from Maven's repository.

    The version is that of the pom by default.
    """
    if version is None:
        jars = fetch_jars(HERE / "pom.xml", BUILD / "jars")
    else:
        jars = fetch_jars(HERE / "pom.xml", BUILD / f"jars-{version}", f"-Dkafka.version={version}")
    needed("java")
    return f"{jars}/*"


def fetch_spark_connector() -> list[Path]:
    """Return the jars of Spark's own Kafka connector, from Maven's repository."""
    return sorted(fetch_jars(HERE / "spark" / "pom.xml", BUILD / "spark").glob("*.jar"))


def fetch_jars(pom: Path, jars: Path, *options: str) -> Path:
    """Return a directory with the jars that a pom names."""
    stamp = jars / ".fetched"
    if not _is_fresh(stamp, pom):
        shutil.rmtree(jars, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        run([needed("mvn"), "-q", "-B", "-f", str(pom), *options, *goal])
        stamp.touch()
    return jars


def build_java(
    class_path: str, source: Path = HERE / "java" / "Peer.java", classes: Path = BUILD / "classes"
) -> list[str]:
    """Return the command that runs a Java program, without its arguments."""
    if not _is_fresh(classes / f"{source.stem}.class", source):
        run([needed("javac"), "-cp", class_path, "-d", str(classes), str(source)])
    return [needed("java"), "-cp", f"{classes}:{class_path}", source.stem]


def build_go() -> list[str]:
    """Return the command that runs the Go program, without the address."""
    source, program = HERE / "go", BUILD / "franz"
    # Go writes checksums of what it fetches next to the list of modules, so the list is a copy.
    modules = BUILD / "franz.mod"
    BUILD.mkdir(exist_ok=True)
    shutil.copyfile(source / "go.mod", modules)
    run([needed("go"), "build", "-mod=mod", f"-modfile={modules}", "-o", str(program), "."], cwd=source)
    return [str(program)]


def needed(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise CannotBuild(f"{tool} is not installed")
    return path


def run(command: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-1_000:]
        raise CannotBuild(f"{Path(command[0]).name} failed: {said}")


def _is_fresh(made: Path, source: Path) -> bool:
    return made.exists() and made.stat().st_mtime >= source.stat().st_mtime
