"""Safe: who may reach the console, and what it does for them. One test for each sentence of the promise."""

import re
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.browser.console import Browsing, console
from support.waiting import until

import semel
from semel.client import Admin, Client, Security
from semel.client.admin.acls import Acl
from semel.console.app import create_app
from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings, UnsafeSettings

USERS = {"admin": "secret-a", "reader": "secret-r", "nobody": "secret-n"}
PAGES = ("/", "/topics", "/groups", "/transactions", "/pipelines", "/cluster", "/security", "/checks")
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A broker with users and ACLs: `reader` may read one topic."""
    settings = {"semel.authorizer": "acl", "super.users": "User:admin"}
    with semel.embedded(settings=settings, users=USERS) as broker:
        security = Security.of({**SASL, "sasl.username": "admin", "sasl.password": USERS["admin"]})
        with Client(broker.bootstrap_servers, security=security) as client:
            admin = Admin(client)
            admin.topics.create("seen", "hidden")
            admin.acls.add(Acl.of("User:reader", "READ", topic="seen"))
            admin.acls.add(Acl.of("User:reader", "DESCRIBE", topic="seen"))
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def running(guarded: str) -> Iterator[str]:
    with console(guarded, client=SASL, login=True) as browsing:
        yield browsing.address


@pytest.fixture
def anonymous(running: str) -> Browsing:
    return Browsing(running)


def logged_in(address: str, user: str) -> Browsing:
    browsing = Browsing(address)
    reply = browsing.post("/login", {"user": user, "password": USERS[user], "next": "/topics"})
    assert reply.status == 303, reply.text
    return browsing


# ---- where it listens


def test_it_listens_on_loopback_unless_told_otherwise() -> None:
    assert ConsoleSettings().is_loopback
    assert not ConsoleSettings().needs_login


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.7.1", "console.example"])
def test_elsewhere_it_wants_a_login_by_sasl(host: str) -> None:
    with pytest.raises(UnsafeSettings, match="wants a login"):
        ConsoleSettings(host=host, allowed_hosts=("console.example",)).checked()
    assert ConsoleSettings(host=host, allowed_hosts=("c.example",), client=SASL).checked().needs_login


def test_on_all_addresses_it_wants_to_know_its_name() -> None:
    with pytest.raises(ValueError, match="--allow-host"):
        ConsoleSettings(host="0.0.0.0", client=SASL).checked()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_every_loopback_address_needs_no_login(host: str) -> None:
    assert not ConsoleSettings(host=host).checked().needs_login


# ---- login


def test_without_a_session_pages_lead_to_the_login(anonymous: Browsing) -> None:
    reply = anonymous.get("/topics?q=a")
    assert (reply.status, reply.headers["Location"]) == (303, "/login?next=%2Ftopics%3Fq%3Da")
    assert anonymous.get("/topics.json").status == 401
    assert anonymous.get("/changes?of=ends", Accept="text/event-stream").status == 401
    assert anonymous.post("/topics", {"name": "x"}).status == 401
    assert anonymous.get("/login").status == 200


def test_the_cookie_is_httponly_and_strict(anonymous: Browsing) -> None:
    reply = anonymous.post("/login", {"user": "reader", "password": USERS["reader"]})
    cookie = reply.headers["Set-Cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert "secret-r" not in cookie
    assert len(re.split("[=;]", cookie)[1]) >= 43  # 256 bits


def test_a_login_acts_as_the_principal_so_that_acls_decide(running: str) -> None:
    reader, admin = logged_in(running, "reader"), logged_in(running, "admin")

    def names(browsing: Browsing) -> list[str]:
        return [each["topic"] for each in browsing.get("/topics.json").json["topics"]]

    assert until(lambda: names(reader)) == ["seen"]
    assert until(lambda: names(admin)) == ["hidden", "seen"]
    assert reader.get("/topics/hidden.json").status in (403, 404)
    assert reader.post_json("/topics.json", {"name": "new"}).status == 403
    assert admin.post_json("/topics.json", {"name": "new"}).status == 200


def test_a_wrong_password_is_refused_and_many_have_to_wait(guarded: str) -> None:
    with console(guarded, client=SASL, login=True, logins_per_minute=5) as browsing:
        for _ in range(5):
            assert browsing.post("/login", {"user": "nobody", "password": "guess"}).status == 401
        reply = browsing.post("/login", {"user": "nobody", "password": USERS["nobody"]})
        assert reply.status == 429
        assert "wait a minute" in reply.text


@pytest.mark.parametrize("user", ["nobody", "reader"])
def test_pages_of_users_with_few_rights_show_what_they_may_see(running: str, user: str) -> None:
    session = logged_in(running, user)
    for path in PAGES:
        assert session.get(path).status in (200, 403), path
    assert session.get("/security.json").json["acls"] is None
    assert session.get("/cluster/brokers/0.json").status == 403


def test_logging_out_ends_the_session(guarded: str) -> None:
    with console(guarded, client=SASL, login=True) as browsing:
        session = logged_in(browsing.address, "reader")
        kept = session.cookie
        assert session.get("/topics.json").status == 200
        assert session.post("/logout").status == 303
        session.cookie = kept
        assert session.get("/topics.json").status == 401


def test_a_session_ends_when_it_is_not_used(guarded: str) -> None:
    settings = ConsoleSettings(bootstrap=guarded, port=0, client=SASL, login=True, session_seconds=60.0)
    app = create_app(settings)
    with Beside(settings, app) as running:
        session = logged_in(running.address, "reader")
        assert session.get("/login").status == 303
        (kept,) = app.state.sessions._by_token.values()
        kept.used -= 61.0  # as if it had not been used since
        assert session.get("/topics.json").status == 401


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:1"]
)
def test_a_login_sends_nobody_elsewhere(guarded: str, target: str) -> None:
    with console(guarded, client=SASL, login=True) as browsing:
        reply = browsing.post("/login", {"user": "reader", "password": USERS["reader"], "next": target})
        assert reply.headers["Location"] == "/"


# ---- other sites


def test_a_foreign_host_is_refused(browsing: Browsing) -> None:
    reply = browsing.get("/topics", Host="evil.example")
    assert reply.status == 421
    assert "--allow-host evil.example" in reply.text
    assert browsing.get("/topics", Host="localhost:1").status == 200


@pytest.mark.parametrize(
    "host",
    [
        "[::1]evil.example",
        "[::1].evil.example:80",
        "127.0.0.1:evil.example",
        "localhost/topics?",
        "localhost:",
        "localhost#",
        "x@localhost",
        "127.0.0.1, evil.example",
        "[localhost]",
        "localhost%00.evil",
        "",
    ],
)
def test_a_host_is_a_name_and_a_port_and_nothing_else(browsing: Browsing, host: str) -> None:
    assert browsing.get("/topics.json", Host=host).status in (400, 421)


@pytest.mark.parametrize("host", ["localhost/login?", "localhost/static/", "localhost:1/login#"])
def test_a_host_does_not_stand_in_for_the_path(guarded: str, host: str) -> None:
    """What a request may do is decided by the path that is served, not by an address put together."""
    with console(guarded, client=SASL, login=True, read_only=True) as browsing:
        assert browsing.get("/topics.json", Host=host).status == 400
        headers = {"Host": host, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
        assert browsing.send("POST", "/topics.json", b'{"name":"forged"}', headers).status == 400


def test_a_console_answers_to_the_names_it_is_given(bootstrap: str) -> None:
    with console(bootstrap, allowed_hosts=("Console.example",)) as browsing:
        assert browsing.get("/topics", Host="console.example:8080").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
    ],
)
def test_changes_from_other_sites_are_refused(browsing: Browsing, headers: dict[str, str]) -> None:
    body = b"name=forged"
    given = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    assert browsing.send("POST", "/topics", body, given).status == 403
    assert "forged" not in browsing.get("/topics.json").text


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "same-origin"}, {"Origin": ""}])
def test_changes_from_its_own_pages_are_accepted(browsing: Browsing, headers: dict[str, str]) -> None:
    given = {name: value or browsing.address for name, value in headers.items()}
    given["Content-Type"] = "application/x-www-form-urlencoded"
    name = f"own-{len(headers)}-{next(iter(headers)).lower()}"
    assert browsing.send("POST", "/topics", f"name={name}".encode(), given).status == 303


def test_other_sites_cannot_read_in_the_background(browsing: Browsing) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert browsing.send("GET", "/topics.json", None, headers).status == 403
    headers["Sec-Fetch-Mode"] = "navigate"  # a link to the console
    assert browsing.send("GET", "/topics", None, headers).status == 200


# ---- headers


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/nowhere", "/topics.json", "/static/console.css", "/login"]
)
def test_every_response_has_the_policy(browsing: Browsing, path: str) -> None:
    headers = browsing.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    sources = {word for part in policy.split(";") for word in part.split()[1:]}
    assert sources == {"'none'", "'self'"}
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "server" not in headers


def test_pages_name_no_outside_address(browsing: Browsing) -> None:
    for path in (
        "/",
        "/topics",
        "/groups",
        "/transactions",
        "/pipelines",
        "/cluster",
        "/security",
        "/checks",
    ):
        text = browsing.get(path).text
        assert not re.findall(r"(?:src|href|action)=\"(?:https?:)?//", text), path
        assert " style=" not in text
        assert not re.findall(r"<script(?![^>]* src=)", text)
        assert not re.findall(r"\son\w+=", text)


# ---- read-only


def test_a_read_only_console_changes_nothing(bootstrap: str, client: Client) -> None:
    Admin(client).topics.create("kept")
    with console(bootstrap, read_only=True) as browsing:
        for path in (
            "/topics",
            "/topics/kept/delete",
            "/topics/kept/configs",
            "/topics/kept/partitions",
            "/topics/kept/produce",
            "/groups/g/reset",
            "/groups/g/delete",
            "/transactions/t/abort",
            "/topics/kept/why/0/abort",
        ):
            reply = browsing.post(f"{path}.json", {"name": "kept", "total": "9"})
            assert reply.status == 403, path
            assert "--read-only" in reply.json["message"]
        until(lambda: "kept" in browsing.get("/topics.json").text)
        for path in ("/topics", "/topics/kept", "/topics/kept/configs"):
            assert 'method="post"' not in browsing.get(path).text
    assert len(Admin(client).topics.describe("kept").partitions) == 1


# ---- bounded


def test_a_body_is_bounded(bootstrap: str) -> None:
    with console(bootstrap, body_bytes=1 << 20) as browsing:
        assert browsing.post("/topics.json", {"name": "x" * (2 << 20)}).status == 413


def test_headers_are_bounded(browsing: Browsing) -> None:
    parts = urlsplit(browsing.address)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n")
        assert b"400" in raw.recv(1024)


def test_names_are_escaped(browsing: Browsing, client: Client) -> None:
    name = "<script>alert(1)</script>\x1b[31m\u202e"
    Admin(client).topics.create("for-groups")
    Admin(client).groups.set_offsets(name, {("for-groups", 0): 0})
    text = until(lambda: page if "alert(1)" in (page := browsing.get("/groups").text) else None)
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    found = [each["group"] for each in browsing.get("/groups.json").json["groups"]]
    assert name in found  # JSON is exact
    quoted = browsing.get("/groups/%3Cscript%3Ealert(1)%3C%2Fscript%3E%1B%5B31m%E2%80%AE")
    assert quoted.status == 200
    assert "<script>alert" not in quoted.text


def test_a_link_of_another_site_puts_no_words_into_its_mouth(browsing: Browsing) -> None:
    path = "/topics?done=Call+this+number"
    assert "Call this number" in browsing.get(path).text
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert "Call this number" not in browsing.send("GET", path, None, headers).text


def test_users_who_log_in_twice_are_sampled_once(guarded: str) -> None:
    settings = ConsoleSettings(bootstrap=guarded, port=0, client=SASL, login=True, observers_max=2)
    app = create_app(settings)
    with Beside(settings, app) as running:
        first, second = logged_in(running.address, "reader"), logged_in(running.address, "reader")
        for each in (first, second):
            assert each.get("/topics.json").status == 200
        observers = app.state.observers
        assert len(observers._by_identity) == 1
        first.post("/logout")
        assert len(observers._by_identity) == 1  # The other one is still there.
        second.post("/logout")
        assert len(observers._by_identity) == 0
        for user in USERS:
            assert logged_in(running.address, user).get("/topics.json").status == 200
        assert len(observers._by_identity) == 2  # bounded


def test_pages_of_a_user_are_bounded(guarded: str) -> None:
    settings = ConsoleSettings(bootstrap=guarded, port=0, client=SASL, login=True, requests_per_user=1)
    app = create_app(settings)
    begun, go_on = threading.Event(), threading.Event()

    def wait(client: Client) -> None:
        begun.set()
        go_on.wait(20)

    async def slow(request: Request) -> Response:
        await request.app.state.workers.run(request, wait)
        return Response()

    app.router.routes[:0] = [Route("/slow", slow)]
    with Beside(settings, app) as running:
        session = logged_in(running.address, "admin")
        other = threading.Thread(target=session.get, args=("/slow",))
        other.start()
        assert begun.wait(20)
        reply = session.get("/slow.json")
        go_on.set()
        other.join()
        assert reply.status == 503
        assert "loading at once" in reply.json["message"]
        assert session.get("/slow").status == 200
