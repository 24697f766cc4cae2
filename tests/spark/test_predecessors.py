"""A pipeline that goes on under another id does not write again what the old id has written.

The protocol without Spark, in both forms: a checkpoint and a driver's calls are enough.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.secured_broker import secured
from support.certificates import needs_openssl
from support.spark.checkpoints import Query
from support.spark.jobs import create

from semel.client import Admin, Client, Codec, NewTopic, Producer, Security, TransactionalProducer
from semel.client.admin.acls import Acl
from semel.client.admin.group_offsets import commit_offsets
from semel.embedded import Embedded
from semel.spark import PipelineMismatch
from semel.spark.checkpoint import Checkpoint
from semel.spark.partition_offsets import topic_ids
from semel.spark.relations import ALONE, Relations
from semel.spark.sink import batch_commit, planning
from semel.spark.sink import decision as decisions
from semel.spark.sink.batch_commit import BatchPlan

HIDDEN = pytest.mark.semel_settings({"semel.extensions.enable": False})


@pytest.fixture(params=["together", pytest.param("portable", marks=HIDDEN)])
def client(request: pytest.FixtureRequest, semel_broker: Embedded) -> Iterator[Client]:
    create(semel_broker.bootstrap_servers, ("in", 2), ("other-in", 2), ("out", 1), ("other-out", 1))
    with Client(semel_broker.bootstrap_servers, timeout_s=5) as client:
        yield client


def batch(
    directory: Path, client: Client, start: int, end: int, topic: str = "in", name: str = ""
) -> Checkpoint:
    """The first batch of a new query, or the next one of a query by name, as Spark's log has it."""
    query = directory / (name or f"q{len(list(directory.iterdir()))}")
    number = len(list((query / "offsets").iterdir())) if query.exists() else 0
    if not number:
        Query(directory, query.name)
    entry: dict[str, Any] = {topic: {"0": end, "1": end}, "ids:": topic_ids(client.describe([topic]).topics)}
    if not number:
        entry["began:"] = {topic: {"0": start, "1": start}}
    text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(entry)])
    (query / "offsets" / str(number)).write_text(text)
    return Checkpoint(str(query))


def count(
    client: Client,
    name: str,
    checkpoint: Checkpoint,
    topic: str | None = "out",
    written: str | None = "out",
    relations: Relations = ALONE,
) -> BatchPlan:
    """Plan the batch of a pipeline, and decide it."""
    plan = planning.plan_stream(client, name, checkpoint, topic, relations)
    outputs = {} if written is None else topic_ids(client.describe([written]).topics)
    batch_commit.decide(client, plan, [], outputs)
    return plan


def test_another_id_does_not_write_the_same_input_to_the_same_output(client: Client, tmp_path: Path) -> None:
    count(client, "old", batch(tmp_path, client, 0, 10))
    with pytest.raises(PipelineMismatch, match=r"pipeline 'old' has read in/0 up to offset 10 .*'new' is"):
        count(client, "new", batch(tmp_path, client, 0, 20))


@pytest.mark.parametrize("said", [Relations(is_new=True), Relations(beside=frozenset({"old"}))])
def test_another_id_writes_the_same_if_it_is_told_to(client: Client, tmp_path: Path, said: Relations) -> None:
    count(client, "old", batch(tmp_path, client, 0, 10))
    assert not count(client, "new", batch(tmp_path, client, 0, 20), relations=said).is_done
    # From then on it needs no permission.
    assert not count(client, "new", batch(tmp_path, client, 20, 30)).is_done


@pytest.mark.parametrize(
    ("start", "topic", "output"), [(10, "in", "out"), (0, "other-in", "out"), (0, "in", "other-out")],
    ids=["it starts where the other one ends", "another input", "another output"],
)  # fmt: skip
def test_other_pipelines_are_no_predecessors(
    client: Client, tmp_path: Path, start: int, topic: str, output: str
) -> None:
    count(client, "old", batch(tmp_path, client, 0, 10))
    assert not count(client, "new", batch(tmp_path, client, start, 20, topic), output, output).is_done


@pytest.mark.parametrize("topic", ["in", "out"])
def test_topics_that_were_created_again_are_others(client: Client, tmp_path: Path, topic: str) -> None:
    count(client, "old", batch(tmp_path, client, 0, 10))
    Admin(client).topics.delete(topic)
    Admin(client).topics.create(NewTopic(topic, partitions=2))
    assert not count(client, "new", batch(tmp_path, client, 0, 20)).is_done


def test_a_pipeline_that_has_written_nothing_is_no_predecessor(client: Client, tmp_path: Path) -> None:
    """Two that start side by side are both told that the other one has begun."""
    plans = [
        planning.plan_stream(client, name, batch(tmp_path, client, 0, 10), "out") for name in ("one", "two")
    ]
    for plan in plans:
        batch_commit.decide(client, plan, [], topic_ids(client.describe(["out"]).topics))
    count(client, "silent", batch(tmp_path, client, 0, 10), "other-out", None)
    assert not count(client, "new", batch(tmp_path, client, 0, 20), "other-out", "other-out").is_done


def test_rows_that_name_their_topics(client: Client, tmp_path: Path) -> None:
    """What the output is, is known when they are written: nothing is decided then."""
    count(client, "old", batch(tmp_path, client, 0, 10), None, "out")
    assert not count(client, "third", batch(tmp_path, client, 0, 20), None, "other-out").is_done
    # A batch that writes nothing says nothing about it.
    count(client, "new", batch(tmp_path, client, 0, 5, name="q"), None, None)
    with pytest.raises(PipelineMismatch, match="topic out"):
        count(client, "new", batch(tmp_path, client, 5, 20, name="q"), None, "out")
    position = decisions.read_committed(client, "new")
    assert position.offsets == {("in", 0): 5, ("in", 1): 5}


def test_a_predecessor_whose_offsets_were_changed_is_still_one(client: Client, tmp_path: Path) -> None:
    count(client, "old", batch(tmp_path, client, 0, 10))
    known = Admin(client).groups.offsets("old")
    commit_offsets(client, "old", {key: each._replace(offset=0) for key, each in known.items()})
    with pytest.raises(PipelineMismatch, match=r"'old' .*in/0 .*10"):
        count(client, "new", batch(tmp_path, client, 0, 20))


def test_an_output_with_records_of_unknown_origin(client: Client, tmp_path: Path) -> None:
    """The group of the predecessor was deleted, or has expired: only its records are left."""
    with Producer(client) as producer:
        for _ in range(20):
            producer.send("in", b"x", partition=0)
            producer.send("in", b"x", partition=1)
        producer.send("out", b"y")
    words = "is new and reads all of its input, and topic out has records"
    with pytest.raises(PipelineMismatch, match=words):
        count(client, "new", batch(tmp_path, client, 0, 20))
    assert not count(client, "later", batch(tmp_path, client, 10, 20)).is_done
    # Now it is known who writes there.
    assert not count(client, "other", batch(tmp_path, client, 0, 0, "other-in")).is_done


@pytest.mark.parametrize("topic", ["out", None], ids=["option", "column"])
def test_only_what_the_named_pipelines_have_written_is_no_reason_to_refuse(
    client: Client, tmp_path: Path, topic: str | None
) -> None:
    """As for two sinks of a declaration that write to one topic, or whose rows name their topics."""
    with Producer(client) as producer:
        for partition in (0, 1):
            producer.send("in", b"x", partition=partition)
        producer.send("out", b"y")
    beside = Relations(beside=frozenset({"sibling"}))
    with pytest.raises(
        PipelineMismatch, match="is new and reads all of its input, and topic out has records"
    ):
        count(client, "new", batch(tmp_path, client, 0, 1), topic, relations=beside)
    assert decisions.read_committed(client, "new").offsets in ({}, {("in", 0): 0, ("in", 1): 0})
    count(client, "sibling", batch(tmp_path, client, 0, 1), topic, relations=Relations(is_new=True))
    count(client, "new", batch(tmp_path, client, 0, 1), topic, relations=beside)


def test_aborted_records_are_of_no_origin(client: Client, tmp_path: Path) -> None:
    with TransactionalProducer(client, "another") as producer:
        producer.begin()
        producer.send("out", b"y")
        producer.abort()
    for number, topic in enumerate(("out", None)):
        count(client, f"new{number}", batch(tmp_path, client, 0, 0), topic, relations=ALONE)


def test_records_of_a_first_batch_that_was_interrupted_are_no_reason_to_refuse(
    client: Client, tmp_path: Path
) -> None:
    first = batch(tmp_path, client, 0, 10)
    plan = planning.plan_stream(client, "new", first, "out")
    attempt = batch_commit.begin_attempt(client, plan, "0.0", transaction_timeout_ms=60_000, codec=Codec.NONE)
    attempt.send("out", b"y")
    attempt.prepare()
    assert not count(client, "new", first).is_done
    assert not count(client, "other", batch(tmp_path, client, 0, 10, "other-in")).is_done


@needs_openssl
def test_a_pipeline_with_least_rights_sees_its_own_groups(tmp_path: Path) -> None:
    """The rights of docs/security.md: groups by a prefix. Of others it is unknown what they wrote."""
    who = "User:shop"
    with secured(tmp_path / "broker") as broker, broker.admin() as admin:
        admin.topics.create(NewTopic("in", 2), NewTopic("out", 1))
        admin.users.put("shop", "s3cret")
        admin.acls.add(
            Acl.of(who, "Read", topic="in"),
            Acl.of(who, "Write", topic="out"),
            Acl.of(who, "Read", group="shop.", is_prefix=True),
            Acl.of(who, "Write", transactional_id="shop.", is_prefix=True),
        )
        settings = Security.of(broker.settings("SASL_PLAINTEXT", "SCRAM-SHA-256", "shop", "s3cret"))
        with Client(broker.address("SASL_PLAINTEXT"), security=settings) as client:
            (tmp_path / "queries").mkdir()
            directory = tmp_path / "queries"
            count(client, "shop.dead", batch(directory, client, 0, 10))
            with pytest.raises(PipelineMismatch, match=r"let it keep its id: pipeline\.id=shop\.dead,"):
                count(client, "shop.deadletters", batch(directory, client, 0, 20))
            admin.acls.remove([Acl.of(who, "Read", group="shop.", is_prefix=True)])
            admin.acls.add(Acl.of(who, "Read", group="shop.deadletters"))
            with Producer(admin._client) as producer:
                producer.send("out", b"of shop.dead")
            with pytest.raises(PipelineMismatch, match="no pipeline has written that this user may"):
                count(client, "shop.deadletters", batch(directory, client, 0, 20))
