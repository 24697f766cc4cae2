"""The protocol of the sink, step by step, without Spark: a checkpoint and a driver's calls are enough.

All of it in both forms: with what only Semel has (*together*), and with what every broker has (*portable*).
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.spark.checkpoints import Query
from support.spark.jobs import committed, create

from semel.client import (
    Admin,
    Client,
    Codec,
    CommittedOffset,
    ErrorCode,
    KafkaError,
    PreparedTransaction,
    ProducerIdAndEpoch,
    TransactionalProducer,
    TransactionError,
)
from semel.client.admin.group_offsets import commit_offsets
from semel.client.admin.transactions import fence_producer
from semel.client.produce.commit_transactions import commit_transactions, serves_commit_transactions
from semel.embedded import Embedded
from semel.spark import DecidedTransactionLost, PipelineError, PipelineFenced, PipelineMismatch
from semel.spark.errors import AttemptsLost
from semel.spark.partition_offsets import Span
from semel.spark.sink import batch_commit, planning
from semel.spark.sink import decision as decisions
from semel.spark.sink.batch_commit import BatchPlan
from semel.spark.sink.decision import BatchDecision, Input
from semel.spark.sink.summary import Ended, Summary

NAME = "copy"
TOGETHER, PORTABLE = "together", "portable"
HIDDEN = pytest.mark.semel_settings({"semel.extensions.enable": False})


@pytest.fixture(params=[TOGETHER, pytest.param(PORTABLE, marks=HIDDEN)])
def form(request: pytest.FixtureRequest) -> str:
    """How batches are decided; the broker has settings to fit."""
    return str(request.param)


@pytest.fixture
def client(semel_broker: Embedded, form: str) -> Iterator[Client]:
    create(semel_broker.bootstrap_servers, ("in", 2), ("out", 1))
    with Client(semel_broker.bootstrap_servers, timeout_s=5) as client:
        assert serves_commit_transactions(client) is (form == TOGETHER)
        yield client


@pytest.fixture(autouse=True)
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the other copy decides nothing, there is nothing to wait for."""
    if request.function is not test_two_copies_on_one_checkpoint_are_told_so:
        monkeypatch.setattr(batch_commit, "OTHER_DECIDES_S", 0.0)


def write(client: Client, plan: BatchPlan, value: bytes, attempt: int = 0) -> PreparedTransaction:
    producer = batch_commit.begin_attempt(
        client, plan, f"0.{attempt}", transaction_timeout_ms=60_000, codec=Codec.NONE
    )
    producer.send("out", value)
    prepared = producer.prepare()
    assert prepared is not None
    return prepared


def output(client: Client) -> list[bytes]:
    node = client.describe(topics=()).nodes[0]
    return sorted(committed(f"{node.host}:{node.port}", "out").elements())


def ongoing(client: Client) -> list[str]:
    return [each.transactional_id for each in Admin(client).transactions.all(states=["Ongoing"])]


def test_batches_follow_each_other_and_a_decided_one_is_not_written_again(
    client: Client, tmp_path: Path
) -> None:
    query = Query(tmp_path, "q")
    for number in range(3):
        checkpoint = query.batch(number, 10 * (number + 1), began=0 if number == 0 else None)
        plan = planning.plan_stream(client, NAME, checkpoint)
        assert not plan.is_done
        batch_commit.decide(client, plan, [write(client, plan, b"%d" % number)])
    assert planning.plan_stream(client, NAME, query.batch(2, 30)).is_done
    assert output(client) == [b"0", b"1", b"2"]


def test_a_restored_checkpoint_cannot_make_a_decided_batch_a_longer_one(
    client: Client, tmp_path: Path
) -> None:
    """Spark makes the batches behind an older copy of a checkpoint anew, and they may end elsewhere."""
    query = Query(tmp_path, "q")
    for number, end in enumerate((10, 20, 30)):
        plan = planning.plan_stream(client, NAME, query.batch(number, end, 0 if number == 0 else None))
        batch_commit.decide(client, plan, [write(client, plan, b"%d" % number)])
    for end in (25, 40):
        with pytest.raises(PipelineMismatch, match=rf"offsets 20 to {end} of in/0, .* with offsets 20 to 30"):
            planning.plan_stream(client, NAME, query.batch(2, end))
    (query.directory / "offsets/2").unlink()
    with pytest.raises(PipelineMismatch, match=r"at batch 1, but .* has decided batch 2 .* an older copy"):
        planning.plan_stream(client, NAME, query.batch(1, 20))


def test_the_first_copy_stops_when_a_second_has_begun(client: Client, tmp_path: Path) -> None:
    first, second = Query(tmp_path, "first"), Query(tmp_path, "second")
    batch_commit.decide(client, planning.plan_stream(client, NAME, first.batch(0, 10, began=0)), [])
    taken = planning.plan_stream(client, NAME, second.batch(0, 20, began=10))
    prepared = write(client, taken, b"of the second")
    with pytest.raises(PipelineFenced, match="another copy"):
        planning.plan_stream(client, NAME, first.batch(1, 20))
    batch_commit.decide(client, taken, [prepared])
    assert output(client) == [b"of the second"]


def test_a_copy_that_was_stopped_takes_over_when_it_is_started_again(client: Client, tmp_path: Path) -> None:
    """The other one has begun and decided nothing: it may have died, which nobody can tell from here."""
    first, second = Query(tmp_path, "first"), Query(tmp_path, "second")
    batch_commit.decide(client, planning.plan_stream(client, NAME, first.batch(0, 10, began=0)), [])
    taken = planning.plan_stream(client, NAME, second.batch(0, 20, began=10))
    with pytest.raises(PipelineFenced, match="nothing"):
        planning.plan_stream(client, NAME, first.batch(1, 20))
    again = planning.plan_stream(client, NAME, first.batch(1, 20))
    with pytest.raises(PipelineFenced):
        batch_commit.decide(client, taken, [])
    batch_commit.decide(client, again, [write(client, again, b"of the first")])
    with pytest.raises(PipelineFenced, match=r"query first.* batch 1"):
        batch_commit.decide(client, taken, [])
    assert output(client) == [b"of the first"]


def test_two_copies_on_one_checkpoint_are_told_so(
    client: Client, semel_broker: Embedded, tmp_path: Path
) -> None:
    query = Query(tmp_path, "q")
    first = planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
    second = planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
    words = f"another copy of this query runs on the same checkpoint, and as pipeline '{NAME}' it has taken"
    with Client(semel_broker.bootstrap_servers, timeout_s=5) as other:
        # It decides while the first waits to learn who has taken over.
        successor = threading.Thread(target=batch_commit.decide, args=(other, second, []))
        successor.start()
        with pytest.raises(PipelineFenced, match=words) as fenced:
            batch_commit.decide(client, first, [])
        successor.join()
    assert "It has decided batch 0" in str(fenced.value)


def test_a_copy_that_is_behind_stops_without_harm_to_the_other(client: Client, tmp_path: Path) -> None:
    first, second = Query(tmp_path, "first"), Query(tmp_path, "second")
    plan = planning.plan_stream(client, NAME, first.batch(0, 10, began=0))
    taken = planning.plan_stream(client, NAME, second.batch(0, 10, began=0))
    with pytest.raises(PipelineFenced):
        batch_commit.decide(client, plan, [])
    batch_commit.decide(client, taken, [])
    batch_commit.decide(client, planning.plan_stream(client, NAME, second.batch(1, 20)), [])
    next_of_second = planning.plan_stream(client, NAME, second.batch(2, 30))
    with pytest.raises(PipelineMismatch, match=" 20"):
        planning.plan_stream(client, NAME, first.batch(1, 30))
    batch_commit.decide(client, next_of_second, [write(client, next_of_second, b"once")])
    assert output(client) == [b"once"]


def test_only_what_older_runs_left_is_swept(client: Client, tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    old = planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
    write(client, old, b"left")
    new = planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
    assert ongoing(client) == []
    prepared = write(client, new, b"kept")
    batch_commit.sweep(client, NAME, old.run, None)
    assert ongoing(client) == [prepared.transactional_id]
    loser = write(client, new, b"a second attempt", attempt=1)
    batch_commit.decide(client, new, [prepared])
    assert (ongoing(client), output(client)) == ([], [b"kept"])
    assert loser.transactional_id != prepared.transactional_id


def test_what_was_decided_is_ended_by_the_next_start_or_by_the_abort(client: Client, tmp_path: Path) -> None:
    query, other = Query(tmp_path, "q"), Query(tmp_path, "after a lost checkpoint")
    for number, by in enumerate(("abort", "next batch", "another query")):
        plan = planning.plan_stream(client, NAME, query.batch(number, 10 * number + 10, began=0))
        prepared = write(client, plan, b"%d" % number)
        undecided = write(client, plan, b"not decided", attempt=1)
        decisions.make(client, NAME, plan.decision([prepared], {}))
        if by == "abort":
            batch_commit.discard(client, plan, [prepared, undecided])
        elif by == "next batch":
            planning.plan_stream(client, NAME, query.batch(number + 1, 10 * number + 20))
        else:
            planning.plan_stream(client, NAME, other.batch(0, 40, began=30))
        assert ongoing(client) == []
    assert output(client) == [b"0", b"1", b"2"]


def test_a_transaction_that_is_gone_is_not_decided(client: Client, tmp_path: Path) -> None:
    plan = planning.plan_stream(client, NAME, Query(tmp_path, "q").batch(0, 10, began=0))
    prepared = write(client, plan, b"gone")
    fence_producer(client, prepared.transactional_id)
    good = write(client, plan, b"good", attempt=1)
    with pytest.raises(AttemptsLost, match=prepared.transactional_id):
        batch_commit.decide(client, plan, [good, prepared])
    last = decisions.read_committed(client, NAME).decision
    assert last is not None
    assert (last.number, last.batch_id) == (0, -1), "it has only begun"
    assert ongoing(client) == [good.transactional_id]
    planning.plan_stream(client, NAME, Query(tmp_path, "copy").batch(0, 10, began=0))
    with pytest.raises(PipelineFenced, match="another copy of pipeline 'copy' has taken over"):
        batch_commit.decide(client, plan, [good])


def test_an_attempt_is_told_who_has_ended_it(client: Client, tmp_path: Path) -> None:
    """The broker, and the batch is written again; or another copy of the pipeline, and this one stops."""
    query = Query(tmp_path, "q")
    plan = planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
    for number in range(2):
        attempt = batch_commit.begin_attempt(
            client, plan, f"0.{number}", transaction_timeout_ms=60_000, codec=Codec.NONE
        )
        attempt.send("out", b"before")
        attempt.flush()
        if number == 0:
            fence_producer(client, attempt.transactional_id)
        else:
            planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
        attempt.send("out", b"after")
        with pytest.raises(TransactionError) as refused:
            attempt.flush()
        with pytest.raises(AttemptsLost if number == 0 else PipelineFenced):
            batch_commit.check_attempt(client, plan, attempt, refused.value)
    assert output(client) == []


def test_a_decided_transaction_that_the_broker_aborted_stops_the_query(
    client: Client, tmp_path: Path
) -> None:
    query = Query(tmp_path, "q")
    plan = planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
    prepared = write(client, plan, b"lost")
    decisions.make(client, NAME, plan.decision([prepared], {}))
    fence_producer(client, prepared.transactional_id)  # as its timeout would
    for _ in range(2):
        with pytest.raises(DecidedTransactionLost, match=prepared.transactional_id):
            planning.plan_stream(client, NAME, query.batch(0, 10, began=0))


def test_a_long_decision_is_spread_over_the_partitions(client: Client) -> None:
    run = decisions.take_over(client, NAME)
    spans = {("in", 0): Span(2, 7), ("in", 1): Span(3, 8)}
    winners = tuple(PreparedTransaction(f"{NAME}/1.2/{number}.0", number, 3) for number in range(350))
    made = BatchDecision(5, run, "q", 9, winners, spans, {"in": Input("", 2)}, "out", {"out": "some id"})
    decisions.make(client, NAME, made)
    assert decisions.read_committed(client, NAME)[:2] == ({("in", 0): 7, ("in", 1): 8}, made)
    with pytest.raises(PipelineError, match="fewer tasks"):
        decisions.make(client, NAME, replace(made, number=6, winners=winners * 2))
    run = decisions.take_over(client, NAME)
    commit_offsets(client, NAME, {("in", 1): CommittedOffset(3)})
    with pytest.raises(PipelineError, match=r"the last decision is incomplete\. Another program has reset"):
        decisions.read_committed(client, NAME)


def test_a_summary_takes_what_room_is_left(client: Client) -> None:
    run = decisions.take_over(client, NAME)
    spans = {("in", 0): Span(2, 7), ("in", 1): Span(3, 8)}
    summary = Summary({"out": 5}, 2, Ended(8, 1200, 3, 40, 4096))
    made = BatchDecision(5, run, "q", 9, (), spans, {"in": Input("", 2)}, "out", summary=summary)
    decisions.make(client, NAME, made)
    assert decisions.read_committed(client, NAME).decision == made
    long = Summary({f"topic {number}": number for number in range(1000)})
    decisions.make(client, NAME, replace(made, number=6, summary=long))
    assert decisions.read_committed(client, NAME).decision == replace(made, number=6, summary=None)


@pytest.mark.parametrize("found", [None, [], {"written": 3}, [{"out": "x"}, 0, None], [{}, 0, [1, 2]]])
def test_a_summary_of_another_version_is_left_out(found: Any) -> None:
    assert Summary.of_json(found) is None
    assert Summary.of_json([{"out": 5}, 2, [8, 1200, 3, 40, 4096, "more"], "more"]) == Summary(
        {"out": 5}, 2, Ended(8, 1200, 3, 40, 4096)
    )


def test_checkpoints_of_others_are_refused(client: Client, tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    query.batch(0, 10, began=0)
    with pytest.raises(PipelineMismatch, match="has decided none"):
        planning.plan_stream(client, NAME, query.batch(1, 20))
    batch = planning.plan_batch(client, "loads")
    batch_commit.decide(client, replace(batch, spans={("out", 0): Span(0, batch.number)}), [])
    with pytest.raises(PipelineMismatch, match="belongs to a batch write"):
        planning.plan_stream(client, "loads", Query(tmp_path, "r").batch(0, 10, began=0))
    batch_commit.decide(
        client, planning.plan_stream(client, NAME, Query(tmp_path, "s").batch(0, 1, began=0)), []
    )
    with pytest.raises(PipelineMismatch, match="belongs to a streaming query"):
        planning.plan_batch(client, NAME)


def test_other_sources_of_a_query_are_left_alone(tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    checkpoint = query.batch(0, 10, began=3)
    file = query.directory / "offsets/0"
    file.write_text(file.read_text() + '\n-\n17\n{"logOffset":4}\n{"more":{"0":5},"began:":{"more":{"0":1}}}')
    assert checkpoint.step(0)[:3] == (
        {("in", 0): 3, ("in", 1): 3, ("more", 0): 1},
        {("in", 0): 10, ("in", 1): 10, ("more", 0): 5},
        {},
    )
    # A batch without input repeats the offsets of the one before, to the letter.
    (query.directory / "offsets/1").write_text(file.read_text())
    step = checkpoint.step(1)
    assert step.start == step.end
    file.write_text(file.read_text() + '\n{"in":{"0":1}}')
    with pytest.raises(PipelineError, match="topic 'in'"):
        checkpoint.step(0)


# ---- what only one of the forms has


@pytest.mark.parametrize("form", [TOGETHER], indirect=True)
def test_together_nothing_is_left_to_be_ended(client: Client, tmp_path: Path) -> None:
    plan = planning.plan_stream(client, NAME, Query(tmp_path, "q").batch(0, 10, began=0))
    winners = [write(client, plan, b"%d" % attempt, attempt) for attempt in range(3)]
    loser = write(client, plan, b"loser", attempt=3)
    batch_commit.decide(client, plan, winners)
    made = decisions.read_committed(client, NAME)
    assert made.offsets == {("in", 0): 10, ("in", 1): 10}
    assert made.decision == plan.decision([], {})
    assert (made.decision.number, made.decision.query_id, made.decision.batch_id) == (1, "q", 0)
    assert (ongoing(client), output(client)) == ([], [b"0", b"1", b"2"])
    # Spark may ask for the abort of a batch that counts.
    batch_commit.discard(client, plan, [*winners, loser])
    assert output(client) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("form", [TOGETHER], indirect=True)
def test_together_the_attempts_of_an_older_run_do_not_begin(client: Client, tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    old = planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
    begun = batch_commit.begin_attempt(client, old, "0.0", transaction_timeout_ms=60_000, codec=Codec.NONE)
    new = planning.plan_stream(client, NAME, query.batch(0, 10, began=0))
    with pytest.raises(PipelineFenced, match="another copy"):
        write(client, old, b"too late", attempt=1)
    begun.send("out", b"too late")
    with pytest.raises(TransactionError):
        begun.flush()
    assert ongoing(client) == [], "also one that had not written yet"
    # An id of somebody else that looks like one of ours is nobody's attempt.
    stranger = TransactionalProducer(client, f"{old.prefix}0.9")
    stranger.init()
    batch_commit.decide(client, new, [write(client, new, b"once")])
    assert output(client) == [b"once"]


@pytest.mark.parametrize("form", [TOGETHER], indirect=True)
def test_together_a_lost_answer_does_no_harm(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was done, the answer was lost, and what came then was refused."""
    plan = planning.plan_stream(client, NAME, Query(tmp_path, "q").batch(0, 10, began=0))
    original = commit_transactions

    def lost(*arguments: Any) -> None:
        original(*arguments)
        original(*arguments)
        raise KafkaError(ErrorCode.PRODUCER_FENCED, "refused later")

    monkeypatch.setattr(decisions, "commit_transactions", lost)
    batch_commit.decide(client, plan, [write(client, plan, b"once")])
    assert output(client) == [b"once"]


@pytest.mark.parametrize("form", [TOGETHER], indirect=True)
def test_a_pipeline_may_change_its_form_at_any_batch(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path, "q")
    for number in range(4):
        is_portable = number % 2 == 0
        monkeypatch.setattr(
            batch_commit, "serves_commit_transactions", lambda _, hidden=is_portable: not hidden
        )
        plan = planning.plan_stream(client, NAME, query.batch(number, 10 * number + 10, began=0))
        batch_commit.decide(client, plan, [write(client, plan, b"%d" % number)])
    # One that was decided in the portable way is finished by the other.
    monkeypatch.setattr(batch_commit, "serves_commit_transactions", lambda _: False)
    plan = planning.plan_stream(client, NAME, query.batch(4, 50))
    prepared = write(client, plan, b"4")
    decisions.make(client, NAME, plan.decision([prepared], {}))
    monkeypatch.undo()
    assert planning.plan_stream(client, NAME, query.batch(4, 50)).is_done
    assert (ongoing(client), output(client)) == ([], [b"0", b"1", b"2", b"3", b"4"])


@pytest.mark.parametrize("form", [TOGETHER], indirect=True)
def test_more_transactions_than_one_request_takes_are_ended_one_by_one(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_commit, "TRANSACTIONS_MAX", 1)
    plan = planning.plan_stream(client, NAME, Query(tmp_path, "q").batch(0, 10, began=0))
    winners = [write(client, plan, b"%d" % attempt, attempt) for attempt in range(2)]
    batch_commit.decide(client, plan, winners)
    decision = decisions.read_committed(client, NAME).decision
    assert decision is not None
    assert decision.winners == tuple(winners)
    assert (ongoing(client), output(client)) == ([], [b"0", b"1"])


def test_names_of_runs_are_ordered() -> None:
    assert ProducerIdAndEpoch(1, 9) < ProducerIdAndEpoch(2, 0) < ProducerIdAndEpoch(2, 1)
