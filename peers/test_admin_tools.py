"""Kafka's tools for topics, configs, leaders, replicas and the cluster, on Semel and on Apache Kafka.

Both get the same steps, and the tools print the same, except where only one of them has a feature.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from peers.brokers import QUICK, run_kafka, run_semel
from peers.programs import CannotBuild, Program
from peers.tools import PACKAGE, ToolRunner, build_runner

NODE = "1"
PATIENCE_SECONDS = 5.0
TOPICS, ELECT, QUORUM, DIRECTORIES, CLUSTER, METRICS, TOKENS, GROUPS, OFFSETS, DELETE = (
    f"{PACKAGE}.{name}"
    for name in (
        *("TopicCommand", "LeaderElectionCommand", "MetadataQuorumCommand", "LogDirsCommand", "ClusterTool"),
        *("ClientMetricsCommand", "DelegationTokenCommand", "GroupsCommand", "GetOffsetShell"),
        "DeleteRecordsCommand",
    )
)
REASSIGN, CONSUMERS = (
    f"{PACKAGE}.reassign.ReassignPartitionsCommand",
    f"{PACKAGE}.consumer.group.ConsumerGroupCommand",
)
CONFIGS = "kafka.admin.ConfigCommand"
BROKER = ("--entity-type", "brokers", "--entity-name", NODE)
BROKERS = ("--entity-type", "brokers", "--entity-default")
GROUP = ("--entity-type", "groups", "--entity-name", "g")
SESSION = "consumer.session.timeout.ms"
LIMITS = "message.max.bytes=2000000,log.cleanup.policy=[delete,compact]"

FILES = {
    "elect": {"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}]},
    "topics": {"version": 1, "topics": [{"topic": "t"}]},
    "stay": {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]},
    "away": {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2]}]},
    "records": {"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 0}]},
}
STEPS: dict[str, tuple[str, ...]] = {
    "create a topic": (TOPICS, "--create", "--topic", "t", "--partitions", "2"),
    "add a partition": (TOPICS, "--alter", "--topic", "t", "--partitions", "3"),
    "partitions without a leader": (TOPICS, "--describe", "--unavailable-partitions"),
    "partitions without replicas": (TOPICS, "--describe", "--under-replicated-partitions"),
    "set configs of all brokers": (CONFIGS, "--alter", *BROKERS, "--add-config", LIMITS),
    "set a config of a broker": (CONFIGS, "--alter", *BROKER, "--add-config", "message.max.bytes=3000000"),
    "describe a broker": (CONFIGS, "--describe", *BROKER),
    "describe all brokers": (CONFIGS, "--describe", *BROKERS),
    "describe every broker": (CONFIGS, "--describe", "--entity-type", "brokers"),
    "describe a topic": (CONFIGS, "--describe", "--all", "--entity-type", "topics", "--entity-name", "t"),
    "a config that cannot change": (CONFIGS, "--alter", *BROKER, "--add-config", "node.id=7"),
    "a value that is wrong": (CONFIGS, "--alter", *BROKER, "--add-config", "message.max.bytes=much"),
    "delete a config of a broker": (CONFIGS, "--alter", *BROKER, "--delete-config", "message.max.bytes"),
    "delete configs of all brokers": (
        *(CONFIGS, "--alter", *BROKERS, "--delete-config", "message.max.bytes,log.cleanup.policy"),
    ),
    "delete a config that is not set": (CONFIGS, "--alter", *BROKER, "--delete-config", "message.max.bytes"),
    "what is left of all brokers": (CONFIGS, "--describe", *BROKERS),
    "set a config of a group": (CONFIGS, "--alter", *GROUP, "--add-config", f"{SESSION}=50000"),
    "describe a group": (CONFIGS, "--describe", *GROUP),
    "describe groups": (CONFIGS, "--describe", "--entity-type", "groups"),
    "a group beyond the bounds": (CONFIGS, "--alter", *GROUP, "--add-config", f"{SESSION}=70000"),
    "a config that no group has": (CONFIGS, "--alter", *GROUP, "--add-config", "nonsense=1"),
    "delete a config of a group": (CONFIGS, "--alter", *GROUP, "--delete-config", SESSION),
    "describe client metrics": (CONFIGS, "--describe", "--entity-type", "client-metrics"),
    "list client metrics": (METRICS, "--list"),
    "elect all": (ELECT, "--election-type", "preferred", "--all-topic-partitions"),
    "elect some": (ELECT, "--election-type", "preferred", "--path-to-json-file", "elect"),
    "elect one uncleanly": (ELECT, "--election-type", "unclean", "--topic", "t", "--partition", "0"),
    "elect nobody": (ELECT, "--election-type", "unclean", "--topic", "missing", "--partition", "0"),
    "plan a move": (REASSIGN, "--generate", "--topics-to-move-json-file", "topics", "--broker-list", NODE),
    "move to where it is": (REASSIGN, "--execute", "--reassignment-json-file", "stay"),
    "verify the move": (REASSIGN, "--verify", "--reassignment-json-file", "stay"),
    "cancel the move": (REASSIGN, "--cancel", "--reassignment-json-file", "stay"),
    "move to a broker that is not there": (REASSIGN, "--execute", "--reassignment-json-file", "away"),
    "list moves": (REASSIGN, "--list"),
    "directories": (DIRECTORIES, "--describe", "--topic-list", "t"),
    "unregister a broker that is not there": (CLUSTER, "unregister", "--id", "99"),
    "endpoints": (CLUSTER, "list-endpoints"),
    "groups": (GROUPS, "--list"),
    "consumer groups": (CONSUMERS, "--describe", "--all-groups"),
    "offsets": (OFFSETS, "--topic", "t"),
    "delete records": (DELETE, "--offset-json-file", "records"),
}
ALONE = {
    "a quorum": (
        (QUORUM, "describe", "--status"),
        "UnsupportedVersionException: There is no metadata quorum",
    ),
    "a broker that runs": ((CLUSTER, "unregister", "--id", NODE), "is running. Stop it"),
    "loggers": (
        (CONFIGS, "--describe", "--entity-type", "broker-loggers", "--entity-name", NODE),
        "InvalidRequestException: Resources of type 8 have no configs here",
    ),
}
"""Steps that Apache Kafka answers differently, with a part of Semel's error message."""
OWN = ("min.insync.replicas", "semel.", "remote.", "retention.ms", "segment.", "flush.ms")
"""Configs that only one of the brokers has, or whose defaults have other names."""


class Both(NamedTuple):
    folder: Path
    runners: Sequence[ToolRunner]

    def run(self, at: int, step: Sequence[str]) -> list[str]:
        """Return what a tool prints, without what is specific to a broker."""
        named = [str(self.folder / f"{word}.json") if word in FILES else word for word in step]
        lines = self.runners[at].lines(named)
        shown = (re.sub(r"/\S*/(semel|data)\b", "DIRECTORY", each) for each in lines)
        return [
            re.sub(r"\b\d{4,5}\b", "PORT", each) for each in shown if not any(word in each for word in OWN)
        ]


@pytest.fixture(scope="module")
def both(kafka_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("admin")
    for name, content in FILES.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    try:
        command = build_runner(kafka_jars)
    except CannotBuild as error:
        pytest.skip(f"Kafka's tools: {error}")
    same = {name: value for name, value in QUICK.items() if name.startswith("group.")}
    with ExitStack() as stack:
        for name in ("semel", "kafka"):
            (folder / name).mkdir()
        semel = stack.enter_context(run_semel(folder / "semel", **{"node.id": NODE}, **same))
        kafka = stack.enter_context(run_kafka(kafka_jars, folder / "kafka"))
        runners = [
            ToolRunner(stack.enter_context(Program(command, folder / f"{each.name}.log")), each.direct)
            for each in (semel, kafka)
        ]
        yield Both(folder, runners)


def test_the_tools_print_the_same(both: Both) -> None:
    different = {}
    for name, step in STEPS.items():
        expected, found = both.run(0, step), both.run(1, step)
        until = time.monotonic() + PATIENCE_SECONDS
        while found != expected and "--describe" in step and time.monotonic() < until:
            found = both.run(1, step)  # Apache Kafka may show a change some time after it was made
        if found != expected:
            different[name] = (expected, found)
    assert different == {}


@pytest.mark.parametrize("name", ALONE)
def test_what_is_true_of_semel_alone_is_said(both: Both, name: str) -> None:
    step, says = ALONE[name]
    code, text = both.runners[0].ask(step)
    assert code == 1
    assert says in text


def test_there_are_no_delegation_tokens(both: Both) -> None:
    config = both.folder / "empty.properties"
    config.write_text("")
    code, text = both.runners[0].ask((TOKENS, "--describe"), config)
    assert (code, "DelegationTokenDisabledException" in text) == (1, True)
