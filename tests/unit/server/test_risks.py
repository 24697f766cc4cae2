"""What an operator is warned of when a broker starts."""

import logging
from pathlib import Path

import pytest

import semel
from semel.client import Admin, Client
from semel.client.admin.acls import Acl
from semel.config import Settings
from semel.core.security.acls import AclBinding, Acls, Operation, PatternType, Permission, ResourceType
from semel.server.listener import ListenerConfig
from semel.server.risks import check, risks

LOCAL = ListenerConfig("main", "127.0.0.1", 0)
NOBODY = "nobody may add an ACL"


def of_cluster(
    operation: Operation = Operation.ALTER,
    permission: Permission = Permission.ALLOW,
    principal: str = "User:ann",
    name: str = "kafka-cluster",
    host: str = "*",
) -> AclBinding:
    literal = PatternType.LITERAL
    return AclBinding(ResourceType.CLUSTER, literal, name, principal, host, operation, permission)


def on_topics(operation: Operation) -> AclBinding:
    allow, literal = Permission.ALLOW, PatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, literal, "*", "User:ann", "*", operation, allow)


@pytest.mark.parametrize(
    ("settings", "acls", "is_warned"),
    [
        ({}, [], True),
        ({"semel_authorizer": ""}, [], False),
        ({"super_users": "User:admin"}, [], False),
        ({}, [of_cluster()], False),
        ({}, [of_cluster(Operation.ALL)], False),
        ({}, [of_cluster(host="10.0.0.7")], False),
        ({}, [of_cluster(name="*")], False),
        ({}, [of_cluster(Operation.DESCRIBE)], True),
        ({}, [on_topics(Operation.ALTER)], True),
        ({}, [of_cluster(permission=Permission.DENY)], True),
        ({}, [of_cluster(), of_cluster(permission=Permission.DENY, principal="User:*")], True),
        ({}, [of_cluster(), of_cluster(permission=Permission.DENY, principal="User:bob")], False),
        ({"allow_everyone_if_no_acl_found": True}, [], False),
        ({"allow_everyone_if_no_acl_found": True}, [on_topics(Operation.READ)], False),
        # Now an ACL mentions the cluster, so the setting does not count for it.
        ({"allow_everyone_if_no_acl_found": True}, [of_cluster(Operation.DESCRIBE)], True),
    ],
    ids=str,
)
def test_acls_that_nobody_can_change(
    settings: dict[str, str], acls: list[AclBinding], is_warned: bool
) -> None:
    given = Settings(**{"semel_authorizer": "acl", **settings})  # type: ignore[arg-type]
    warned = list(risks(given, [LOCAL], Acls(acls)))
    assert any(NOBODY in each and "set super.users=User:NAME" in each for each in warned) == is_warned
    assert len(warned) == is_warned


def test_a_ledger_with_a_right_to_add_acls_needs_no_super_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The ACLs of the ledger are known when the broker looks for risks."""
    settings = {"semel.authorizer": "acl"}
    with semel.embedded(tmp_path / "data", settings=settings):
        assert [each for each in caplog.messages if NOBODY in each]
    caplog.clear()
    able = {**settings, "super.users": "User:ANONYMOUS"}
    with (
        caplog.at_level(logging.INFO, "semel.server"),
        semel.embedded(tmp_path / "data", settings=able) as broker,
        Client(broker.bootstrap_servers) as client,
    ):
        Admin(client).acls.add(Acl.of("User:ann", "Alter", is_cluster=True))
    with semel.embedded(tmp_path / "data", settings=settings):
        assert "listening" in caplog.messages
        assert not [each for each in caplog.messages if NOBODY in each]


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"ssl.client.auth": "required"}, r"ssl\.client\.auth=required.*ssl://"),
        ({"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA256"}, "SCRAM-SHA-256"),
    ],
)
def test_settings_that_do_not_go_with_the_listeners_are_refused(settings: dict[str, str], facts: str) -> None:
    with pytest.raises(semel.EmbeddedError, match=facts):
        semel.embedded(settings=settings).start()


def test_no_mechanisms_are_right_where_nobody_authenticates() -> None:
    check(Settings(sasl_enabled_mechanisms="", ssl_client_auth="none"), [LOCAL])
    with pytest.raises(ValueError, match="sasl"):
        check(Settings(sasl_enabled_mechanisms=""), [LOCAL._replace(has_sasl=True)])
