"""The pages of messages in a real browser."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.browser.chromium import chromium, page_of, searched, serious_violations
from support.browser.console import Browsing
from support.waiting import until

from semel.client import Admin, Client, NewTopic, Producer, TransactionalProducer
from semel.console.pages import messages

ROWS = "table.messages tbody tr"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture
def page(browser: Any, browsing: Browsing) -> Iterator[Any]:
    with page_of(browser, browsing.address) as made:
        yield made


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t{time.monotonic_ns()}"
    Admin(client).topics.create(NewTopic(name, 2))
    return name


def fill(client: Client, topic: str, count: int = 100) -> None:
    with Producer(client) as producer:
        for number in range(count):
            producer.send(
                topic, json.dumps({"n": number}).encode(), key=b"k%d" % number, partition=number % 2
            )


def begun(client: Client, topic: str, name: str, value: bytes) -> TransactionalProducer:
    writer = TransactionalProducer(client, f"{topic}-{name}")
    writer.init()
    writer.begin()
    writer.send(topic, value, partition=0)
    writer.flush()
    return writer


def holds(page: Any, condition: str) -> None:
    """Wait for a condition. Playwright's own way evaluates text in the page, which the policy forbids."""
    until(lambda: page.evaluate(f"() => Boolean({condition})"), what=condition)


def streams() -> int:
    """Streams of events that the console is sending."""
    return sum(each.name == "console stream" for each in threading.enumerate())


def test_a_tail_shows_what_a_producer_writes(page: Any, client: Client, topic: str) -> None:
    page.goto(f"/topics/{topic}/messages")
    assert "There are no messages" in page.inner_text("#nothing")
    page.keyboard.press("l")
    holds(page, "document.getElementById('says').textContent.startsWith('Following')")
    page.wait_for_url("**live=1**")
    stop = threading.Event()

    def write() -> None:
        with Client(f"{client._bootstrap[0][0]}:{client._bootstrap[0][1]}") as own, Producer(own) as producer:
            number = 0
            while not stop.wait(0.05):
                producer.send(topic, b"<b>message %d</b>" % number)
                producer.flush()
                number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        holds(page, f"document.querySelectorAll('{ROWS}').length > 10")
    finally:
        stop.set()
        thread.join()
    assert "<b>message" in page.inner_text(ROWS)
    page.keyboard.press("l")
    page.wait_for_url(lambda url: "live=1" not in url)
    until(lambda: page.evaluate("true") and not streams(), what="the end of the stream")
    count = page.locator(ROWS).count()
    fill(client, topic, 4)
    assert page.locator(ROWS).count() == count


def test_a_tail_marks_what_became_of_a_transaction(page: Any, client: Client, topic: str) -> None:
    page.goto(f"/topics/{topic}/messages?isolation=uncommitted&live=1")
    holds(page, "document.getElementById('says').textContent.startsWith('Following')")
    committed, aborted = begun(client, topic, "a", b"will stay"), begun(client, topic, "b", b"will go")
    page.wait_for_selector(f"{ROWS}:has-text('will go') .tag.odd")
    committed.commit()
    page.wait_for_selector(f"{ROWS}:has-text('will stay') .tag.good")
    aborted.abort()
    page.wait_for_selector(f"{ROWS}:has-text('will go') .tag.bad")


def test_the_switch_between_committed_and_uncommitted(page: Any, client: Client, topic: str) -> None:
    begun(client, topic, "a", b"committed value").commit()
    begun(client, topic, "b", b"aborted value").abort()
    writer = begun(client, topic, "c", b"open value")
    page.goto(f"/topics/{topic}/messages")
    searched(page)
    assert page.locator(ROWS).count() == 1
    assert "1 aborted record hidden" in page.inner_text("#says")
    assert "open transaction holds readers back" in page.inner_text("main")
    page.keyboard.press("u")
    page.wait_for_url("**isolation=uncommitted**")
    searched(page)
    assert [text.split()[-1] for text in page.locator("td.state").all_inner_texts()] == [
        "open",
        "aborted",
        "committed",
    ]
    page.check("text=markers")
    page.wait_for_url("**control=1**")
    searched(page)
    assert page.locator(ROWS).count() == 5
    page.keyboard.press("u")
    page.wait_for_url(lambda url: "isolation=uncommitted" not in url)
    writer.abort()


@pytest.fixture
def may_go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Searches pause when they have told how far they are, until this is set or they are stopped."""
    go_on, search = threading.Event(), messages._search

    def held(client: Client, stop: threading.Event, *arguments: Any) -> Iterator[tuple[str, Any]]:
        for name, data in search(client, stop, *arguments):
            yield name, data
            while name == "progress" and not go_on.is_set() and not stop.wait(0.02):
                pass

    monkeypatch.setattr(messages, "_search", held)
    return go_on


def test_a_search_shows_progress_and_can_be_stopped_and_continued(
    page: Any, client: Client, may_go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "FIRST_SECONDS", 0.0)  # The page itself looks at a part.
    Admin(client).topics.create(NewTopic("long", 1))
    with Producer(client) as producer:
        producer.send("long", b"the first needle")
        for _ in range(20):
            for _ in range(20):
                producer.send("long", b"x" * 100)
            producer.flush()
    page.goto("/topics/long/messages")
    page.keyboard.press("/")
    page.keyboard.type("value:/needle$/")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop:visible")
    holds(page, "document.getElementById('says').textContent.includes('read')")
    assert 0 < page.evaluate("document.getElementById('progress').value") < 1
    page.click("#stop")
    assert "Stopped" in page.inner_text("#more-says")
    assert page.locator(ROWS).count() == 0
    scanned = page.evaluate("document.getElementById('progress').value")
    may_go_on.set()
    page.click("#more")
    page.wait_for_selector(f"{ROWS}:has-text('needle')", timeout=60_000)
    holds(page, "document.getElementById('progress').value === 1")
    assert scanned < 1
    assert "1 match in 401 of 401" in page.inner_text("#says")


def test_a_record_opens_beside_the_list_by_keys(page: Any, client: Client, topic: str) -> None:
    fill(client, topic)
    page.goto(f"/topics/{topic}/messages")
    searched(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    chosen = page.inner_text("tr.chosen td.key")
    page.keyboard.press("Enter")
    page.wait_for_selector("#sheet[open]")
    assert chosen in page.inner_text("#sheet")
    assert "semel consume" in page.inner_text("#sheet")
    page.click("#sheet a[data-view=hex]")
    holds(page, "document.getElementById('sheet').textContent.includes('00000000  ')")
    page.keyboard.press("ArrowDown")
    holds(page, f"!document.getElementById('sheet').textContent.includes('{chosen}')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#sheet", state="hidden")
    page.keyboard.press("?")
    assert "follow new messages" in page.inner_text("#help")


def test_jumps(page: Any, client: Client, topic: str) -> None:
    fill(client, topic)
    page.goto(f"/topics/{topic}/messages")
    page.fill("input[name=from]", "40")
    page.fill("input[name=partition]", "1")
    page.keyboard.press("Enter")
    page.wait_for_url("**from=40**")
    searched(page)
    assert page.locator("a.record").first.inner_text() == "1/40"
    page.click("text=the end")
    page.wait_for_url(lambda url: "from=40" not in url)
    searched(page)
    assert page.locator("a.record").first.inner_text() == "1/49"
    page.fill("input[name=from]", "-1h")
    page.keyboard.press("Enter")
    page.wait_for_url("**from=-1h**")
    searched(page)
    assert page.locator("a.record").first.inner_text() == "1/0"


def test_what_was_searched_for_is_highlighted(page: Any, client: Client, topic: str) -> None:
    fill(client, topic)
    page.goto(f'/topics/{topic}/messages?q=key:K42 value:"42"')
    searched(page)
    found = page.evaluate("() => [...CSS.highlights.get('found')].map(String)")
    assert sorted(found) == ["42", "42", "k42"]


def test_older_messages_follow(page: Any, client: Client, topic: str) -> None:
    fill(client, topic)
    page.goto(f"/topics/{topic}/messages?limit=60")
    searched(page)
    first = set(page.locator("a.record").all_inner_texts())
    page.keyboard.press("n")
    page.wait_for_url("**left=**")
    searched(page)
    second = set(page.locator("a.record").all_inner_texts())
    assert (len(first), len(second), len(first | second)) == (60, 40, 100)


def test_a_page_that_is_shown_early_is_filled_while_it_is_looked_at(
    page: Any, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "FIRST_SECONDS", 0.0)
    fill(client, topic)
    begun(client, topic, "a", b"aborted value").abort()
    page.goto(f"/topics/{topic}/messages?limit=60")
    searched(page)
    assert page.inner_text("#says") == "60 records · 1 aborted record hidden"
    assert page.locator(ROWS).count() == 60
    page.keyboard.press("n")
    page.wait_for_url("**left=**")
    searched(page)
    assert page.inner_text("#says") == "40 records"
    page.goto(f"/topics/{topic}/messages?q=key:k42")
    searched(page)
    assert page.inner_text("#says") == "1 match in 102 of 102 offsets · 1 aborted record hidden"


def test_exports_are_downloads(page: Any, client: Client, topic: str, tmp_path: Any) -> None:
    fill(client, topic)
    page.goto(f"/topics/{topic}/messages?q=$.n%3E=90")
    page.click("text=Export…")
    with page.expect_download() as waiting:
        page.click("#export-ndjson")
    lines = waiting.value.path().read_text().splitlines()
    assert sorted(json.loads(json.loads(line)["value"])["n"] for line in lines) == list(range(90, 100))
    with page.expect_download() as waiting:
        page.click("#export-parquet")
    assert waiting.value.suggested_filename == f"{topic}.parquet"
    waiting.value.save_as(tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 10


def test_hostile_records_do_nothing(page: Any, client: Client, topic: str) -> None:
    hostile = (
        b"<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b[31m\xff"
    )
    page.goto(f"/topics/{topic}/messages?live=1")
    holds(page, "document.getElementById('says').textContent.startsWith('Following')")
    with Producer(client) as producer:
        producer.send(topic, hostile, key=hostile, headers=[(hostile.decode(errors="replace"), hostile)])
    page.wait_for_selector(ROWS)
    for path in (f"/topics/{topic}/messages", f"/topics/{topic}/messages?view=raw&q=owned"):
        page.goto(path)
        page.click("a.record")
        page.wait_for_selector("#sheet[open] pre")
        assert "onerror" in page.inner_text("#sheet")
        assert "owned" not in page.title()
        assert page.locator("main img, #sheet img").count() == 0
        assert "\x1b" not in page.content()


def test_ten_megabytes_are_shown_quickly(page: Any, client: Client) -> None:
    Admin(client).topics.create(NewTopic("wide", 1, configs={"max.message.bytes": "20000000"}))
    with Producer(client) as producer:
        producer.send("wide", b"y" * 10_000_000)
    page.goto("/topics/wide/messages")
    page.click("a.record")
    page.wait_for_selector("text=Only the beginning is shown")
    with page.expect_download() as waiting:
        page.click("text=Download all")
    assert waiting.value.path().stat().st_size == 10_000_000


def test_views_are_saved_as_links(page: Any, client: Client, topic: str) -> None:
    fill(client, topic)
    page.goto(f"/topics/{topic}/messages?q=key:k42")
    page.click("text=Saved views…")
    page.fill("#save input", "forty-two")
    page.click("text=Save this view")
    page.goto(f"/topics/{topic}/messages")
    page.click("text=Saved views…")
    page.click("text=forty-two")
    page.wait_for_url("**q=key:k42")
    searched(page)
    assert page.locator(ROWS).count() == 1


def test_leaving_the_page_ends_its_streams(page: Any, browsing: Browsing, client: Client, topic: str) -> None:
    page.goto(f"/topics/{topic}/messages?live=1")
    holds(page, "document.getElementById('says').textContent.startsWith('Following')")
    assert streams() >= 1
    page.goto("about:blank")
    until(lambda: streams() == 0, what="the end of the stream")


def test_it_works_on_a_phone_without_scrolling_sideways(
    browser: Any, browsing: Browsing, client: Client, topic: str
) -> None:
    fill(client, topic)
    with page_of(browser, browsing.address, viewport={"width": 390, "height": 844}) as page:
        for path in ("messages", "messages/0/0", "produce", "replay?records=0:0"):
            page.goto(f"/topics/{topic}/{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_nothing_serious_is_inaccessible(
    browser: Any, browsing: Browsing, client: Client, topic: str, scheme: str
) -> None:
    fill(client, topic, 5)
    begun(client, topic, "a", b"x").abort()
    with page_of(browser, browsing.address, color_scheme=scheme, bypass_csp=True) as page:
        for path in ("messages?isolation=uncommitted", "messages/0/0", "produce", "replay?records=0:0"):
            page.goto(f"/topics/{topic}/{path}")
            assert serious_violations(page) == []
        page.goto(f"/topics/{topic}/messages")
        for action, name in (
            ("a.record", "sheet"),
            ("text=Export…", "export"),
            ("text=Saved views…", "saved"),
        ):
            page.click(action)
            page.wait_for_selector(f"#{name}[open]")
            assert serious_violations(page) == []
            page.keyboard.press("Escape")
