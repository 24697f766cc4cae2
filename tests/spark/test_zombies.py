"""Those who go on when they should not: tasks of a dead driver, losers of speculation, a second driver.

All of them are real processes that stand still at a request, because the network holds it, and go on when
others have done their work.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyspark
import pytest
from support.brokers.process import free_port
from support.faults.proxy import Proxy
from support.faults.spark_points import BEGIN, await_caught, catch, points, sender, transactional_id
from support.spark.driver import DriverProcess
from support.spark.jobs import ENVIRONMENT, Numbers, Pipeline

from semel.wire.messages import ProduceRequest
from tools.spark_classes import java_options

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]

#: Who is held must not lose its patience before it is let go.
PATIENCE = {"kafka.request.timeout.ms": 240_000}


@pytest.fixture
def numbers(proxied: Pipeline) -> Numbers:
    proxied.source_options |= PATIENCE
    proxied.sink_options |= PATIENCE
    return Numbers(proxied)


@pytest.mark.parametrize("protocol", ["portable", "extended"])
def test_a_task_of_an_older_run(numbers: Numbers, proxy: Proxy, protocol: str) -> None:
    """Its driver was killed, and the successor has done the batch when it goes on."""
    caught = catch(proxy, points(protocol)[BEGIN])
    with DriverProcess(numbers.pipeline) as driver:
        zombie = sender(await_caught(caught, driver.check))
        driver.kill(but=zombie)
    try:
        numbers.succeed()
        assert zombie.is_running()
        caught.release()
        psutil.wait_procs([zombie], timeout=60)
    finally:
        if zombie.is_running():
            zombie.kill()
    numbers.go_on()


@pytest.mark.parametrize("protocol", ["portable"])
def test_a_driver_that_another_copy_has_succeeded(
    numbers: Numbers, proxy: Proxy, protocol: str, tmp_path: Path
) -> None:
    """It is about to decide. `test_recovery` has the same for Semel's protocol."""
    caught = catch(proxy, points(protocol)["before the decision"])
    successor = numbers.pipeline.copy(tmp_path / "successor")
    with DriverProcess(numbers.pipeline) as driver:
        await_caught(caught, driver.check)
        successor.run()
        caught.release()
        assert driver.wait() != 0
    words = f"another copy of pipeline '{successor.name}' has taken over, so this one stops. It is query "
    assert f"{words}{successor.query_id()}" in driver.log.read_text()
    numbers.pipeline = successor
    numbers.go_on()


class Cluster:
    """A standalone cluster of two workers on two hosts, which are addresses of this machine."""

    def __init__(self, directory: Path) -> None:
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._directory = directory
        self._stack = ExitStack()

    def __enter__(self) -> "Cluster":
        port = self.master.rsplit(":", 1)[1]
        self._start("master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        for host in ("127.0.0.2", "127.0.0.3"):
            self._start(
                "worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g",
                "--work-dir", str(self._directory / host), self.master,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, name: str, *words: str) -> None:
        home = Path(pyspark.__file__).parent
        process = subprocess.Popen(
            [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *words],
            env={
                **os.environ,
                **ENVIRONMENT,
                "SPARK_HOME": str(home),
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": java_options(),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(_end, process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.kill()
        process.kill()
    process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", ["extended"])
def test_an_executor_is_killed(numbers: Numbers, proxy: Proxy, protocol: str, cluster: Cluster) -> None:
    """With its Python workers, while a task writes. What that had sent arrives when the batch is done."""
    caught = catch(proxy, points(protocol)["while tasks write"])
    settings = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": java_options()}
    with DriverProcess(numbers.pipeline, master=cluster.master, settings=settings) as driver:
        worker = sender(await_caught(caught, driver.check))
        executor = next(each for each in worker.parents() if each.name() == "java")
        for each in [executor, *executor.children(recursive=True)]:
            each.kill()
        assert driver.wait() == 0, driver.log.read_text()
    numbers.check()
    caught.release()
    numbers.go_on()


@pytest.mark.parametrize("protocol", ["extended"])
def test_the_loser_of_speculation(
    numbers: Numbers, proxy: Proxy, protocol: str, cluster: Cluster, tmp_path: Path
) -> None:
    """An attempt stands still, so Spark starts another one on the other host, which wins.

    It needs a real cluster: Spark never speculates on the host where the first attempt runs.
    """
    caught = catch(proxy, points(protocol)["while tasks write"])
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.2",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": java_options(),
    }
    with DriverProcess(numbers.pipeline, master=cluster.master, settings=settings) as driver:
        loser = transactional_id(await_caught(caught, driver.check))
        assert driver.wait() == 0, driver.log.read_text()
    run_and_task = loser.rsplit(".", 1)[0]
    wrote = {transactional_id(seen) for seen in proxy.seen if seen.header.api_key == ProduceRequest.api_key}
    attempts = {each for each in wrote if each.rsplit(".", 1)[0] == run_and_task}
    assert len(attempts) == 2, "two attempts of one task have written"
    numbers.check()
    caught.release()
    numbers.go_on()
