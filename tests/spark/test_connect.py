"""Spark Connect: the same pipeline, when the program and Spark are two processes that talk by gRPC."""

import pytest
from support.spark.driver import DriverProcess
from support.spark.jobs import Numbers, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["extended"])
def test_a_pipeline_by_connect(proxied: Pipeline, protocol: str) -> None:
    """It goes on where another program has stopped, and that one goes on after it."""
    numbers = Numbers(proxied)
    with DriverProcess(proxied, master="local[2]", is_remote=True) as driver:
        assert driver.wait() == 0, driver.log.read_text()
    numbers.check()
    numbers.go_on()
