"""The console in a real browser: every page, live updates, abort, reset, the keyboard, dark, a phone."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.browser.chromium import chromium, page_of, serious_violations
from support.browser.console import Browsing, console
from support.waiting import until

import semel
from semel.client import Admin, Client, NewTopic, Producer, TransactionalProducer

PAGES = [
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders/configs",
    "/topics/orders/producers",
    "/topics/orders/messages",
    "/topics/orders/produce",
    "/topics/orders/why/0",
    "/groups",
    "/groups/billing",
    "/groups/billing/reset?to=earliest",
    "/transactions",
    "/transactions?view=finished",
    "/transactions/payments%2F1",
    "/pipelines",
    "/cluster",
    "/cluster/brokers/0",
    "/security",
    "/checks",
    "/nowhere",
]
KINDS = [
    "/",
    "/topics/orders",
    "/groups/billing/reset?to=earliest",
    "/transactions/payments%2F1",
    "/checks",
]
"""One of each kind: tables, charts, forms, states, results."""
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def sample(bootstrap: str) -> Iterator[str]:
    """Topics, a group that is behind, and an open transaction."""
    with Client(bootstrap) as client:
        Admin(client).topics.create(NewTopic("orders", 3), NewTopic("invoices"))
        with Producer(client) as producer:
            for number in range(30):
                producer.send("orders", b'{"n": %d}' % number, key=b"k", partition=number % 3)
        Admin(client).groups.set_offsets("billing", {("orders", 0): 2, ("orders", 1): 10})
        task = TransactionalProducer(client, "payments/1", transaction_timeout_ms=600_000)
        task.begin()
        task.send("orders", b"pending", partition=0)
        task.flush()
        yield bootstrap
        task.abort()


@pytest.fixture(scope="module")
def browsing(sample: str) -> Iterator[Browsing]:
    with console(sample, sample_seconds=0.2) as made:
        until(lambda: "payments/1" in made.get("/transactions.json").text)
        until(lambda: any(row["lag"] for row in made.get("/groups.json").json["groups"]))
        yield made


@pytest.fixture
def page(browser: Any, browsing: Browsing) -> Iterator[Any]:
    with page_of(browser, browsing.address, viewport=WIDE) as made:
        yield made


@pytest.mark.parametrize(
    ("viewport", "scheme", "pages"),
    [
        (WIDE, "light", [each for each in PAGES if each not in KINDS]),
        (PHONE, "dark", KINDS),
        pytest.param(WIDE, "light", PAGES, marks=pytest.mark.slow),
        pytest.param(PHONE, "dark", PAGES, marks=pytest.mark.slow),
    ],
    ids=["wide", "phone", "wide-every", "phone-every"],
)
def test_pages_are_accessible(
    browser: Any, browsing: Browsing, viewport: dict[str, int], scheme: str, pages: list[str]
) -> None:
    with page_of(browser, browsing.address, viewport=viewport, color_scheme=scheme, bypass_csp=True) as page:
        for path in pages:
            page.goto(path)
            assert fits(page), path
            assert serious_violations(page) == [], path


@pytest.mark.parametrize(
    "pages", [KINDS, pytest.param(PAGES, marks=pytest.mark.slow)], ids=["kinds", "every"]
)
def test_pages_fit_a_phone_and_keep_their_own_policy(
    browser: Any, browsing: Browsing, pages: list[str]
) -> None:
    with page_of(browser, browsing.address, viewport=PHONE) as page:
        for path in pages:
            page.goto(path)
            page.wait_for_selector("h1")
            assert page.locator("h1").count() == 1
            assert fits(page), path


def fits(page: Any) -> bool:
    """Whether it need not be scrolled sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_numbers_move_while_a_producer_writes(page: Any, sample: str) -> None:
    page.goto("/topics/invoices")
    assert page.locator(".live.on").wait_for() is None
    assert "42" not in page.inner_text('[data-part="partitions"] tbody')
    with Client(sample) as client, Producer(client) as producer:
        for _ in range(42):
            producer.send("invoices", b"x")
    # A sample may have been taken between two batches.
    until(lambda: "42" in page.inner_text('[data-part="partitions"] tbody'))


def test_a_click_counts_although_its_part_was_sampled_again_meanwhile(
    page: Any, browsing: Browsing, sample: str
) -> None:
    refreshes: list[str] = []
    page.on("request", lambda each: refreshes.append(each.url) if each.resource_type == "fetch" else None)

    def offsets() -> int:
        rows = browsing.get("/topics.json?q=orders").json["topics"]
        return int(rows[0]["offsets"])

    def refreshed(times: int) -> None:
        known = len(refreshes)
        # Events are heard of while the page is asked for something.
        until(lambda: page.evaluate("true") and len(refreshes) >= known + times, what="a refresh of the page")

    page.goto("/topics")
    refreshed(1)
    before = offsets()
    page.get_by_role("link", name="orders", exact=True).hover()
    page.mouse.down()
    with Client(sample) as client, Producer(client) as producer:
        producer.send("orders", b"one more", partition=1)
    until(lambda: offsets() > before)
    refreshed(2)  # The second one begins when the first has changed the page.
    page.mouse.up()
    page.wait_for_url("**/topics/orders")


def test_a_chart_is_drawn_and_grows(page: Any) -> None:
    page.goto("/groups/billing")
    page.locator(".chart canvas").nth(1).wait_for()
    assert page.locator(".chart canvas").count() == 2


def test_a_transaction_that_blocks_is_found_and_aborted_with_a_confirmation(page: Any, sample: str) -> None:
    with Client(sample) as client:
        Admin(client).topics.create("stuck")
        producer = TransactionalProducer(client, "stuck-producer", transaction_timeout_ms=600_000)
        producer.begin()
        producer.send("stuck", b"x")
        producer.flush()
        page.goto("/")
        page.locator('[data-part="blocked"] a', has_text="stuck/0").click()
        page.wait_for_url("**/topics/stuck/why/0")
        assert "1 offset waits" in page.inner_text('[data-part="sentence"]')
        page.get_by_role("button", name="Abort what blocks it…").click()
        dialog = page.locator("dialog#abort")
        assert "stuck-producer" in dialog.inner_text()
        dialog.get_by_role("button", name="Cancel").click()
        assert Admin(client).transactions.describe("stuck-producer").state == "Ongoing"
        page.get_by_role("button", name="Abort what blocks it…").click()
        dialog.get_by_role("button", name="Abort the transaction").click()
        # The page itself says that no reader waits, as soon as it is sampled again.
        page.wait_for_url("**/transactions/stuck-producer?done=**")
        assert "Aborted the transaction of stuck-producer" in page.inner_text(".notice.good")
        assert Admin(client).transactions.describe("stuck-producer").state != "Ongoing"


def test_a_group_is_reset_after_its_preview(page: Any, sample: str) -> None:
    with Client(sample) as client:
        Admin(client).groups.set_offsets("late", {("orders", 1): 9})
        page.goto("/groups/late")
        page.get_by_role("link", name="Reset offsets…").click()
        page.get_by_role("button", name="Preview").click()
        page.wait_for_url("**/groups/late/reset?to=*")
        assert "9 records again" in page.inner_text("main")
        page.get_by_role("button", name="Apply…").click()
        page.get_by_role("button", name="Move the group").click()
        page.wait_for_url("**/groups/late?done=**")
        assert Admin(client).groups.offsets("late")["orders", 1].offset == 0


def test_a_topic_is_created_configured_and_deleted(page: Any, sample: str) -> None:
    page.goto("/topics")
    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name", exact=True).fill("by-hand")
    page.get_by_label("Partitions", exact=True).fill("2")
    page.get_by_role("button", name="Create", exact=True).click()
    page.wait_for_url("**/topics/by-hand?done=**")
    page.get_by_role("link", name="Configuration").click()
    field = page.get_by_label("retention.ms", exact=True)
    field.fill("5000")
    field.press("Enter")
    page.wait_for_url("**/configs?done=**")
    assert page.get_by_label("retention.ms", exact=True).input_value() == "5000"
    page.goto("/topics/by-hand")
    page.get_by_role("button", name="Delete…").click()
    page.get_by_label("Type its name").fill("by-hand")
    page.get_by_role("button", name="Delete the topic").click()
    page.wait_for_url("**/topics?done=**")


def test_the_keyboard(page: Any) -> None:
    page.goto("/topics")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("ord")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?q=ord**")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("tr.chosen a") == "orders"
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders")
    page.keyboard.press("?")
    assert page.locator("dialog#help").is_visible()
    page.keyboard.press("Escape")
    page.clock.set_fixed_time(1000)  # The second key has to follow soon, however busy the machine is.
    page.keyboard.press("g")
    page.keyboard.press("x")
    page.wait_for_url("**/transactions")


def test_light_and_dark_follow_the_system_and_can_be_chosen(browser: Any, browsing: Browsing) -> None:
    with page_of(browser, browsing.address, color_scheme="dark") as page:
        page.goto("/")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.goto("/topics")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_check_runs_in_the_page(page: Any) -> None:
    page.goto("/checks")
    form = page.locator('form[action="/checks/records"]')
    form.get_by_label("Topic").fill("orders")
    form.get_by_role("button", name="Read and verify").click()
    until(lambda: "0 are damaged" in form.locator("[data-result]").inner_text())


def test_logging_in_and_out(browser: Any) -> None:
    settings = {"semel.authorizer": "acl", "super.users": "User:admin"}
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    with (
        semel.embedded(settings=settings, users={"admin": "secret"}) as broker,
        console(broker.bootstrap_servers, client=sasl, login=True) as browsing,
        page_of(browser, browsing.address) as page,
    ):
        page.goto("/topics?q=deep")
        page.get_by_label("User").fill("admin")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        assert "does not accept" in page.inner_text('[role="alert"]')
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/topics?q=deep")
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login")


def test_a_browser_that_leaves_ends_its_events(browser: Any, browsing: Browsing) -> None:
    def readers() -> int:
        return sum(1 for each in threading.enumerate() if each.name == "console stream")

    with page_of(browser, browsing.address) as page:
        page.goto("/checks")
        page.evaluate("() => { fetch('/checks/hanging', {method: 'POST'}); }")
    until(lambda: readers() == 0)
