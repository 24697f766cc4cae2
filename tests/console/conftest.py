"""A broker and a console for each module of tests."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.browser.console import Browsing, console

import semel
from semel.client import Client
from semel.console.messages import limits, registry
from semel.console.pages import groups, messages


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out because the machine stalled for some seconds: tests of limits set their own."""
    monkeypatch.setattr(messages, "PAGE", replace(limits.PAGE, seconds=60.0))
    monkeypatch.setattr(groups, "OPENING_SECONDS", 60.0)
    for name in ("SOCKET_SECONDS", "ANSWER_SECONDS", "UNKNOWN_SECONDS"):
        monkeypatch.setattr(registry, name, 600.0)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with semel.embedded() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap) as made:
        yield made


@pytest.fixture(scope="module")
def browsing(bootstrap: str) -> Iterator[Browsing]:
    with console(bootstrap, sample_seconds=0.2) as made:
        yield made
