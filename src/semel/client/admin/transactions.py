"""Administration of transactions: list and describe them, show producers, end hanging transactions.

    for listing in list_transactions(client, states=["Ongoing"], older_than_ms=60_000):
        print(describe_transactions(client, [listing.transactional_id]))

There are two views. The coordinator knows transactional ids (`list_transactions`, `describe_transactions`);
the leader of a partition knows its producers (`producers`). A transaction that is open at a leader and
unknown to every coordinator hangs: it will not end by itself, and readers of committed records wait for it.
`abort` ends it in one partition; `fence_producer` ends the open transaction of an id everywhere.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from semel.client.consume.offsets import Partition
from semel.client.errors import ClientError, ErrorCode, check
from semel.client.net.cluster import TRANSACTION, Client, ask_every_broker, ask_leaders, leader_may_move
from semel.client.net.retry import retrying
from semel.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from semel.wire.messages.transactions import ProducersTopicRequest, TransactionState

#: The timeout in responses that means "never times out": the id uses two-phase commit.
NEVER_TIMES_OUT_MS = (1 << 31) - 1
FENCE_TIMEOUT_MS = 1
NO_TIME = -1
DESCRIBED_TOGETHER_MAX = 500
_NOT_FOUND = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """An entry in the list of transactional ids."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, its producer, and the partitions of its transaction."""

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    started_ms: int  # -1 if no transaction is open
    partitions: tuple[Partition, ...]

    @property
    def is_two_phase(self) -> bool:
        """Whether its transactions never time out, so that only the owner may end them."""
        return self.timeout_ms == NEVER_TIMES_OUT_MS

    def open_for_ms(self) -> int | None:
        """How long the transaction has been open by the local clock; None if none is open."""
        if self.state != "Ongoing" or self.started_ms == NO_TIME:
            return None
        return max(0, int(time.time() * 1000) - self.started_ms)


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer as the leader of a partition sees it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int  # -1 if it has no open transaction here


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The new producer id and epoch of a fenced transactional id; older ones are refused."""

    producer_id: int
    epoch: int


def list_transactions(
    client: Client,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    older_than_ms: int = -1,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """List the transactional ids of all brokers, ordered by id. Filters that are not given match all.

    `pattern` is a regular expression for the whole id. ValueError if a state does not exist.
    """
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=older_than_ms,
        transactional_id_pattern=pattern,
    )
    if pattern and not client.serves(request.api_key, 2):
        raise ClientError("this broker cannot filter transactions by pattern; omit it.")
    if older_than_ms >= 0 and not client.serves(request.api_key, 1):
        raise ClientError("this broker cannot filter transactions by age; omit it.")
    found: dict[str, TransactionListing] = {}
    for response in ask_every_broker(client, request, "transactions"):
        if response.unknown_state_filters:
            names = ", ".join(response.unknown_state_filters)
            raise ValueError(f"{names}: unknown transaction state; examples are Ongoing and Empty")
        for state in response.transaction_states:
            found[state.transactional_id] = TransactionListing(
                state.transactional_id, state.producer_id, state.transaction_state
            )
    return [found[transactional_id] for transactional_id in sorted(found)]


def describe_transactions(
    client: Client, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription]:
    """Describe transactional ids. Unknown ids are left out."""
    found: dict[str, TransactionDescription] = {}
    wanted = list(dict.fromkeys(transactional_ids))
    if len(wanted) > 1:
        answered = _describe_together(client, wanted)
        found |= {state.transactional_id: _description(state) for state in answered if not state.error_code}
        unknown = {state.transactional_id for state in answered if state.error_code == _NOT_FOUND}
        wanted = [name for name in wanted if name not in found and name not in unknown]
    for transactional_id in wanted:
        response: DescribeTransactionsResponse = client.ask_coordinator(
            transactional_id,
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            lambda answer: [state.error_code for state in answer.transaction_states],
            kind=TRANSACTION,
        )
        (state,) = response.transaction_states
        if state.error_code == _NOT_FOUND:
            continue
        check(state.error_code, f"transactional id {transactional_id!r} cannot be described")
        found[transactional_id] = _description(state)
    return found


def _describe_together(client: Client, transactional_ids: list[str]) -> list[TransactionState]:
    """Describe many ids with few requests. Ids whose coordinator moved, or does not answer, are left out."""
    by_coordinator: dict[int, list[str]] = {}
    for transactional_id in transactional_ids:
        node = client.coordinator(transactional_id, TRANSACTION)
        by_coordinator.setdefault(node, []).append(transactional_id)
    found: list[TransactionState] = []
    for node, names in by_coordinator.items():
        for first in range(0, len(names), DESCRIBED_TOGETHER_MAX):
            portion = names[first : first + DESCRIBED_TOGETHER_MAX]
            try:
                request = DescribeTransactionsRequest(transactional_ids=portion)
                response: DescribeTransactionsResponse = client.send(request, node=node)
            except ClientError:
                continue  # The caller describes these one by one, with retries.
            found += [state for state in response.transaction_states if state.error_code in (0, _NOT_FOUND)]
    return found


def _description(state: TransactionState) -> TransactionDescription:
    partitions = sorted((topic.topic, number) for topic in state.topics for number in topic.partitions)
    return TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        started_ms=state.transaction_start_time_ms,
        partitions=tuple(partitions),
    )


def fence_producer(client: Client, transactional_id: str) -> FencedProducer:
    """Abort the open transaction of a transactional id, and fence its producer."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS
    )
    response: InitProducerIdResponse = client.ask_coordinator(transactional_id, request, kind=TRANSACTION)
    check(response.error_code, f"the producer of {transactional_id!r} was not fenced")
    return FencedProducer(response.producer_id, response.producer_epoch)


class TransactionAdmin:
    """Transactions of a cluster. Reached as `Admin(client).transactions`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        older_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """See `list_transactions`."""
        return list_transactions(self._client, states, producer_ids, older_than_ms, pattern)

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Describe one transactional id. KafkaError if it is unknown."""
        found = describe_transactions(self._client, [transactional_id])
        if transactional_id not in found:
            check(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id!r}")
        return found[transactional_id]

    def producers(
        self, topic: str, partitions: Iterable[int] | None = None
    ) -> dict[int, list[ProducerDescription]]:
        """Return the producers of these partitions of a topic, or of all, as their leaders know them."""
        client = self._client
        if partitions is None:
            partitions = [partition.partition for partition in client.topic(topic, anew=True).partitions]
        wanted = dict.fromkeys((topic, number) for number in partitions)

        def ask(
            node: int, keys: Iterable[Partition]
        ) -> Iterator[tuple[Partition, list[ProducerDescription]]]:
            wanted_here = ProducersTopicRequest(name=topic, partition_indexes=[number for _, number in keys])
            return _producers(client.send(DescribeProducersRequest(topics=[wanted_here]), node=node))

        found = ask_leaders(client, wanted, ask)
        return {key[1]: found[key] for key in wanted}

    def abort(self, topic: str, partition: int, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Abort a producer's transaction in one partition, bypassing its coordinator.

        The last three arguments are those of `producers`. KafkaError if they are no longer current.
        """
        client = self._client
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=max(0, coordinator_epoch),
        )
        request = WriteTxnMarkersRequest(markers=[marker])

        def write() -> None:
            response: WriteTxnMarkersResponse = client.send(request, node=client.leader(topic, partition))
            for code in _marker_codes(response):
                check(
                    code, f"the transaction of producer {producer_id} in {topic}/{partition} was not aborted"
                )

        # A marker may be written twice: the second finds nothing open and changes nothing.
        retrying(
            write,
            client.patience_s,
            retriable=leader_may_move,
            on_failure=lambda: client.forget_topic(topic),
        )

    def fence(self, transactional_id: str) -> FencedProducer:
        """See `fence_producer`."""
        return fence_producer(self._client, transactional_id)


def _producers(
    response: DescribeProducersResponse,
) -> Iterator[tuple[Partition, list[ProducerDescription]]]:
    for topic in response.topics:
        for partition in topic.partitions:
            where = f"{topic.name}/{partition.partition_index}"
            what = f"the producers of {where} could not be read"
            check(partition.error_code, what, partition.error_message)
            producers = [
                ProducerDescription(
                    producer_id=producer.producer_id,
                    epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    transaction_start_offset=producer.current_txn_start_offset,
                )
                for producer in partition.active_producers
            ]
            yield (topic.name, partition.partition_index), producers


def _marker_codes(response: WriteTxnMarkersResponse) -> list[int]:
    return [
        partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    ]
