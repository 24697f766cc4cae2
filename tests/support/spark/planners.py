"""Processes that plan batches, like the Python processes of a driver."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from semel.client import Client, ProducerIdAndEpoch
from semel.spark.checkpoint import Checkpoint
from semel.spark.scratch import SCRATCH
from semel.spark.sink import batch_commit, planning
from support.waiting import LIMIT_SECONDS


class Planner:
    """A process that lives from its first plan to the end of the block.

    Planners with the same scratch directory are siblings: Spark gives each driver one, with such a name.
    """

    def __init__(self, bootstrap: str, scratch: Path) -> None:
        scratch.mkdir(exist_ok=True)
        self._bootstrap = bootstrap
        self._process = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(str(scratch),)
        )

    def __enter__(self) -> "Planner":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.shutdown()

    def plan(self, pipeline_id: str, checkpoint: Checkpoint, *, decides: bool = False) -> ProducerIdAndEpoch:
        """Plan a batch, and commit it or leave it; return the run."""
        future = self._process.submit(_plan, self._bootstrap, pipeline_id, checkpoint, decides)
        return future.result(LIMIT_SECONDS)


def _begin(scratch: str) -> None:
    os.environ[SCRATCH] = scratch
    # In these tests, another copy has decided before this one asks.
    batch_commit.OTHER_DECIDES_S = 0.0


def _plan(bootstrap: str, pipeline_id: str, checkpoint: Checkpoint, decides: bool) -> ProducerIdAndEpoch:
    with Client(bootstrap, timeout_s=5) as client:
        plan = planning.plan_stream(client, pipeline_id, checkpoint)
        if decides:
            batch_commit.decide(client, plan, [])
        return plan.run
