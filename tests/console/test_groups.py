"""Groups: lag by offset and by time, members, a reset with its preview, share groups."""

import time
from urllib.parse import urlencode

import pytest
from support.browser.console import Browsing
from support.waiting import until

from semel.client import Admin, Client, Codec, Consumer, NewTopic, Producer
from semel.client.admin.groups import describe_share_group, set_share_offsets, share_offsets
from semel.console.pages import groups
from semel.console.sampling import Ends
from semel.wire.batch import HEADER_BYTES, seal
from semel.wire.messages import PartitionData
from semel.wire.messages.shares import ShareGroupHeartbeatRequest
from semel.wire.records import Record, encode_batch, read_header


@pytest.fixture(scope="module")
def filled(bootstrap: str) -> str:
    """A topic of two partitions with ten records each, and a group that has read some of them."""
    with Client(bootstrap) as client:
        Admin(client).topics.create(NewTopic("work", 2))
        with Producer(client) as producer:
            for number in range(20):
                producer.send("work", b"%d" % number, partition=number % 2)
        Admin(client).groups.set_offsets("idle", {("work", 0): 4, ("work", 1): 10})
    return bootstrap


def test_lag_is_shown_by_offset_and_by_time(browsing: Browsing, filled: str) -> None:
    found = browsing.get("/groups/idle.json").json
    assert found["lag"] == 6
    rows = {row["partition"]: row for row in found["offsets"]}
    assert (rows[0]["offset"], rows[0]["high_watermark"], rows[0]["lag"]) == (4, 10, 6)
    assert 0 < rows[0]["age_ms"] < 120_000
    assert (rows[1]["lag"], rows[1]["age_ms"]) == (0, 0)
    until(lambda: [row["lag"] for row in browsing.get("/groups.json?q=idle").json["groups"]] == [6])
    until(
        lambda: (series := browsing.get("/groups/idle.json").json["series"])["lag"][-1:] == [6.0] and series
    )
    assert browsing.get("/groups.json?q=work").json["total"] >= 1  # found by its topic
    until(lambda: [row["group"] for row in browsing.get("/topics/work.json").json["groups"]] == ["idle"])


def _in_one_batch(client: Client, topic: str, timestamps: list[int], codec: Codec = Codec.NONE) -> None:
    Admin(client).topics.create(NewTopic(topic, 1))
    with Producer(client, codec=codec, linger_s=60.0) as producer:
        for timestamp in timestamps:
            producer.send(topic, b"x" * 2000, partition=0, timestamp_ms=timestamp)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_age_is_that_of_an_unread_record_although_its_batch_begins_with_a_read_one(
    browsing: Browsing, client: Client, codec: Codec
) -> None:
    now_ms = int(time.time() * 1000)
    hours = [now_ms - hour * 3_600_000 for hour in (72, 48, 2, 1)]
    _in_one_batch(client, f"aged-{codec.name}", hours, codec)
    for position, expected in ((0, 72), (2, 2), (3, 1)):
        Admin(client).groups.set_offsets("half-way", {(f"aged-{codec.name}", 0): position})
        age_ms = browsing.get("/groups/half-way.json").json["age_ms"]
        assert expected * 3_600_000 <= age_ms < (expected + 1) * 3_600_000
    Admin(client).groups.delete("half-way")


@pytest.mark.parametrize(("name", "bound"), [("UNPACKED_BYTES", 1000), ("OPENING_SECONDS", -1.0)])
def test_a_batch_that_is_not_opened_does_not_make_unread_records_older(
    client: Client, monkeypatch: pytest.MonkeyPatch, name: str, bound: float
) -> None:
    _in_one_batch(client, f"bounded-{name}", [1000, 3000, 2000])
    key = (f"bounded-{name}", 0)
    assert groups.first_timestamps(client, {key: 2}) == {key: 2000}
    monkeypatch.setattr(groups, name, bound)
    assert groups.first_timestamps(client, {key: 2}) == {key: 3000}
    assert groups.first_timestamps(client, {key: 0}) == {key: 1000}  # The header tells it.


def test_the_age_is_that_of_the_next_record_which_compaction_has_left(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch(base_offset: int, count: int, timestamp: int, kept: int) -> bytes:
        """A batch of which the first records are left."""
        whole = encode_batch([Record(0, timestamp + each, b"k", b"v") for each in range(kept)])
        header = read_header(whole)._replace(base_offset=base_offset, last_offset_delta=count - 1)
        return seal(header, memoryview(whole)[HEADER_BYTES:])

    data = PartitionData(records=batch(0, 10, 1000, 3) + batch(10, 2, 2000, 2))
    monkeypatch.setattr(groups, "fetch_batches", lambda *_: [(("t", 0), data)])
    found = {position: groups.first_timestamps(client, {("t", 0): position}) for position in (0, 2, 5, 11)}
    assert [each["t", 0] for each in found.values()] == [1000, 1002, 2000, 2001]


def test_members_and_what_each_reads(browsing: Browsing, filled: str) -> None:
    with (
        Client(filled, client_id="the-reader") as client,
        Consumer(client, "work", group_id="busy") as consumer,
    ):
        until(lambda: list(consumer.poll(0.2) or ()) or consumer.assignment)
        found = until(lambda: (page := browsing.get("/groups/busy.json").json).get("members") and page)
        (member,) = found["members"]
        assert member["client_id"] == "the-reader"
        assert len(member["partitions"]) == 2
        reply = browsing.post("/groups/busy/reset.json", {"offsets": '[["work", 0, 0]]'})
        assert reply.status == 409
        assert "stop them" in reply.json["message"].lower()


def test_a_reset_does_what_its_preview_showed(browsing: Browsing, filled: str, client: Client) -> None:
    preview = browsing.get("/groups/idle/reset.json?to=earliest").json
    assert [(row["before"], row["after"]) for row in preview["preview"]] == [(4, 0), (10, 0)]
    assert Admin(client).groups.offsets("idle")["work", 0].offset == 4  # nothing happened yet
    assert "again" in browsing.get("/groups/idle/reset?to=earliest").text
    reply = browsing.post("/groups/idle/reset", {"offsets": preview["offsets"]})
    assert reply.headers["Location"].startswith("/groups/idle?done=Moved")
    assert {at.offset for at in Admin(client).groups.offsets("idle").values()} == {0}
    Admin(client).groups.set_offsets("idle", {("work", 0): 4, ("work", 1): 10})


@pytest.mark.parametrize(
    ("query", "after"),
    [
        ("to=latest", [10, 10]),
        ("to=offset&value=7", [7, 7]),
        ("to=offset&value=99", [10, 10]),
        ("to=shift&value=-3", [1, 7]),
        ("to=time&value=2000-01-01T00:00:00Z", [0, 0]),
        ("to=latest&topic=work", [10, 10]),
    ],
)
def test_every_way_of_a_reset_has_a_preview(
    browsing: Browsing, filled: str, query: str, after: list[int]
) -> None:
    rows = browsing.get(f"/groups/idle/reset.json?{query}").json["preview"]
    assert [row["after"] for row in rows] == after


@pytest.mark.parametrize(
    "query",
    ["to=nowhere", "to=time&value=noon", "to=offset&value=x", "to=shift&value=", "to=latest&topic=none"],
)
def test_a_wrong_reset_is_explained(browsing: Browsing, filled: str, query: str) -> None:
    reply = browsing.get(f"/groups/idle/reset.json?{query}")
    assert reply.status == 400
    assert reply.json["message"]


def test_a_group_is_deleted(browsing: Browsing, filled: str, client: Client) -> None:
    Admin(client).groups.set_offsets("gone/soon", {("work", 0): 1})
    until(lambda: "gone/soon" in browsing.get("/groups.json").text)
    assert browsing.post("/groups/gone%2Fsoon/delete").status == 303
    assert "gone/soon" not in browsing.get("/groups.json").text
    assert browsing.get("/groups/gone%2Fsoon.json").status == 404


def test_a_share_group_is_shown_and_moved(browsing: Browsing, filled: str, client: Client) -> None:
    def heartbeat(epoch: int) -> None:
        client.ask_coordinator(
            "sharers",
            ShareGroupHeartbeatRequest(
                group_id="sharers", member_id="m" * 22, member_epoch=epoch, subscribed_topic_names=["work"]
            ),
            lambda answer: [answer.error_code],
        )

    heartbeat(0)
    found = until(lambda: (page := browsing.get("/groups/sharers.json").json).get("members") and page)
    assert found["kind"] == "share"
    assert describe_share_group(client, "sharers").members[0].member_id == "m" * 22
    heartbeat(-1)
    set_share_offsets(client, "sharers", {("work", 0): 3})
    assert share_offsets(client, "sharers")["work", 0] == 3
    preview = browsing.get("/groups/sharers/reset.json?to=offset&value=5&topic=work").json
    assert browsing.post("/groups/sharers/reset", {"offsets": preview["offsets"]}).status == 303
    assert share_offsets(client, "sharers") == {("work", 0): 5, ("work", 1): 5}


def test_when_the_end_passed_an_offset() -> None:
    ends = Ends()
    assert ends.passed(0) is None
    for second, offset in enumerate([10, 20, 20, 30]):
        ends.add(float(second), offset)
    assert ends.passed(5) == 0.0  # at least since the first look
    assert ends.passed(10) == 1.0
    assert ends.passed(25) == 3.0
    assert ends.passed(30) is None
    for second in range(4, 500):
        ends.add(float(second), second * 10)
    assert len(ends._seen[0]) <= Ends.POINTS_MAX
    assert ends.passed(4980) == 499.0
    passed = ends.passed(100)
    assert passed is not None
    assert 0 < passed <= 499.0


def test_sampling_takes_a_bounded_share_of_time(browsing: Browsing) -> None:
    """Two samples of the same thing begin at least the sampling time apart."""

    def count() -> int:
        return len(browsing.get("/overview.json").json["rate"]["times"])

    began, first = time.monotonic(), count()
    until(lambda: count() >= first + 5)
    # The first of the five may have begun before, and the others have four beginnings.
    assert time.monotonic() - began >= 3 * 0.2


def test_a_reset_to_a_time_without_a_zone_means_utc(
    browsing: Browsing, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        Admin(client).topics.create(NewTopic("hourly", 1))
        with Producer(client) as producer:
            for hour in range(12):
                producer.send("hourly", b"x", timestamp_ms=hour * 3_600_000)
        Admin(client).groups.set_offsets("zoned", {("hourly", 0): 0})
        for text in ("1970-01-01T05:30:00", "1970-01-01T05:30:00Z", "1970-01-01T07:30:00+02:00", "19800000"):
            (row,) = browsing.get(
                f"/groups/zoned/reset.json?{urlencode({'to': 'time', 'value': text})}"
            ).json["preview"]
            assert row["after"] == 6, text
    finally:
        monkeypatch.undo()
        time.tzset()
    for text in (
        "1969-12-31T23:59:59.999Z",
        "1969-12-31T23:59:59.998Z",
        "9" * 30,
        "9" * 5000,
        "-" + "9" * 5000,
    ):
        for way in ("time", "offset"):
            query = urlencode({"to": way, "value": text})
            assert browsing.get(f"/groups/zoned/reset.json?{query}").status == 400


def test_a_reset_beyond_the_log_ends_at_its_end_and_says_so(
    browsing: Browsing, filled: str, client: Client
) -> None:
    Admin(client).groups.set_offsets("far", {("work", 0): 4, ("work", 1): 4})
    reply = browsing.post("/groups/far/reset.json", {"offsets": '[["work", 0, 999999], ["work", 1, 5]]'})
    assert reply.status == 200
    assert "work/0 to 10" in reply.json["done"]
    assert reply.json["outside"] == [{"topic": "work", "partition": 0, "asked": 999999, "offset": 10}]
    assert [at.offset for _, at in sorted(Admin(client).groups.offsets("far").items())] == [10, 5]
    assert browsing.post("/groups/far/reset.json", {"offsets": '[["none", 0, 3]]'}).status == 404
    assert browsing.post("/groups/far/reset.json", {"offsets": '[["work", 99999999999, 3]]'}).status == 400
