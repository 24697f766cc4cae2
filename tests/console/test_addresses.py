"""Odd names and numbers in addresses, and what errors say about them."""

import socket

import pytest
from support.browser.console import Browsing, console

from semel.client import Admin, Client
from semel.console.rendering import segment


@pytest.mark.parametrize("name", ["a/reset", "a/delete", "reset", "a/b/reset"])
def test_every_group_has_a_page(browsing: Browsing, client: Client, name: str) -> None:
    if "read" not in {each.name for each in client.describe().topics}:
        Admin(client).topics.create("read")
    Admin(client).groups.set_offsets(name, {("read", 0): 0})
    assert browsing.get(f"/groups/{segment(name)}.json").json["group"] == name
    reset = browsing.get(f"/groups/{segment(name)}/reset")
    assert reset.status == 200
    assert "Reset" in reset.text


@pytest.mark.parametrize("digits", [20, 5000])
@pytest.mark.parametrize(
    "path",
    [
        "/topics.json?page=N",
        "/topics/numbers/why/N.json",
        "/topics/numbers/messages.json?from=N",
        "/topics/numbers/messages.json?from=-Nd",
        "/topics/numbers/messages.json?partitions=N",
        "/topics/numbers/messages.json?limit=N",
        "/topics/numbers/messages.json?q=producer:N",
        "/topics/numbers/messages/N/0.json",
        "/topics/numbers/messages/0/N.json",
        "/cluster/brokers/N.json",
    ],
)
def test_a_number_that_is_too_long_is_no_bug(
    browsing: Browsing, client: Client, path: str, digits: int
) -> None:
    if "numbers" not in {each.name for each in client.describe().topics}:
        Admin(client).topics.create("numbers")
    reply = browsing.get(path.replace("N", "9" * digits))
    assert reply.status < 500, reply.text


def test_errors_leave_names_as_they_are(browsing: Browsing) -> None:
    reply = browsing.get("/topics/edge.json")
    assert reply.status == 404
    assert "Edge" not in reply.json["message"]
    assert browsing.get("/topics.json?page=x").json["message"].startswith("Page must")


def test_a_broker_that_hangs_is_no_reason_to_narrow_a_search() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        console(f"127.0.0.1:{silent.getsockname()[1]}", request_seconds=0.5) as browsing,
    ):
        reply = browsing.get("/cluster.json")
        assert reply.status in (503, 504)
        assert "Narrow" not in reply.json["message"]


def test_where_acls_may_hide_some_an_empty_list_says_so(bootstrap: str) -> None:
    with console(bootstrap, client={"security.protocol": "PLAINTEXT"}) as browsing:
        assert "There are no pipelines that you may see." in browsing.get("/pipelines").text
        assert "No transaction is open that you may see." in browsing.get("/transactions").text
    with console(bootstrap) as browsing:
        assert "There are no pipelines yet." in browsing.get("/pipelines").text
        assert "No transaction is open." in browsing.get("/transactions").text
