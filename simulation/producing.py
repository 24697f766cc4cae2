"""Producers that behave like real clients, in both generations of the protocol.

They retry unanswered requests, abort after abortable errors, and restart when they are fenced.
"""

from enum import Enum
from typing import Any

from semel.client.shares.session import AcknowledgeType, batches_of
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from semel.wire.messages.semel import TxnShareAcknowledgeRequest
from semel.wire.messages.shares import ShareAcknowledgePartition, ShareAcknowledgeTopic
from semel.wire.records import Record, encode_batch
from simulation.network import (
    MOVED,
    Caller,
    Refused,
    Target,
    Unanswered,
    World,
    leader,
    of_group,
    of_transactions,
)

RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
ATTEMPTS = 25
SEQUENCES = 2**31


class Known(Enum):
    """What a client knows of the outcome of a request."""

    DONE = "done"
    NOT_DONE = "not done"
    UNKNOWN = "unknown"


class Result:
    """The outcome of a request: whether it was carried out, and the error code that ended it."""

    __slots__ = ("answer", "code", "known")

    def __init__(self, known: Known, code: int, answer: Any = None) -> None:
        self.known = known
        self.code = code
        self.answer = answer

    @property
    def is_done(self) -> bool:
        """Whether the request certainly was carried out."""
        return self.known is Known.DONE


class Producer:
    """One session of a producer: producer id and epoch, sequences, and retries."""

    def __init__(
        self,
        world: World,
        name: str,
        transactional_id: str | None,
        generation: int,
        timeout_ms: int,
        first_sequence: int = 0,
    ) -> None:
        self.world = world
        self.name = name
        self.transactional_id = transactional_id
        self.generation = generation
        self._to = of_transactions(transactional_id)
        self.producer_id, self.epoch = -1, -1
        # Like real clients: separate connections to both coordinators and to the leaders.
        self._coordinator = Caller(world, name)
        self._offsets = Caller(world, name)
        self._leader = Caller(world, name)
        self._timeout_ms = timeout_ms
        self._first_sequence = first_sequence
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()
        self._has_group = False

    async def _ask(
        self, caller: Caller, to: Target | None, request: Any, version: int, code_of: Any
    ) -> Result:
        """Retry until there is a final answer, or for as long as a client would."""
        was_sent = False
        for _ in range(ATTEMPTS):
            try:
                answer = await caller.once(request, version, to=to, may_repeat=self.generation == 2)
            except Refused:
                await caller.pause()
                continue
            except Unanswered:
                was_sent = True
                await caller.pause()
                continue
            code = code_of(answer)
            if code in MOVED:
                caller.moved(to)
            if code == ErrorCode.NONE:
                return Result(Known.DONE, code, answer)
            if code in RETRIABLE:
                await caller.pause()
                continue
            # An earlier attempt may have been carried out.
            return Result(Known.UNKNOWN if was_sent else Known.NOT_DONE, code, answer)
        return Result(Known.UNKNOWN if was_sent else Known.NOT_DONE, ErrorCode.REQUEST_TIMED_OUT)

    async def init(self) -> bool:
        """Obtain producer id and epoch, and fence the previous producer."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        result = await self._ask(self._coordinator, self._to, request, 4, lambda answer: answer.error_code)
        if result.is_done:
            self.producer_id, self.epoch = result.answer.producer_id, result.answer.producer_epoch
            self._sequences.clear()
            self.forget_transaction()
        return result.is_done

    def forget_transaction(self) -> None:
        """Reset the state for the next transaction."""
        self._added.clear()
        self._has_group = False

    async def add(self, topic: str, partition: int) -> Result:
        """Add a partition, which the first generation does before it writes."""
        if self.generation == 2 or (topic, partition) in self._added:
            return Result(Known.DONE, ErrorCode.NONE)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id or "",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )

        def code_of(answer: Any) -> int:
            results = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(results[0].partition_error_code)

        result = await self._ask(self._coordinator, self._to, request, 3, code_of)
        if result.is_done:
            self._added.add((topic, partition))
        return result

    async def send(self, topic: str, partition: int, values: list[str]) -> Result:
        """Write a batch exactly once: retried with the same sequence until it is answered."""
        first = self._first_sequence if self.generation == 1 else 0
        sequence = self._sequences.get((topic, partition), first)
        is_transactional = self.transactional_id is not None
        now = 1_700_000_000_000 + int(self.world.loop.now * 1000)
        batch = encode_batch(
            [Record(at, now, None, value.encode()) for at, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence if self.producer_id >= 0 else -1,
            transactional=is_transactional,
        )
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
                )
            ],
        )
        version = 12 if self.generation == 2 else 10
        to = leader(topic, partition)
        if self.producer_id < 0:
            return await self._once(request, version, to)
        result = await self._ask(self._leader, to, request, version, _produced)
        if result.is_done:
            self._sequences[topic, partition] = (sequence + len(values)) % SEQUENCES
        return result

    async def _once(self, request: ProduceRequest, version: int, to: Target) -> Result:
        """Send without retries: without a sequence a retry would be a second batch."""
        try:
            answer = await self._leader.once(request, version, to=to)
        except Refused:
            await self._leader.pause()
            return Result(Known.NOT_DONE, ErrorCode.NETWORK_EXCEPTION)
        except Unanswered:
            return Result(Known.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT)
        code = _produced(answer)
        if code in MOVED:
            self._leader.moved(to)
        return Result(Known.NOT_DONE if code else Known.DONE, code, answer)

    async def send_offsets(
        self, group: str, member: str, member_epoch: int, offsets: dict[tuple[str, int], int]
    ) -> Result:
        """Add the input offsets to the transaction."""
        if self.generation == 1 and not self._has_group:
            adding = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id or "",
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            result = await self._ask(self._coordinator, self._to, adding, 3, lambda answer: answer.error_code)
            if not result.is_done:
                return result
            self._has_group = True
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            row = TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(topic, []).append(row)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id or "",
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=member_epoch,
            member_id=member,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )
        version = 5 if self.generation == 2 else 3
        return await self._ask(
            self._offsets,
            of_group(group),
            request,
            version,
            lambda answer: next(
                (each.error_code for topic in answer.topics for each in topic.partitions if each.error_code),
                0,
            ),
        )

    async def acknowledge(
        self, group: str, member: str, topic: str, partition: int, kinds: dict[int, AcknowledgeType]
    ) -> Result:
        """Acknowledge records of a share group when the transaction commits."""
        place = ShareAcknowledgePartition(
            partition_index=partition, acknowledgement_batches=batches_of(kinds)
        )
        request = TxnShareAcknowledgeRequest(
            transactional_id=self.transactional_id or "",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
            member_id=member,
            topics=[ShareAcknowledgeTopic(topic_id=topic.encode().ljust(16, b"."), partitions=[place])],
        )

        def code_of(answer: Any) -> int:
            codes = (each.error_code for topic in answer.responses for each in topic.partitions)
            return int(answer.error_code or next(codes))

        return await self._ask(self._leader, leader(topic, partition), request, 0, code_of)

    async def end(self, *, commit: bool) -> Result:
        """Commit or abort. The second generation continues with a new epoch."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id or "",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        version = 5 if self.generation == 2 else 3
        result = await self._ask(
            self._coordinator, self._to, request, version, lambda answer: answer.error_code
        )
        self.forget_transaction()
        if result.is_done and self.generation == 2:
            self.producer_id, self.epoch = result.answer.producer_id, result.answer.producer_epoch
            self._sequences.clear()
        return result


def _produced(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)
