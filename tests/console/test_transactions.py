"""Transactions: the timeline, what ended, why a reader waits, and aborting what blocks it."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from support.browser.console import Browsing
from support.waiting import until

from semel.client import (
    Admin,
    Client,
    ClusterInfo,
    Consumer,
    GroupMetadata,
    KafkaError,
    NewTopic,
    Producer,
    TransactionalProducer,
)
from semel.client.admin.transactions import TransactionDescription
from semel.console.observing import _sample_transactions
from semel.console.pages import overview
from semel.console.pages.transactions import blocked_by
from semel.console.sampling import (
    Catalogue,
    PartitionEnds,
    Series,
    TransactionSample,
    blockers_of,
    list_all,
)


@contextmanager
def opened(bootstrap: str, transactional_id: str, topic: str) -> Iterator[TransactionalProducer]:
    with Client(bootstrap) as client:
        producer = TransactionalProducer(client, transactional_id, transaction_timeout_ms=600_000)
        producer.begin()
        producer.send(topic, b"pending", partition=0)
        producer.flush()
        yield producer


def _listed(browsing: Browsing, query: str = "") -> list[str]:
    found = browsing.get(f"/transactions.json{query}").json
    return [each["transactional_id"] for each in found.get("transactions", found.get("finished"))]


def _shown(browsing: Browsing, transactional_id: str) -> dict[str, int]:
    """What the page of a transaction sends with its form."""
    found = browsing.get(f"/transactions/{transactional_id}.json").json
    return {name: found[name] for name in ("producer_id", "epoch", "since_ms")}


def test_an_open_transaction_is_on_the_timeline_until_it_ends(
    browsing: Browsing, bootstrap: str, client: Client
) -> None:
    Admin(client).topics.create("shown")
    with opened(bootstrap, "jobs/7 <a>", "shown") as producer:
        until(lambda: "jobs/7 <a>" in _listed(browsing))
        (row,) = browsing.get("/transactions.json?q=jobs/7").json["transactions"]
        assert row["partitions"] == [{"topic": "shown", "partition": 0}]
        assert row["timeout_ms"] == 600_000
        assert 0 <= row["age_ms"] < 60_000
        assert row["producer_id"] == producer.identity.producer_id
        assert browsing.get("/transactions?q=shown/0").text.count("jobs/7 &lt;a&gt;") == 1
        page = browsing.get("/transactions/jobs%2F7%20%3Ca%3E.json").json
        assert page["is_open"]
        assert page["places"][0]["first_offset"] == 0
        assert page["places"][0]["is_first"]
        producer.commit()
    until(lambda: "jobs/7 <a>" not in _listed(browsing))
    (ended,) = browsing.get("/transactions.json?view=finished&q=jobs/7").json["finished"]
    assert ended["outcome"] == "committed"
    assert ended["duration_ms"] >= 0


def test_an_aborted_transaction_is_in_the_history(browsing: Browsing, bootstrap: str, client: Client) -> None:
    Admin(client).topics.create("regretted")
    with opened(bootstrap, "regrets", "regretted") as producer:
        until(lambda: "regrets" in _listed(browsing))
        producer.abort()
    until(lambda: "regrets" in _listed(browsing, "?view=finished"))
    (ended,) = browsing.get("/transactions.json?view=finished&q=regrets").json["finished"]
    assert ended["outcome"] == "aborted"


def test_a_transaction_of_a_client_that_keeps_its_epoch_is_in_the_history(
    browsing: Browsing, bootstrap: str, client: Client
) -> None:
    Admin(client).topics.create("plain")
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "keeper"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("plain", b"v")
    producer.flush()
    until(lambda: "keeper" in _listed(browsing))
    epoch = Admin(client).transactions.describe("keeper").epoch
    producer.commit_transaction()
    assert Admin(client).transactions.describe("keeper").epoch == epoch
    until(lambda: "keeper" in _listed(browsing, "?view=finished"))
    (ended,) = browsing.get("/transactions.json?view=finished&q=keeper").json["finished"]
    assert ended["outcome"] == "committed"


def _described(state: str, started_ms: int, epoch: int) -> TransactionDescription:
    return TransactionDescription("it", state, 1, epoch, 60_000, started_ms, (("t", 0),))


def _outcomes(*samples: TransactionDescription | None) -> list[str]:
    """What is in the history after the coordinator has described a transactional id like this."""
    current: Mapping[str, TransactionDescription] = {}

    async def ask(function: Any, *args: Any) -> Any:
        return {name: each.state for name, each in current.items()} if function is list_all else current

    observer: Any = SimpleNamespace(
        ask=ask,
        transactions=SimpleNamespace(value=None),
        settings=SimpleNamespace(history_max=10),
        aborted=deque(),
    )
    for sample in samples:
        current = {} if sample is None else {"it": sample}
        observer.transactions.value = asyncio.run(_sample_transactions(observer))
    return [each.outcome for each in observer.transactions.value.finished]


@pytest.mark.parametrize("next_epoch", [5, 6], ids=["epoch stays", "epoch is increased"])
@pytest.mark.parametrize(
    ("state", "started_ms", "outcomes"),
    [
        ("Ongoing", 1000, []),
        ("PrepareAbort", 1000, ["aborted"]),
        ("CompleteAbort", 1000, ["aborted"]),
        ("CompleteCommit", 1000, ["committed"]),
        ("CompleteCommit", 2000, ["ended"]),  # The state is that of the next transaction.
        ("Ongoing", 2000, ["ended"]),
        ("Empty", -1, ["ended"]),
    ],
)
def test_the_outcome_is_that_of_the_transaction_that_was_open_and_of_no_other(
    state: str, started_ms: int, outcomes: list[str], next_epoch: int
) -> None:
    before = _described("Ongoing", 1000, 5)
    assert _outcomes(before, _described(state, started_ms, next_epoch)) == outcomes


def test_a_transaction_whose_id_is_gone_has_ended() -> None:
    assert _outcomes(_described("Ongoing", 1000, 5), None) == ["ended"]


def test_a_waiting_reader_is_explained_and_the_button_ends_it(
    browsing: Browsing, bootstrap: str, client: Client
) -> None:
    Admin(client).topics.create("blocked")
    with opened(bootstrap, "blocker", "blocked") as producer, Producer(client) as plain:
        plain.send("blocked", b"behind it", partition=0)
        plain.flush()
        found = browsing.get("/topics/blocked/why/0.json").json
        assert found["waiting"] == 2
        assert found["blocked_by"]["transactional_id"] == "blocker"
        assert found["blocked_by"]["ends"] is not None
        assert "for it" in browsing.get("/transactions/blocker").text
        until(
            lambda: any(row["topic"] == "blocked" for row in browsing.get("/overview.json").json["blocked"])
        )
        until(
            lambda: (
                [row["waiting"] for row in browsing.get("/transactions.json?q=blocker").json["transactions"]]
                == [2]
            )
        )
        assert browsing.post("/transactions/blocker/abort", _shown(browsing, "blocker")).status == 303
        found = browsing.get("/topics/blocked/why/0.json").json
        assert (found["waiting"], found["blocked_by"]) == (0, None)
        (ended,) = browsing.get("/transactions.json?view=finished&q=blocker").json["finished"]
        assert ended["outcome"] == "aborted"
        with pytest.raises(KafkaError):
            producer.commit()
    with Consumer(client, "blocked") as consumer:
        assert [record.value for record in consumer.read_to_end()] == [b"behind it"]


def test_aborting_what_is_not_open_is_refused(browsing: Browsing, bootstrap: str, client: Client) -> None:
    Admin(client).topics.create("done")
    with opened(bootstrap, "done-already", "done") as producer:
        shown = _shown(browsing, "done-already")
        producer.commit()
    reply = browsing.post("/transactions/done-already/abort.json", shown)
    assert reply.status == 409
    assert "no open transaction" in reply.json["message"]
    assert browsing.post("/transactions/never-used/abort.json", shown).status == 404
    assert "never-used" not in browsing.get("/transactions.json").text


def test_a_page_that_is_out_of_date_aborts_nothing(
    browsing: Browsing, bootstrap: str, client: Client
) -> None:
    Admin(client).topics.create("paid")
    with opened(bootstrap, "pay", "paid") as producer:
        shown = _shown(browsing, "pay")
        for path in ("/transactions/pay", "/topics/paid/why/0"):
            page = browsing.get(path).text
            for name, value in shown.items():
                assert f'name="{name}" value="{value}"' in page
        producer.commit()
        producer.begin()
        producer.send("paid", b"the next", partition=0)
        producer.flush()
        until(lambda: _shown(browsing, "pay")["since_ms"] >= 0)
        changed = _shown(browsing, "pay")
        assert changed != shown
        for send in (browsing.post, browsing.post_json):
            reply = send("/transactions/pay/abort.json", shown)
            assert reply.status == 409
            assert "Another one is open" in reply.json["message"]
        assert browsing.post("/transactions/pay/abort.json").status == 400
        for name in shown:
            wrong = {**changed, name: changed[name] + 1}
            assert browsing.post("/transactions/pay/abort.json", wrong).status == 409
        producer.commit()
    with Consumer(client, "paid") as consumer:
        assert [record.value for record in consumer.read_to_end()] == [b"pending", b"the next"]


def test_a_journal_topic_blocks_no_reader(browsing: Browsing, bootstrap: str, client: Client) -> None:
    Admin(client).topics.create(NewTopic("journal", configs={"semel.visibility": "journal"}))
    with opened(bootstrap, "in-journal", "journal") as producer:
        found = browsing.get("/topics/journal/why/0").text
        assert "ever waits" in found
        producer.abort()


def test_offsets_in_a_transaction_name_the_group(browsing: Browsing, bootstrap: str, client: Client) -> None:
    Admin(client).topics.create("with-offsets")
    Admin(client).groups.set_offsets("its-group", {("with-offsets", 0): 0})
    until(lambda: "its-group" in browsing.get("/groups.json").text)
    with opened(bootstrap, "offsets-too", "with-offsets") as producer:
        producer.send_offsets({("with-offsets", 0): 1}, GroupMetadata("its-group"))
        until(lambda: "offsets_partition" in browsing.get("/transactions.json?q=offsets-too").text)
        (group,) = browsing.get("/transactions/offsets-too.json").json["groups"]
        assert "its-group" in group["groups"]
        producer.abort()


def test_a_wait_is_timed_while_the_last_stable_offset_stays() -> None:
    key = ("t", 0)
    first = PartitionEnds(10.0, {key: 9}, {key: 4}, {}, Series(1), {})
    second = PartitionEnds(20.0, {key: 12}, {key: 4}, {}, Series(1), {}, first)
    assert (second.waiting, second.held) == ({key: 8}, {key: 10.0})
    third = PartitionEnds(30.0, {key: 12}, {key: 5}, {}, Series(1), {}, second)
    assert third.held == {key: 30.0}
    assert PartitionEnds(40.0, {key: 12}, {key: 12}, {}, Series(1), {}, third).held == {}


def test_a_partition_that_does_not_exist_is_not_found(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create("small")
    assert browsing.get("/topics/small/why/9.json").status == 404
    assert browsing.get("/topics/none/why/0.json").status == 404
    assert browsing.get("/transactions/none.json").json["error"] == "TRANSACTIONAL_ID_NOT_FOUND"
    assert browsing.get("/why?partition=small").status == 400
    assert browsing.get("/why?partition=small/0").headers["Location"] == "/topics/small/why/0"


def test_a_wait_is_counted_for_the_transaction_that_begins_first_in_the_partition() -> None:
    def described(name: str, producer_id: int, started_ms: int) -> TransactionDescription:
        return TransactionDescription(name, "Ongoing", producer_id, 0, 60_000, started_ms, (("t", 0),))

    ends = PartitionEnds(0.0, {("t", 0): 9}, {("t", 0): 4}, {}, Series(1), {})
    open_ = {"late": described("late", 2, 20), "early": described("early", 1, 10)}
    assert blocked_by(open_, ends) == {}
    assert blockers_of(("t", 0), open_, ends) == (None, ["late", "early"])
    ends.blockers = {("t", 0): 2}
    assert blocked_by(open_, ends) == {"late": 5}
    assert blockers_of(("t", 0), open_, ends) == (open_["late"], [])
    ends.blockers = {("t", 0): 3}  # It hangs: no coordinator lists it.
    assert blocked_by(open_, ends) == {}
    assert blockers_of(("t", 0), open_, ends) == (None, [])


def _health(ends: PartitionEnds | None, open_: list[TransactionDescription]) -> Any:
    catalogue = Catalogue(ClusterInfo("id", 0, (), ()), (), 0, 0, 0)
    sample = TransactionSample({each.transactional_id: each for each in open_}, deque(), {})
    return overview._health(catalogue, ends, sample, [])


def _aged(number: int, seconds: int, timeout_s: int) -> TransactionDescription:
    began_ms = int(time.time() - seconds) * 1000
    return TransactionDescription(f"t{number}", "Ongoing", number, 0, timeout_s * 1000, began_ms, (("t", 0),))


def test_every_overdue_transaction_counts_for_the_health_and_not_only_those_that_are_shown() -> None:
    in_time = [_aged(number, 600 + number, 900) for number in range(overview.ROWS_MAX)]
    assert _health(None, in_time)["state"] == "good"
    overdue = [_aged(100 + number, 300, 10) for number in range(2 * overview.ROWS_MAX)]
    found = _health(None, in_time + overdue)
    assert found["state"] == "odd"
    assert found["reasons"][0].startswith("16 open transactions")


@pytest.mark.parametrize(
    ("blocker", "state"), [(77, "odd"), (1, "odd"), (2, "good"), (None, "good")], ids=str
)
def test_a_hanging_transaction_counts_for_the_health_although_others_block_more(
    blocker: int | None, state: str
) -> None:
    busy = [("busy", number) for number in range(overview.ROWS_MAX)]
    high = dict.fromkeys(busy, 1000) | {("hung", 0): 50}
    stable = dict.fromkeys(high, 10)
    before = PartitionEnds(time.time() - 600, high, stable, {}, Series(1), {})
    ends = PartitionEnds(time.time(), high, stable, {}, Series(1), {}, before)
    ends.blockers = dict.fromkeys(busy, 1) | ({} if blocker is None else {("hung", 0): blocker})
    job = replace(_aged(1, 0, 900), partitions=tuple(busy))
    other = replace(_aged(2, 0, 900), partitions=(("hung", 0),))
    assert _health(ends, [job, other])["state"] == state
    assert _health(ends, [job])["state"] == "odd"  # Then nobody lists what blocks.


def test_the_blocker_is_the_first_in_the_partition_and_not_the_oldest(
    browsing: Browsing, bootstrap: str, client: Client
) -> None:
    Admin(client).topics.create(NewTopic("crossed", 2))
    with (
        opened(bootstrap, "old-elsewhere", "crossed") as old,
        Client(bootstrap) as other,
    ):
        young = TransactionalProducer(other, "first-here", transaction_timeout_ms=600_000)
        young.begin()
        for producer in (young, old):
            producer.send("crossed", b"x", partition=1)
            producer.flush()

        def blocked() -> dict[int, str]:
            rows = browsing.get("/overview.json").json["blocked"]
            return {row["partition"]: row["transactional_id"] for row in rows if row["topic"] == "crossed"}

        def waiting() -> dict[str, int]:
            rows = browsing.get("/transactions.json").json["transactions"]
            return {row["transactional_id"]: row["waiting"] for row in rows}

        until(lambda: blocked() == {0: "old-elsewhere", 1: "first-here"})
        # A sample may have been taken between the two writes.
        until(lambda: waiting().items() >= {"first-here": 2, "old-elsewhere": 1}.items())
        young.abort()
        until(lambda: blocked() == {0: "old-elsewhere", 1: "old-elsewhere"})
        old.abort()
