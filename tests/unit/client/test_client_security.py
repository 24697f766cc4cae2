"""Security: settings are read by the names of Kafka's clients, SCRAM by the book, and passwords not shown."""

import pickle

import pytest

from semel.client.net.sasl import rounds_of
from semel.client.net.security import Security

SECRET = "hush-hush"
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
USER = {"sasl.username": "ann", "sasl.password": SECRET}


def jaas(module: str = "scram.ScramLoginModule", options: str = f'username="ann" password="{SECRET}"') -> str:
    return f"org.apache.kafka.common.security.{module} required {options};"


def test_nothing_is_plaintext() -> None:
    security = Security.of({})
    assert not security.has_tls
    assert security.context() is None
    assert security.mechanism is None


@pytest.mark.parametrize(
    "who",
    [
        USER,
        {"sasl.jaas.config": jaas()},
        {"sasl.jaas.config": jaas(options=f"\n  username='ann'\n  password={SECRET}")},
        {"sasl.jaas.config": "kafkashaded." + jaas(options=f'password="{SECRET}" username="ann" a="b"')},
    ],
)
def test_user_and_password_are_found_wherever_they_are(who: dict[str, str]) -> None:
    security = Security.of(SASL | who)
    assert (security.mechanism, security.username, security.password) == ("SCRAM-SHA-512", "ann", SECRET)
    assert security.has_tls
    assert security.checks_host


def test_quoted_passwords_are_read_as_java_does() -> None:
    config = jaas(options=r'username="ann" password="a\"b\\c=d; e"')
    assert Security.of(SASL | {"sasl.jaas.config": config}).password == r'a"b\c=d; e'


def test_names_of_the_java_client_are_taken_for_pem_files() -> None:
    names = ("ssl.truststore", "ssl.keystore")
    settings = {f"{name}.type": "PEM" for name in names} | {f"{name}.location": f"/{name}" for name in names}
    security = Security.of({"security.protocol": "ssl", **settings})
    assert (security.ca_location, security.certificate_location) == ("/ssl.truststore", "/ssl.keystore")


@pytest.mark.parametrize("algorithm", ["", "none", "NONE"])
def test_the_host_name_is_checked_unless_told(algorithm: str) -> None:
    settings = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": algorithm}
    context = Security.of(settings).context()
    assert context is not None
    assert not context.check_hostname


def test_passwords_are_not_shown() -> None:
    security = Security.of(SASL | USER | {"ssl.key.password": SECRET})
    assert SECRET not in repr(security)
    assert SECRET not in str(security)
    assert pickle.loads(pickle.dumps(security)) == security


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "TLS"}, "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocl": "SSL"}, "'security.protocol'"),
        ({"ssl.ca.location": "/ca"}, "ssl.ca.location .*security.protocol=PLAINTEXT"),
        ({"security.protocol": "SSL", **USER}, "sasl.username"),
        ({"security.protocol": "SSL", "ssl.key.location": "/k"}, "ssl.key.location"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/t.jks"}, "ssl.truststore.location .*JKS"),
        ({"security.protocol": "SSL", "ssl.keystore.password": SECRET}, "ssl.keystore.password"),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"},
            "ssl.endpoint.identification.algorithm .*https",
        ),
        ({**SASL, "sasl.mechanism": "GSSAPI", **USER}, "sasl.mechanism .*PLAIN, .*GSSAPI"),
        ({"security.protocol": "SASL_SSL", **USER}, "sasl.mechanism"),
        ({**SASL, "sasl.username": "ann"}, "sasl.password"),
        ({**SASL, **USER, "sasl.jaas.config": jaas()}, "not both"),
        ({**SASL, "sasl.jaas.config": jaas("plain.PlainLoginModule")}, "PlainLoginModule.*SCRAM"),
        ({**SASL, "sasl.jaas.config": jaas(options=f"password={SECRET}")}, "sasl.jaas.config"),
        ({**SASL, "sasl.jaas.config": f"password={SECRET}"}, "sasl.jaas.config"),
    ],
)
def test_what_is_refused_and_why(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Security.of(settings)
    assert SECRET not in str(refused.value)


def test_files_that_are_not_there_are_named() -> None:
    with pytest.raises(ValueError, match=r"ssl.ca.location /nowhere"):
        Security.of({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}).context()
    with pytest.raises(ValueError, match=r"ssl.certificate.location /nowhere"):
        Security.of({"security.protocol": "SSL", "ssl.certificate.location": "/nowhere"}).context()


def test_plain_is_one_round() -> None:
    security = Security.of({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "plain", **USER})
    rounds = rounds_of(security)
    assert next(rounds) == b"\0ann\0" + SECRET.encode()
    with pytest.raises(StopIteration):
        rounds.send(b"")


#: The exchange of RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PENCIL = Security(mechanism="SCRAM-SHA-256", username="user", password="pencil")


def test_scram_as_in_rfc_7677() -> None:
    rounds = rounds_of(PENCIL, NONCE)
    assert next(rounds) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    proof = rounds.send(FIRST.encode())
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        rounds.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (FIRST.replace(NONCE, "somebody else's"), "request"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "request"),
        (FIRST.replace("i=4096", "i=4095"), "4095 .*4096"),
        (FIRST.replace("i=4096", "i=99999999"), "99999999"),
        (FIRST.replace("i=4096", "i=-1"), "salt"),
        (FIRST.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "?"), "salt"),
    ],
)
def test_scram_does_not_answer_a_challenge_that_is_wrong(first: str, message: str) -> None:
    rounds = rounds_of(PENCIL, NONCE)
    next(rounds)
    with pytest.raises(ValueError, match=message):
        rounds.send(first.encode())


@pytest.mark.parametrize("last", [b"v=AAAA", b"v=", b"", b"v=?", b"e=invalid-proof"])
def test_scram_finds_out_a_broker_that_does_not_know_the_password(last: bytes) -> None:
    rounds = rounds_of(PENCIL, NONCE)
    next(rounds)
    rounds.send(FIRST.encode())
    with pytest.raises(ValueError, match=r"password|invalid-proof"):
        rounds.send(last)
