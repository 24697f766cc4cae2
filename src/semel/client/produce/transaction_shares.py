"""Acknowledgements of a share group inside a transaction: Semel's extension of Kafka's protocol.

    jobs = consumer.poll()
    with producer.transaction():
        for job in jobs:
            producer.send("results", work(job.value))
        producer.acknowledge(consumer, *jobs)

The records are settled if the transaction commits, and delivered again if it aborts. If the consumer does not
hold one of them any more, because its lock was over or the broker was restarted, the transaction cannot be
committed: another member may have the record.

The request goes to the leader of each partition. It is idempotent within its transaction, and repeated after
a lost answer.
"""

from collections.abc import Collection

from semel.client.errors import ClientError, ErrorCode, KafkaError, UnsupportedRequest, check
from semel.client.net.cluster import Client
from semel.client.net.retry import Attempts
from semel.client.produce.prepared import PreparedTransaction
from semel.client.shares.consumer import ShareConsumer
from semel.client.shares.records import AcknowledgeType, ShareRecord
from semel.client.shares.session import Acknowledgements, acknowledged_topics
from semel.wire.messages.semel import (
    COMMIT_TRANSACTIONS,
    TxnShareAcknowledgeRequest,
    TxnShareAcknowledgeResponse,
)

_REFUSED = "records were not acknowledged in the transaction"
_LOST = "this member does not hold one of them any more"


def serves_share_transactions(client: Client) -> bool:
    """Whether the brokers have this API. The API key alone is no proof: it is not registered with Kafka."""
    return client.feature(COMMIT_TRANSACTIONS) >= 1 and client.serves(TxnShareAcknowledgeRequest.api_key)


def acknowledge(
    client: Client,
    transaction: PreparedTransaction,
    version: int,
    consumer: ShareConsumer,
    records: Collection[ShareRecord],
    *,
    is_accepted: bool,
) -> None:
    """Acknowledge these records of a consumer when the transaction commits.

    After a KafkaError or ClientError, some of them are not in the transaction, which has to be aborted.
    """
    if version < 2 or not serves_share_transactions(client):
        raise UnsupportedRequest(
            "records of share groups can be acknowledged in transactions of version 2, on Semel."
        )
    kind = AcknowledgeType.ACCEPT if is_accepted else AcknowledgeType.REJECT
    kinds: Acknowledgements = {}
    for each in records:
        # The caller may pass two deliveries of one record; the results of only one of them may count.
        is_there = each.offset in kinds.setdefault(each.place, {})
        if is_there or not consumer.holds(each):
            check(ErrorCode.INVALID_RECORD_STATE, _REFUSED, _LOST)
        kinds[each.place][each.offset] = kind
    topics = {each.place: each.topic for each in records}
    for attempt in Attempts(client.patience_s):
        try:
            by_node: dict[int, Acknowledgements] = {}
            for place, offsets in kinds.items():
                by_node.setdefault(client.leader(topics[place], place[1]), {})[place] = offsets
            for node, part in by_node.items():
                _check(client.send(_request(transaction, consumer, part), node=node))
            break
        except (KafkaError, ClientError) as error:
            for name in topics.values():
                client.forget_topic(name)
            attempt.failed(error)
    for each in records:
        consumer.forget(each)


def _request(
    transaction: PreparedTransaction, consumer: ShareConsumer, part: Acknowledgements
) -> TxnShareAcknowledgeRequest:
    return TxnShareAcknowledgeRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        group_id=consumer.group_id,
        member_id=consumer.member_id,
        topics=acknowledged_topics(part),
    )


def _check(response: TxnShareAcknowledgeResponse) -> None:
    check(response.error_code, _REFUSED, response.error_message)
    for topic in response.responses:
        for each in topic.partitions:
            is_lost = each.error_code == ErrorCode.INVALID_RECORD_STATE
            check(each.error_code, _REFUSED, _LOST if is_lost else each.error_message)
