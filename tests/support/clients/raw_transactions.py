"""Transactional producers without a client library: they send exactly what the test asks for, when it asks.

SEMEL_PEER names another broker to compare with. There, a transaction ends some time after EndTxn was
answered, and until then requests get CONCURRENT_TRANSACTIONS (51). Semel does neither, and the tests prove
it: against Semel, `soon` checks once, and `patiently` asks once.
"""

import itertools
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from semel.wire.errors import ErrorCode
from semel.wire.messages import offsets, produce, topics, transactions
from semel.wire.records import Record, encode_batch
from support.brokers.peer import PEER
from support.clients.pairs import HasPair
from support.clients.raw import NOW, RawClient
from support.clients.raw_log import Log as Log  # re-exported
from support.waiting import until

ours = pytest.mark.skipif(PEER is not None, reason="needs settings or a restart of a broker of our own")
TIMEOUT_MS = 60_000

T = TypeVar("T")
_run = uuid.uuid4().hex[:8]
_numbers = itertools.count()


def new_name(kind: str) -> str:
    return f"{kind}-{_run}-{next(_numbers)}"


def soon(check: Callable[[], Any], what: str = "it") -> None:
    """Assert that it is true now; with a peer, wait until it is."""
    if PEER:
        until(check, what=what)
    else:
        assert check(), what


def patiently(ask: Callable[[], T], code: Callable[[T], int] = lambda answer: answer.error_code) -> T:  # type: ignore[attr-defined]
    """Return the answer; with a peer, the first that is not CONCURRENT_TRANSACTIONS."""
    if not PEER:
        return ask()
    return until(
        lambda: next((each for each in [ask()] if code(each) != ErrorCode.CONCURRENT_TRANSACTIONS), None),
        what="an answer other than 51",
    )


def make_topic(client: RawClient, partitions: int = 1, **configs: str) -> str:
    """Create a topic, with configs by their names with underscores."""
    name = new_name("topic")
    given = [
        topics.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
    ]
    topic = topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=given)
    answer = client.ask(topics.CreateTopicsRequest(topics=[topic]), 5).topics[0]
    assert answer.error_code == ErrorCode.NONE, answer
    if PEER:
        for index in range(partitions):
            until(lambda at=index: client.fetch(name, partition=at).error_code == 0, what="a leader")  # type: ignore[misc]  # a default: mypy infers no such lambda
    return name


class RawProducer(HasPair):
    """A transactional producer with its producer id, epoch and sequences. It never retries.

    ``generation`` chooses the transaction version: 1 adds partitions by request, 2 by writing (KIP-890).
    """

    def __init__(
        self,
        client: RawClient,
        transactional_id: str | None = None,
        generation: int = 1,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id or new_name("id")
        self.generation = generation
        self.timeout_ms = timeout_ms
        self.sequences: dict[tuple[str, int], int] = {}
        answer = self.init()
        assert answer.error_code == ErrorCode.NONE, answer
        self.pair = (answer.producer_id, answer.producer_epoch)

    def init(self, pair: tuple[int, int] = (-1, -1), version: int = 4, **fields: Any) -> Any:
        """Ask for a producer id and epoch, without using them."""
        request = transactions.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            **{"transaction_timeout_ms": self.timeout_ms, **fields},
            producer_id=pair[0],
            producer_epoch=pair[1],
        )
        return patiently(lambda: self.client.ask(request, version))

    def take(self, answer: Any) -> None:
        assert answer.error_code == ErrorCode.NONE, answer
        self.pair = (answer.producer_id, answer.producer_epoch)
        self.sequences.clear()

    def add(
        self, topic: str, *partitions: int, version: int = 3, pair: tuple[int, int] | None = None
    ) -> list[int]:
        """Return one error code for each partition."""
        return list(self.add_topics({topic: list(partitions) or [0]}, version, pair).values())

    def add_topics(
        self, wanted: dict[str, list[int]], version: int = 3, pair: tuple[int, int] | None = None
    ) -> dict[tuple[str, int], int]:
        producer_id, epoch = pair or self.pair
        request = transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                transactions.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in wanted.items()
            ],
        )

        def ask() -> dict[tuple[str, int], int]:
            answer = self.client.ask(request, version)
            return {
                (topic.name, each.partition_index): each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }

        return patiently(ask, lambda answer: next(iter(answer.values())))

    def send(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        version: int | None = None,
        pair: tuple[int, int] | None = None,
        sequence: int | None = None,
        timestamp: int = NOW,
        key: bytes | None = None,
    ) -> produce.PartitionProduceResponse:
        """Write one batch in the transaction. In generation 1 the partition must have been added before."""
        place = (topic, partition)
        first = self.sequences.get(place, 0) if sequence is None else sequence
        records = self.batch(*(values or (b"v",)), pair=pair, sequence=first, timestamp=timestamp, key=key)
        version = version or (9 if self.generation == 1 else 12)
        request = produce_in(self.transactional_id, topic, records, partition)
        answer = patiently(lambda: self.client.ask(request, version).responses[0].partition_responses[0])
        if answer.error_code == ErrorCode.NONE and sequence is None:
            self.sequences[place] = first + max(len(values), 1)
        assert isinstance(answer, produce.PartitionProduceResponse)
        return answer

    def batch(
        self,
        *values: bytes,
        pair: tuple[int, int] | None = None,
        sequence: int,
        timestamp: int = NOW,
        key: bytes | None = None,
    ) -> bytes:
        producer_id, epoch = pair or self.pair
        return encode_batch(
            [Record(0, timestamp, key, value) for value in values],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def write(self, topic: str, *values: bytes, partition: int = 0, key: bytes | None = None) -> int:
        """Add the partition if the generation requires it, write, and return the offset."""
        if self.generation == 1:
            assert self.add(topic, partition) == [ErrorCode.NONE]
        answer = self.send(topic, *values, partition=partition, key=key)
        assert answer.error_code == ErrorCode.NONE, answer
        return answer.base_offset

    def end(self, *, commit: bool, version: int | None = None, pair: tuple[int, int] | None = None) -> Any:
        """Ask to end the transaction; a new producer id and epoch are not used."""
        producer_id, epoch = pair or self.pair
        request = transactions.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        version = (3 if self.generation == 1 else 5) if version is None else version
        return patiently(lambda: self.client.ask(request, version))

    def commit(self) -> None:
        self._finish(self.end(commit=True))

    def abort(self) -> None:
        self._finish(self.end(commit=False))

    def _finish(self, answer: Any) -> None:
        assert answer.error_code == ErrorCode.NONE, answer
        if self.generation == 2:
            self.take(answer)

    def add_offsets(self, group: str, version: int = 3, pair: tuple[int, int] | None = None) -> int:
        producer_id, epoch = pair or self.pair
        request = transactions.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group,
        )
        code: int = patiently(lambda: self.client.ask(request, version)).error_code
        return code

    def send_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        version: int | None = None,
        pair: tuple[int, int] | None = None,
        note: str = "",
        **fields: Any,
    ) -> int:
        """Send TxnOffsetCommit for partition 0. In generation 1 the group must have been added before."""
        producer_id, epoch = pair or self.pair
        part = transactions.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=note
        )
        request = transactions.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[transactions.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
            **fields,
        )
        version = (3 if self.generation == 1 else 5) if version is None else version

        def ask() -> int:
            code: int = self.client.ask(request, version).topics[0].partitions[0].error_code
            return code

        return patiently(lambda: (ask(),), lambda answer: answer[0])[0]

    def write_offset(self, group: str, topic: str, offset: int) -> None:
        """Add the group if the generation requires it, and commit the offset in the transaction."""
        if self.generation == 1:
            assert self.add_offsets(group) == ErrorCode.NONE
        assert self.send_offset(group, topic, offset) == ErrorCode.NONE


def produce_in(
    transactional_id: str | None, topic: str, records: bytes, partition: int = 0
) -> produce.ProduceRequest:
    part = produce.PartitionProduceData(index=partition, records=records)
    return produce.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[part])],
    )


def describe(client: RawClient, transactional_id: str) -> transactions.TransactionState:
    request = transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (found,) = client.ask(request, 0).transaction_states
    assert isinstance(found, transactions.TransactionState)
    return found


def producers(client: RawClient, topic: str, partition: int = 0) -> list[transactions.ProducerState]:
    """Return the active producers of a partition, by DescribeProducers."""
    wanted = transactions.ProducersTopicRequest(name=topic, partition_indexes=[partition])
    (part,) = client.ask(transactions.DescribeProducersRequest(topics=[wanted]), 0).topics[0].partitions
    assert part.error_code == ErrorCode.NONE
    found: list[transactions.ProducerState] = part.active_producers
    return found


def committed(client: RawClient, group: str, topic: str, *, stable: bool = False) -> tuple[int, int]:
    """Return the error code and a group's offset in partition 0."""
    wanted = offsets.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = offsets.OffsetFetchRequest(
        groups=[offsets.OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=stable
    )
    part = client.ask(request, 8).groups[0].topics[0].partitions[0]
    return part.error_code, part.committed_offset
