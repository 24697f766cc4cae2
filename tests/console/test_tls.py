"""A console with HTTPS in front of a broker with TLS and users: secure cookies, and certificates that end."""

import http.client
import json
import socket
import ssl
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from support.brokers.secured_broker import ADMIN, PASSWORD, secured
from support.browser.console import is_closed
from support.certificates import make_certificate, needs_openssl

from semel.console import serving
from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings

pytestmark = needs_openssl


def test_a_login_over_https_is_secure_and_shows_when_certificates_end(tmp_path: Path) -> None:
    with secured(tmp_path / "broker") as broker:
        certificate = broker.certificate
        settings = ConsoleSettings(
            bootstrap=broker.address("SASL_SSL"),
            port=0,
            login=True,
            certificate=certificate.certificate,
            key=certificate.key,
            client={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "ssl.ca.location": str(certificate.certificate),
            },
        )
        with Beside(settings) as running:
            assert running.address.startswith("https://127.0.0.1:")
            context = ssl.create_default_context(cafile=str(certificate.certificate))
            connection = http.client.HTTPSConnection(
                urlsplit(running.address).netloc, context=context, timeout=30
            )
            headers = {"Origin": running.address, "Content-Type": "application/x-www-form-urlencoded"}
            fields = urlencode({"user": ADMIN, "password": PASSWORD})
            connection.request("POST", "/login", fields, headers)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 303
            cookie = reply.headers["Set-Cookie"]
            assert "secure" in cookie.lower()
            connection.request("GET", "/cluster.json", headers={"Cookie": cookie.partition(";")[0]})
            (shown,) = json.loads(connection.getresponse().read())["brokers"]
            assert shown["certificate_ends"] is not None
            assert shown["certificate_ends_soon"]  # It is made for two days.
            forged = headers | {"Origin": "http://" + urlsplit(running.address).netloc}
            connection.request("POST", "/login", fields, forged)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 403  # the same host without TLS is another origin
            connection.close()


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01"])
def test_a_connection_that_does_not_begin_tls_is_closed(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.3)
    made = make_certificate(tmp_path, "console")
    settings = ConsoleSettings(bootstrap=bootstrap, port=0, certificate=made.certificate, key=made.key)
    with Beside(settings) as running:
        port = urlsplit(running.address).port or 0
        with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
            raw.sendall(begun)
            assert is_closed(raw)
