"""Composes the message of a driver that stops because another copy of its pipeline has taken over.

A broker that fences a producer does not say which one replaces it. The notes of the last decision do, as soon
as the other copy has made one. That takes a batch, so a driver waits a moment for it. Two copies that share a
checkpoint are the same query to Spark, with the same query id.
"""

import time
from contextlib import suppress

from semel.client import Client, ClientError, KafkaError, ProducerIdAndEpoch
from semel.spark.errors import PipelineError
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import BEGINNING, Decision
from semel.spark.sink.versions import NO_QUERY, WriteName, is_write

#: How long a driver waits for a decision of the other copy. The first batch of a driver takes seconds.
OTHER_DECIDES_S, POLL_S = 10.0, 0.2


def fenced_text(
    client: Client, pipeline_id: str, run: ProducerIdAndEpoch | None, query_id: str, *, waits: bool = False
) -> str:
    """Return why this copy stops, and which one continues, as far as that is known."""
    last = _decision_of_other(client, pipeline_id, run, OTHER_DECIDES_S if waits else 0.0)
    who, other = f"another copy of pipeline {pipeline_id!r}", "It has decided nothing yet"
    then = "the other one writes it"
    if query_id == NO_QUERY or WriteName.of_query_id(query_id) is not None:
        who = f"another write with pipeline.id {pipeline_id!r}"
        then = (
            "run it again when the other one has ended. Versions of one txnAppId are written one after "
            "another: one that is not above the last is skipped"
        )
    if last is not None and is_write(last):
        other = "It is another batch write"
    elif last is not None and last.query_id == query_id:
        who = f"another copy of this query runs on the same checkpoint, and as pipeline {pipeline_id!r} it"
        other = f"It has decided batch {last.batch_id}"
    elif last is not None:
        other = f"It is query {last.query_id}, which has decided batch {last.batch_id}"
    return (
        f"{who} has taken over, so this one stops. {other}. What this one wrote in this batch does not "
        f"count; {then}"
    )


def _decision_of_other(
    client: Client, pipeline_id: str, run: ProducerIdAndEpoch | None, wait_s: float
) -> Decision | None:
    """Return the last decision of a newer run, if there is one within `wait_s`."""
    deadline = time.monotonic() + wait_s
    # The broker may be unavailable by now. The rest of the message is given all the same.
    with suppress(KafkaError, ClientError, PipelineError):
        while run is not None:
            last = decisions.read_committed(client, pipeline_id, require_stable=False).decision
            if last is not None and last.run > run and last.number != BEGINNING:
                return last
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_S)
    return None
