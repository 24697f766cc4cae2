"""Security of the demonstration: a broker with SASL_SSL, and three users with the rights they need.

The administrator creates topics and users, the shop sends orders, and the pipeline reads them and writes
what it makes of them. docs/security.md has the same rights as commands.
"""

import datetime
import ipaddress
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from semel.client import Admin, Client, Security
from semel.client.admin.acls import Acl

ADMIN, FEEDER, PIPELINE = "admin", "feeder", "pipeline"
MECHANISM = "SCRAM-SHA-256"


@dataclass(frozen=True)
class Secured:
    """Certificates and passwords of one run, in its directory."""

    directory: Path
    passwords: dict[str, str]

    @classmethod
    def prepare(cls, directory: Path) -> "Secured":
        """Make a self-signed certificate for 127.0.0.1, and passwords."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "semel demonstration")])
        host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(host, critical=False)
            .sign(key, hashes.SHA256())
        )
        made = cls(directory, {user: secrets.token_urlsafe() for user in (ADMIN, FEEDER, PIPELINE)})
        _write(made.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _write(made.key, encoded)
        for user in made.passwords:
            lines = [f"{name}={value}\n" for name, value in made.settings(user).items()]
            _write(made.client_file(user), "".join(lines).encode())
        return made

    @property
    def certificate(self) -> Path:
        """The broker's certificate."""
        return self.directory / "broker.pem"

    @property
    def key(self) -> Path:
        """The certificate's key."""
        return self.directory / "broker.key"

    @property
    def broker_options(self) -> list[str]:
        """The settings of a broker."""
        settings = {
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "semel.authorizer": "acl",
            "super.users": f"User:{ADMIN}",
        }
        return [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]

    def settings(self, user: str) -> dict[str, str]:
        """The settings of a client."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificate),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.passwords[user],
        }

    def security(self, user: str) -> Security:
        """The settings of a client, for Python."""
        return Security.of(self.settings(user))

    def client_file(self, user: str) -> Path:
        """The settings of a client in a file, because a password on the command line would be visible."""
        return self.directory / f"{user}.properties"

    def add_administrator(self, *place: str) -> None:
        """Add the first user, without a broker."""
        command = [sys.executable, "-m", "semel", "users", "add", ADMIN, "--password-stdin", *place]
        subprocess.run(
            command, input=f"{self.passwords[ADMIN]}\n", text=True, check=True, capture_output=True
        )

    def add_users(self, client: Client) -> None:
        """Add the other users, with exactly the rights that they need."""
        admin = Admin(client)
        for user in (FEEDER, PIPELINE):
            admin.users.put(user, self.passwords[user], mechanism=MECHANISM)
        admin.acls.add(*least_rights())


def least_rights() -> Sequence[Acl]:
    """The rights of the shop and of the pipeline."""
    shop, pipeline = f"User:{FEEDER}", f"User:{PIPELINE}"
    return (
        Acl.of(shop, "Write", topic="orders"),
        Acl.of(pipeline, "Read", topic="orders"),
        Acl.of(pipeline, "Read", topic="products"),
        Acl.of(pipeline, "Write", topic="invoices"),
        Acl.of(pipeline, "Write", topic="totals"),
        Acl.of(pipeline, "Write", topic="orders-dead"),
        Acl.of(pipeline, "Read", group="shop"),
        Acl.of(pipeline, "Write", transactional_id="shop/", is_prefix=True),
    )


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
