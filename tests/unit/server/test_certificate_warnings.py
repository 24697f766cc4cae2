"""Certificates that clients refuse, and keys that others can read: told at the start and when read again."""

import asyncio
import logging
import os
from pathlib import Path

import pytest
from support.brokers.serving import serving
from support.certificates import make_certificate, needs_openssl, signed_again

from semel.config import Settings
from semel.server.tls import ServerTls

pytestmark = needs_openssl

EXPIRED = "the certificate has expired"
OPEN = "other users may read or change the private key"


def told(caplog: pytest.LogCaptureFixture) -> set[str]:
    warned = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    return {sentence for sentence in (EXPIRED, OPEN) if any(sentence in each for each in warned)}


def test_at_the_start_and_when_they_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = make_certificate(tmp_path, "served")
    signed_again(served, days=-1)
    tls = ServerTls(
        Settings(ssl_certificate_location=str(served.certificate), ssl_key_location=str(served.key))
    )

    async def main() -> None:
        async with serving(tls=tls):
            assert told(caplog) == {EXPIRED}
            caplog.clear()
            tls.look()
            assert told(caplog) == set(), "nothing has changed"
            signed_again(served, days=2)
            served.key.chmod(0o644)
            os.utime(served.key, (0, 0))
            tls.look()
            assert told(caplog) == {OPEN}
            caplog.clear()
            served.key.chmod(0o600)
            os.utime(served.key, (1, 1))
            tls.look()
            assert "certificates were read again" in caplog.messages
            assert told(caplog) == set()

    with caplog.at_level(logging.INFO, "semel.server"):
        asyncio.run(main())


def test_a_key_in_the_file_of_the_certificate_is_looked_at_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = make_certificate(tmp_path, "served")
    both = tmp_path / "both.pem"
    both.write_text(served.key.read_text() + served.certificate.read_text())
    both.chmod(0o644)
    ServerTls(Settings(ssl_certificate_location=str(both))).warn()
    assert told(caplog) == {OPEN}
