"""Checks certificate and key files: missing, expired, not yet valid, or accessible to other users.

OpenSSL uses an expired certificate, and a key file that every user can read, without a warning. Python's
`ssl` does not expose the dates of the local certificate, so they are read from its DER form (RFC 5280,
section 4.1).
"""

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from semel.printable import explained

_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_OF_OTHERS: Final = 0o077
_VERSION, _UTC_TIME = 0xA0, 0x17


class Validity(NamedTuple):
    """When a certificate can be used."""

    begins: datetime
    ends: datetime


def check_file(setting: str, path: str) -> None:
    """Raise ValueError if a file cannot be read. OpenSSL's own error would not name the file."""
    try:
        with Path(path).open("rb"):
            pass
    except FileNotFoundError:
        raise ValueError(f"{setting} {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{setting} cannot be read: {explained(error)}") from None


def file_risks(certificate: str, key: str, now: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield warnings about usable files: sentences for the log, each with its fields. `now` is in seconds."""
    try:
        chain = validities(Path(certificate).read_text("latin-1"))
        mode = Path(key).stat().st_mode & 0o777
    except (OSError, ValueError, IndexError):
        return  # The files were replaced after OpenSSL had read them, so they will be read again.
    moment = datetime.fromtimestamp(now, UTC)
    for number, (begins, ends) in enumerate(chain, start=1):
        which = "the certificate" if number == 1 else "a certificate of the chain"
        fields = {"file": certificate} | ({"number": number} if number > 1 else {})
        if moment > ends:
            yield (
                f"{which} has expired, and clients refuse it: renew it",
                {**fields, "expired": ends.isoformat()},
            )
        elif moment < begins:
            sentence = f"{which} is not valid yet, and clients refuse it: check it, and the clock"
            yield sentence, {**fields, "begins": begins.isoformat()}
    if mode & _OF_OTHERS:
        sentence = "other users may read or change the private key: set the mode of its file to 0600"
        yield sentence, {"file": key, "mode": f"{mode:04o}"}


def validities(pem: str) -> list[Validity]:
    """Return the validity periods of the certificates in a file, in their order."""
    return [_validity(ssl.PEM_cert_to_DER_cert(each)) for each in _CERTIFICATE.findall(pem)]


def _validity(der: bytes) -> Validity:
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)  # tbsCertificate, the signed part
    kind, _, end = _element(der, at)
    if kind == _VERSION:
        at = end
    for _ in ("serial number", "signature", "issuer"):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    _, _, end = _element(der, at)
    return Validity(_time(der, at), _time(der, end))


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of a DER element, and where its content begins and ends."""
    kind, size = der[at], der[at + 1]
    begin = at + 2
    if size & 0x80:
        digits = size & 0x7F
        size = int.from_bytes(der[begin : begin + digits])
        begin += digits
    return kind, begin, begin + size


def _time(der: bytes, at: int) -> datetime:
    kind, begin, end = _element(der, at)
    text = der[begin:end].decode("ascii")
    if kind == _UTC_TIME:  # two digits for a year from 1950 to 2049
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%S%z")
