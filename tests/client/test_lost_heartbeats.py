"""An answer to a heartbeat of librdkafka comes too late: the member does not hear what to give up.

It connects again, and its next heartbeat does not list what it owns. Unless it is told again, it keeps the
partitions until its time for giving them up is over: five minutes by default.
"""

import asyncio
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from support.clients.confluent import create, reader, shared
from support.clients.reading import WAIT_SECONDS
from support.waiting import until

import semel
from semel.handlers import consumer_groups

TOO_LATE_SECONDS = 3.0
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 200,
}


def test_partitions_to_give_up_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Any] = []
    unlisted: list[Any] = []
    heartbeat = consumer_groups._heartbeat

    async def held_up(broker: Any, request: Any, *arguments: Any) -> Any:
        answer = await heartbeat(broker, request, *arguments)
        if request.topic_partitions is None:
            unlisted.append(request)
        if answer.assignment and len(answer.assignment) == 2 and not late:
            late.append(answer)
            await asyncio.sleep(TOO_LATE_SECONDS)
        return answer

    monkeypatch.setattr(consumer_groups, "_heartbeat", held_up)
    config = {"group.protocol": "consumer"}
    with semel.embedded(settings=SETTINGS) as broker:
        topic = create(AdminClient({"bootstrap.servers": broker.bootstrap_servers}), "topic", 4)
        with reader(broker.bootstrap_servers, "group", topic, **config) as first:
            until(lambda: first.partitions == {0, 1, 2, 3}, WAIT_SECONDS, "all partitions for one")
            # It has listed them, and says nothing more than that it is there.
            until(lambda: unlisted, WAIT_SECONDS, "a heartbeat without partitions")
            with reader(broker.bootstrap_servers, "group", topic, **config) as second:
                until(lambda: shared(first, second, 4), WAIT_SECONDS, "sharing")
    assert len(late) == 1
