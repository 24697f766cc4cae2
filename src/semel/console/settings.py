"""The settings of a console, with every bound and its reason."""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.client import Security
from semel.client.net.security import MECHANISMS

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
PASSWORD_MECHANISMS = tuple(name for name in MECHANISMS if name != "OAUTHBEARER")


class UnsafeSettings(ValueError):
    """The console would be open to unauthenticated users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Where the console listens, which cluster it shows, and how much work it does at once."""

    bootstrap: str = "127.0.0.1:9092"
    client: Mapping[str, str] = field(default_factory=dict)
    """Security settings of the client, named as in Kafka's clients. With a login, without the user."""
    host: str = "127.0.0.1"
    port: int = 8080
    allowed_hosts: tuple[str, ...] = ()
    """Further names under which browsers may reach the console."""
    login: bool = False
    """Whether users must log in with SASL credentials of the broker even on loopback."""
    read_only: bool = False
    certificate: Path | None = None
    key: Path | None = None
    audit_file: Path | None = None
    """The audit log of a broker on this machine, for the page on security."""
    storage: Path | None = None
    """A data directory on this machine that no broker has open, for the checks."""
    cluster_status: Callable[[], Mapping[str, Any]] | None = None
    """Reads from the ledger of a Semel cluster what the protocol does not expose: shards, leases, bytes."""
    registry: str | None = None
    """The address of a schema registry."""

    request_seconds: float = 15.0
    """How long a page waits for the broker. By then, the person at the browser has given up."""
    threads_max: int = 16
    """Pages of all users that query the broker at the same time."""
    requests_per_user: int = 8
    """Pages of one user that run or wait at the same time. A browser requests one or two."""
    live_per_user: int = 64
    """Open live views of one user, such as tails. Without a login, all browsers are one user."""
    live_max: int = 256
    """Open live views of all users; each has a thread and a connection."""
    scans_per_user: int = 4
    """Searches, exports and checks of one user at the same time; each reads as fast as it can."""
    scan_seconds: float = 600.0
    scan_bytes: int = 4 << 30
    """The most that one search, export or check reads."""
    body_bytes: int = 16 << 20
    """The largest form or file that a browser may send."""
    idle_client_seconds: float = 60.0
    """An unused connection to the broker is closed after this time."""
    clients_per_user: int = 8
    """Idle clients kept for one user."""
    session_seconds: float = 8 * 3600.0
    """A login ends after this time without a request: a working day."""
    sessions_max: int = 1000
    logins_per_minute: int = 20
    """Failed logins of one user from one address, before further ones are refused; for all users from one
    address, ten times as many. This makes guessing passwords slow."""
    sample_seconds: float = 2.0
    """How often an observer samples the state of the cluster."""
    sample_share: float = 0.02
    """The largest share of time spent on sampling each of topics, ends, transactions, groups and pipelines: a
    large cluster is sampled less often."""
    observers_max: int = 32
    """Users whose view of the cluster is sampled at the same time: each costs the broker its share."""
    observed_seconds: float = 900.0
    """How long sampling goes on after the last request of a user."""
    history_max: int = 2000
    """Finished transactions that are remembered."""
    points_max: int = 900
    """Samples that a chart shows; older ones are dropped."""
    page_size: int = 50

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the console."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def needs_login(self) -> bool:
        """Whether users must log in."""
        return self.login or not self.is_loopback

    @property
    def hosts(self) -> frozenset[str]:
        """The host names that a request may use, in lower case and without a port."""
        own = () if self.host in ("0.0.0.0", "::", "") else (self.host.strip("[]"),)
        local = LOOPBACK_NAMES if self.is_loopback else ()
        return frozenset(name.strip("[]").lower() for name in (*local, *own, *self.allowed_hosts))

    def checked(self) -> "ConsoleSettings":
        """Return these settings. UnsafeSettings if they admit anyone without login; ValueError if invalid."""
        if not self.needs_login:
            Security.of(self.client).context()
            return self
        mechanism = self.client.get("sasl.mechanism", "").upper()
        if not self.client.get("security.protocol", "").upper().startswith("SASL"):
            raise UnsafeSettings(
                f"a console on {self.host} wants a login by the broker's SASL credentials: name the broker's "
                "mechanism, for example -X security.protocol=SASL_SSL -X sasl.mechanism=SCRAM-SHA-512, or "
                "listen on 127.0.0.1"
            )
        if mechanism not in PASSWORD_MECHANISMS:
            raise ValueError(f"for a login, sasl.mechanism must be one of {', '.join(PASSWORD_MECHANISMS)}")
        if not self.hosts:
            raise ValueError(
                f"people reach a console on {self.host} under a name: give it with --allow-host NAME"
            )
        self.security_of("user", "password").context()
        return self

    def security_of(self, user: str, password: str) -> Security:
        """Return the security settings of a user."""
        kept = {
            name: value
            for name, value in self.client.items()
            if name not in ("sasl.username", "sasl.password", "sasl.jaas.config")
        }
        return Security.of({**kept, "sasl.username": user, "sasl.password": password})
