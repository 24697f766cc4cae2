"""Planted passwords, keys and tokens are in no log, error, metric, config, process list or printed value."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.process import free_port
from support.brokers.secured_broker import CLIENTS, MECHANISMS, PASSWORD, Denied, Secured, secured
from support.certificates import needs_openssl

from semel.client import Admin, AuthenticationFailed, Client, KafkaError, NewTopic, Security
from semel.client.admin.acls import Acl
from semel.core.security.policies import PutCredential
from semel.core.security.users import credential_of_password

pytestmark = needs_openssl

SECRETS = ["pl4nted-password", "pl4nted-guess", "pl4nted-config", PASSWORD]


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secrets")
    with secured(
        folder, options=("--metrics", f"127.0.0.1:{metrics_port}", "--log-level", "debug")
    ) as broker:
        yield broker


def processes() -> str:
    """The command lines and environments of all processes that can be seen, but for this one's."""
    texts = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            texts.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def test_nothing_secret_is_shown(broker: Secured, metrics_port: int, tmp_path: Path) -> None:
    user, password, guess, config = "carl", *SECRETS[:3]
    seen: list[str] = []
    with broker.admin() as admin:
        admin.topics.create(NewTopic("t", 1))
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            admin.users.put(user, password, mechanism=mechanism)
        admin.acls.add(Acl.of(f"User:{user}", "Write", topic="t"))
        with pytest.raises(KafkaError) as refused:
            admin.configs.alter_topic("t", values={"no.such.config": config})
        assert refused.value.code
        admin.configs.alter_topic("t", values={"retention.ms": "1000000"})
        seen += [repr(admin.users.list()), repr(admin.configs.of_broker(0))]
        node = broker.settings("SASL_SSL", "PLAIN", user, password)
        seen.append(repr(Security.of(node)))
        for mechanism in MECHANISMS:
            for write in CLIENTS.values():
                write(broker, "SASL_PLAINTEXT", mechanism, user, password, "t")
                if mechanism != "OAUTHBEARER":
                    with pytest.raises(Denied) as denied:
                        write(broker, "SASL_SSL", mechanism, user, guess, "t")
                    seen.append(str(denied.value))
        for given in (guess, password):
            security = Security.of(broker.settings("SASL_SSL", "PLAIN", user, given))
            with Client(broker.address("SASL_SSL"), security=security) as client:
                try:
                    Admin(client).topics.create(NewTopic("forbidden", 1))
                except (AuthenticationFailed, KafkaError) as error:
                    seen.append(repr(error))
                else:
                    raise AssertionError("it may not")
        admin.users.remove(user)
    seen += command_line(broker, tmp_path, password)
    seen.append(processes())
    seen.append(urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics").read().decode())
    credential = credential_of_password(user, "SCRAM-SHA-256", b"salt" * 8, 4_096, password)
    keys = [credential.stored_key.hex(), repr(credential.stored_key), repr(credential.server_key)]
    seen += [repr(credential), str(PutCredential(credential))]
    log = broker.process.log.read_text()
    assert "authentication failed" in log
    assert 'what="set SCRAM-SHA-256 of user carl"' in log
    assert "denied" in log
    token = broker.token(user).split(".")[2]
    for text in (log, *seen):
        for secret in (*SECRETS, *keys, token):
            assert secret not in text
    assert log.count("eyJ") == 0, "a token"


def command_line(broker: Secured, folder: Path, password: str) -> list[str]:
    """What the command line prints, also if it fails."""
    settings = folder / "client.properties"
    given = broker.settings("SASL_SSL", "SCRAM-SHA-256", "admin", PASSWORD)
    settings.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    wrong = folder / "wrong.properties"
    wrong.write_text(settings.read_text().replace("SCRAM-SHA-256", "SCRAM-SHA-257"))
    printed = []
    address = ("--bootstrap", broker.address("SASL_SSL"))
    for file, arguments in (
        (settings, ("users", "add", "dora", "--password-stdin", *address)),
        (settings, ("users", "add", "dora", "--password-stdin", "--json", *address)),
        (settings, ("users", "list", *address)),
        (wrong, ("users", "list", *address)),
        (settings, ("users", "add", "dora", "--password", password, *address)),
        (settings, ("users", "add", "", "--password-stdin", *address)),
    ):
        command = [sys.executable, "-m", "semel", "--command-config", str(file), *arguments]
        done = subprocess.run(command, input=f"{password}\n", text=True, capture_output=True, check=False)
        printed += [done.stdout, done.stderr]
    return printed
