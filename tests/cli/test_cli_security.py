"""Brokers behind TLS from the command line: settings before the command, in a file or by -X."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.process import BrokerProcess
from support.certificates import Certificate, make_certificate, needs_openssl
from typer.testing import CliRunner

from semel.cli.main import app

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "broker")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[str]:
    settings = [f"ssl.certificate.location={certificate.certificate}", f"ssl.key.location={certificate.key}"]
    folder = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(folder / "data", *(text for each in settings for text in ("--set", each)))
    process.scheme = "ssl://"
    with process:
        yield process.bootstrap


def test_commands_reach_a_broker_behind_tls(
    cli: Callable[..., Any], secured: str, certificate: Certificate, tmp_path: Path
) -> None:
    protocol, trusted = "security.protocol=SSL", f"ssl.ca.location={certificate.certificate}"
    cli("-X", protocol, "-X", trusted, "topics", "create", "t", bootstrap=secured)
    file = tmp_path / "client.properties"
    file.write_text(f"# of the test\n\nsecurity.protocol = SSL\n{trusted}\n")
    listed = cli("--command-config", str(file), "topics", "list", "--json", bootstrap=secured)
    assert [each["topic"] for each in listed.json] == ["t"]
    assert "is not accepted" in cli("-X", protocol, "topics", "list", bootstrap=secured, code=1).err
    # What stood before one command is not there for the next.
    assert "closed the connection" in cli("topics", "list", bootstrap=secured, code=1).err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["security.protocl=SSL"], "did you mean"),
        (["security.protocol"], "is not NAME=VALUE"),
        (["security.protocol=SSL", "ssl.ca.location=/nowhere"], "ssl.ca.location /nowhere does not exist"),
    ],
)
def test_wrong_settings_are_wrong_usage(cli: Callable[..., Any], settings: list[str], message: str) -> None:
    ran = cli(*(text for each in settings for text in ("-X", each)), "topics", "list", code=2)
    assert message in " ".join(ran.err.split())


def test_a_file_that_is_wrong_is_told_without_its_text(cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\nhush-hush\n")
    ran = cli("--command-config", str(file), "topics", "list", code=2)
    assert "line 2 of" in ran.err
    assert "hush-hush" not in ran.err
    assert "cannot be read" in cli("--command-config", "/nowhere", "topics", "list", code=2).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "ssl://127.0.0.1:0"], "needs the setting ssl.certificate.location"),
        (["--listen", "sasl://127.0.0.1:0"], "sasl:// is not supported; use plaintext:// or ssl://"),
        (["--listen", "A=ssl://127.0.0.1:0", "--set", "ssl.certificate.location=/x"], "/x does not exist"),
        (
            ["--set", "ssl.client.auth=required", "--set", "ssl.ca.location=/x"],
            "ssl.client.auth=required needs a listener with ssl:// or sasl_ssl://",
        ),
        (
            ["--listen", "sasl_plaintext://127.0.0.1:0", "--set", "ssl.client.auth=requested"],
            "ssl.client.auth=requested needs a listener",
        ),
        (["--set", "sasl.enabled.mechanisms=SCRAM-SHA256"], "did you mean SCRAM-SHA-256?"),
    ],
)
def test_a_listener_that_cannot_be_is_wrong_usage(arguments: list[str], message: str) -> None:
    ran = CliRunner().invoke(app, ["serve", "--memory", *arguments])
    assert ran.exit_code == 2
    assert message in " ".join(ran.output.replace("│", " ").split())
