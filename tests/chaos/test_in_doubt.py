"""A commit that happened, whose answer was lost, and that is refused when it is asked for again.

The disk fails behind the flush, so the commit is there. The next start begins a new term and fences whatever
was open, as it must. The client cannot know which of the two came first, and must not claim to.
"""

import errno
import threading
from pathlib import Path

import pytest
from support.brokers.faulty import FaultyBroker
from support.clients.raw import RawClient
from support.clients.raw_log import Log

from semel.client import Client, KafkaError, ProducerFenced, TransactionalProducer
from semel.server.run import EXIT_BROKEN


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_in_doubt_is_not_said_to_be_aborted(tmp_path: Path, version: int) -> None:
    """Found by chaos: in version 1 the client took the fence of the new term for a timeout's abort."""
    told: list[KafkaError] = []
    with FaultyBroker(tmp_path / "data") as broker, Client(broker.bootstrap) as client:
        with RawClient(broker.bootstrap) as raw:
            raw.create_topic("t")
        producer = TransactionalProducer(client, "in doubt", version_max=version)
        producer.begin()
        producer.send("t", b"committed", partition=0)
        producer.flush()
        broker.fail("flush", errno.EIO)

        def commit() -> None:
            try:
                producer.commit()
            except KafkaError as error:
                told.append(error)

        committing = threading.Thread(target=commit)
        committing.start()
        assert broker.wait() == EXIT_BROKEN
        broker.repair()
        broker.start()
        committing.join(60)
        assert not committing.is_alive()
        with RawClient(broker.bootstrap) as raw:
            assert Log(raw, "t").values() == [b"committed"]
    if version == 2:
        # The end has raised the epoch, so the broker knows its own work again and acknowledges it.
        assert told == []
        return
    (error,) = told
    assert isinstance(error, ProducerFenced)
    assert "its commit may have happened" in str(error)
