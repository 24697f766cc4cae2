"""Our programs with other clients and frameworks: the Java client, franz-go, KafkaJS, Streams, Flink."""

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from peers.programs import Program, build_go, build_java, fetch_jars, needed, run
from suites.outcomes import FAILED, PASSED, REASON_MAX, Case, Report, Target, of_lines, run_within

HERE = Path(__file__).parent
BUILD = HERE / "build"
SCENARIOS = (
    "commit",
    "abort",
    "five-partitions",
    "back-to-back",
    "isolation",
    "fencing",
    "timeout",
    "pipeline-classic",
    "pipeline-consumer",
)
"""Scenarios of the programs of `make peers`, with marker visibility."""
PATIENCE_SECONDS = 20.0
"""How long a committed transaction may take to become visible. Kafka writes markers after it has answered."""
JAVA_MEMORY = "-Xmx1g"


def java_client(target: Target, seconds: float) -> Report:
    """Run the scenarios of `make peers` with the Java client."""
    command = build_java(target.class_path)
    return _play([*command, target.bootstrap], (*SCENARIOS, "zombie-member"), target, seconds)


def go_client(target: Target, seconds: float) -> Report:
    """Run the same scenarios with franz-go."""
    return _play([*build_go(), target.bootstrap], SCENARIOS, target, seconds)


def _play(command: Sequence[str], scenarios: Sequence[str], target: Target, seconds: float) -> Report:
    report = dict.fromkeys(scenarios, Case(FAILED, "its time was up"))
    with Program(command, target.directory / "program.log") as program:
        watch = threading.Timer(seconds, program.kill)
        watch.start()
        try:
            for name in scenarios:
                answer = program.ask(f"{name} marker {PATIENCE_SECONDS}")
                report[name] = Case(PASSED) if answer == "ok" else Case(FAILED, answer[:REASON_MAX])
        except (AssertionError, OSError) as error:
            report["the program runs to its end"] = Case(FAILED, str(error)[:REASON_MAX])
        finally:
            watch.cancel()
    return report


def kafkajs(target: Target, seconds: float) -> Report:
    """Run a program with KafkaJS, from its package on npm."""
    place = BUILD / "node"
    package = HERE / "node" / "package.json"
    if not (place / "node_modules" / "kafkajs").is_dir():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        shutil.copyfile(package, place / package.name)
        run([needed("npm"), "install", "--no-audit", "--no-fund", "--silent"], cwd=place)
    shutil.copyfile(HERE / "node" / "program.mjs", place / "program.mjs")
    return _report([needed("node"), "program.mjs", target.bootstrap], target, seconds, cwd=place)


def streams(target: Target, seconds: float) -> Report:
    """Run Kafka Streams with exactly_once_v2 and state."""
    command = build_java(target.class_path, HERE / "java" / "WordCount.java", BUILD / "classes")
    command.insert(1, JAVA_MEMORY)
    return _report([*command, target.bootstrap, str(target.directory / "streams")], target, seconds)


def flink(target: Target, seconds: float) -> Report:
    """Run Flink's exactly-once sink, with a job that fails once."""
    jars = fetch_jars(HERE / "flink" / "pom.xml", BUILD / "flink")
    command = build_java(f"{jars}/*", HERE / "java" / "FlinkSink.java", BUILD / "flink-classes")
    # Flink accesses fields of Java's own classes by reflection.
    opened = [
        f"--add-opens=java.base/java.{name}=ALL-UNNAMED"
        for name in ("util", "lang", "time", "util.concurrent")
    ]
    command[1:1] = [JAVA_MEMORY, *opened]
    return _report([*command, target.bootstrap], target, seconds)


def _report(command: Sequence[str], target: Target, seconds: float, cwd: Path | None = None) -> Report:
    ended = run_within(command, seconds, cwd)
    (target.directory / "program.log").write_text(ended.output)
    return of_lines(ended)
