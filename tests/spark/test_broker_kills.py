"""The broker is killed at every point of a batch and started again: output equals input, record by record.

The broker is a process of its own and is killed while a request is on its way to it, or an answer from it.
What it had acknowledged is there after the restart, so the query goes on as if nothing had been, though the
broker is away for longer than an answer may take.
"""

import time
from collections.abc import Iterator

import pytest
from support.brokers.process import BrokerProcess
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, cases, catch, points
from support.spark.jobs import Numbers, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

#: How long an answer may take. On a busy machine it takes longer now and then, which a query survives, too.
REQUEST_SECONDS = 1

KILLS = cases(short=[("extended", "before the decision")], slow=[("extended", "after the ends")])


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture(scope="module")
def any_broker(killable: BrokerProcess) -> str:
    return killable.bootstrap


@pytest.mark.parametrize(("protocol", "place"), KILLS)
def test_the_broker_is_killed(
    killable: BrokerProcess, proxied: Pipeline, proxy: Proxy, protocol: str, place: str
) -> None:
    numbers = Numbers(proxied)
    for options in (proxied.source_options, proxied.sink_options):
        options["kafka.request.timeout.ms"] = REQUEST_SECONDS * 1000
    caught = catch(proxy, points(protocol)[place])
    query = proxied.start()
    await_caught(caught)
    killable.kill()
    caught.let_go()
    time.sleep(2 * REQUEST_SECONDS)
    killable.start()
    query.awaitTermination()
    numbers.check()
