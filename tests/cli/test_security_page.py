"""docs/security.md, word for word: its commands are run, and print what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from support.brokers.process import BrokerProcess
from support.certificates import make_certificate, needs_openssl
from support.pages import blocks, sessions

from demo.security import PIPELINE, least_rights
from semel.client import Admin, Client, Security
from semel.client.net.security import NAMES
from semel.config import Settings
from semel.core.topic_configs import TOPIC_CONFIGS

PAGE = Path(__file__).parents[2] / "docs/security.md"
PASSWORDS = {"ADMIN_PASSWORD": "first", "BILLING_PASSWORD": "second"}


def shell(command: str, folder: Path, **environment: str) -> str:
    """What a command prints."""
    scripts = str(Path(sys.executable).parent)
    given = os.environ | PASSWORDS | {"PATH": f"{scripts}:{os.environ['PATH']}"} | environment
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).strip()


@needs_openssl
def test_the_page(tmp_path: Path) -> None:
    make_certificate(tmp_path, "broker")
    first, settings, users, rights = sessions(PAGE)
    for command, printed in first:
        assert shell(command, tmp_path) == printed
    (serve,) = (text for text in blocks(PAGE, "") if text.startswith("semel serve"))
    words = shlex.split(serve.replace("\\\n", " "))
    options = [word for at, word in enumerate(words) if "--set" in (word, words[at - 1])]
    process = BrokerProcess(tmp_path / "semel-data", *options)
    process.scheme = "sasl_ssl://"
    there = Path.cwd()
    os.chdir(tmp_path)
    try:
        process.start()
    finally:
        os.chdir(there)
    try:
        (_, file), (export, _) = settings
        assert export.startswith("export SEMEL_COMMAND_CONFIG=admin.properties SEMEL_BOOTSTRAP=")
        given = file.replace("=…", f"={PASSWORDS['ADMIN_PASSWORD']}")
        (tmp_path / "admin.properties").write_text(given)
        environment = {"SEMEL_COMMAND_CONFIG": "admin.properties", "SEMEL_BOOTSTRAP": process.bootstrap}
        for command, printed in users:
            assert shell(command, tmp_path, **environment) == printed
        for command, _ in rights:
            shell(command, tmp_path, **environment)
        given = given.replace("broker.pem", str(tmp_path / "broker.pem"))
        security = Security.of(dict(line.split("=", 1) for line in given.splitlines()))
        with Client(process.bootstrap, security=security) as client:
            found = Admin(client).acls.list(principal=f"User:{PIPELINE}")
        assert set(found) == {each for each in least_rights() if each.principal == f"User:{PIPELINE}"}
    finally:
        process.stop()


def test_links_lead_somewhere() -> None:
    text = PAGE.read_text()
    for target, anchor in re.findall(r"\]\((\w+\.md)(#[\w-]+)?\)", text):
        page = PAGE.with_name(target)
        assert page.exists()
        if anchor:
            titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in titles}
            assert anchor[1:] in anchors


def test_the_settings_that_it_names_exist() -> None:
    words = set(
        re.findall(r"`((?:semel|sasl|ssl|connections?|super|allow|max)\.[a-z.]+[a-z])", PAGE.read_text())
    )
    known = {*Settings.names(), *NAMES, *TOPIC_CONFIGS, "semel.audit", "semel.authorizer", "semel.client"}
    assert len(words) > 15
    assert words <= known
