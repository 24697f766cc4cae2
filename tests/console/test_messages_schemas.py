"""Values with a schema on the pages, with a real registry beside the broker."""

import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.browser.console import Browsing, console
from support.servers.schema_registry import RegistryServer, an_order, framed, number, registry_server

from semel.client import Admin, Client, NewTopic, Producer
from semel.console.messages.registry import Registry, SchemaProblem


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryServer]:
    with registry_server() as made:
        yield made


@pytest.fixture(scope="module")
def browsing(bootstrap: str, server: RegistryServer) -> Iterator[Browsing]:
    with Client(bootstrap) as client:
        Admin(client).topics.create(NewTopic("orders", 1))
        with Producer(client) as producer:
            producer.send("orders", framed(1, an_order()), key=framed(3, b'"k"'))
            producer.send("orders", framed(2, number(1) + number(1) + b"\x08\x05"))
            producer.send("orders", framed(3, b'{"n": 5}'))
            producer.send("orders", framed(77, b"http://127.0.0.1:1/"))
            producer.send("orders", b'{"n": 6}')
    with console(bootstrap, registry=server.address) as made:
        yield made


def test_values_are_decoded(browsing: Browsing) -> None:
    rows = browsing.get("/topics/orders/messages.json?order=oldest").json["messages"]
    assert [each["value"]["kind"] for each in rows] == ["avro", "protobuf", "json-schema", "hex", "json"]
    assert rows[0]["key"]["text"] == '"k"'
    assert rows[0]["value"]["schema"] == "Order (schema 1)"
    assert rows[1]["value"]["text"] == '{"n":5}'
    assert rows[3]["value"]["note"] == "schema 77 is not in the registry"
    page = browsing.get("/topics/orders/messages/0/0").text
    assert "avro: Order (schema 1)" in page
    assert "&#34;who&#34;: &#34;Zoë&#34;" in page


def test_the_bytes_are_still_there(browsing: Browsing) -> None:
    row = browsing.get("/topics/orders/messages.json?view=raw&from=0&limit=1").json["messages"][0]
    assert row["value"]["text"].startswith("\\x00\\x00\\x00\\x00\\x01")
    assert browsing.get("/topics/orders/messages/0/0/value").body == framed(1, an_order())


@pytest.mark.parametrize(("search", "offsets"), [("$.who=Zoë", [0]), ("$.n=5", [2, 1]), ("$.n", [4, 2, 1])])
def test_paths_look_into_decoded_values(browsing: Browsing, search: str, offsets: list[int]) -> None:
    from urllib.parse import quote

    rows = browsing.get(f"/topics/orders/messages.json?q={quote(search)}").json["messages"]
    assert [each["offset"] for each in rows] == offsets


def test_only_the_registry_is_asked(browsing: Browsing, server: RegistryServer) -> None:
    browsing.get("/topics/orders/messages")
    assert all(path.startswith(("/schemas/ids/", "/subjects/")) for path in server.asked)
    assert len(server.asked) == len(set(server.asked))


def test_a_registry_that_is_away_hides_nothing(bootstrap: str, browsing: Browsing) -> None:
    with console(bootstrap, registry="http://127.0.0.1:1") as alone:
        rows = alone.get("/topics/orders/messages.json").json["messages"]
        assert len(rows) == 5
        assert "does not answer" in rows[-1]["value"]["note"]


def test_values_of_an_unknown_schema_are_not_kept(server: RegistryServer) -> None:
    """An exception that is kept and raised again holds on to what each raise was about."""
    registry = Registry(server.address)

    def decode(count: int) -> None:
        for each in range(count):
            with suppress(SchemaProblem):
                registry.decode(framed(77, b"%d" % each + bytes(2000)))

    decode(10)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        decode(2000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200_000


@pytest.mark.parametrize("path", ["/topics/orders/replay?records=0:0", "/topics/orders/messages/0/0"])
def test_a_registry_that_does_not_answer_stops_no_other_page(
    browsing: Browsing, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    asked, may_answer = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def decode(*_: object) -> None:
        asked.set()
        in_time.append(may_answer.wait(10))

    monkeypatch.setattr(Registry, "decode", decode)
    page = threading.Thread(target=lambda: browsing.get(path))
    page.start()
    try:
        assert asked.wait(20)
        assert Browsing(browsing.address).get("/static/icon.svg").status == 200
    finally:
        may_answer.set()
        page.join()
    assert all(in_time)
