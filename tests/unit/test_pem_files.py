"""Files with certificates and keys: their dates, their modes, and files that are not there."""

import ssl
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.certificates import Certificate, make_certificate, needs_openssl, signed_again

from semel.pem_files import Validity, check_file, file_risks, validities

DAY = 86_400


@pytest.fixture
def made(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path, "broker")


def sentences(made: Certificate, now: float | None = None) -> list[str]:
    found = file_risks(str(made.certificate), str(made.key), time.time() if now is None else now)
    return [sentence for sentence, _ in found]


@needs_openssl
@pytest.mark.parametrize("days", [2, -1, 20_000, 400_000], ids=lambda days: f"{days} days")
def test_dates_are_those_that_openssl_shows(made: Certificate, days: int) -> None:
    """From 2050 on they are written with four digits for the year (RFC 5280, section 4.1.2.5)."""
    signed_again(made, days=days)
    command = ["openssl", "x509", "-in", str(made.certificate), "-noout", "-dates"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    begins, ends = (ssl.cert_time_to_seconds(line.partition("=")[2]) for line in shown)
    expected = Validity(datetime.fromtimestamp(begins, UTC), datetime.fromtimestamp(ends, UTC))
    assert validities(made.certificate.read_text()) == [expected]


@needs_openssl
def test_a_certificate_is_valid_from_its_beginning_to_its_end(made: Certificate) -> None:
    now = time.time()
    assert sentences(made) == []
    assert "the certificate has expired" in sentences(made, now + 3 * DAY)[0]
    assert "the certificate is not valid yet" in sentences(made, now - DAY)[0]


@needs_openssl
def test_every_certificate_of_a_chain_is_checked(made: Certificate, tmp_path: Path) -> None:
    issuer = make_certificate(tmp_path, "issuer")
    signed_again(issuer, days=-1)
    made.certificate.write_text(
        f"{made.certificate.read_text()}Of the issuer:\n{issuer.certificate.read_text()}"
    )
    ((sentence, fields),) = file_risks(str(made.certificate), str(made.key), time.time())
    assert "a certificate of the chain has expired" in sentence
    assert fields["number"] == 2


@needs_openssl
@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_key_is_for_its_owner_alone(made: Certificate, mode: int, is_told: bool) -> None:
    made.key.chmod(mode)
    assert len(sentences(made)) == is_told
    for sentence, fields in file_risks(str(made.certificate), str(made.key), time.time()):
        assert "the private key" in sentence
        assert fields == {"file": str(made.key), "mode": f"{mode:04o}"}


@needs_openssl
def test_files_that_were_replaced_meanwhile_are_not_told_about(made: Certificate) -> None:
    whole = made.certificate.read_text()
    for text in ("", "nonsense", whole[:400] + whole[-40:]):
        made.certificate.write_text(text)
        assert sentences(made) == []
    made.certificate.unlink()
    assert sentences(made) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ssl\.key\.location /nowhere/x"):
        check_file("ssl.key.location", "/nowhere/x")
    with pytest.raises(ValueError, match=r"ssl\.key\.location .*Is a directory"):
        check_file("ssl.key.location", str(tmp_path))
    with pytest.raises(ValueError, match=r"ssl\.key\.location .*null"):
        check_file("ssl.key.location", "/x\0")
