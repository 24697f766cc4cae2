"""Transactions that hang: the page that ends one, and a check that never says more than it has seen."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
from support.browser.console import Browsing, Reply, console
from support.clients.raw import RawClient
from support.clients.raw_transactions import RawProducer, make_topic

import semel
from semel.client import Admin, Client, NewTopic, Security
from semel.client.admin.acls import Acl
from semel.store.embedded import ledger_opening


def _result(reply: Reply) -> Any:
    for block in reply.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields.get("event") in ("result", "failed"):
            return json.loads(fields["data"])
    raise AssertionError(reply.text)


def test_a_hanging_transaction_is_ended_only_if_it_is_the_one_that_was_shown(tmp_path: Path) -> None:
    with semel.embedded(tmp_path) as before, RawClient(before.bootstrap_servers) as client:
        topic = make_topic(client, 1)
        left = RawProducer(client)
        left.write(topic, b"a", partition=0)
    # No request can bring it about, so the ledger is made to forget the owner.
    vfs = ledger_opening.available()
    with closing(apsw.Connection(str(tmp_path / "ledger.db"), vfs=vfs)) as ledger, ledger:
        ledger.execute("DELETE FROM transactions WHERE transactional_id = ?", [left.transactional_id])
    with semel.embedded(tmp_path) as after, console(after.bootstrap_servers) as browsing:
        assert not _result(browsing.post("/checks/hanging"))["good"]
        blocked_by = browsing.get(f"/topics/{topic}/why/0.json").json["blocked_by"]
        assert blocked_by["hangs"]
        shown = {
            "start_offset": blocked_by["first_offset"],
            "producer_id": blocked_by["producer_id"],
            "epoch": blocked_by["epoch"],
        }
        page = browsing.get(f"/topics/{topic}/why/0").text
        for name, value in shown.items():
            assert f'name="{name}" value="{value}"' in page
        path = f"/topics/{topic}/why/0/abort.json"
        assert browsing.post(path, {"start_offset": 0}).status == 400
        for name in shown:
            assert browsing.post(path, {**shown, name: shown[name] + 1}).status == 409
        assert browsing.post(path, shown).status == 200
        assert browsing.get(f"/topics/{topic}/why/0.json").json["blocked_by"] is None
        assert _result(browsing.post("/checks/hanging"))["good"]


def test_the_check_is_not_green_for_topics_that_it_could_not_read() -> None:
    users = {"admin": "a", "reader": "r"}
    rules = {"semel.authorizer": "acl", "super.users": "User:admin"}
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    with semel.embedded(settings=rules, users=users) as broker:
        security = Security.of({**sasl, "sasl.username": "admin", "sasl.password": "a"})
        with Client(broker.bootstrap_servers, security=security) as admin:
            for name, operation in (("readable", "READ"), ("listed-only", "DESCRIBE")):
                Admin(admin).topics.create(NewTopic(name, 1))
                Admin(admin).acls.add(Acl.of("User:reader", operation, topic=name))
        with console(broker.bootstrap_servers, login=True, client=sasl) as browsing:
            browsing.post("/login", {"user": "reader", "password": "r"})
            found = _result(browsing.post("/checks/hanging"))
            assert not found["good"]
            assert "listed-only" in found["text"]
            assert "No transaction hangs in 1 topics" in found["text"]
            chief = Browsing(browsing.address)
            chief.post("/login", {"user": "admin", "password": "a"})
            assert _result(chief.post("/checks/hanging"))["good"]
            assert "good" not in _result(chief.post("/checks/hanging", {"topic": "no-such"}))
