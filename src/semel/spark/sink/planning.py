"""Plans a batch: decides whether it is written, and by which run. `batch_commit` has the other steps.

A plan compares the checkpoint with the last decision (`continuity`), fences older runs, and ends their open
transactions. The first plan of a pipeline also makes decision number 0, which records where it starts. From
then on, a group without a decision must have been deleted: the pipeline stops instead of starting over.

Remembers the last run that a driver has started for each of its queries.

Spark plans the batches of a query in Python processes beside the driver: usually in the same one, but any
other may be next. So the runs are kept in files that all of them see, in the directory of `scratch`.

If Spark names no such directory, every process has its own memory. What cannot be stored or read is
forgotten, which is safe: a driver that remembers nothing takes over unconditionally.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from semel.client import EARLIEST, Client, KafkaError, ProducerIdAndEpoch
from semel.client.admin.transactions import describe_transactions
from semel.client.consume.offsets import list_offsets
from semel.client.produce.commit_transactions import serves_commit_transactions
from semel.client.produce.transaction_coordinator import Coordinator
from semel.spark.checkpoint import Checkpoint, Step, describe
from semel.spark.errors import PipelineError, PipelineFenced, PipelineMismatch
from semel.spark.partition_offsets import Span, TopicIds
from semel.spark.relations import ALONE, Relations
from semel.spark.scratch import forget_oldest, scratch_directory
from semel.spark.sink import decision as decisions
from semel.spark.sink.batch_commit import (
    FENCED,
    ONGOING,
    BatchPlan,
    check_outputs,
    complete_tables,
    fenced_text,
    finish,
    sweep,
)
from semel.spark.sink.continuity import check_is_of_topics, check_source, inputs_after, is_done
from semel.spark.sink.decision import BEGINNING, BatchDecision, Committed
from semel.spark.sink.predecessors import (
    Predecessor,
    check_origin,
    check_predecessors,
    find_predecessors,
)
from semel.spark.sink.versions import NO_BATCH, NO_QUERY, Version, WriteName, check_write
from semel.wire.messages import DescribeTransactionsRequest

#: The limit: the oldest are forgotten first.
RUNS_MAX = 1000
DIRECTORY = "semel-runs"

_own: dict[tuple[str, str], ProducerIdAndEpoch] = {}


def recall(pipeline_id: str, query_id: str) -> ProducerIdAndEpoch | None:
    """Return the last run of the query, by any process of this driver."""
    file = _file(pipeline_id, query_id)
    if file is None:
        return _own.get((pipeline_id, query_id))
    try:
        producer_id, epoch = map(int, file.read_text("ascii").split())
    except (OSError, ValueError):
        return None
    return ProducerIdAndEpoch(producer_id, epoch)


def remember(pipeline_id: str, query_id: str, run: ProducerIdAndEpoch) -> None:
    """Store a run that has started, in place of the previous one."""
    file = _file(pipeline_id, query_id)
    if file is None:
        _own.pop((pipeline_id, query_id), None)
        if len(_own) >= RUNS_MAX:
            _own.pop(next(iter(_own)))
        _own[pipeline_id, query_id] = run
        return
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(f"{run.producer_id} {run.epoch}", "ascii")
        draft.replace(file)
        forget_oldest(file.parent, RUNS_MAX)
    except OSError:
        # Otherwise the previous run would be mistaken for the last.
        forget(pipeline_id, query_id)


def forget(pipeline_id: str, query_id: str) -> None:
    """Forget the run of the query."""
    file = _file(pipeline_id, query_id)
    if file is None:
        _own.pop((pipeline_id, query_id), None)
        return
    with suppress(OSError):
        file.unlink()


def _file(pipeline_id: str, query_id: str) -> Path | None:
    """Return the file of a query's run; None if the processes of this driver share no directory."""
    scratch = scratch_directory()
    if scratch is None:
        return None
    # Pipeline names may be long, and may contain characters that a file name may not.
    name = hashlib.sha256(json.dumps([pipeline_id, query_id]).encode()).hexdigest()
    return scratch / DIRECTORY / name


def plan_stream(
    client: Client,
    pipeline_id: str,
    checkpoint: Checkpoint,
    topic: str | None = None,
    relations: Relations = ALONE,
    *,
    written: Collection[str] | None = None,
    may_be_unfinished: Callable[[BatchDecision], bool] = lambda last: False,
) -> BatchPlan:
    """Start a run for the current batch of the query. `topic` is the option of the sink.

    A batch with several outputs knows to which topics it writes, if its rows do not name them: `written`.

    Spark starts a batch only after the sink has ended the previous one. A function of `foreachBatch` may hide
    that it has failed: then the previous batch `may_be_unfinished`.
    """
    query_id, batch_id = checkpoint.query_id(), checkpoint.newest_batch()
    step = _input(pipeline_id, checkpoint, batch_id)
    # Checked before and after the takeover: a copy that is behind must stop without fencing the other one.
    before = decisions.read_committed(client, pipeline_id, require_stable=False)
    is_done(before, pipeline_id, query_id, batch_id, step)
    has_lived = before.decision is None and _has_lived(client, pipeline_id)
    predecessors = (
        () if has_lived else _predecessors(client, pipeline_id, before.decision, step, topic, relations)
    )
    run = _begin_run(client, pipeline_id, query_id, before.decision)
    committed = decisions.read_committed(client, pipeline_id)
    if committed.decision is None and has_lived and not step.is_of_new_topics:
        raise PipelineMismatch(_forgotten_text(pipeline_id))
    done = is_done(committed, pipeline_id, query_id, batch_id, step)
    last = committed.decision
    if last is None:
        last = _first_decision(run, query_id, committed, step, topic)
        _begin(client, pipeline_id, last)
        run = _begin_run(client, pipeline_id, query_id, last)
    check_outputs(client, pipeline_id, last, topic, written)
    if not done:
        _check_new_partitions(client, pipeline_id, query_id, committed, step)
    if done or last.query_id != query_id or may_be_unfinished(last):
        finish(client, last.winners)
        complete_tables(pipeline_id, last)
    sweep(client, pipeline_id, run, last)
    return replace(
        _plan(pipeline_id, run, committed._replace(decision=last), step, batch_id),
        query_id=query_id,
        is_done=done,
        inputs=inputs_after(committed, step),
        topic=topic,
        predecessors=predecessors,
        checks_origin=topic is None and last.number == BEGINNING and not relations.is_new,
    )


def plan_next(client: Client, pipeline_id: str, checkpoint: Checkpoint, known: Committed) -> BatchPlan | None:
    """Start a run for the batch after the one that this process has decided and completed last.

    The broker starts the run only if no other was started since that decision. So nothing has changed since,
    and nothing has to be read or completed. None if this is not the next batch, or if the broker refuses:
    `plan_stream` finds out why.
    """
    last = known.decision
    query_id, batch_id = checkpoint.query_id(), checkpoint.newest_batch()
    if last is None or (last.query_id, last.batch_id + 1) != (query_id, batch_id):
        return None
    step = _input(pipeline_id, checkpoint, batch_id)
    is_done(known, pipeline_id, query_id, batch_id, step)
    try:
        run = decisions.take_over(client, pipeline_id, last.run)
    except KafkaError as error:
        if error.code in FENCED:
            return None
        raise
    remember(pipeline_id, query_id, run)
    if not serves_commit_transactions(client):
        # A late request may have opened a transaction of a run that has decided. Semel refuses that.
        sweep(client, pipeline_id, run, last)
    return _plan(pipeline_id, run, known, step, batch_id)


def _plan(
    pipeline_id: str, run: ProducerIdAndEpoch, committed: Committed, step: Step, batch_id: int
) -> BatchPlan:
    """Return the plan for the next decision of the same query."""
    last = committed.decision
    assert last is not None, "a plan follows a decision"
    return BatchPlan(
        pipeline_id,
        run,
        last.number + 1,
        last.query_id,
        batch_id,
        is_done=False,
        spans=step.spans,
        inputs=inputs_after(committed, step),
        topic=last.topic,
        outputs=last.outputs,
        tables=last.tables,
        dead=last.dead,
        is_small=step.is_small,
        reached=committed.offsets,
    )


def foresee(
    client: Client,
    pipeline_id: str,
    query_id: str,
    batch_id: int,
    step: Step,
    relations: Relations,
    outputs: TopicIds,
) -> bool:
    """Whether a batch was decided before. Raises what its plan and its decision would, and changes nothing.

    The outputs are given by rows: these are the topics that they may go to.
    """
    check_source(pipeline_id, step)
    committed = decisions.read_committed(client, pipeline_id, require_stable=False)
    done, last = is_done(committed, pipeline_id, query_id, batch_id, step), committed.decision
    has_lived = last is None and _has_lived(client, pipeline_id)
    if has_lived and not step.is_of_new_topics:
        raise PipelineMismatch(_forgotten_text(pipeline_id))
    found = () if has_lived else _predecessors(client, pipeline_id, last, step, None, relations)
    check_predecessors(found, pipeline_id, outputs)
    if last is not None:
        check_outputs(client, pipeline_id, last, None, outputs)
    if (last is None or last.number == BEGINNING) and not relations.is_new:
        check_origin(client, pipeline_id, outputs, step.spans)
    if not done:
        _check_new_partitions(client, pipeline_id, query_id, committed, step)
    return done


def _input(pipeline_id: str, checkpoint: Checkpoint, batch_id: int) -> Step:
    step = checkpoint.step(batch_id)
    if not step.end:
        raise PipelineError(
            "exactly-once needs an input whose offsets can be committed: a source of format 'semel' in this "
            "query. For others set delivery.guarantee=at-least-once"
        )
    check_source(pipeline_id, step)
    return step


def _first_decision(
    run: ProducerIdAndEpoch, query_id: str, committed: Committed, step: Step, topic: str | None
) -> BatchDecision:
    """Return the decision that records where the pipeline starts.

    If the group is deleted later, the driver's transactional id still shows that the pipeline has started
    (`_has_lived`).
    """
    first = {key: Span(start, start) for key, (start, _) in step.spans.items()}
    return BatchDecision(BEGINNING, run, query_id, NO_BATCH, (), first, inputs_after(committed, step), topic)


def _predecessors(
    client: Client,
    pipeline_id: str,
    last: BatchDecision | None,
    step: Step,
    topic: str | None,
    relations: Relations,
) -> tuple[Predecessor, ...]:
    """Return the predecessors of a pipeline that has not written anything yet; none if it has."""
    has_begun = last is not None and last.number != BEGINNING
    # If rows name their topics, the output is unknown until the first rows are written.
    if last is not None and has_begun and (topic is not None or last.outputs):
        return ()
    return find_predecessors(client, pipeline_id, relations, step, topic, has_begun=last is not None)


def plan_batch(
    client: Client, pipeline_id: str, version: Version | None = None, topic: str | None = None
) -> BatchPlan:
    """Start a run for a batch write, and finish the previous write."""
    # Checked before and after the takeover: a refused write must not fence the pipeline of that name.
    before = decisions.read_committed(client, pipeline_id, require_stable=False)
    check_is_of_topics(before, pipeline_id)
    if version is not None:
        decisions.check_untouched(before, pipeline_id)
    check_write(before.decision, pipeline_id, version, topic)
    has_lived = before.decision is None and _has_written(client, pipeline_id, topic)
    run = decisions.take_over(client, pipeline_id)
    committed = decisions.read_committed(client, pipeline_id)
    last = committed.decision
    done = check_write(last, pipeline_id, version, topic)
    if last is not None:
        finish(client, last.winners)
    sweep(client, pipeline_id, run, last)
    number = 1 if last is None else last.number + 1
    if version is None:
        return BatchPlan(pipeline_id, run, number, NO_QUERY, NO_BATCH, is_done=False)
    # Tasks that skip a decided write check whether their own run made it, so they get its name.
    query_id = last.query_id if done and last is not None else WriteName(version.app, topic).to_query_id()
    if last is None and has_lived:
        raise PipelineMismatch(_forgotten_versions_text(pipeline_id, version))
    if last is not None and last.number == 1:
        note_write(client, pipeline_id)  # the first write may have died before it did this
    if last is None and topic is not None and client.describe([topic]).topics:
        _begin(
            client,
            pipeline_id,
            BatchDecision(BEGINNING, run, query_id, NO_BATCH, (), {(topic, 0): Span(0, 0)}),
        )
        run = decisions.take_over(client, pipeline_id, run)
    # A write without rows has no output partition for its decision, so it reuses one of an earlier decision.
    beside = dict.fromkeys(sorted(committed.offsets)[:1], Span(0, number))
    return BatchPlan(pipeline_id, run, number, query_id, version.number, done, beside)


def _begin_run(
    client: Client, pipeline_id: str, query_id: str, last: BatchDecision | None
) -> ProducerIdAndEpoch:
    """Take over the pipeline, unless this driver can tell that another copy has done so since its last run.

    It can tell if its own last run made the last decision: then no other run may have started since. If that
    run decided nothing, or is not remembered, the driver takes over unconditionally.
    """
    mine = recall(pipeline_id, query_id)
    try:
        if mine is not None and last is not None and last.run == mine:
            run = decisions.take_over(client, pipeline_id, mine)
        else:
            run = decisions.take_over(client, pipeline_id)
    except KafkaError as error:
        if error.code in FENCED:
            # Reported once: a restart of this query means that it should run here, so that one takes over.
            forget(pipeline_id, query_id)
            raise PipelineFenced(fenced_text(client, pipeline_id, mine, query_id, waits=True)) from error
        raise
    remember(pipeline_id, query_id, run)
    return run


def _begin(client: Client, pipeline_id: str, beginning: BatchDecision) -> None:
    if serves_commit_transactions(client):
        decisions.make_together(client, pipeline_id, beginning)
    else:
        decisions.make(client, pipeline_id, beginning)


def _has_lived(client: Client, pipeline_id: str) -> bool:
    """Whether a pipeline of this name may have decided something, although its group has no decision.

    The state of the driver's transactional id shows it. A first start that was interrupted before it recorded
    the start leaves the id in its initial state.
    """
    if not client.serves(DescribeTransactionsRequest.api_key):
        return False
    driver = decisions.driver_id(pipeline_id)
    known = describe_transactions(client, [driver]).get(driver)
    return known is not None and (known.epoch > 0 or known.state not in ("Empty", ONGOING))


def _has_written(client: Client, pipeline_id: str, topic: str | None) -> bool:
    """Whether a versioned write of this name may have been decided, although its group has no decision.

    If rows name their topics, there is no partition for decision number 0, so the driver's id does not
    distinguish the first attempts from later ones. `note_write` creates another id for that.
    """
    if topic is not None and _has_lived(client, pipeline_id):
        return True
    writes = _writes_id(pipeline_id)
    return client.serves(DescribeTransactionsRequest.api_key) and writes in describe_transactions(
        client, [writes]
    )


def note_write(client: Client, pipeline_id: str) -> None:
    """Create the transactional id that records that versions of this name have been decided."""
    Coordinator(client, _writes_id(pipeline_id), client.patience_s).init(decisions.TIMEOUT_MS)


def _writes_id(pipeline_id: str) -> str:
    return f"{pipeline_id}/writes"


def _forgotten_versions_text(pipeline_id: str, version: Version) -> str:
    return (
        f"txnAppId {version.app!r} has written before, but its last version is gone: the consumer group "
        f"{pipeline_id!r}, which keeps it, or a topic that it wrote to, was deleted or has expired. Versions "
        "that were written before would be written again. Choose a new txnAppId, and go on with the first "
        "version that is not in the output"
    )


def _forgotten_text(pipeline_id: str) -> str:
    return (
        f"pipeline {pipeline_id!r} has run before, but its position is gone: the consumer group of that "
        "name, or its topic, was deleted or has expired. If it started over, records could be counted "
        "twice. Choose a new pipeline.id, and startingOffsets where the output ends"
    )


def _check_new_partitions(
    client: Client, pipeline_id: str, query_id: str, committed: Committed, step: Step
) -> None:
    """Check that a new query reads the new partitions of a known topic from their start."""
    last = committed.decision
    if last is None or last.query_id == query_id or last.number == BEGINNING:
        return
    new = [
        key
        for key, (start, _) in step.spans.items()
        if start > 0 and key[0] in last.inputs and key not in committed.offsets
    ]
    first = list_offsets(client, dict.fromkeys(new, EARLIEST)) if new else {}
    for key, each in sorted(first.items()):
        if step.spans[key].start > each.offset:
            raise PipelineMismatch(
                f"pipeline {pipeline_id!r} has read nothing of {describe(key)} yet, and this query begins "
                f"there at offset {step.spans[key].start}, behind the records from {each.offset} on. Give "
                "the source pipeline.id and startingOffsets=committed"
            )
