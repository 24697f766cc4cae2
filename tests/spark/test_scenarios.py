"""A driver is killed at every point of a batch: output equals input, record by record, on any broker.

Drivers, their JVMs and their Python processes are real, and so is SIGKILL. The request at which the driver
dies was on its way; it arrives when the successor is done, as on a slow network, and must not do any harm.
The successor runs in the Spark that all tests share. `make peers` runs all of it against Apache Kafka.
"""

import shutil

import pytest
from pyspark.errors import PySparkException
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, cases, catch, points, sender
from support.spark.driver import DriverProcess
from support.spark.jobs import BATCH, Numbers, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LONG = pytest.mark.long
#: Each point takes a driver of its own, so `make test` has one of them. In `test_recovery` and
#: `test_broker_kills`, a death costs less.
DEATHS = cases(short=[("extended", "before the decision")])


@pytest.fixture
def numbers(proxied: Pipeline) -> Numbers:
    """One batch is done, and two are to come."""
    return Numbers(proxied)


def test_clean(numbers: Numbers) -> None:
    query = numbers.pipeline.run()
    assert [each["numInputRows"] for each in query.recentProgress] == [BATCH, BATCH]
    numbers.check()


@pytest.mark.parametrize(("protocol", "place"), DEATHS)
def test_a_driver_is_killed(numbers: Numbers, proxy: Proxy, protocol: str, place: str) -> None:
    caught = catch(proxy, points(protocol)[place])
    with DriverProcess(numbers.pipeline) as driver:
        await_caught(caught, driver.check)
        driver.kill()
    numbers.succeed()
    caught.release()
    numbers.go_on()


@LONG
@pytest.mark.parametrize(("protocol", "place"), [("portable", "before the ends")])
def test_a_driver_is_killed_and_its_checkpoint_is_lost(
    numbers: Numbers, proxy: Proxy, protocol: str, place: str
) -> None:
    caught = catch(proxy, points(protocol)[place])
    with DriverProcess(numbers.pipeline) as driver:
        await_caught(caught, driver.check)
        driver.kill()
    shutil.rmtree(numbers.pipeline.checkpoint)
    numbers.succeed()
    caught.release()
    numbers.go_on()


def test_a_task_dies_and_is_tried_again(numbers: Numbers, proxy: Proxy, protocol: str) -> None:
    """What it had sent arrives when the batch is done."""
    caught = catch(proxy, points(protocol)["while tasks write"])
    query = numbers.pipeline.start()
    sender(await_caught(caught)).kill()
    query.awaitTermination()
    numbers.check()
    caught.release()
    numbers.go_on()


def test_a_commit_raises_when_all_is_done(numbers: Numbers) -> None:
    numbers.pipeline.fault.write_text("raise_after")
    with pytest.raises(PySparkException, match="a fault after all was done"):
        numbers.pipeline.run()
    numbers.run()
