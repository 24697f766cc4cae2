"""A broker with users, ACLs, TLS and tokens, and clients that authenticate to it in every way."""

import asyncio
import gc
import json
import logging
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiokafka
import confluent_kafka
from aiokafka.abc import AbstractTokenProvider
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from semel.client import Admin, Client, Security
from support.brokers.process import BrokerProcess, free_port
from support.certificates import Certificate, make_certificate
from support.waiting import until

with warnings.catch_warnings():
    # kafka-python reads its schemas, when it is imported, with functions that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

ADMIN, PASSWORD = "admin", "root-s3cret"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
ISSUER, AUDIENCE = "https://issuer.example", "semel"
TOKEN_SECONDS = 3_600


@dataclass(frozen=True)
class Secured:
    """A running broker, and what clients need to authenticate to it."""

    process: BrokerProcess
    ports: dict[str, int]
    certificate: Certificate
    key: ECKey

    def address(self, protocol: str) -> str:
        return f"127.0.0.1:{self.ports[protocol]}"

    def token(self, user: str, seconds: float = TOKEN_SECONDS, **claims: Any) -> str:
        now = int(time.time())
        about = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now, "exp": int(now + seconds), **claims}
        return str(jwt.encode({"alg": "ES256", "kid": "k1"}, about, self.key))

    def settings(self, protocol: str, mechanism: str, user: str, password: str) -> dict[str, str]:
        """The settings of `semel.client` for a user; not for OAUTHBEARER."""
        given = {"security.protocol": protocol, "sasl.mechanism": mechanism}
        given |= {"sasl.username": user, "sasl.password": password}
        if protocol.endswith("SSL"):
            given["ssl.ca.location"] = str(self.certificate.certificate)
        return given

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        """Connect as the super user."""
        security = Security.of(self.settings("SASL_SSL", "SCRAM-SHA-256", ADMIN, PASSWORD))
        with Client(self.address("SASL_SSL"), security=security) as client:
            yield Admin(client)

    def ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate.certificate))


@contextmanager
def secured(folder: Path, options: Sequence[str] = (), **settings: str) -> Iterator[Secured]:
    """Run a broker whose first user was added before it was started."""
    folder.mkdir(exist_ok=True)
    data = folder / "data"
    command = [sys.executable, "-m", "semel", "users", "add", ADMIN, "--data", str(data), "--password-stdin"]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
    certificate = make_certificate(folder, "broker")
    key = ECKey.generate_key("P-256", {"kid": "k1"})
    keys = folder / "keys.json"
    keys.write_text(json.dumps(KeySet([key]).as_dict(private=False)))
    ports = {name: free_port() for name in PROTOCOLS}
    given = {
        "ssl.certificate.location": certificate.certificate,
        "ssl.key.location": certificate.key,
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "semel.oauthbearer.algorithms": "ES256",
        "semel.authorizer": "acl",
        "super.users": f"User:{ADMIN}",
        "group.initial.rebalance.delay.ms": 0,
        **settings,
    }
    more = [*options, *(text for name, value in given.items() for text in ("--set", f"{name}={value}"))]
    more += ["--listen", f"sasl_plaintext://127.0.0.1:{ports['SASL_PLAINTEXT']}"]
    process = BrokerProcess(data, *more, port=ports["SASL_SSL"])
    process.scheme = "sasl_ssl://"
    process.start()
    try:
        yield Secured(process, ports, certificate, key)
    finally:
        process.stop()


class Denied(Exception):
    """The client was refused: it is not authorized, or could not authenticate."""


Act = Callable[[Secured, str, str, str, str, str], None]
"""Write a record to a topic, as a user with a password, by a mechanism over a protocol."""


def librdkafka(broker: Secured, protocol: str, mechanism: str, user: str, password: str, topic: str) -> None:
    """Write with confluent-kafka."""
    refused: list[str] = []
    conf: dict[str, Any] = {
        "bootstrap.servers": broker.address(protocol),
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "message.timeout.ms": 10_000,
        "error_cb": lambda error: refused.append(str(error)) if error.code() in AUTHENTICATION else None,
    }
    if protocol == "SASL_SSL":
        conf["ssl.ca.location"] = str(broker.certificate.certificate)
    if mechanism == "OAUTHBEARER":
        conf["oauth_cb"] = lambda _: (broker.token(user), time.time() + TOKEN_SECONDS)
    else:
        conf |= {"sasl.username": user, "sasl.password": password}
    producer = confluent_kafka.Producer(conf)
    try:
        producer.produce(
            topic, b"x", on_delivery=lambda error, _: refused.append(str(error)) if error else None
        )
    except confluent_kafka.KafkaException as error:
        # If the thread stalls here, the answer about the topic may arrive before the message is queued.
        refused.append(str(error))
    until(
        lambda: producer.poll(0.1) is not None and (refused or not len(producer)),
        what="an answer to a record",
    )
    if refused:
        producer.purge()
        raise Denied(refused[0])


AUTHENTICATION = {confluent_kafka.KafkaError._AUTHENTICATION}


async def end_transports() -> None:
    """Abort transports that a client has left open on this event loop. Its log records refer to them."""
    open_: Mapping[int, asyncio.Transport] = asyncio.get_running_loop()._transports  # type: ignore[attr-defined]
    for each in list(open_.values()):
        each.abort()
    # The sockets are closed in the next iteration of the event loop.
    await asyncio.sleep(0)


@contextmanager
def sockets_left_open() -> Iterator[None]:
    """Ignore sockets that a rejected producer leaves open: Python warns when it collects them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


class _AioTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def by_aiokafka(broker: Secured, protocol: str, mechanism: str, user: str, password: str, topic: str) -> None:
    """Write with aiokafka."""

    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.address(protocol),
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
            sasl_oauth_token_provider=_AioTokens(broker.token(user)),
            ssl_context=broker.ssl_context() if protocol == "SASL_SSL" else None,
            request_timeout_ms=10_000,
        )
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"x")
        finally:
            await producer.stop()
            await end_transports()

    refused = ""
    with sockets_left_open():
        try:
            asyncio.run(write())
        except aiokafka.errors.KafkaError as error:
            refused = repr(error)
    if refused:
        raise Denied(refused)


class _Refusals(logging.Handler):
    """End the wait of a kafka-python producer that was refused; it would retry until its timeout."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.producer: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        for each in record.args if isinstance(record.args, tuple) else ():
            if isinstance(each, kafka.errors.SaslAuthenticationFailedError) and self.producer is not None:
                self.producer._metadata.failed_update(each)

    def __enter__(self) -> Self:
        logging.getLogger("kafka.net.manager").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("kafka.net.manager").removeHandler(self)


class _KafkaPythonTokens(KafkaPythonTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def kafka_python(
    broker: Secured, protocol: str, mechanism: str, user: str, password: str, topic: str
) -> None:
    """Write with kafka-python."""
    given: dict[str, Any] = {"sasl_plain_username": user, "sasl_plain_password": password}
    if mechanism == "OAUTHBEARER":
        given = {"sasl_oauth_token_provider": _KafkaPythonTokens(broker.token(user))}
    refused = ""
    with sockets_left_open(), _Refusals() as refusals:
        try:
            producer = kafka.KafkaProducer(
                bootstrap_servers=broker.address(protocol),
                security_protocol=protocol,
                sasl_mechanism=mechanism,
                ssl_context=broker.ssl_context() if protocol == "SASL_SSL" else None,
                # Connect when a record is sent: a producer that cannot connect leaves sockets open.
                api_version=(3, 9),
                bootstrap_timeout_ms=None,
                max_block_ms=30_000,
                retries=0,
                **given,
            )
            refusals.producer = producer
            with closing(producer):
                producer.send(topic, b"x").get(timeout=30)
        except kafka.errors.KafkaError as error:
            refused = repr(error)
    if refused:
        raise Denied(refused)


CLIENTS: dict[str, Act] = {"librdkafka": librdkafka, "aiokafka": by_aiokafka, "kafka-python": kafka_python}
