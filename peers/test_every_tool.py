"""Every tool in Kafka's bin directory that applies to Semel prints the same on Semel as on Apache Kafka.

The steps of `peers/tool_steps.py` are run on both in order. Ids, addresses and times differ, and count as the
same; so does the order of lines, because tools print in the order of hash tables. Steps with known
differences are in `NOT_ADVERTISED`, with the reason, and each of them must differ.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from support.waiting import until

from peers.brokers import COMMON, run_kafka, run_semel
from peers.programs import CannotBuild, Program
from peers.tool_steps import CLUSTER, NUMBERED, PACKAGE, STEPS, VERIFIABLE_PRODUCER, Step
from peers.tools import Printed, ToolRunner, build_runner

PATIENCE_SECONDS: Final = 4.0
SAME: Final = {"offsets.topic.num.partitions": "4"}
BOOTSTRAP: Final = "--bootstrap-server"
ALONE: Final = (VERIFIABLE_PRODUCER,)
VARIABLE: Final = (
    (r"TopicId: \S+", "TopicId: ID"),
    (r"Cluster ID: \S+", "Cluster ID: ID"),
    (r"ClusterId: +\S+", "ClusterId: ID"),
    (r"console-consumer-[0-9a-f-]+", "MEMBER"),
    (r"\b[\w.-]*-?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "MEMBER"),
    (r"\"timestamp\":\d+", '"timestamp":TIME'),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,:]\d{3}(Z|\+0000)?", "TIME"),
    (r"\[TIME\] (WARN|INFO) .*", ""),
    (r"\[TIME\] ERROR ([\w.]+).*", r"\1"),
    (r"127\.0\.0\.1\s+\d+", "HOST PORT"),
    # Error texts are each broker's own; the type of an error is the same.
    (r"(errors\.\w+Exception)\b.*", r"\1"),
    (r"(Error while executing (topic|client metrics) command :).*", r"\1"),
    (r"(Could not (up|down)grade \S+ to \d+\.).*", r"\1"),
    # A topic's config falls back to a broker's config, which has another name in Apache Kafka.
    (r"synonyms=\{.*\}", ""),
    (r"^\s*semel\..*", ""),
    (r"\"avg_throughput\":[\d.]+", ""),
    (r"\"log_dirs\":\[\"/[^\]]*\]", '"log_dirs":DIRECTORIES'),
    (r"^Feature: (?!(group|metadata|transaction)\.version).*", ""),
    (r"\"logDir\":\"[^\"]*\"", '"logDir":"DIRECTORY"'),
    (r"Epoch: \d+", "Epoch: N"),
    # Apache Kafka sets it for all topics when a cluster is formatted with eligible leader replicas.
    (r"\bmin\.insync\.replicas=1,?", ""),
)
NOISE: Final = re.compile(
    r"^(Topic: )?__|^\s*at |^SLF4J|^\s*$|^\d\d:\d\d:\d\d|^Caused by|^\s*\.\.\. \d+ more|^TIME"
)

NOT_ADVERTISED: Final = {
    # These steps set min.insync.replicas for every topic.
    "kafka-topics": ("eligible leader replicas", "describe overrides"),
    "kafka-metadata-quorum": ("a quorum of controllers", "status", "replication"),
    "kafka-configs": ("eligible leader replicas", "describe all brokers"),
    "kafka-delegation-tokens": ("authentication by which one could ask for tokens", "describe"),
    "kafka-streams-groups": ("streams groups", "describe nobody"),
    "kafka-share-groups": (
        "a start offset that passes settled records only with the next acknowledgement",
        "describe",
        "describe verbosely",
        "describe all",
    ),
}
"""By tool: the feature that Semel lacks, and the steps that need it."""
OTHERWISE: Final = {(tool, step) for tool, (_, *names) in NOT_ADVERTISED.items() for step in names}


class Side(NamedTuple):
    """A broker, the program that runs tools for it, and the files that the tools read."""

    runner: ToolRunner
    folder: Path
    class_path: str

    def take(self, step: Step, is_numbered: bool) -> list[str]:
        words = [word.format(folder=self.folder) for word in step.words]
        # kafka-cluster has a command, and takes the address after it.
        where = 1 if step.tool == CLUSTER else 0
        words[where:where] = [BOOTSTRAP, self.runner.address]
        run = self._run_alone if step.tool in ALONE else self.runner.run
        code, text = run(step.tool, words, step.typed)
        return [f"exit {code}", *sorted(_plain(text, is_numbered))]

    def _run_alone(self, tool: str, words: list[str], typed: str) -> Printed:
        """Run in a separate process, for tools that print the rest when the process exits."""
        command = ["java", "-cp", self.class_path, tool, *words]
        done = subprocess.run(command, input=typed, capture_output=True, text=True, check=False, timeout=60)
        return Printed(done.returncode, done.stdout.replace(self.runner.address, "ADDRESS"))


def _plain(text: str, is_numbered: bool) -> Iterator[str]:
    """Yield the lines without what differs between brokers."""
    for line in text.splitlines():
        for pattern, instead in VARIABLE:
            line = re.sub(pattern, instead, line)
        if is_numbered:
            line = re.sub(r"\d+([.,]\d+)*", "N", line)
        if not NOISE.match(line):
            yield " ".join(line.split())


@pytest.fixture(scope="module")
def sides(kafka_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Side]]:
    """Semel and Apache Kafka, with the same settings and ids."""
    folder = tmp_path_factory.mktemp("tools")
    try:
        command = build_runner(kafka_jars)
    except CannotBuild as error:
        pytest.skip(f"Kafka's tools: {error}")
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(run_semel(folder, **SAME)),
            stack.enter_context(
                run_kafka(kafka_jars, folder / "kafka", None, **COMMON, **SAME, **{"node.id": "0"})
            ),
        ]
        found = []
        for broker in brokers:
            files = folder / f"{broker.name}-files"
            files.mkdir()
            _write_files(files)
            program = stack.enter_context(Program(command, folder / f"{broker.name}-tools.log"))
            found.append(Side(ToolRunner(program, broker.bootstrap), files, kafka_jars))
        yield found


def _write_files(folder: Path) -> None:
    parts = [{"topic": "shown", "partition": number, "offset": 1} for number in range(2)]
    (folder / "delete.json").write_text(json.dumps({"version": 1, "partitions": parts}))
    (folder / "topics.json").write_text(json.dumps({"version": 1, "topics": [{"topic": "assigned"}]}))
    (folder / "empty.properties").touch()
    for name, replica in (("reassign", 0), ("elsewhere", 9)):
        moves = [{"topic": "assigned", "partition": 0, "replicas": [replica], "log_dirs": ["any"]}]
        (folder / f"{name}.json").write_text(json.dumps({"version": 1, "partitions": moves}))


def differ(sides: list[Side], tool: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return the steps in which the two print different things, and what only one of them prints."""
    found = {}
    for name, step in STEPS[tool].items():
        semel, kafka = (side.take(step, tool in NUMBERED) for side in sides)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while semel != kafka and step.reads and time.monotonic() < deadline and (tool, name) not in OTHERWISE:
            time.sleep(0.2)
            kafka = sides[1].take(step, tool in NUMBERED)
        if semel != kafka:
            found[name] = (
                [each for each in semel if each not in kafka],
                [each for each in kafka if each not in semel],
            )
    return found


def _told(name: str, semel: list[str], kafka: list[str]) -> str:
    lines = [f"  only Semel: {each}" for each in semel] + [f"  only Apache Kafka: {each}" for each in kafka]
    return "\n".join([f"{name}:", *lines])


@pytest.mark.parametrize("tool", STEPS)
def test_a_tool_prints_the_same(sides: list[Side], tool: str) -> None:
    found = differ(sides, tool)
    known = {name for of, name in OTHERWISE if of == tool}
    new = [_told(name, *each) for name, each in found.items() if name not in known]
    assert not new, "\n".join(new)
    assert known - set(found) == set(), "these print the same now: remove them from NOT_ADVERTISED"


def test_broker_api_versions(sides: list[Side]) -> None:
    """Except for its own APIs, Semel has only APIs of Apache Kafka, in the same versions."""
    semel, kafka = (
        _apis(side.runner.run(f"{PACKAGE}.BrokerApiVersionsCommand", [BOOTSTRAP, side.runner.address]).text)
        for side in sides
    )
    assert semel
    own = {
        name for name, versions in semel.items() if name.startswith("UNKNOWN") or versions == "UNSUPPORTED"
    }
    assert {name: versions for name, versions in semel.items() if name not in own} == {
        name: kafka[name] for name in semel if name not in own
    }


def _apis(text: str) -> dict[str, str]:
    """Return the versions of each API, without the version that the client would use."""
    return dict(re.findall(r"^\s+(\w+\(\d+\)): (.*?)(?: \[usable.*)?,?$", text, re.MULTILINE))


def test_replica_verification(sides: list[Side], kafka_jars: str) -> None:
    """The tool runs until it is killed, and prints the lag of replicas."""
    tool, topics = f"{PACKAGE}.ReplicaVerificationTool", ("--topics-include", "shown|assigned")
    said = []
    for side in sides:
        command = ["java", "-cp", kafka_jars, tool, "--broker-list", side.runner.address, *topics]
        with (side.folder / "replicas.txt").open("w+") as output:
            process = subprocess.Popen(
                [*command, "--report-interval-ms", "500"], stdout=output, stderr=output
            )
            try:
                until(
                    lambda path=side.folder / "replicas.txt": "max lag is" in path.read_text(),  # type: ignore[misc]  # a default: mypy infers no such lambda
                    60,
                    "a report",
                )
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            lines = [line.partition(": ")[2] for line in output.read().splitlines() if "max lag is" in line]
            said.append(re.sub(r"partition \S+ at offset \d+", "a partition", lines[0]))
    assert said[0] == said[1]
