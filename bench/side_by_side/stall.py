"""What readers get while a producer hangs in the middle of a transaction."""

import time
from typing import ClassVar

from bench.arrivals import Arrivals
from bench.results import Metric
from bench.side_by_side.clients import VALUE
from bench.side_by_side.measuring import Size
from bench.side_by_side.visibility import MARKER, OfBothVisibilities, Visibility
from bench.subjects import Subject
from semel.client import Client, TransactionalProducer

SHARE, LONGEST = "read while it hangs", "longest wait"
HANG_SECONDS = 3.0
"""Per second of measurement. A real hang lasts as long as the transaction timeout, a minute or more."""
PACE_SECONDS = 0.01


class Stall(OfBothVisibilities):
    """One producer hangs, another continues, a reader waits."""

    name = "stall"
    title = "Readers beside a producer that hangs"
    text = (
        "One producer writes a record in a transaction and hangs. Another commits a hundred short"
        " transactions per second to the same partition, and a `read_committed` reader follows. Measured"
        " are the share of the committed records that the reader gets before the hanging transaction ends,"
        " and its longest wait for a record."
    )
    metrics: ClassVar = (Metric(SHARE, "share"), Metric(LONGEST, "ms", False))

    def measure(self, subject: Subject, cell: Visibility, size: Size) -> dict[str, float]:
        topic = self.fresh("topic")
        subject.create({topic: 1}, **cell.configs)
        with (
            Client(subject.bootstrap) as one,
            Client(subject.bootstrap) as other,
            TransactionalProducer(one, self.fresh("id")) as hanging,
            TransactionalProducer(other, self.fresh("id")) as going,
        ):
            hanging.begin()
            hanging.send(topic, VALUE, partition=0)
            hanging.flush()
            follower = Arrivals(subject.bootstrap, topic, max_wait_ms=100)
            committed: list[float] = []
            end = time.perf_counter() + HANG_SECONDS * size.seconds
            while time.perf_counter() < end:
                going.begin()
                going.send(topic, VALUE, partition=0)
                going.commit()
                committed.append(time.perf_counter())
                time.sleep(PACE_SECONDS)
            follower.follow(len(committed), PACE_SECONDS * 10)
            meanwhile = len(follower.came)
            hanging.commit()
            follower.follow(len(committed) + 1, 30.0)
            follower.close()
        # The hanging producer's record is first in a partition with markers, and last in a journal.
        came = follower.came[1:] if cell.kind == MARKER else follower.came[:-1]
        waits = [arrived - at for arrived, at in zip(came, committed, strict=True)]
        return {SHARE: meanwhile / len(committed), LONGEST: max(0.0, *waits) * 1e3}
