"""A broker and a console for each module of tests."""

from collections.abc import Iterator

import pytest
from support.browsing import Browsing, console

import semel
from semel.client import Client


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
