"""`semel users`, `semel acls` and `semel quotas`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.client import Admin, AuthenticationFailed, Client, Security
from semel.client.admin.acls import Acl

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[semel.Embedded]:
    """ACLs are in force, and whoever does not authenticate may do everything."""
    settings = {"semel.authorizer": "acl", "super.users": "User:ANONYMOUS"}
    with semel.embedded(settings=settings) as broker:
        yield broker


def test_users_are_added_listed_and_removed(cli: Cli) -> None:
    assert "Added the user ann" in cli("users", "add", "ann", "--password-stdin", stdin=b"secret\n").err
    again = cli("users", "add", "ann", "--password-stdin", stdin=b"other\n").err
    assert again == "Replaced the password of the user ann for SCRAM-SHA-256.\n"
    more = ("--mechanism", "SCRAM-SHA-512", "--iterations", "8192", "--password-stdin", "--json")
    assert cli("users", "add", "ann", *more, stdin=b"secret").json == {
        "user": "ann",
        "mechanism": "SCRAM-SHA-512",
        "iterations": 8192,
        "replaced": False,
    }
    assert cli("users", "add", "ann", *more, stdin=b"secret").json["replaced"] is True
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
        (
            ("users", "add", "ann", "--password-stdin", "--data", "a", "--ledger", "postgresql://b/c"),
            b"x",
            "choose one",
        ),
        (("users", "add", "ann", "--password-stdin", "--ledger", "b"), b"x", "it must be a URL"),
        (("acls", "allow", "User:ann", "Reed", "--topic", "t"), b"", "did you mean READ?"),
        (("acls", "allow", "User:ann", "Read"), b"", "name one resource"),
        (("acls", "allow", "User:ann", "Read", "--topic", "t", "--group", "g"), b"", "name one resource"),
        (
            ("acls", "allow", "user:ann", "Read", "--topic", "t"),
            b"",
            "'user:ann' is not like User:billing; did you mean User:ann?",
        ),
        (("acls", "deny", "User:ann,", "Read", "--topic", "t"), b"", "did you mean User:ann?"),
        (("acls", "allow", "User: ann", "Read", "--topic", "t"), b"", "did you mean User:ann?"),
        (("acls", "allow", "User:ann ", "Read", "--topic", "t"), b"", "did you mean User:ann?"),
        (("acls", "allow", "ann", "Read", "--topic", "t"), b"", "did you mean User:ann?"),
        (("acls", "allow", "User:", "Read", "--topic", "t"), b"", "'User:' is not like User:billing"),
        (
            ("acls", "allow", "User:ann", "Read", "ClusterAction", "--topic", "t"),
            b"",
            "CLUSTER_ACTION has no meaning for a topic; there are READ, WRITE, CREATE, DESCRIBE, DELETE,"
            " ALTER, DESCRIBE_CONFIGS, ALTER_CONFIGS, ALL",
        ),
        (
            ("acls", "deny", "User:ann", "Write", "--group", "g"),
            b"",
            "WRITE has no meaning for a group; there are READ, DESCRIBE, DELETE, DESCRIBE_CONFIGS,"
            " ALTER_CONFIGS, ALL",
        ),
        (("acls", "allow", "User:ann", "Any", "--cluster"), b"", "ANY has no meaning for a cluster"),
        (
            ("acls", "allow", "User:ann", "Read", "--transactional-id", "x"),
            b"",
            "READ has no meaning for a transactional id; there are DESCRIBE, WRITE, TWO_PHASE_COMMIT, ALL",
        ),
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


def test_acls_that_never_apply_are_accepted_by_the_api_as_in_kafka_and_can_be_removed(
    cli: Cli, broker: semel.Embedded
) -> None:
    with Client(broker.bootstrap_servers) as client:
        Admin(client).acls.add(
            Acl.of("user:eve", "Read", topic="t"),
            Acl.of("User:eve,", "ClusterAction", topic="t"),
        )
    for principal, operation in (("user:eve", "Read"), ("User:eve,", "ClusterAction")):
        removed = cli("acls", "remove", principal, operation, "--topic", "t", "--yes", "--json").json
        assert [each["principal"] for each in removed] == [principal]


def test_acls_for_the_name_in_a_certificate_are_accepted(cli: Cli) -> None:
    who = ("User:CN=ann,O=Example", "All", "--group", "*")
    cli("acls", "allow", *who)
    assert len(cli("acls", "remove", *who, "--yes", "--json").json) == 1


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
    add = ("users", "add", "admin", "--data", str(data), "--password-stdin")
    assert "Added the user admin" in cli(*add, stdin=b"first\n").err
    assert "Replaced the password of the user admin" in cli(*add, stdin=b"second\n").err
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
