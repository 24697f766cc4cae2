"""Messages over HTTP: pages and twins, event streams, downloads, hostile records, a browser that leaves."""

import gzip
import html
import io
import json
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow.parquet as pq
import pytest
from support.browser.console import Browsing, Reply, console
from support.waiting import until

import semel
from semel.client import Admin, Client, Codec, NewTopic, Producer, Security, TransactionalProducer
from semel.client.admin.acls import Acl
from semel.client.consume.fetch import begin_fetch
from semel.console.messages import limits, reading
from semel.console.pages import messages as pages

HOSTILE = {
    b"script": b"<script>document.title='owned'</script>",
    b"ansi": b"\x1b[2J\x1b]0;owned\x07",
    b"invalid": b"\xff\xfe\xc0 text",
    b"bidi": "a\u202eb".encode(),
    b"quotes": b"\"'><img src=x onerror=alert(1)>",
}


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t{time.monotonic_ns()}"
    Admin(client).topics.create(NewTopic(name, 2))
    return name


def read(browsing: Browsing, topic: str, **query: str) -> Any:
    reply = browsing.get(f"/topics/{topic}/messages.json?{urlencode(query)}")
    assert reply.status == 200, reply.text
    return reply.json


def events(browsing: Browsing, path: str) -> Iterator[tuple[str, Any]]:
    """The events of a stream, until the server ends it."""
    reply = browsing.get(path)
    assert reply.headers["Content-Type"].startswith("text/event-stream"), reply.text
    for block in reply.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            yield fields.get("event", "message"), json.loads(fields["data"])


def fill(client: Client, topic: str, count: int = 100) -> None:
    with Producer(client) as producer:
        for number in range(count):
            value = json.dumps({"n": number, "even": number % 2 == 0}).encode()
            producer.send(
                topic, value, key=b"k%d" % number, headers=[("h", b"%d" % number)], partition=number % 2
            )


def test_the_newest_records_come_first_and_the_rest_follows(
    browsing: Browsing, client: Client, topic: str
) -> None:
    fill(client, topic)
    seen: list[str] = []
    query: str | None = "limit=30"
    while query is not None:
        found = browsing.get(f"/topics/{topic}/messages.json?{query}").json
        seen += [each["key"]["text"] for each in found["messages"]]
        query = found["scan"]["next"]
    assert sorted(seen) == sorted(f"k{number}" for number in range(100))
    assert seen[0] in ("k98", "k99")


def test_a_page_has_records_without_a_script(browsing: Browsing, client: Client, topic: str) -> None:
    fill(client, topic)
    # A page is shown half a second after its request with what it has; then its link continues.
    address = f"/topics/{topic}/messages"
    while "k98" not in (text := browsing.get(address).text):
        (rest,) = re.findall('id="more" rel="next" class="button" href="([^"]+)"', text)
        address = html.unescape(rest)


def test_a_search_is_part_of_the_address(browsing: Browsing, client: Client, topic: str) -> None:
    fill(client, topic)
    for search, count in (("$.n>=90", 10), ("key:k42", 1), ("header.h:/^7$/", 1), ("$.even=true -$.n>10", 6)):
        assert read(browsing, topic, q=search)["scan"]["matched"] == count
    assert [
        each["offset"] for each in read(browsing, topic, **{"from": "48", "partition": "1"})["messages"]
    ] == [48, 49]
    reply = browsing.get(f"/topics/{topic}/messages?q={quote('/(/')}")
    assert "cannot be understood" in reply.text
    assert browsing.get(f"/topics/{topic}/messages.json?q={quote('/(/')}").status == 400
    assert browsing.get(f"/topics/{topic}/messages.json?from=yesterday").status == 400
    assert browsing.get(f"/topics/{topic}/messages.json?partition=9").status == 400
    assert browsing.get("/topics/unknown/messages.json").status == 404


def test_a_search_reports_progress_and_continues(browsing: Browsing, client: Client, topic: str) -> None:
    fill(client, topic)
    found = list(events(browsing, f"/topics/{topic}/messages/search?q=$.even=true&limit=20"))
    done = dict(found)["done"]
    assert (done["reason"], done["matched"]) == ("matches", 20)
    rest = list(events(browsing, f"/topics/{topic}/messages/search?{done['next']}"))
    keys = [row["key"]["text"] for name, data in found + rest if name == "rows" for row in data["rows"]]
    assert len(keys) == len(set(keys)) == 40
    assert dict(rest)["done"]["total"] == 100 - done["scanned"]
    assert "message" in dict(events(browsing, f"/topics/{topic}/messages/search?from=x"))["failed"]
    shown = dict(events(browsing, f"/topics/{topic}/messages/search?limit=30&shown=20"))
    assert (len(shown["rows"]["rows"]), shown["done"]["next"].count("shown")) == (10, 0)


def test_open_and_aborted_records_are_marked(browsing: Browsing, client: Client, topic: str) -> None:
    writers = []
    for name, end in (("a", "commit"), ("b", "abort"), ("c", "")):
        writer = TransactionalProducer(client, f"{topic}-{name}")
        writer.init()
        writer.begin()
        writer.send(topic, name.encode(), partition=0)
        writer.flush()
        if end:
            getattr(writer, end)()
        writers.append(writer)
    found = read(browsing, topic)
    assert [(each["value"]["text"], each["mark"]) for each in found["messages"]] == [("a", "committed")]
    assert found["scan"]["hidden"] == 1
    assert found["waiting"] == 1
    found = read(browsing, topic, isolation="uncommitted")
    assert [(each["value"]["text"], each["mark"]) for each in found["messages"]] == [
        ("c", "open"),
        ("b", "aborted"),
        ("a", "committed"),
    ]
    place = found["messages"][0]["address"]
    assert "readers of committed records wait" in browsing.get(place).text
    command = browsing.get(place + ".json").json["commands"]["semel"]
    assert f"--partition 0 --offset {found['messages'][0]['offset']}" in command
    assert "read_uncommitted" in command
    shown = read(browsing, topic, isolation="uncommitted", control="1")["messages"]
    assert [each["mark"] for each in shown].count("control") == 2
    writers[-1].abort()


def test_the_command_shows_the_same_record(browsing: Browsing, client: Client, topic: str) -> None:
    fill(client, topic, 2)
    writer = TransactionalProducer(client, f"{topic}-w")
    writer.init()
    writer.begin()
    writer.send(topic, b"aborted value", partition=0)
    writer.flush()
    writer.abort()
    for row in read(browsing, topic, isolation="uncommitted", partition="0")["messages"]:
        program, *arguments = shlex.split(browsing.get(row["address"] + ".json").json["commands"]["semel"])
        assert program == "semel"
        shown = subprocess.run([sys.executable, "-m", "semel", *arguments], capture_output=True, check=True)
        assert row["value"]["text"] in shown.stdout.decode()
        assert f"{topic}/0@{row['offset']}" in shown.stdout.decode()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_are_text(browsing: Browsing, client: Client, topic: str, name: bytes) -> None:
    value = HOSTILE[name]
    with Producer(client) as producer:
        producer.send(topic, value, key=value, headers=[(value.decode(errors="replace"), value)], partition=0)
    for path in ("", "/0/0", "/0/0?view=raw", "/0/0?view=hex", "?view=text", "?view=raw"):
        page = browsing.get(f"/topics/{topic}/messages{path}")
        assert page.status == 200
        assert "<script>document" not in page.text
        assert "<img" not in page.text
        assert "\x1b" not in page.text
        assert "\u202e" not in page.text
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    part = browsing.get(f"/topics/{topic}/messages/0/0/value")
    assert part.body == value
    assert part.headers["Content-Disposition"].startswith("attachment")
    assert part.headers["Content-Type"] == "application/octet-stream"
    assert part.headers["X-Content-Type-Options"] == "nosniff"


def test_ten_megabytes_of_one_line(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create(NewTopic("large", 1, configs={"max.message.bytes": "20000000"}))
    value = b'{"text": "' + b"x" * 10_000_000 + b'"}'
    with Producer(client) as producer:
        producer.send("large", value)
    began = time.process_time()  # A machine that stalls is not at work.
    page = browsing.get("/topics/large/messages")
    assert len(page.body) < 100_000
    page = browsing.get("/topics/large/messages/0/0")
    assert len(page.body) < 2_000_000
    assert "Only the beginning is shown" in page.text
    assert browsing.get("/topics/large/messages/0/0/value").body == value
    found = read(browsing, "large", q="value:/x{100}/")
    assert found["messages"][0]["value"]["is_truncated"]
    assert time.process_time() - began < 20


def test_a_quarter_of_a_million_headers(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create(NewTopic("headers", 1, configs={"max.message.bytes": "20000000"}))
    with Producer(client) as producer:
        producer.send("headers", b"v", headers=[("h", b"")] * 250_000)
    began = time.process_time()
    (row,) = read(browsing, "headers")["messages"]
    assert (row["header_count"], len(row["headers"])) == (250_000, 8)
    page = browsing.get("/topics/headers/messages/0/0")
    assert "Only the first 200 are shown" in page.text
    assert len(page.body) < 100_000
    assert (
        len(json.loads(browsing.get("/topics/headers/messages/0/0/headers").body))
        == limits.HEADERS_COPIED_MAX
    )
    reply = browsing.post("/topics/headers/replay.json", {"records": "0:0", "target": "headers"})
    assert (reply.status, "too many to copy" in reply.json["message"]) == (400, True)
    assert time.process_time() - began < 20


def test_a_bomb_is_named_and_hides_nothing_else(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create(NewTopic("bomb", 1, configs={"semel.validate.records": "none"}))
    for value, codec in ((b"before", Codec.NONE), (bytes(33 << 20), Codec.GZIP), (b"after", Codec.NONE)):
        with Producer(client, codec=codec, batch_bytes=100 << 20, buffer_bytes=200 << 20) as producer:
            producer.send("bomb", value)
    rows = read(browsing, "bomb")["messages"]
    assert [each["offset"] for each in rows] == [2, 1, 0]
    assert rows[1]["is_unreadable"]
    assert "unpacks to more than" in rows[1]["note"]
    assert "unpacks to more than" in browsing.get("/topics/bomb/messages/0/1").text
    assert browsing.get("/topics/bomb/messages/0/1/value").status == 400


def test_exports(browsing: Browsing, client: Client, topic: str) -> None:
    fill(client, topic)
    lines = browsing.get(f"/topics/{topic}/messages/export?q=$.even=true&format=ndjson")
    assert lines.headers["Content-Disposition"] == f'attachment; filename="{topic}.ndjson"'
    found = [json.loads(line) for line in lines.text.splitlines()]
    assert len(found) == 50
    assert set(found[0]) == {"topic", "partition", "offset", "timestamp", "time", "key", "value", "headers"}
    table = pq.read_table(io.BytesIO(browsing.get(f"/topics/{topic}/messages/export?format=parquet").body))
    assert table.num_rows == 100
    assert sorted(table["key"].to_pylist()) == sorted(b"k%d" % number for number in range(100))
    assert set(table["mark"].to_pylist()) == {"plain"}
    assert browsing.get(f"/topics/{topic}/messages/export?format=xml").status == 400


def test_an_export_that_a_limit_cuts_says_so(bootstrap: str, client: Client, topic: str) -> None:
    with Producer(client) as producer:
        for _ in range(50):
            producer.send(topic, bytes(100_000), partition=0)
            producer.flush()
    with console(bootstrap, scan_bytes=1_000_000) as browsing:
        last = json.loads(browsing.get(f"/topics/{topic}/messages/export").text.splitlines()[-1])
        assert last["stopped"]["reason"] == "bytes"
        assert "left=0" in last["stopped"]["next"]
        file = pq.ParquetFile(
            io.BytesIO(browsing.get(f"/topics/{topic}/messages/export?format=parquet").body)
        )
        assert json.loads(file.metadata.metadata[b"semel.stopped"])["reason"] == "bytes"
        assert 0 < file.metadata.num_rows < 50


def stream_of(browsing: Browsing, path: str) -> socket.socket:
    parts = urlsplit(browsing.address)
    made = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return made


def receive(browser: socket.socket, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        part = browser.recv(65536)
        assert part, received
        received += part
    return received


def test_a_tail_shows_records_and_the_outcome_of_transactions(
    browsing: Browsing, client: Client, topic: str
) -> None:
    browser = stream_of(browsing, f"/topics/{topic}/messages/tail?isolation=uncommitted&q=is:open")
    receive(browser, b"ready")
    writer = TransactionalProducer(client, f"{topic}-w")
    writer.init()
    writer.begin()
    writer.send(topic, b"later", partition=0)
    writer.flush()
    assert b'"mark":"open"' in receive(browser, b"later")
    writer.commit()
    assert b'"mark":"committed"' in receive(browser, b'outcomes":[{')
    browser.close()


@pytest.fixture
def endless(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Searches of the topic begin again when they are done, until they are stopped; then this is set."""
    with Producer(client, codec=Codec.GZIP) as producer:
        for _ in range(10):
            producer.send(topic, b"x" * 100_000, partition=0)
            producer.flush()
    ended, search = threading.Event(), pages._search

    def again(*arguments: Any) -> Iterator[tuple[str, Any]]:
        try:
            while True:
                yield from search(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(pages, "_search", again)
    return ended


def test_a_scan_stops_when_its_browser_leaves(bootstrap: str, topic: str, endless: threading.Event) -> None:
    with console(bootstrap) as browsing:
        browser = stream_of(browsing, f"/topics/{topic}/messages/search?q=value:/y{{500}}z/")
        receive(browser, b"event: progress")
        assert not endless.is_set()
        browser.close()
        assert endless.wait(20)
        until(lambda: browsing.get("/topics.json").status == 200)


def test_an_export_stops_when_its_browser_leaves(bootstrap: str, client: Client, topic: str) -> None:
    with Producer(client, codec=Codec.GZIP) as producer:
        for _ in range(50):  # More than any buffer on the way holds.
            producer.send(topic, b"x" * 1_000_000, partition=0)
            producer.flush()
    with console(bootstrap, scans_per_user=1) as browsing:
        browser = stream_of(browsing, f"/topics/{topic}/messages/export")
        receive(browser, b"xxxx")
        assert browsing.get(f"/topics/{topic}/messages/export").status == 503
        browser.close()
        until(lambda: browsing.get(f"/topics/{topic}/messages/export?to=1").status == 200)


def test_scans_of_a_user_are_bounded(bootstrap: str, topic: str, endless: threading.Event) -> None:
    with console(bootstrap, scans_per_user=1) as browsing:
        browser = stream_of(browsing, f"/topics/{topic}/messages/search?q=value:/y{{500}}z/")
        receive(browser, b"event: progress")
        reply = browsing.get(f"/topics/{topic}/messages/search.json?q=z")
        assert (reply.status, "Stop one of them" in reply.text) == (503, True)
        assert not endless.is_set()
        browser.close()


def test_a_record_that_is_not_there(browsing: Browsing, topic: str) -> None:
    assert browsing.get(f"/topics/{topic}/messages/0/99.json").status == 404
    assert browsing.get(f"/topics/{topic}/messages/7/0.json").status == 404
    assert "There are no messages" in browsing.get(f"/topics/{topic}/messages").text


def post_file(browsing: Browsing, path: str, body: bytes) -> Reply:
    return browsing.send(
        "POST", path, body, {"Origin": browsing.address, "Content-Type": "application/octet-stream"}
    )


def test_what_was_exported_can_be_written_again(browsing: Browsing, client: Client, topic: str) -> None:
    fill(client, topic)
    lines = browsing.get(f"/topics/{topic}/messages/export").body
    Admin(client).topics.create(NewTopic(f"{topic}-copy", 2))
    reply = post_file(browsing, f"/topics/{topic}-copy/produce/file.json?format=json&outcome=commit", lines)
    assert (reply.status, reply.json["records"]) == (200, 100)
    copied = read(browsing, f"{topic}-copy", limit="500")["messages"]
    assert {each["mark"] for each in copied} == {"committed"}
    assert sorted(each["value"]["text"] for each in copied) == sorted(
        each["value"]["text"] for each in read(browsing, topic, limit="500")["messages"]
    )


def test_producing(browsing: Browsing, topic: str) -> None:
    reply = browsing.post(
        f"/topics/{topic}/produce",
        {"key": "a", "value": "one\r\ntwo", "headers": "trace: x:1\nb=2", "partition": "1"},
    )
    assert reply.status == 303
    assert "Wrote%201%20record" in reply.headers["Location"]
    (row,) = read(browsing, topic)["messages"]
    assert (row["partition"], row["key"]["text"], row["value"]["text"]) == (1, "a", "one\ntwo")
    assert [(each["name"], each["text"]) for each in row["headers"]] == [("trace", "x:1"), ("b", "2")]
    lines = {"kind": "lines", "lines": "a|1\r\nb|2\r\n", "separator": "|", "outcome": "commit"}
    assert browsing.post(f"/topics/{topic}/produce.json", lines).json["records"] == 2
    marks = [each["mark"] for each in read(browsing, topic)["messages"]]
    assert sorted(marks) == ["committed", "committed", "plain"]
    aborted = browsing.post_json(f"/topics/{topic}/produce.json", {"value": "never", "outcome": "abort"})
    assert aborted.json["outcome"] == "abort"
    assert len(read(browsing, topic)["messages"]) == 3
    assert read(browsing, topic, isolation="uncommitted", q="never")["messages"][0]["mark"] == "aborted"
    browsing.post(f"/topics/{topic}/produce", {"key": "a", "tombstone": "1"})
    assert read(browsing, topic, q="is:tombstone")["scan"]["matched"] == 1
    browsing.post(f"/topics/{topic}/produce", {"value": "00ff", "format": "hex"})
    assert read(browsing, topic, q="/\\x00/", view="hex")["messages"][0]["value"]["text"] == "00 ff"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"partition": "9", "value": "x"}, "no partition 9"),
        ({"value": "x", "headers": "nothing"}, "name: value"),
        ({"value": "zz", "format": "hex"}, "hex"),
        ({"kind": "lines", "lines": "{}", "format": "json"}, "line 1 is not a record"),
        ({"kind": "lines", "lines": ""}, "no record"),
        ({"value": "x", "outcome": "maybe"}, "outcome"),
        ({"value": "x", "format": "xml"}, "format"),
    ],
)
def test_what_cannot_be_written_says_why(
    browsing: Browsing, topic: str, fields: dict[str, str], says: str
) -> None:
    reply = browsing.post(f"/topics/{topic}/produce.json", fields)
    assert reply.status in (400, 404)
    assert says in reply.json["message"].lower()
    assert read(browsing, topic)["messages"] == []


def test_replaying(browsing: Browsing, client: Client, topic: str) -> None:
    fill(client, topic, 10)
    page = browsing.get(f"/topics/{topic}/replay?records=0:1,1:2")
    assert "Replay 2 messages" in page.text
    Admin(client).topics.create(NewTopic(f"{topic}-again", 2))
    fields = {"records": "0:1,1:2", "target": f"{topic}-again", "outcome": "commit", "keep_partition": "1"}
    assert browsing.post(f"/topics/{topic}/replay.json", fields).json["records"] == 2
    again = {
        (each["partition"], each["key"]["text"]) for each in read(browsing, f"{topic}-again")["messages"]
    }
    assert again == {(0, "k2"), (1, "k5")}
    for wrong in ("0:99", "x", "0:1;2", ""):
        assert browsing.post(f"/topics/{topic}/replay.json", {"records": wrong}).status == 400
    assert (
        browsing.post(f"/topics/{topic}/replay.json", {"records": "0:1", "target": "nowhere"}).status == 404
    )


def test_a_read_only_console_writes_nothing(bootstrap: str, client: Client, topic: str) -> None:
    with console(bootstrap, read_only=True) as browsing:
        assert browsing.post(f"/topics/{topic}/produce", {"value": "x"}).status == 403
        assert post_file(browsing, f"/topics/{topic}/produce/file", b"x").status == 403
        assert browsing.post(f"/topics/{topic}/replay", {"records": "0:0"}).status == 403
        assert "read-only" in browsing.get(f"/topics/{topic}/produce").text
        assert "Produce</a>" not in browsing.get(f"/topics/{topic}/messages").text


def test_a_compressed_topic_is_read(browsing: Browsing, client: Client, topic: str) -> None:
    with Producer(client, codec=Codec.ZSTD) as producer:
        producer.send(topic, gzip.compress(b"inner"), partition=0)
    (row,) = read(browsing, topic)["messages"]
    assert (row["codec"], row["value"]["kind"]) == ("zstd", "hex")


def test_a_topic_with_a_strange_name() -> None:
    with semel.embedded() as broker, Client(broker.bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic("a.json", 1))
        with Producer(client) as producer:
            producer.send("a.json", b"x")
        with console(broker.bootstrap_servers) as browsing:
            assert browsing.get("/topics/a.json/messages.json").json["messages"][0]["value"]["text"] == "x"
            assert browsing.get("/topics/a.json/messages/0/0.json").json["record"]["value"]["text"] == "x"


def test_a_thousand_partitions(browsing: Browsing, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches, begin = [], begin_fetch

    def noted(client: Client, positions: Any, *arguments: Any) -> Any:
        fetches.append(len(positions))
        return begin(client, positions, *arguments)

    Admin(client).topics.create(NewTopic("wide", 1000))
    with Producer(client) as producer:
        for number in range(3000):
            producer.send("wide", b"%d" % number, partition=number % 1000, timestamp_ms=1000 + number)
    monkeypatch.setattr(reading, "begin_fetch", noted)
    began = time.process_time()
    found = read(browsing, "wide")
    assert time.process_time() - began < 5
    assert fetches == [1000]  # all at once
    assert [each["value"]["text"] for each in found["messages"]] == [str(n) for n in range(2999, 2949, -1)]
    assert read(browsing, "wide", q="value:/^7$/")["scan"]["matched"] == 1


def test_rights_of_the_broker_decide() -> None:
    """A reader may read, and is told that it may not write; nobody else sees that the topic exists."""
    users = {"admin": "a", "reader": "r", "nobody": "n"}
    rules = {"semel.authorizer": "acl", "super.users": "User:admin"}
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    with semel.embedded(settings=rules, users=users) as broker:
        security = Security.of({**sasl, "sasl.username": "admin", "sasl.password": "a"})
        with Client(broker.bootstrap_servers, security=security) as admin:
            Admin(admin).topics.create(NewTopic("secret", 1))
            for operation in ("READ", "DESCRIBE"):
                Admin(admin).acls.add(Acl.of("User:reader", operation, topic="secret"))
            with Producer(admin) as producer:
                producer.send("secret", b"hidden")
        with console(broker.bootstrap_servers, login=True, client=sasl) as browsing:
            browsing.post("/login", {"user": "reader", "password": "r"})
            assert read(browsing, "secret")["messages"][0]["value"]["text"] == "hidden"
            assert browsing.post("/topics/secret/produce.json", {"value": "x"}).status == 403
            stranger = Browsing(browsing.address)
            stranger.post("/login", {"user": "nobody", "password": "n"})
            for path in ("messages.json", "messages/0/0.json", "messages/0/0/value", "messages/export"):
                assert stranger.get(f"/topics/secret/{path}").status == 403
