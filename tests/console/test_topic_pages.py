"""One topic: partitions, configuration with its reasons, producers; and the list with many topics."""

import pytest
from support.browser.console import Browsing
from support.waiting import until

from semel.client import Admin, Client, NewTopic, Producer


def test_partitions_have_start_stable_end_and_size(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create(NewTopic("sized", 2))
    with Producer(client) as producer:
        for _ in range(5):
            producer.send("sized", b"x" * 1000, partition=1)
    Admin(client).topics.delete_records({("sized", 1): 2})
    found = browsing.get("/topics/sized.json").json
    first, second = found["partitions"]
    assert (first["start"], first["high_watermark"], first["waiting"]) == (0, 0, 0)
    assert (second["start"], second["last_stable_offset"], second["high_watermark"]) == (2, 5, 5)
    assert found["bytes"] > 0
    assert second["leader"] == 0
    assert "sized" in browsing.get("/topics/sized").text


def test_a_value_has_its_reason_and_can_be_changed_and_reset(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create("tuned")

    def retention() -> dict[str, object]:
        rows = browsing.get("/topics/tuned/configs.json?q=retention.ms").json["configs"]
        return next(row for row in rows if row["name"] == "retention.ms")

    before = retention()
    assert before["is_default"]
    assert before["help"]
    assert browsing.post("/topics/tuned/configs", {"name": "retention.ms", "value": "1000"}).status == 303
    assert (retention()["value"], retention()["reason"]) == ("1000", "set on this topic")
    assert [row["name"] for row in browsing.get("/topics/tuned/configs.json?set=1").json["configs"]]
    browsing.post("/topics/tuned/configs", {"name": "retention.ms", "reset": "1"})
    assert retention() == before
    wrong = browsing.post("/topics/tuned/configs.json", {"name": "retention.ms", "value": "soon"})
    assert wrong.status == 409
    assert "retention.ms" in wrong.json["message"]


def test_partitions_are_added_and_a_topic_is_deleted_by_its_name(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create("growing")
    assert browsing.post("/topics/growing/partitions", {"total": 3}).status == 303
    assert len(browsing.get("/topics/growing.json").json["partitions"]) == 3
    assert browsing.post("/topics/growing/delete.json", {"name": "other"}).status == 400
    assert browsing.post("/topics/growing/delete", {"name": "growing"}).status == 303
    assert browsing.get("/topics/growing.json").status == 404
    assert "growing" not in [each["topic"] for each in browsing.get("/topics.json").json["topics"]]


def test_producers_of_a_topic(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create("written")
    assert browsing.get("/topics/written/producers.json").json["producers"] == []
    with Producer(client) as producer:
        producer.send("written", b"x", partition=0)
    (row,) = browsing.get("/topics/written/producers.json").json["producers"]
    assert (row["partition"], row["epoch"], row["open_since_offset"]) == (0, 0, None)


def test_topics_are_created_filtered_and_paged(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create(*(NewTopic(f"many-{number:03}") for number in range(60)))
    first = until(lambda: (page := browsing.get("/topics.json?q=MANY-").json)["total"] == 60 and page)
    assert (first["pages"], len(first["topics"]), first["last"]) == (2, 50, 50)
    second = browsing.get("/topics.json?q=many-&page=2").json
    assert [row["topic"] for row in second["topics"]][-1] == "many-059"
    assert 'rel="prev"' in browsing.get("/topics?q=many-&page=2").text
    assert browsing.get("/topics.json?q=many-&page=99").json["page"] == 2
    assert browsing.get("/topics.json?page=x").status == 400
    assert browsing.post_json("/topics.json", {"name": "made", "partitions": 4}).json["partitions"] == 4
    assert browsing.post_json("/topics.json", {"name": "made"}).status == 409
    assert browsing.post_json("/topics.json", {"name": "wrong name"}).status == 409
    assert "No topic has" in browsing.get("/topics?q=nothing-like-it").text


@pytest.mark.parametrize("order", ["name", "partitions", "rate", "records"])
def test_topics_have_an_order(browsing: Browsing, order: str) -> None:
    assert browsing.get(f"/topics.json?order={order}").status == 200


def test_the_order_by_offsets_is_that_of_the_column(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create(NewTopic("sorted-aged"), NewTopic("sorted-fresh"))
    with Producer(client) as producer:
        for name, count in (("sorted-aged", 100), ("sorted-fresh", 20)):
            for _ in range(count):
                producer.send(name, b"x", partition=0)

    def listed() -> list[tuple[str, int]]:
        rows = browsing.get("/topics.json?order=records&q=sorted-").json["topics"]
        return [(row["topic"], row["offsets"]) for row in rows]

    until(lambda: listed() == [("sorted-aged", 100), ("sorted-fresh", 20)])
    Admin(client).topics.delete_records({("sorted-aged", 0): 99})
    until(lambda: listed() == [("sorted-fresh", 20), ("sorted-aged", 1)])
