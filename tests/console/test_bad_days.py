"""Pages while a part of the cluster is away, and requests with values that Kafka cannot carry."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.browser.console import Browsing, console

from semel.client import Admin, Client, NewTopic, Node, Producer


@pytest.fixture
def dead_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker is listed that refuses connections."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))  # It is nobody else's, and does not listen.
    dead = Node(99, "127.0.0.1", taken.getsockname()[1])
    describe = Client.describe

    def described(self: Client, *args: Any, **kwargs: Any) -> Any:
        found = describe(self, *args, **kwargs)
        self._nodes[99] = dead
        return replace(found, nodes=(*(each for each in found.nodes if each.node_id != 99), dead))

    monkeypatch.setattr(Client, "describe", described)
    with taken:
        yield


@pytest.mark.usefixtures("dead_broker")
def test_a_broker_that_is_away_is_shown_as_such(bootstrap: str, client: Client) -> None:
    Admin(client).topics.create("solo")
    with console(bootstrap) as browsing:
        alive, dead = browsing.get("/cluster.json").json["brokers"]
        assert alive["problem"] is None
        assert alive["directories"]
        assert dead["problem"]
        assert browsing.get("/topics/solo.json").status == 200
        (topic,) = browsing.get("/topics.json?q=solo").json["topics"]
        assert topic["bytes"] == 0


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/topics.json", {"name": "huge", "partitions": 2**31}),
        ("/topics/one/partitions.json", {"total": 2**31}),
        ("/topics/one/produce.json", {"value": "v", "outcome": "commit", "transactional_id": "y" * 40_000}),
    ],
)
def test_what_a_field_of_the_protocol_cannot_carry_is_refused(
    browsing: Browsing, client: Client, path: str, fields: dict[str, Any]
) -> None:
    if "one" not in [each.name for each in client.describe().topics]:
        Admin(client).topics.create("one")
    reply = browsing.post(path, fields)
    assert reply.status == 400
    assert reply.json["message"]


def test_a_check_of_a_name_that_is_too_long_says_so(browsing: Browsing) -> None:
    assert "event: failed" in browsing.post("/checks/hanging.json", {"topic": "x" * 40_000}).text


@pytest.mark.parametrize("line", [b'{"value":"\\ud800"}', b'{"value":"v","headers":{"\\ud800":"h"}}'])
def test_half_of_a_surrogate_pair_is_no_text(browsing: Browsing, client: Client, line: bytes) -> None:
    Admin(client).topics.create(topic := f"lines-{len(line)}")
    path = f"/topics/{topic}/produce/file.json?format=json"
    reply = browsing.send("POST", path, line, {"Origin": browsing.address})
    assert reply.status == 400
    assert "not Unicode" in reply.json["message"]


def test_a_position_leads_to_its_messages(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create(NewTopic("read", 1))
    with Producer(client) as producer:
        for number in range(200):
            producer.send("read", b"%d" % number)
    Admin(client).groups.set_offsets("reader", {("read", 0): 3})
    _, _, rest = browsing.get("/groups/reader").text.partition('href="/topics/read/messages?')
    query = rest.partition('"')[0].replace("&amp;", "&")
    found = browsing.get(f"/topics/read/messages.json?{query}").json["messages"]
    assert found[0]["offset"] == 3


def test_a_group_may_be_called_like_a_page(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create("named")
    for group in ("a", "a/reset"):
        Admin(client).groups.set_offsets(group, {("named", 0): 0})
    _, _, rest = browsing.get("/groups/a%2Freset").text.partition('twin: <a href="')
    assert browsing.get(rest.partition('"')[0]).json["group"] == "a/reset"


@pytest.mark.parametrize("path", ["/topics/ahead/messages/tail", "/changes?of=catalogue"])
def test_a_head_of_a_live_view_ends(browsing: Browsing, client: Client, path: str) -> None:
    if "ahead" not in [each.name for each in client.describe().topics]:
        Admin(client).topics.create("ahead")
    parts = urlsplit(browsing.address)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as raw:
        for method, address in (("HEAD", path), ("GET", "/static/icon.svg")):
            raw.sendall(f"{method} {address} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        received = b""
        while b"<svg" not in received:
            part = raw.recv(65_536)
            assert part
            received += part
    assert b"text/event-stream" in received
