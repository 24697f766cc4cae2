"""TLS and SASL settings of a client.

    security = Security.of({
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "billing",
        "sasl.password": password,
    })
    client = Client("broker:9093", security=security)

Names are those of Kafka's clients. Certificates and keys are PEM files, under the names of librdkafka or,
with the type PEM, of the Java client; user and password may also be in a `sasl.jaas.config`. With OAUTHBEARER
the client gets tokens from an endpoint (`tokens`), or from a function: `Security(has_tls=True,
token=function)`.
Passwords are never shown. The authentication itself is in `sasl`.
"""

import difflib
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Self

from semel.client.net.tokens import CLIENT_ID, CLIENT_SECRET, ENDPOINT, SCOPE, token_endpoint
from semel.pem_files import check_file

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: SASL mechanisms, and the class in a `sasl.jaas.config` for each.
MECHANISMS = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}
#: Every name that `Security.of` accepts.
NAMES = (
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    ENDPOINT,
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
)
#: Names of other clients that this one refuses, with what to do instead.
REFUSED = {
    "ssl.truststore.password": "a PEM file of certificates has no password; give it as ssl.ca.location",
    "ssl.keystore.password": "Java key stores are not supported; give PEM files as ssl.certificate.location "
    "and ssl.key.location, and ssl.key.password if the key has one",
    "sasl.kerberos.service.name": f"the supported mechanisms are {', '.join(MECHANISMS)}",
    "sasl.login.callback.handler.class": f"it names a Java class; tokens come from {ENDPOINT}",
    "sasl.oauthbearer.method": f"leave it out; tokens come from {ENDPOINT}",
}

_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"';]+)""")


@dataclass(frozen=True, slots=True)
class Security:
    """The settings for brokers with encryption or authentication. Passwords are never shown."""

    has_tls: bool = False
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_host: bool = True
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    token: Callable[[], str] | None = field(default=None, repr=False)
    """Returns the token of OAUTHBEARER. It is called for each authentication, from several threads."""

    def __post_init__(self) -> None:
        if self.token is not None and self.mechanism is None:
            object.__setattr__(self, "mechanism", "OAUTHBEARER")

    @classmethod
    def of(cls, settings: Mapping[str, str], token: Callable[[], str] | None = None) -> Self:
        """Read settings under the names of Kafka's clients; ValueError names an invalid one.

        `token` is for OAUTHBEARER without an endpoint.
        """
        given = {
            name: value if name.endswith(("password", "secret")) else value.strip()
            for name, value in settings.items()
            if value.strip()
        }
        for name in given:
            check_name(name)
        protocol = given.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ValueError(f"security.protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
        has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
        for prefix, is_used in (("ssl.", has_tls), ("sasl.", has_sasl)):
            if not is_used and (idle := [name for name in given if name.startswith(prefix)]):
                raise ValueError(f"{idle[0]} has no meaning with security.protocol={protocol}")
        certificate = given.get("ssl.certificate.location") or _pem(given, "keystore")
        if given.get("ssl.key.location") and not certificate:
            raise ValueError("ssl.key.location needs the certificate too, as ssl.certificate.location")
        if token is not None and not has_sasl:
            raise ValueError(f"a token has no meaning with security.protocol={protocol}")
        login = _login(given, token) if has_sasl else _Login()
        return cls(
            has_tls=has_tls,
            ca_location=given.get("ssl.ca.location") or _pem(given, "truststore"),
            certificate_location=certificate,
            key_location=given.get("ssl.key.location"),
            key_password=given.get("ssl.key.password"),
            checks_host=_checks_host(settings),
            mechanism=login.mechanism,
            username=login.username,
            password=login.password,
            token=login.token,
        )

    def context(self) -> ssl.SSLContext | None:
        """Build the TLS context from the files; None without TLS. ValueError if a file is invalid."""
        if not self.has_tls:
            return None
        for name, path in (
            ("ssl.ca.location", self.ca_location),
            ("ssl.certificate.location", self.certificate_location),
            ("ssl.key.location", self.key_location),
        ):
            if path is not None:
                check_file(name, path)
        try:
            context = ssl.create_default_context(cafile=self.ca_location)
        except OSError as error:
            raise ValueError(f"ssl.ca.location {self.ca_location} has no certificates: {error}") from None
        context.check_hostname = self.checks_host
        if self.certificate_location is not None:
            try:
                context.load_cert_chain(
                    self.certificate_location, self.key_location, self.key_password or _no_password
                )
            except OSError as error:
                where = self.certificate_location
                reason = f"ssl.certificate.location {where} and its key do not go together: {error}"
                raise ValueError(reason) from None
        return context


def check_name(name: str) -> None:
    """Raise ValueError if a name is not a supported security setting; the text says what to do."""
    if name in NAMES:
        return
    if name in REFUSED:
        raise ValueError(f"{name} is not supported: {REFUSED[name]}")
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f". There are {', '.join(NAMES)}"
    raise ValueError(f"there is no setting {name!r} here{hint}")


def _checks_host(settings: Mapping[str, str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = settings.get(name, "https").strip().lower()
    if algorithm not in ("https", "none", ""):
        raise ValueError(f"{name} must be https, or none to accept any host name, not {algorithm!r}")
    return algorithm == "https"


def _pem(given: Mapping[str, str], store: str) -> str | None:
    """Return the file of a Java client's store, if it is PEM."""
    location, kind = given.get(f"ssl.{store}.location"), given.get(f"ssl.{store}.type", "JKS")
    if location is None or kind.upper() == "PEM":
        return location
    instead = "ssl.ca.location" if store == "truststore" else "ssl.certificate.location and ssl.key.location"
    raise ValueError(
        f"ssl.{store}.location is a Java key store ({kind}), which is not supported: give PEM files as "
        f"{instead}, or a PEM file with ssl.{store}.type=PEM. 'openssl pkcs12' converts a PKCS12 store to PEM"
    )


class _Login(NamedTuple):
    mechanism: str | None = None
    username: str = ""
    password: str = ""
    token: Callable[[], str] | None = None


def _login(given: Mapping[str, str], token: Callable[[], str] | None) -> _Login:
    mechanism = given.get("sasl.mechanism", "").upper()
    if mechanism not in MECHANISMS:
        found = f"not {mechanism}" if mechanism else "and it is missing"
        raise ValueError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, {found}")
    has_token = mechanism == "OAUTHBEARER"
    idle = ("sasl.username", "sasl.password") if has_token else (ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE)
    if wrong := [name for name in idle if name in given]:
        raise ValueError(f"{wrong[0]} has no meaning with sasl.mechanism={mechanism}")
    if has_token:
        return _Login(mechanism, token=token or _endpoint(given))
    if token is not None:
        raise ValueError(f"a token has no meaning with sasl.mechanism={mechanism}")
    username, password = given.get("sasl.username"), given.get("sasl.password")
    if jaas := given.get("sasl.jaas.config"):
        if username or password:
            raise ValueError("give sasl.jaas.config, or sasl.username and sasl.password, not both")
        options = _read_jaas(jaas, mechanism)
        username, password = options.get("username"), options.get("password")
        if not username or not password:
            _wrong_jaas()
    if not username or not password:
        missing = "sasl.password" if username else "sasl.username"
        raise ValueError(f"{mechanism} needs sasl.username and sasl.password; {missing} is missing")
    return _Login(mechanism, username, password)


def _endpoint(given: Mapping[str, str]) -> Callable[[], str]:
    """Return what gets tokens. As in the Java client, id and secret are JAAS options or settings."""
    jaas = given.get("sasl.jaas.config")
    options = _read_jaas(jaas, "OAUTHBEARER") if jaas else {}
    found = {}
    for name, option in ((CLIENT_ID, "clientId"), (CLIENT_SECRET, "clientSecret"), (SCOPE, "scope")):
        if name in given and option in options:
            raise ValueError(f"give {name}, or {option} in sasl.jaas.config, not both")
        found[name] = given.get(name) or options.get(option, "")
    if not given.get(ENDPOINT):
        raise ValueError(f"OAUTHBEARER needs {ENDPOINT}, where the client gets its tokens")
    return token_endpoint(given[ENDPOINT], found[CLIENT_ID], found[CLIENT_SECRET], found[SCOPE])


def _read_jaas(text: str, mechanism: str) -> dict[str, str]:
    """Return the options of a `sasl.jaas.config`. No error quotes it, because it contains a password.

    Only the login module of the mechanism is accepted. In Java, other modules run code (CVE-2025-27818).
    """
    module = _JAAS.fullmatch(text)
    if module is None:
        _wrong_jaas()
    name = module[1].rpartition(".")[2]
    if name != MECHANISMS[mechanism]:
        raise ValueError(f"sasl.jaas.config names {name}, but {mechanism} goes with {MECHANISMS[mechanism]}")
    return {option[1]: _unquoted(option[2]) for option in _JAAS_OPTION.finditer(module[2])}


def _wrong_jaas() -> NoReturn:
    example = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";'
    raise ValueError(f"sasl.jaas.config cannot be parsed; write {example}")


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if text[0] in "\"'" else text


def _no_password() -> NoReturn:
    """Refuse an encrypted key. Without this callback, OpenSSL would prompt on the terminal."""
    raise ValueError("the key is encrypted; give its password as ssl.key.password")
