"""The files in deploy/: valid for the tools that read them, with options that `semel serve` knows."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.programs import missing, needs

from semel.cli.main import app
from semel.server.run import (
    CLOSE_SECONDS,
    EXIT_CANNOT_LISTEN,
    EXIT_DAMAGED,
    EXIT_MISCONFIGURED,
    GRACE_SECONDS,
)

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/semel@.service"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))

yaml = pytest.importorskip("yaml", reason=missing("pyyaml"))


def documents(*paths: Path) -> list[dict[str, Any]]:
    return [each for path in paths for each in yaml.safe_load_all(path.read_text())]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What `semel` makes of these arguments."""
    name, *options = arguments
    assert name == "serve"
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, options) as context:
        given: dict[str, Any] = context.params
    return given


def brokers() -> Iterator[tuple[str, dict[str, Any]]]:
    services = documents(DEPLOY / "compose.yaml")[0]["services"]
    for name, service in services.items():
        if name.startswith("broker-"):
            yield name, service


def stateful_set() -> dict[str, Any]:
    (found,) = (each for each in documents(*KUBERNETES) if each["kind"] == "StatefulSet")
    return found


def unit_file() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(UNIT)
    return unit


def test_brokers_of_the_compose_file_differ_and_are_reachable() -> None:
    options = {name: parsed(shlex.split(service["command"])) for name, service in brokers()}
    assert len(options) == 3
    for number, (name, given) in enumerate(options.items()):
        assert list(given["setting"]) == [f"node.id={number}"]
        assert f"internal={name}:9093" in given["advertise"]
        inside, outside = (
            [each for each in given["advertise"] if each.startswith(listener)]
            for listener in ("NETWORK=", "HOST=")
        )
        assert inside == [f"NETWORK={name}:29092"]
        (port,) = re.findall(r"localhost:(\d+)", outside[0])
        assert dict(brokers())[name]["ports"] == [f"{port}:{port}"]


def test_the_manifest_starts_brokers() -> None:
    pod = stateful_set()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    names = {each["name"] for each in container["env"]}
    text = " ".join(container["args"])
    assert set(re.findall(r"\$\((\w+)\)", text)) <= names
    given = parsed(re.sub(r"\$\(NODE_ID\)", "1", text).split())
    assert list(given["setting"]) == ["node.id=1"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert given["metrics"] == f"0.0.0.0:{ports['metrics']}"
    assert given["internal"] == f"0.0.0.0:{ports['internal']}"
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "metrics"}
    assert pod["terminationGracePeriodSeconds"] > GRACE_SECONDS + CLOSE_SECONDS


def test_brokers_that_end_are_started_again() -> None:
    """A broker that was replaced ends with code 70."""
    for _, service in brokers():
        assert service["restart"] in ("always", "unless-stopped")
    assert stateful_set()["spec"]["template"]["spec"].get("restartPolicy", "Always") == "Always"
    unit = unit_file()
    assert unit["Service"]["restart"] == "on-failure"
    assert unit["Unit"]["startlimitintervalsec"] == "0"
    given_up = {int(each) for each in unit["Service"]["restartpreventexitstatus"].split()}
    assert given_up == {2, EXIT_DAMAGED, EXIT_CANNOT_LISTEN, EXIT_MISCONFIGURED}
    assert int(unit["Service"]["timeoutstopsec"]) > GRACE_SECONDS + CLOSE_SECONDS


def test_the_unit_starts_a_broker() -> None:
    _, *words = unit_file()["Service"]["execstart"].replace("%i", "1").replace("%H", "host").split()
    given = parsed(words)
    assert list(given["setting"]) == ["node.id=1"]
    assert "internal=host:9093" in given["advertise"]


@needs("systemd-analyze", shutil.which("systemd-analyze"))
def test_systemd_understands_the_unit() -> None:
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", UNIT], capture_output=True, text=True, check=False
    )
    unknown = [
        line for line in checked.stderr.splitlines() if "semel@" in line and "ot executable" not in line
    ]
    assert unknown == []


def test_parts_of_the_manifest_name_each_other() -> None:
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents(*KUBERNETES)}
    pods = stateful_set()
    assert ("Service", pods["spec"]["serviceName"]) in found
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    (source,) = container["envFrom"]
    assert ("Secret", source["secretRef"]["name"]) in found
    labels = pods["spec"]["template"]["metadata"]["labels"]
    for (kind, _), each in found.items():
        if kind == "Service":
            assert each["spec"]["selector"] == labels
        elif kind == "PodDisruptionBudget":
            assert each["spec"]["selector"]["matchLabels"] == labels


def test_the_image_has_what_it_is_built_from() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    allowed = {
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    (default,) = re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)
    assert parsed([word.strip().strip('"') for word in default.split(",")])["memory"]


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_manifests_fit_the_schemas_of_kubernetes(path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason=missing("kubernetes-validate"))
    for each in documents(path):
        validator.validate(each, "1.28", strict=True)


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip(missing("hadolint"))
    ran = subprocess.run([program, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_docker_reads_the_compose_file() -> None:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip(missing("docker compose"))
    command = [docker, "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
