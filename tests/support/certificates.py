"""Certificates for tests, made by openssl."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.programs import needs

needs_openssl = needs("openssl", shutil.which("openssl"))
PASSWORD = "opensesame"


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate and its key."""

    certificate: Path
    key: Path
    encrypted_key: Path


def make_certificate(folder: Path, name: str, *, host: str = "127.0.0.1") -> Certificate:
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.encrypted.key")
    about = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{host}", "-days", "2"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *about]
    _run([*new, "-keyout", str(made.key), "-out", str(made.certificate)])
    encrypt = ["openssl", "rsa", "-aes256", "-passout", f"pass:{PASSWORD}"]
    _run([*encrypt, "-in", str(made.key), "-out", str(made.encrypted_key)])
    return made


def signed_again(made: Certificate, *, days: int) -> None:
    """Sign the certificate again: it expires in this many days, or expired a day ago (-1)."""
    sign = ["openssl", "x509", "-in", str(made.certificate), "-signkey", str(made.key), "-days", str(days)]
    _run([*sign, "-out", str(made.certificate)])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
