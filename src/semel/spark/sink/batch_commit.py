"""Writes a batch exactly once: plan, write, decide, end.

1. **Plan** (driver, before the tasks of a batch start; `planning`). A new run of the pipeline initialises the
   transactional id `<pipeline>/driver`. That fences older runs; it is refused if the driver's own last run
   was fenced. Then the leftovers of older runs are cleaned up: the transactions of the last decision are
   committed, all others are aborted. A batch that was decided before is only completed.
2. **Write** (task attempt). Every attempt writes in a transaction of its own, named after run and attempt, so
   that no other attempt of any run can touch it. It leaves the transaction open.
3. **Decide** (driver, when all tasks are done). One small transaction of the driver's id commits the end of
   the batch to the group `<pipeline>`, with the list of the winning transactions. See `decision`.
4. **End**. The winners are committed. After an interruption this is repeated, at the latest by the next
   start.

On Semel the last two are one step: *CommitTransactions*. Attempts are declared as such, so that the broker
refuses those of an older run and aborts none while the pipeline may come back. See ADR 0026 and 0027. Both
forms write the same notes, so a pipeline may switch between them at any batch.

Spark's checkpoint is not trusted, because it may be old or lost: a batch is written only if it starts where
the last decision ended. Runs are ordered, so a run aborts only what is older than itself.

**Fenced drivers.** A driver stops if another copy of its pipeline has taken over. A broker that fences a
producer does not say which one replaces it. The notes of the last decision do, as soon as the other copy has
made one. That takes a batch, so a driver waits a moment for it. Two copies that share a checkpoint are the
same query to Spark, with the same query id.

**Output topics** are compared by id, to find those that were deleted and created again. The output in the old
topic is gone, while the pipeline's position says that it was written. Whether that was intended is unknown,
so the pipeline stops.
"""

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from semel.client import (
    Client,
    ClientError,
    Codec,
    ErrorCode,
    KafkaError,
    OutcomeUnknown,
    PreparedTransaction,
    ProducerFenced,
    ProducerIdAndEpoch,
    TransactionAborted,
    TransactionalProducer,
    end_transaction,
)
from semel.client.admin.transactions import describe_transactions, fence_producer, list_transactions
from semel.client.produce.commit_transactions import (
    TRANSACTIONS_MAX,
    AttemptProducer,
    CommitTransactionsRefused,
    DriverEpoch,
    serves_commit_transactions,
)
from semel.spark.errors import (
    AttemptsLost,
    BatchUnfinished,
    DecidedTransactionLost,
    PipelineError,
    PipelineFenced,
    PipelineMismatch,
)
from semel.spark.partition_offsets import PartitionOffsets, Spans, TopicIds, recreated, topic_ids
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import (
    BEGINNING,
    DEAD_BYTES,
    BatchDecision,
    Committed,
    Input,
    TableState,
    remembered,
)
from semel.spark.sink.predecessors import Predecessor, check_origin, check_predecessors
from semel.spark.sink.summary import Summary
from semel.spark.sink.versions import NO_QUERY, WriteName, is_write
from semel.wire.messages import ListTransactionsRequest


def check_outputs(
    client: Client,
    pipeline_id: str,
    last: BatchDecision,
    topic: str | None,
    written: Collection[str] | None = None,
) -> None:
    """Compare the outputs of the last decision with the current topics. PipelineMismatch if they differ.

    Only those in `written` matter, if the batch knows to which topics it writes.
    """
    if last.number != BEGINNING and last.topic != topic:
        raise PipelineMismatch(
            f"pipeline {pipeline_id!r} has written to {_said(last.topic)} so far, and this query writes to "
            f"{_said(topic)}, which lacks the output of earlier batches. Give this query a "
            "pipeline.id of its own"
        )
    known = last.outputs
    if written is not None:
        known = {name: topic_id for name, topic_id in known.items() if name in written}
    _check(client, pipeline_id, known, {})


def check_written(client: Client, pipeline_id: str, known: TopicIds, written: TopicIds) -> None:
    """Check the topics that the tasks have written to again before a decision."""
    _check(client, pipeline_id, {name: known[name] for name in written if name in known}, written)


def merged(found: Iterable[TopicIds]) -> TopicIds:
    """Merge the outputs of several tasks. The check finds one that differs from the current topic."""
    return {topic: topic_id for each in found for topic, topic_id in each.items()}


def _check(client: Client, pipeline_id: str, known: TopicIds, written: TopicIds) -> None:
    names = sorted({*known, *written})
    now = topic_ids(client.describe(names).topics) if names else {}
    for topic in sorted(recreated(known, {**written, **now}) | recreated(written, now)):
        raise PipelineMismatch(
            f"the output topic {topic} was deleted and created again since pipeline {pipeline_id!r} wrote to "
            "it, so what was written before is not there. Start with a new pipeline.id: with "
            "startingOffsets=earliest to write everything again, or where the old one stopped"
        )


def _said(topic: str | None) -> str:
    return "the topics that its rows name" if topic is None else f"topic {topic}"


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
) -> BatchDecision | None:
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


ONGOING = "Ongoing"

FENCED = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
#: The error codes for an attempt whose transaction has ended.
ENDED = FENCED | {ErrorCode.INVALID_TXN_STATE}


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The driver's plan for a batch, made before its tasks start. The tasks receive it and return it."""

    pipeline_id: str
    run: ProducerIdAndEpoch
    number: int  # the number of the decision to be made
    query_id: str
    batch_id: int
    is_done: bool  # was decided before, so nothing is written again
    spans: Spans = field(default_factory=dict)  # the input of the batch
    inputs: Mapping[str, Input] = field(default_factory=dict)
    topic: str | None = None
    outputs: TopicIds = field(default_factory=dict)  # topics that were written to before
    predecessors: tuple[Predecessor, ...] = ()  # whose output this batch must not write again
    checks_origin: bool = False  # check what is in the topics that the rows name, before the first decision
    tables: Mapping[str, TableState] = field(default_factory=dict)  # that were written to before
    dead: TopicIds = field(default_factory=dict)  # topics that dead letters were written to before
    is_small: bool = False  # has little input, which was read when the batch was planned
    reached: PartitionOffsets = field(default_factory=dict)  # the position before this batch

    @property
    def prefix(self) -> str:
        """The prefix of the transactional ids of this run."""
        return f"{self.pipeline_id}/{self.run.producer_id}.{self.run.epoch}/"

    def decision(
        self,
        winners: Iterable[PreparedTransaction],
        written: TopicIds,
        tables: Mapping[str, TableState] = {},
        summary: Summary | None = None,
        dead: Mapping[str, str] = {},
    ) -> BatchDecision:
        """Return the decision that commits these transactions for the batch."""
        return BatchDecision(
            self.number,
            self.run,
            self.query_id,
            self.batch_id,
            tuple(winners),
            self.spans,
            self.inputs,
            self.topic,
            remembered({**self.outputs, **written}),
            {**{name: each._replace(prepared="") for name, each in self.tables.items()}, **tables},
            summary,
            remembered({**self.dead, **dead}, DEAD_BYTES),
        )


# ---- write


def begin_attempt(
    client: Client, plan: BatchPlan, name: str, *, transaction_timeout_ms: int, codec: Codec
) -> TransactionalProducer:
    """Return a producer with an open transaction for a task attempt. PipelineFenced if a newer run exists."""
    transactional_id = f"{plan.prefix}{name}"
    if not serves_commit_transactions(client):
        producer = TransactionalProducer(
            client,
            transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            codec=codec,
            timeout_s=client.patience_s,
        )
        producer.begin()
        return producer
    run = DriverEpoch(decisions.driver_id(plan.pipeline_id), plan.run)
    attempt = AttemptProducer(client, transactional_id, run, codec=codec, timeout_s=client.patience_s)
    try:
        attempt.begin()
    except KafkaError as error:
        if error.code in FENCED:
            raise PipelineFenced(fenced_text(client, plan.pipeline_id, plan.run, plan.query_id)) from error
        raise
    return attempt


def check_attempt(client: Client, plan: BatchPlan, attempt: TransactionalProducer, error: KafkaError) -> None:
    """Raise a more specific error for a failed attempt, if there is one.

    No other producer uses the transactional id of an attempt. So an attempt is fenced only by a newer run, or
    by a broker that has aborted its transaction.
    """
    if error.code in ENDED:
        raise _why_ended(client, plan, [attempt.transactional_id]) from error


def _why_ended(client: Client, plan: BatchPlan, lost: Iterable[str]) -> PipelineError:
    """Return the error for transactions that were ended before they were decided."""
    driver = decisions.driver_id(plan.pipeline_id)
    known = describe_transactions(client, [driver]).get(driver)
    if known is None or (known.producer_id, known.epoch) != plan.run:
        return PipelineFenced(fenced_text(client, plan.pipeline_id, plan.run, plan.query_id))
    return AttemptsLost(_aborted_text(lost) if serves_commit_transactions(client) else _late_text(lost))


# ---- decide and end


def decide(
    client: Client,
    plan: BatchPlan,
    winners: Sequence[PreparedTransaction],
    written: TopicIds | None = None,
    tables: Mapping[str, TableState] | None = None,
    summary: Summary | None = None,
    dead: TopicIds | None = None,
) -> Committed:
    """Decide a batch, end its transactions, and complete the commits to its tables.

    `written` are the topics that the transactions wrote to, and `dead` those of dead letters. Returns the
    position after the batch.
    """
    made = plan.decision(winners, written or {}, tables or {}, summary, dead or {})
    check_written(client, plan.pipeline_id, plan.outputs, written or {})
    check_predecessors(plan.predecessors, plan.pipeline_id, written or {})
    if plan.checks_origin:
        check_origin(client, plan.pipeline_id, written or {}, plan.spans)
    if serves_commit_transactions(client) and len(winners) <= TRANSACTIONS_MAX:
        _decide_together(client, plan, made)
        _fence(client, _open(client, plan.prefix))
        complete_tables(plan.pipeline_id, made)
        return _after(plan, made)
    open_now = _open(client, plan.prefix)
    if lost := [each.transactional_id for each in winners if each.transactional_id not in open_now]:
        raise _why_ended(client, plan, lost)
    try:
        decisions.make(client, plan.pipeline_id, made)
    except KafkaError as error:
        _explain(client, error, plan)
        raise
    finish(client, winners)
    losers = open_now - {each.transactional_id for each in winners}
    _fence(client, losers)
    complete_tables(plan.pipeline_id, made)
    return _after(plan, made)


def _after(plan: BatchPlan, made: BatchDecision) -> Committed:
    """Return what `read_committed` would find now."""
    reached = {**plan.reached, **{key: span.end for key, span in made.spans.items()}}
    return Committed({key: offset for key, offset in reached.items() if key[0] in made.inputs}, made)


def _decide_together(client: Client, plan: BatchPlan, made: BatchDecision) -> None:
    try:
        decisions.make_together(client, plan.pipeline_id, made)
    except KafkaError as error:
        last = decisions.read_committed(client, plan.pipeline_id).decision
        if last is not None and (last.run, last.number) == (made.run, made.number):
            return  # It was made: the response was lost, and the repeated request was refused.
        if isinstance(error, CommitTransactionsRefused):
            # Brokers check the run before the transactions, so this run is still the current one.
            raise AttemptsLost(_aborted_text(error.lost)) from error
        _explain(client, error, plan)
        raise


def _explain(client: Client, error: KafkaError, plan: BatchPlan) -> None:
    """Raise a more specific error for a refused decision, if there is one."""
    if error.code in FENCED:
        text = fenced_text(client, plan.pipeline_id, plan.run, plan.query_id, waits=True)
        raise PipelineFenced(text) from error
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise PipelineError(
            f"{error} The offsets of the input are committed where the output is written, so source "
            "and sink have to be on one cluster"
        ) from error


def _late_text(lost: Iterable[str]) -> str:
    return (
        f"nothing was decided, because the broker has ended {', '.join(sorted(lost))} already: the batch "
        "took longer than transaction.timeout.ms. Start the query again; it writes the batch again. Make "
        "batches smaller (maxOffsetsPerTrigger) if they take as long every time"
    )


def _aborted_text(lost: Iterable[str]) -> str:
    return (
        f"nothing was decided, because the broker has ended {', '.join(sorted(lost))} already. Its machine "
        "was restarted, or PostgreSQL has crashed, or the batch took longer than "
        "semel.attempt.timeout.ms. Start the query again; it writes the batch again"
    )


def finish(client: Client, winners: Iterable[PreparedTransaction]) -> None:
    """Commit the decided transactions. Idempotent; must be repeated until it succeeds."""
    for each in winners:
        try:
            end_transaction(
                client,
                each.transactional_id,
                each.producer_id,
                each.epoch,
                commit=True,
                timeout_s=client.patience_s,
            )
        except OutcomeUnknown as error:
            raise BatchUnfinished(
                f"{each.transactional_id} is decided but was not ended: {error} Start the query again; it "
                "finishes the batch"
            ) from error
        except (TransactionAborted, ProducerFenced) as error:
            raise DecidedTransactionLost(
                f"{each.transactional_id} is decided, but the broker has aborted it, or no longer knows its "
                f"outcome ({error}) A transaction has to be ended within "
                "transaction.timeout.ms, and the pipeline was down for longer. Its records may be missing "
                "from the output while the group says that they are there, so the query stops until "
                "this is resolved by hand"
            ) from error


def complete_tables(pipeline_id: str, decision: BatchDecision) -> None:
    """Make the commits to tables that were decided. Idempotent; must be repeated until it succeeds."""
    if any(each.prepared for each in decision.tables.values()):
        from semel.spark.delta.prepared import complete  # Late: deltalake may not be installed.

        complete(pipeline_id, decision.tables)


def discard(client: Client, plan: BatchPlan, prepared: Iterable[PreparedTransaction]) -> None:
    """Abort a failed batch; if it was decided, finish it instead.

    If that cannot be determined, this changes nothing: the next start finds out.
    """
    last = decisions.read_committed(client, plan.pipeline_id).decision
    written = list(prepared)
    winners = [each for each in written if decisions.is_winner(last, each)]
    finish(client, winners)
    for each in written:
        if each not in winners:
            # The next start aborts any transaction that cannot be aborted now.
            with suppress(KafkaError, ClientError):
                end_transaction(client, each.transactional_id, each.producer_id, each.epoch, commit=False)


def abandon(client: Client, plan: BatchPlan) -> None:
    """Abort all transactions of a batch that has failed, unless it is decided.

    What cannot be aborted now is aborted by the next start.
    """
    if plan.is_done:
        return
    with suppress(KafkaError, ClientError, PipelineError):
        last = decisions.read_committed(client, plan.pipeline_id).decision
        if last is None or (last.run, last.number) != (plan.run, plan.number):
            _fence(client, _open(client, plan.prefix))


# ---- leftovers of older runs


def sweep(client: Client, pipeline_id: str, run: ProducerIdAndEpoch, last: BatchDecision | None) -> None:
    """End the open transactions of older runs: abort them, unless they were decided.

    Transactions of a newer run are left alone.
    """
    left = set()
    for transactional_id in _open(client, f"{pipeline_id}/"):
        found = re.fullmatch(r"(\d+)\.(\d+)/.*", transactional_id.removeprefix(f"{pipeline_id}/"))
        if found and ProducerIdAndEpoch(int(found[1]), int(found[2])) < run:
            left.add(transactional_id)
    decided = [] if last is None else [each for each in last.winners if each.transactional_id in left]
    finish(client, decided)
    _fence(client, left - {each.transactional_id for each in decided})


def _open(client: Client, prefix: str) -> set[str]:
    """Return the transactional ids with this prefix that have an open transaction."""
    can_choose = client.serves(ListTransactionsRequest.api_key, 2)
    pattern = f"{re.escape(prefix)}.*" if can_choose else None
    listed = list_transactions(client, states=[ONGOING], pattern=pattern)
    return {each.transactional_id for each in listed if each.transactional_id.startswith(prefix)}


def _fence(client: Client, transactional_ids: Iterable[str]) -> None:
    for each in sorted(transactional_ids):
        fence_producer(client, each)
