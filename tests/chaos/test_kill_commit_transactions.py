"""kill -9 around a group commit: all of its transactions and its offsets are there, or nothing of it.

The broker is killed some microseconds after the request was sent, which is before, in or after the commit.
Whatever it was, the same request is asked again and is success, and then all of it is there, once.
"""

import os
import random
import time
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess
from support.chance import fresh_seed
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_runs import RawAttempt, RawDriver
from support.clients.raw_transactions import committed, make_topic
from support.clients.stubborn import StubbornClient

from semel.wire.errors import ErrorCode

KILLS = int(os.environ.get("SEMEL_KILLS", "4"))
ATTEMPTS = 4
#: A commit takes well below a millisecond; the last one is long after it.
MOMENTS_SECONDS = (0.0, 0.0002, 0.0005, 0.001, 0.02)


@pytest.mark.timeout(120 + 30 * KILLS)
def test_kill_around_commit_transactions(tmp_path: Path) -> None:
    seed = fresh_seed()
    chance = random.Random(seed)
    with BrokerProcess(tmp_path / "data") as broker, StubbornClient(broker.bootstrap) as client:
        topics = [make_topic(client, 2), make_topic(client, 2, semel_visibility="journal")]
        logs = [Log(client, topic, partition) for topic in topics for partition in range(2)]
        driver = RawDriver(client)
        done: list[bytes] = []
        for number in range(KILLS):
            driver.take(driver.init())
            attempts = [RawAttempt(driver, 1 + at % 2) for at in range(ATTEMPTS)]
            values = [b"%d of batch %d" % (at, number) for at in range(ATTEMPTS)]
            for attempt, value in zip(attempts, values, strict=True):
                for log in logs:
                    attempt.write(log.topic, value, partition=log.partition)
            request = driver.request(*attempts, offsets={topics[0]: number})
            with RawClient(broker.bootstrap) as other:
                other.send(request, 0)
                time.sleep(chance.choice(MOMENTS_SECONDS))
                broker.kill()
            broker.start()
            client.reconnect()
            found = [log.values() for log in logs]
            position = committed(client, driver.group, topics[0], stable=True)[1]
            is_done = position == number
            assert found == [done + values * is_done] * len(logs), "all of it or nothing"
            assert position == (number if is_done else number - 1)
            assert client.ask(request, 0).error_code == ErrorCode.NONE
            done += values
            assert [log.values() for log in logs] == [done] * len(logs)
            assert committed(client, driver.group, topics[0], stable=True) == (ErrorCode.NONE, number)
        assert all(log.is_settled for log in logs)


def test_killed_right_after_the_answer(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            topic = make_topic(client, semel_visibility="journal")
            driver = RawDriver(client)
            attempts = [RawAttempt(driver) for _ in range(ATTEMPTS)]
            for attempt in attempts:
                attempt.write(topic, b"v")
            assert driver.decide(*attempts, offsets={topic: 5}).error_code == ErrorCode.NONE
            broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert Log(client, topic).values() == [b"v"] * ATTEMPTS
            assert committed(client, driver.group, topic) == (ErrorCode.NONE, 5)
