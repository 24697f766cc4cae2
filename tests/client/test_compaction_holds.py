"""What a broker tells of compaction by ListOffsets, and to whom."""

from collections.abc import Iterator

import pytest
from support.brokers.compaction_by_hand import CONFIGS, SETTINGS, compact, put

import semel
from semel.client import Admin, Client, KafkaError, NewTopic
from semel.client.consume.compaction import HOLD_COMPACTION, compactions, tells_compactions
from semel.client.consume.offsets import LATEST, list_offsets
from semel.embedded import Embedded

TABLE, LOG = ("table", 0), ("log", 0)


@pytest.fixture
def broker() -> Iterator[Embedded]:
    with semel.embedded(settings={**SETTINGS, "semel.compaction.hold.ms": 30_000}) as broker:
        with Client(broker.bootstrap_servers) as client:
            Admin(client).topics.create(NewTopic("table", configs=CONFIGS), NewTopic("log"))
        yield broker


def test_the_number_and_the_hold_are_told(broker: Embedded) -> None:
    with Client(broker.bootstrap_servers) as client:
        assert tells_compactions(client)
        assert compactions(client, [TABLE, LOG]) == {TABLE: (0, -1), LOG: (0, -1)}
        put(broker, "table", "a", "1")
        compact(broker)
        # A topic that is not compacted is not held.
        assert compactions(client, [TABLE, LOG], hold=True) == {TABLE: (1, 30_000), LOG: (0, -1)}
        put(broker, "table", "a", "2")
        compact(broker)
        assert compactions(client, [TABLE]) == {TABLE: (1, -1)}
        # Beside other questions in one request.
        assert list_offsets(client, {TABLE: HOLD_COMPACTION, LOG: LATEST}) == {
            TABLE: (1, 30_000),
            LOG: (0, -1),
        }
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            compactions(client, [("table", 1)])


def test_a_broker_without_extensions_knows_neither() -> None:
    with (
        semel.embedded(settings={"semel.extensions.enable": False}) as broker,
        Client(broker.bootstrap_servers) as client,
    ):
        Admin(client).topics.create(NewTopic("table", configs=CONFIGS))
        assert not tells_compactions(client)
        with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
            compactions(client, [TABLE], hold=True)
