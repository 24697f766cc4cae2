"""A transactional producer that calls the handlers of a broker in memory, in versions the test chooses."""

from typing import Any

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers.context import CloseConnection
from semel.wire.messages import transactions
from semel.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from semel.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from semel.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from semel.wire.records import Record, encode_batch
from support.brokers import in_memory
from support.brokers.in_memory import context

READ_COMMITTED = 1


async def send(broker: Broker, request: Any, version: int, connection: int = 1) -> Any:
    """Return the answer to a request; both pass through the codec."""
    asked = context(version)._replace(connection_id=connection)
    try:
        return await in_memory.send(broker, request.api_key, request, version, asked)
    except CloseConnection as closed:
        if isinstance(request, ProduceRequest):
            return closed
        raise


def batch(*values: bytes, transactional: bool = True, **fields: int) -> bytes:
    """A batch of these values."""
    records = [Record(at, 1_000, None, value) for at, value in enumerate(values or (b"v",))]
    return encode_batch(records, transactional=transactional, **fields)  # type: ignore[arg-type]


def produce_request(
    parts: dict[tuple[str, int], bytes], transactional_id: str | None, *, acks: int = -1
) -> ProduceRequest:
    """Build a request with one batch for each partition, each in its own topic entry."""
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1_000,
        topic_data=[
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=index, records=records)])
            for (name, index), records in parts.items()
        ],
    )


async def produced(broker: Broker, request: ProduceRequest, version: int) -> list[Any]:
    """Return the answer for each partition."""
    response = await send(broker, request, version)
    return [part for topic in response.responses for part in topic.partition_responses]


async def committed(broker: Broker, topic: Any, partition: int = 0) -> Any:
    """Return the partition as a read_committed fetch from its start shows it."""
    wanted = FetchPartition(partition=partition, partition_max_bytes=1 << 20)
    request = FetchRequest(
        isolation_level=READ_COMMITTED, topics=[FetchTopic(topic=topic.name, partitions=[wanted])]
    )
    return (await send(broker, request, 11)).responses[0].partitions[0]


async def position(broker: Broker, group_id: str, topic: str, *, stable: bool) -> tuple[int, int]:
    """Return error and offset of a group in partition 0."""
    asked = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id=group_id, topics=asked)
    response = await send(broker, OffsetFetchRequest(groups=[group], require_stable=stable), 9)
    part = response.groups[0].topics[0].partitions[0]
    return part.error_code, part.committed_offset


class Transactional:
    """A transactional id with its producer id and epoch."""

    def __init__(self, broker: Broker, transactional_id: str = "t", connection: int = 1) -> None:
        self.broker = broker
        self.transactional_id = transactional_id
        self.connection = connection
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def send(self, request: Any, version: int) -> Any:
        return await send(self.broker, request, version, self.connection)

    def _identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    async def init(self, version: int = 5, **fields: Any) -> int:
        """Call InitProducerId; return the error."""
        request = transactions.InitProducerIdRequest(
            **{"transactional_id": self.transactional_id, "transaction_timeout_ms": 60_000, **fields}
        )
        response = await self.send(request, version)
        if response.error_code == ErrorCode.NONE:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return int(response.error_code)

    async def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        """Add partitions by AddPartitionsToTxn; return an error for each."""
        request = transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                transactions.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions or (0,)))
            ],
        )
        results = (await self.send(request, version)).results_by_topic_v3_and_below
        return [each.partition_error_code for topic in results for each in topic.results_by_partition]

    async def write(self, topic: str, partition: int = 0, *, version: int = 11, **fields: Any) -> Any:
        """Produce one record; return the answer for the partition."""
        sequence = self.sequences.get((topic, partition), 0)
        identity = {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "base_sequence": sequence,
            **fields,
        }
        request = produce_request({(topic, partition): batch(**identity)}, self.transactional_id)
        [answer] = await produced(self.broker, request, version)
        if answer.error_code == ErrorCode.NONE:
            self.sequences[topic, partition] = sequence + 1
        return answer

    async def add_offsets(self, group_id: str, version: int = 3) -> int:
        request = transactions.AddOffsetsToTxnRequest(**self._identity(), group_id=group_id)
        return int((await self.send(request, version)).error_code)

    async def commit_offsets(
        self, group_id: str, topic: str, *partitions: int, offset: int = 7, version: int = 3, **fields: Any
    ) -> list[int]:
        """Commit an offset inside the transaction; return an error for each partition."""
        metadata = fields.pop("metadata", None)
        parts = [
            transactions.TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=metadata
            )
            for index in partitions or (0,)
        ]
        request = transactions.TxnOffsetCommitRequest(
            **{**self._identity(), "group_id": group_id, **fields},
            topics=[transactions.TxnOffsetCommitRequestTopic(name=topic, partitions=parts)],
        )
        response = await self.send(request, version)
        return [part.error_code for each in response.topics for part in each.partitions]

    async def end(self, *, commit: bool = True, version: int = 4) -> Any:
        """End the transaction, and use the producer id and epoch of the answer."""
        response = await self.send(transactions.EndTxnRequest(**self._identity(), committed=commit), version)
        if response.error_code == ErrorCode.NONE and version >= 5:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return response
