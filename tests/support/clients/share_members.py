"""Members of share groups that call the handlers of a broker in memory."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from semel.broker.broker import Broker
from semel.core.security.acls import ANONYMOUS
from semel.core.types import ErrorCode, Topic
from semel.wire.messages import (
    AcknowledgementBatch,
    IncrementalAlterConfigsRequest,
    PartitionProduceData,
    ProduceRequest,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
    TopicProduceData,
)
from semel.wire.messages.configs import (
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
)
from semel.wire.messages.semel import TxnShareAcknowledgeRequest
from semel.wire.records import Record, decode_batch, encode_batch, iter_batches
from support.brokers.in_memory import context, make_topic, send
from support.waiting import until_async

GROUP = 32


async def begun_to_wait(broker: Broker, fetch: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a fetch, and wait until it waits for records: new ones, or ones that other members release."""

    def is_waiting() -> bool:
        waits = [each for some in broker.share_waits.by_share.values() for each in some]
        return any(each.woken._callbacks for each in waits)

    task = asyncio.create_task(fetch)
    await until_async(is_waiting)
    assert not task.done()
    return task


class Member:
    """A member with one connection."""

    def __init__(self, broker: Broker, name: str, topic: Topic, connection: int = 1) -> None:
        self.broker = broker
        self.name = name
        self.topic = topic
        self.connection = connection
        self.principal = ANONYMOUS
        self.throttle: Any = None
        self.epoch = 0

    async def ask(self, key: int, request: Any, version: int = 2) -> Any:
        asked = context(version)._replace(connection_id=self.connection, principal=self.principal)
        if self.throttle is not None:
            asked = asked._replace(throttle=self.throttle)
        return await send(self.broker, key, request, version, asked)

    async def join(self) -> Any:
        request = ShareGroupHeartbeatRequest(
            group_id="g", member_id=self.name, subscribed_topic_names=[self.topic.name]
        )
        return await self.ask(76, request, 1)

    async def fetch(self, *acks: tuple[int, int, list[int]], wait_ms: int = 0, **fields: Any) -> Any:
        batches = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acks
        ]
        partitions = [ShareFetchPartition(partition_index=0, acknowledgement_batches=batches)]
        request = ShareFetchRequest(
            group_id="g",
            member_id=self.name,
            share_session_epoch=self.epoch,
            max_wait_ms=wait_ms,
            min_bytes=fields.pop("min_bytes", 1),
            max_records=fields.pop("max_records", 500),
            batch_size=500,
            topics=[ShareFetchTopic(topic_id=self.topic.topic_id, partitions=partitions)]
            if acks or self.epoch == 0
            else [],
            **fields,
        )
        response = await self.ask(78, request)
        if not response.error_code:
            self.epoch += 1
        return response

    async def acquired(self, *acks: tuple[int, int, list[int]], **fields: Any) -> list[tuple[int, int, int]]:
        response = await self.fetch(*acks, **fields)
        assert response.error_code == ErrorCode.NONE
        return runs(response)

    async def acknowledge(self, *acks: tuple[int, int, list[int]], **fields: Any) -> Any:
        batches = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acks
        ]
        request = ShareAcknowledgeRequest(
            group_id="g",
            member_id=self.name,
            share_session_epoch=fields.pop("epoch", self.epoch),
            topics=[
                ShareAcknowledgeTopic(
                    topic_id=self.topic.topic_id,
                    partitions=[
                        ShareAcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
                    ],
                )
            ],
            **fields,
        )
        response = await self.ask(79, request)
        if not response.error_code and request.share_session_epoch > 0:
            self.epoch += 1
        return response

    async def acknowledge_in_transaction(
        self, producer: tuple[int, int], *acks: tuple[int, int, list[int]], **fields: Any
    ) -> Any:
        batches = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acks
        ]
        partition = ShareAcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
        given: dict[str, Any] = {
            "transactional_id": "x",
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "group_id": "g",
            "member_id": self.name,
            "topics": [ShareAcknowledgeTopic(topic_id=self.topic.topic_id, partitions=[partition])],
        }
        return await self.ask(20_002, TxnShareAcknowledgeRequest(**given | fields), 0)


def runs(response: Any) -> list[tuple[int, int, int]]:
    return [
        (run.first_offset, run.last_offset, run.delivery_count)
        for topic in response.responses
        for data in topic.partitions
        for run in data.acquired_records
    ]


def values(response: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    for topic in response.responses:
        for data in topic.partitions:
            wanted = [(each.first_offset, each.last_offset) for each in data.acquired_records]
            for at, header in iter_batches(data.records):
                for offset, record in enumerate(decode_batch(data.records, at), header.base_offset):
                    if any(first <= offset <= last for first, last in wanted):
                        found.append(record.value)
    return found


async def produce(broker: Broker, topic: str, *names: str) -> None:
    batch = encode_batch([Record(offset=0, key=None, value=name.encode(), timestamp=1) for name in names])
    partition = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name=topic, partition_data=[partition])]
    )
    response = await send(broker, 0, request, 9)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def configure(broker: Broker, **configs: str) -> list[int]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsAlterConfigsResource(
                resource_type=GROUP,
                resource_name="g",
                configs=[
                    IncrementalAlterConfigsAlterableConfig(name=name.replace("_", "."), value=value)
                    for name, value in configs.items()
                ],
            )
        ]
    )
    return [each.error_code for each in (await send(broker, 44, request)).responses]


async def world(broker: Broker, *members: str, partitions: int = 1) -> tuple[Topic, list[Member]]:
    # The records have timestamps of 1970.
    topic = await make_topic(broker, "t", partitions, retention_ms="-1")
    assert await configure(broker, share_auto_offset_reset="earliest") == [ErrorCode.NONE]
    found = [Member(broker, name, topic, number) for number, name in enumerate(members, 1)]
    for each in found:
        joined = await each.join()
        assert joined.error_code == ErrorCode.NONE
    return topic, found
