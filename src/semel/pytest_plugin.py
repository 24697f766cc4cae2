"""Fixtures for pytest: a broker for a test.

    def test_orders(semel_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": semel_broker.bootstrap_servers})
        ...

`semel_broker` is a broker in memory for one test; it starts in some ten milliseconds, so tests need not share
one. If even that is too slow, `semel_session_broker` is one broker for the whole run; tests that share it
must use their own topics and groups. A marker sets the settings of one test:

    @pytest.mark.semel_settings({"auto.create.topics.enable": False})

pytest finds the plugin by its entry point, in every environment that has Semel. So it imports nothing until a
fixture is used.
"""

from collections.abc import Iterator

import pytest

from semel.embedded import Embedded, embedded

__all__ = ["semel_broker", "semel_session_broker"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for runs with strict markers."""
    config.addinivalue_line("markers", "semel_settings(settings): settings of the broker of semel_broker")


@pytest.fixture
def semel_broker(request: pytest.FixtureRequest) -> Iterator[Embedded]:
    """A broker in memory for this test alone: `semel_broker.bootstrap_servers`."""
    settings: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers("semel_settings"))):
        settings.update(marker.args[0])
    with embedded(settings=settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def semel_session_broker() -> Iterator[Embedded]:
    """A broker in memory for the whole run. Use topics and groups of your own."""
    with embedded() as broker:
        yield broker
