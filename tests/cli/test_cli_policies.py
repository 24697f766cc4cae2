"""`semel users`, `semel acls` and `semel quotas`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.client import AuthenticationFailed, Client, Security

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[semel.Embedded]:
    """ACLs are in force, and whoever does not authenticate may do everything."""
    settings = {"semel.authorizer": "acl", "super.users": "User:ANONYMOUS"}
    with semel.embedded(settings=settings) as broker:
        yield broker


def test_users_are_added_listed_and_removed(cli: Cli) -> None:
    assert "Added the user ann" in cli("users", "add", "ann", "--password-stdin", stdin=b"secret\n").err
    more = ("--mechanism", "SCRAM-SHA-512", "--iterations", "8192", "--password-stdin", "--json")
    assert cli("users", "add", "ann", *more, stdin=b"secret").json == {
        "user": "ann",
        "mechanism": "SCRAM-SHA-512",
        "iterations": 8192,
    }
    assert cli("users", "list", "--json").json == [
        {"user": "ann", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": "ann", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    assert "ann" in cli("users", "list").out
    cli("users", "remove", "ann", "--yes")
    cli("users", "remove", "ann", "--mechanism", "SCRAM-SHA-512", "--yes")
    assert cli("users", "list", "--json").json == []
    gone = cli("users", "remove", "ann", "--yes", code=1)
    assert "RESOURCE_NOT_FOUND" in gone.err


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (("users", "add", "ann", "--password-stdin"), b"\n", "1 to 1,024 characters"),
        (("users", "add", "ann"), b"secret\n", "no terminal"),
        (("users", "add", "ann", "--password-stdin", "--iterations", "100"), b"x", "4096"),
        (("users", "add", "ann", "--password-stdin", "--mechanism", "PLAIN"), b"x", "SCRAM-SHA-256"),
        (("users", "add", "ann", "--password-stdin", "--data", "a", "--ledger", "b"), b"x", "choose one"),
        (("acls", "allow", "User:ann", "Reed", "--topic", "t"), b"", "did you mean READ?"),
        (("acls", "allow", "User:ann", "Read"), b"", "name one resource"),
        (("acls", "allow", "User:ann", "Read", "--topic", "t", "--group", "g"), b"", "name one resource"),
        (("quotas", "set", "--user", "ann", "producer_byte_rate=much"), b"", "much"),
        (("quotas", "set", "producer_byte_rate=1"), b"", "--user"),
    ],
)
def test_what_is_wrong_is_said(cli: Cli, arguments: tuple[str, ...], stdin: bytes, message: str) -> None:
    ran = cli(*arguments, stdin=stdin, code=2)
    assert message in " ".join(ran.err.split())


def test_acls_are_added_listed_and_removed(cli: Cli) -> None:
    cli("acls", "allow", "User:ann", "Read", "describe-configs", "--topic", "orders")
    cli("acls", "allow", "User:bob", "All", "--topic", "ord", "--prefix", "--host", "10.0.0.1")
    cli("acls", "deny", "User:*", "Write", "--transactional-id", "*")
    cli("acls", "allow", "User:ann", "Describe", "--cluster")
    rows = cli("acls", "list", "--json").json
    assert len(rows) == 5
    assert rows[-1] == {
        "principal": "User:*",
        "permission": "DENY",
        "operation": "WRITE",
        "resource_type": "TRANSACTIONAL_ID",
        "resource_name": "*",
        "pattern_type": "LITERAL",
        "host": "*",
    }
    of_topic = cli("acls", "list", "--topic", "orders", "--json").json
    assert {each["principal"] for each in of_topic} == {"User:ann", "User:bob"}
    assert len(cli("acls", "list", "--principal", "User:ann", "--json").json) == 3
    removed = cli("acls", "remove", "User:ann", "Read", "Write", "--topic", "orders", "--yes", "--json").json
    assert [each["operation"] for each in removed] == ["READ"]
    assert "no such ACLs" in cli("acls", "remove", "User:ann", "Read", "--topic", "orders", "--yes").err
    kept = cli("acls", "remove", "User:*", "Write", "--transactional-id", "*", "--yes")
    assert "no such ACLs" in kept.err, "one that denies is removed by --denied"
    cli("acls", "remove", "User:*", "Write", "--transactional-id", "*", "--denied", "--yes")
    assert len(cli("acls", "list", "--json").json) == 3


def test_acls_are_not_in_use_without_an_authorizer(cli: Cli) -> None:
    with semel.embedded() as without:
        for command in (("list",), ("allow", "User:ann", "Read", "--topic", "t")):
            ran = cli("acls", *command, code=1, bootstrap=without.bootstrap_servers)
            assert "SECURITY_DISABLED" in ran.err


def test_quotas_are_set_listed_and_removed(cli: Cli) -> None:
    wrong = cli("quotas", "set", "--user", "ann", "producer_rate=1", code=1)
    assert "Possible here: producer_byte_rate" in wrong.err
    cli("quotas", "set", "--user", "ann", "producer_byte_rate=1024", "request_percentage=50")
    cli("quotas", "set", "--default-user", "consumer_byte_rate=4096")
    cli("quotas", "set", "--ip", "127.0.0.9", "connection_creation_rate=5")
    assert len(cli("quotas", "list", "--json").json) == 3
    assert "1024" in cli("quotas", "list", "--user", "ann").out
    cli("quotas", "remove", "--user", "ann", "producer_byte_rate", "request_percentage")
    cli("quotas", "remove", "--default-user", "consumer_byte_rate")
    cli("quotas", "remove", "--ip", "127.0.0.9", "connection_creation_rate")
    assert cli("quotas", "list", "--json").json == []


def test_the_first_user_is_added_to_a_directory(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    cli("users", "add", "admin", "--data", str(data), "--password-stdin", stdin=b"first\n")
    cli("users", "add", "admin", "--data", str(data), "--password-stdin", stdin=b"second\n")
    with semel.embedded(data) as running:
        listed = cli("users", "list", "--json", bootstrap=running.bootstrap_servers).json
        assert [each["user"] for each in listed] == ["admin"]
        locked = cli("users", "add", "eve", "--data", str(data), "--password-stdin", stdin=b"x\n", code=1)
        assert "Another process" in locked.err or "in use" in locked.err
    with semel.embedded(data, users={"other": "x"}) as running:
        for password, is_right in (("second", True), ("first", False)):
            who = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "admin", "sasl.password": password}
            security = Security.of({"security.protocol": "SASL_PLAINTEXT", **who})
            with Client(running.bootstrap_servers, security=security) as client:
                if is_right:
                    assert client.describe().nodes
                else:
                    with pytest.raises(AuthenticationFailed):
                        client.describe()
