"""The broker is killed at every point of a batch and started again: output equals input, record by record.

The broker is a process of its own and is killed while a request is on its way to it, or an answer from it.
What it had acknowledged is there after the restart, so queries may go on as if nothing had been; one that
stops instead is started again.
"""

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from support.process import BrokerProcess
from support.proxy import Proxy
from support.spark_points import EXTENDED, PORTABLE, await_caught, catch, points
from support.sparking import Numbers, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

KILLS = [
    pytest.param(
        protocol, place, id=f"{protocol}, {place}", marks=pytest.mark.long if protocol == "portable" else ()
    )
    for protocol, places in (("portable", PORTABLE), ("extended", EXTENDED))
    for place in places
]


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
    caught = catch(proxy, points(protocol)[place])
    query = proxied.start()
    await_caught(caught)
    killable.kill()
    killable.start()
    caught.let_go()
    try:
        query.awaitTermination()
    except PySparkException:
        numbers.run()
    numbers.check()
