"""Sends the requests of a transaction to its coordinator.

The protocol has two versions. In version 1 the client adds a partition or group to the transaction before it
writes to it, and EndTxn keeps the producer id and epoch. In version 2 (KIP-890) the first write adds it, and
every EndTxn bumps the epoch, so that a delayed request of one transaction cannot get into the next. Version 2
is used if the cluster supports it.

Every request here is idempotent and repeated after a lost answer. Each method tries until its time is over,
and then raises the last error. `transactional_producer` decides what an error means for the transaction.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from semel.client.admin.group_offsets import CommittedOffset, GroupMetadata, offset_topics
from semel.client.consume.offsets import Partition
from semel.client.errors import UnsupportedRequest, check
from semel.client.net.cluster import GROUP, TRANSACTION, Client, by_topic
from semel.wire import messages as wire
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.schema import Request

NOBODY_YET = ProducerIdAndEpoch()

FEATURE = "transaction.version"
TWO_PHASE_VERSION = 6  # of InitProducerId
RECOVERY_VERSION = 3  # of InitProducerId: presents the current producer id and epoch
LAST_ADD_VERSION = 3  # of AddPartitionsToTxn: later versions are for brokers

#: The first versions of these requests that belong to transaction version 2; version 1 uses those below.
FIRST_PRODUCE = 12
FIRST_END = 5
FIRST_OFFSETS = 5


class Taken(NamedTuple):
    """The producer id and epoch to continue with, and those of a prepared transaction that was taken over."""

    identity: ProducerIdAndEpoch
    prepared: ProducerIdAndEpoch | None


def transaction_version(client: Client) -> int:
    """Return the transaction version of the cluster: 1 or 2."""
    has_requests = (
        client.serves(wire.ProduceRequest.api_key, FIRST_PRODUCE)
        and client.serves(wire.EndTxnRequest.api_key, FIRST_END)
        and client.serves(wire.TxnOffsetCommitRequest.api_key, FIRST_OFFSETS)
    )
    return 2 if has_requests and client.feature(FEATURE) >= 2 else 1


class Coordinator:
    """Sends requests for one transactional id."""

    def __init__(self, client: Client, transactional_id: str, timeout_s: float) -> None:
        self.transactional_id = transactional_id
        self._client = client
        self._timeout_s = timeout_s
        self.commit_in_doubt = False
        """Whether the answer to a commit was lost: it may have happened, even if its retry is refused."""

    def init(
        self,
        timeout_ms: int,
        identity: ProducerIdAndEpoch = NOBODY_YET,
        *,
        two_phase: bool = False,
        keep_prepared: bool = False,
    ) -> Taken:
        """Initialise the id: fence its previous owner, and abort its transaction unless `keep_prepared`.

        With an `identity`, this fails if another producer has taken the id meanwhile.
        """
        if two_phase and not self._client.serves(wire.InitProducerIdRequest.api_key, TWO_PHASE_VERSION):
            raise UnsupportedRequest(
                "two-phase commit is not available. On Semel, set transaction.two.phase.commit.enable."
            )
        request = wire.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            enable2_pc=two_phase,
            keep_prepared_txn=keep_prepared,
        )
        response: wire.InitProducerIdResponse = self._ask(
            request, max_version=TWO_PHASE_VERSION if two_phase else None
        )
        check(response.error_code, f"the transactional id {self.transactional_id!r} was not initialised")
        ongoing = ProducerIdAndEpoch(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        return Taken(
            ProducerIdAndEpoch(response.producer_id, response.producer_epoch),
            ongoing if ongoing != NOBODY_YET else None,
        )

    def can_recover(self) -> bool:
        """Whether the id can be initialised on the condition that no other producer has taken it."""
        return self._client.serves(wire.InitProducerIdRequest.api_key, RECOVERY_VERSION)

    def add_partitions(self, identity: ProducerIdAndEpoch, partitions: Collection[Partition]) -> None:
        """Version 1: add partitions before writing to them."""
        topics = [
            wire.AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in by_topic(partitions).items()
        ]
        request = wire.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )
        response: wire.AddPartitionsToTxnResponse = self._ask(
            request, _added_codes, max_version=LAST_ADD_VERSION
        )
        for answer in response.results_by_topic_v3_and_below:
            for result in answer.results_by_partition:
                where = f"{answer.name}/{result.partition_index}"
                check(result.partition_error_code, f"{where} was not added to the transaction")

    def add_group(self, identity: ProducerIdAndEpoch, group_id: str) -> None:
        """Version 1: add a group before committing its offsets."""
        request = wire.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=group_id,
        )
        response: wire.AddOffsetsToTxnResponse = self._ask(request)
        check(response.error_code, f"group {group_id!r} was not added to the transaction")

    def commit_offsets(
        self,
        identity: ProducerIdAndEpoch,
        version: int,
        group: GroupMetadata,
        offsets: Mapping[Partition, int | CommittedOffset],
    ) -> None:
        """Commit offsets as part of the transaction. The request goes to the coordinator of the group."""
        request = wire.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id=group.member.epoch,
            member_id=group.member.member_id,
            group_instance_id=group.member.instance_id,
            topics=offset_topics(
                offsets, wire.TxnOffsetCommitRequestTopic, wire.TxnOffsetCommitRequestPartition
            ),
        )
        response: wire.TxnOffsetCommitResponse = self._client.ask_coordinator(
            group.group_id,
            request,
            _offset_codes,
            kind=GROUP,
            max_version=FIRST_OFFSETS if version >= 2 else FIRST_OFFSETS - 1,
            within_s=self._timeout_s,
        )
        for answer in response.topics:
            for partition in answer.partitions:
                where = f"{answer.name}/{partition.partition_index}"
                what = f"the offset of group {group.group_id!r} on {where} was not accepted"
                check(partition.error_code, what)

    def end(self, identity: ProducerIdAndEpoch, version: int, *, commit: bool) -> ProducerIdAndEpoch:
        """Commit or abort. Returns the producer id and epoch to continue with, unchanged in version 1."""
        request = wire.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        response: wire.EndTxnResponse = self._ask(
            request,
            max_version=FIRST_END if version >= 2 else FIRST_END - 1,
            on_lost=self._doubt if commit else None,
        )
        what = "committed" if commit else "aborted"
        check(response.error_code, f"the transaction of {self.transactional_id!r} was not {what}")
        given = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        return given if given.producer_id >= 0 else identity

    def _ask(
        self,
        request: Request,
        codes: Callable[[Any], Iterable[int]] = lambda answer: [answer.error_code],
        *,
        max_version: int | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Any:
        return self._client.ask_coordinator(
            self.transactional_id,
            request,
            codes,
            kind=TRANSACTION,
            max_version=max_version,
            within_s=self._timeout_s,
            on_lost=on_lost,
        )

    def _doubt(self) -> None:
        self.commit_in_doubt = True


def _added_codes(response: wire.AddPartitionsToTxnResponse) -> list[int]:
    return [
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]


def _offset_codes(response: wire.TxnOffsetCommitResponse) -> list[int]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]
