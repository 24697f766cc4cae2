"""kill -9 under transactional load: every transaction counts whole or not at all, and nobody is fenced.

Eight producers of four kinds write over three partitions and abort every third transaction, a copier consumes
and produces in transactions of its own, and the broker is killed and started again. What was acknowledged in
an open transaction is with the operating system, so the producers go on with it after the restart.
``SEMEL_KILLS`` says how often; ``make chaos`` takes two hundred for each visibility.

The broker lives for a tenth of a second at a time: so fast are the fastest writers. librdkafka looks for a
coordinator twice a second and may find none for a minute (tests/client/FINDINGS.md). Every fifth round waits
for everyone, so that no client stands still while the broker is killed.

A power loss is another matter: what was not flushed may be gone, so a new term begins and fences whatever was
open. It is played here by another boot id.
"""

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from support.brokers.process import BrokerProcess
from support.chance import fresh_seed
from support.clients.raw import RawClient
from support.clients.raw_transactions import Log, RawProducer, committed, make_topic
from support.clients.stubborn import StubbornClient
from support.waiting import until
from support.workloads.transactional_load import transactional_load
from support.workloads.transactional_workers import PARTITIONS, Noted

from semel.server.run import EXIT_OK
from semel.store.embedded import ledger_opening
from semel.wire.errors import ErrorCode

from .conftest import FEW, GIVEN, MANY

STEPS_BETWEEN_KILLS = 300
EVERYONE_EVERY = 5
"""Rounds, of which one is long enough for everyone to end a transaction."""
ABANDON_EVERY = 10
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


def abandon(broker: BrokerProcess, topic: str, number: int) -> None:
    """Somebody begins, and is never heard of again: the broker ends it when its time is over."""
    with StubbornClient(broker.bootstrap) as client:
        producer = RawProducer(client, f"abandoned-{number}", generation=1 + number % 2, timeout_ms=5_000)
        for partition in range(PARTITIONS):
            note = Noted(1_000 + number, 0, False, PARTITIONS, partition, 0)
            producer.write(topic, note.encode(), partition=partition)


@pytest.mark.timeout(180 + 30 * MANY)
@pytest.mark.parametrize(
    "visibility", ["marker", "journal" if GIVEN else pytest.param("journal", marks=pytest.mark.slow)]
)
@FEW
def test_kill_under_transactional_load(
    tmp_path: Path, visibility: str, kills: int, record_property: Callable[[str, object], None]
) -> None:
    seed = fresh_seed()
    chance = random.Random(seed)
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            source = make_topic(client, PARTITIONS, semel_visibility=visibility)
            target = make_topic(client, PARTITIONS)
        with transactional_load(broker.bootstrap, source, target) as load:
            for number in range(kills):
                if number % EVERYONE_EVERY == 0:
                    load.wait_for_everyone()
                if number % ABANDON_EVERY == 0:
                    abandon(broker, source, number)
                # The moment of the kill is a count of answers, so every round has made progress.
                load.wait_for(chance.randrange(1, STEPS_BETWEEN_KILLS))
                broker.kill()
                broker.start()
            load.wait_for(STEPS_BETWEEN_KILLS)
            load.wait_for_everyone()
        record_property("load", f"{kills} kills; {load.report()}")
        load.check()
        # And once more from what is on the disk.
        broker.kill()
        broker.start()
        load.check()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("visibility", [pytest.param("marker", marks=pytest.mark.slow), "journal"])
def test_away_for_longer_than_a_client_waits(
    tmp_path: Path, visibility: str, record_property: Callable[[str, object], None]
) -> None:
    """Clients give their records up: those never count, and they go on, if need be as another instance."""
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            source = make_topic(client, PARTITIONS, semel_visibility=visibility)
            target = make_topic(client, PARTITIONS)
        with transactional_load(broker.bootstrap, source, target, message_timeout_ms=2_000) as load:
            while not load.given_up:
                load.wait_for_everyone()
                broker.kill()
                # Whether a client has messages under way at this moment is a matter of luck.
                with suppress(AssertionError):
                    until(lambda: load.given_up, 5, "giving up")
                broker.start()
            load.wait_for_everyone()
        record_property("load", load.report())
        load.check()


# -- terms --------------------------------------------------------------------------------------------------


def lose_power(broker: BrokerProcess) -> None:
    """The next start finds a stop that was not clean, and another boot of the operating system."""
    broker.kill()
    change_boot(broker)


def change_boot(broker: BrokerProcess) -> None:
    """Let the ledger believe that the operating system was started since."""
    ledger = apsw.Connection(str(broker.directory / "ledger.db"), vfs=ledger_opening.available())
    try:
        ledger.execute("UPDATE meta SET value = 'another boot' WHERE name = 'boot_id'")
    finally:
        ledger.close()


CASES = [(generation, visibility) for generation in (1, 2) for visibility in ("marker", "journal")]


class Case:
    """A producer of one generation that writes to a topic of one visibility, with positions of a group."""

    def __init__(self, client: RawClient, generation: int, visibility: str) -> None:
        self.generation = generation
        self.topic = make_topic(client, PARTITIONS, semel_visibility=visibility)
        self.group = f"group of {self.topic}"
        self.producer = RawProducer(client, generation=generation)

    def write(self, value: bytes, position: int) -> None:
        for partition in range(PARTITIONS):
            self.producer.write(self.topic, value, partition=partition)
        self.producer.write_offset(self.group, self.topic, position)

    def check(self, client: RawClient, values: list[bytes], position: int) -> None:
        """Nothing is open, and this is what readers see."""
        logs = [Log(client, self.topic, index) for index in range(PARTITIONS)]
        assert all(log.is_settled for log in logs)
        assert [log.values() for log in logs] == [values] * PARTITIONS
        assert committed(client, self.group, self.topic, stable=True) == (ErrorCode.NONE, position)

    def refuses(self, client: RawClient) -> None:
        """Whatever still comes of the transaction is too late."""
        late = self.producer
        late.client = client
        assert late.send(self.topic, b"late").error_code in FENCED
        assert late.send_offset(self.group, self.topic, 9) in FENCED
        if self.generation == 1:
            assert late.add(self.topic, 0)[0] in FENCED
            assert late.end(commit=True).error_code in FENCED
            assert late.end(commit=False).error_code in FENCED
        else:
            # As after a timeout in Kafka: it is aborted, and who asks for that is told so (KIP-890).
            assert late.end(commit=True).error_code in (*FENCED, ErrorCode.INVALID_TXN_STATE)
            assert late.end(commit=False).error_code == ErrorCode.NONE

    def succeed(self, client: RawClient) -> None:
        """The next instance takes over."""
        self.producer = RawProducer(client, self.producer.transactional_id, self.generation)


def test_a_kill_keeps_what_is_open(tmp_path: Path) -> None:
    """The term is the same, and so are the transactions: they go on where they were, and commit."""
    with BrokerProcess(tmp_path / "data") as broker, StubbornClient(broker.bootstrap) as client:
        cases = [Case(client, *case) for case in CASES]
        for round_number in range(2):
            for case in cases:
                case.write(b"%d" % round_number, round_number)
            broker.kill()
            broker.start()
            for case in cases:
                case.write(b"%d again" % round_number, round_number + 10)
                case.producer.commit()
        for case in cases:
            case.check(client, [b"0", b"0 again", b"1", b"1 again"], 11)


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_power_loss_fences_what_was_open(tmp_path: Path, is_flushed: bool) -> None:
    """Its records may be gone, so it must never commit; what was committed is all there.

    Whether the ledger knows of the transaction is a matter of luck. Somebody who reads it makes it known.
    """
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            cases = [Case(client, *case) for case in CASES]
            for case in cases:
                case.write(b"committed", 7)
                case.producer.commit()
                case.write(b"open", 8)
                if is_flushed:
                    assert Log(client, case.topic).fetch(isolation=0).error_code == ErrorCode.NONE
        lose_power(broker)
        broker.start()
        with RawClient(broker.bootstrap) as client:
            for case in cases:
                case.check(client, [b"committed"], 7)
                case.refuses(client)
                case.succeed(client)
                case.write(b"after", 8)
                case.producer.commit()
                case.check(client, [b"committed", b"after"], 8)


def test_a_polite_stop_keeps_what_is_open(tmp_path: Path) -> None:
    """Everything is flushed, so the term goes on, whichever boot comes next."""
    with BrokerProcess(tmp_path / "data") as broker, StubbornClient(broker.bootstrap) as client:
        cases = [Case(client, *case) for case in CASES]
        for case in cases:
            case.write(b"first", 1)
        assert broker.stop() == EXIT_OK
        change_boot(broker)
        broker.start()
        for case in cases:
            case.write(b"second", 2)
            case.producer.commit()
            case.check(client, [b"first", b"second"], 2)


@pytest.mark.parametrize("losses", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_power_is_lost_again_and_again(tmp_path: Path, losses: int) -> None:
    """Whoever was told of a commit finds it after every loss; whoever was not is fenced."""
    chance = random.Random(int(os.environ.get("SEMEL_SEED", "7")))
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            topic = make_topic(client, PARTITIONS)
        told: list[bytes] = []
        for number in range(losses):
            with RawClient(broker.bootstrap) as client:
                producer = RawProducer(client, "one", generation=1 + number % 2)
                for index in range(chance.randrange(1, 20)):
                    value = b"%d-%d" % (number, index)
                    for partition in range(PARTITIONS):
                        producer.write(topic, value, partition=partition)
                    producer.commit()
                    told.append(value)
                for partition in range(chance.randrange(PARTITIONS)):
                    producer.write(topic, b"open", partition=partition)
            lose_power(broker)
            broker.start()
            with RawClient(broker.bootstrap) as client:
                logs = [Log(client, topic, index) for index in range(PARTITIONS)]
                until(lambda each=logs: all(log.is_settled for log in each), what="the abort")  # type: ignore[misc]  # a default: mypy infers no such lambda
                assert [log.values() for log in logs] == [told] * PARTITIONS
                producer.client = client
                assert producer.end(commit=True).error_code in (*FENCED, ErrorCode.INVALID_TXN_STATE)
