"""A real browser: Debian's chromium, driven by playwright. Without it, tests are skipped with a reason."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from support.programs import missing

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)


def why_not() -> str | None:
    """Return why there is no browser; None if there is one."""
    if CHROMIUM is None:
        return missing("chromium")
    return None if find_spec("playwright") is not None else missing("playwright")


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser, or skip the test."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def searched(page: Any) -> None:
    """Wait until the search for messages is complete; after half a second, a page shows those found."""
    page.wait_for_selector("#found:not([data-searching='1'])")


def serious_violations(page: Any) -> list[tuple[str, list[str]]]:
    """Return the accessibility rules that the page violates seriously, and where. Needs `bypass_csp`."""
    from axe_playwright_python.sync_playwright import Axe

    # Axe takes a second for a hundred rows of one kind, so keep only seven.
    page.evaluate("() => document.querySelectorAll('tbody tr:nth-child(n+8)').forEach((row) => row.remove())")
    found = Axe().run(page).response["violations"]
    return [
        (each["id"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


@contextmanager
def page_of(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """Open a page of a console. Script errors and violations of the Content-Security-Policy fail the test."""
    context = browser.new_context(base_url=address, accept_downloads=True, **options)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None,
    )
    # A busy machine may be slow.
    page.set_default_timeout(60_000)
    try:
        yield page
    finally:
        context.close()
    assert problems == []
