"""The part of the matrix of rights about share groups."""

from semel.wire.errors import ErrorCode
from semel.wire.messages import semel, shares
from support.models.rights import DELETE, DESCRIBE, ERROR, FETCHED, READ, WRITE, Case, group, topic, xid
from support.models.rights_requests import IDLE_SHARE, SHARE, T, World, X, of, sharing


def acknowledged(w: World) -> semel.TxnShareAcknowledgeRequest:
    """Acknowledge in a transaction of version 1, which is refused even with all rights."""
    batch = shares.AcknowledgementBatch(acknowledge_types=[1])
    part = shares.ShareAcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
    wanted = [shares.ShareAcknowledgeTopic(topic_id=w.topic_id, partitions=[part])]
    return semel.TxnShareAcknowledgeRequest(
        transactional_id=X, group_id=SHARE, member_id="another", topics=wanted, **of(w.producer)
    )


SHARES = (
    Case(
        "ShareGroupHeartbeat",
        76,
        1,
        lambda w: sharing("another", SHARE),
        ERROR,
        (group(READ, SHARE), topic(DESCRIBE)),
    ),
    Case(
        "ShareGroupDescribe",
        77,
        1,
        lambda w: shares.ShareGroupDescribeRequest(group_ids=[SHARE]),
        "groups.0.error_code",
        (group(DESCRIBE, SHARE), topic(DESCRIBE)),
        only_semel=True,
    ),
    Case(
        "ShareFetch",
        78,
        1,
        lambda w: shares.ShareFetchRequest(
            group_id=SHARE,
            member_id="another",
            max_records=10,
            topics=[
                shares.ShareFetchTopic(
                    topic_id=w.topic_id, partitions=[shares.ShareFetchPartition(partition_index=0)]
                )
            ],
        ),
        FETCHED,
        (group(READ, SHARE, path=ERROR), topic(READ)),
        only_semel=True,
    ),
    Case(
        "ShareAcknowledge",
        79,
        1,
        lambda w: shares.ShareAcknowledgeRequest(group_id=SHARE, member_id="another", share_session_epoch=1),
        ERROR,
        (group(READ, SHARE),),
        allowed=ErrorCode.SHARE_SESSION_NOT_FOUND,
    ),
    Case(
        "DescribeShareGroupOffsets",
        90,
        1,
        lambda w: shares.DescribeShareGroupOffsetsRequest(
            groups=[
                shares.DescribeShareGroupOffsetsGroup(
                    group_id=SHARE,
                    topics=[shares.DescribeShareGroupOffsetsTopic(topic_name=T, partitions=[0])],
                )
            ]
        ),
        "groups.0.topics.0.partitions.0.error_code",
        (group(DESCRIBE, SHARE, path="groups.0.error_code"), topic(DESCRIBE)),
    ),
    Case(
        "AlterShareGroupOffsets",
        91,
        0,
        lambda w: shares.AlterShareGroupOffsetsRequest(
            group_id=IDLE_SHARE,
            topics=[
                shares.AlterShareGroupOffsetsTopic(
                    topic_name=T,
                    partitions=[shares.AlterShareGroupOffsetsPartition(partition_index=0, start_offset=1)],
                )
            ],
        ),
        FETCHED,
        (group(READ, IDLE_SHARE, path=ERROR), topic(READ)),
    ),
    Case(
        "DeleteShareGroupOffsets",
        92,
        0,
        lambda w: shares.DeleteShareGroupOffsetsRequest(
            group_id=IDLE_SHARE, topics=[shares.DeleteShareGroupOffsetsTopic(topic_name=T)]
        ),
        "responses.0.error_code",
        (group(DELETE, IDLE_SHARE, path=ERROR), topic(READ)),
        only_semel=True,
    ),
    Case(
        "TxnShareAcknowledge",
        20_002,
        0,
        acknowledged,
        FETCHED,
        (xid(WRITE, path=ERROR), group(READ, SHARE, path=ERROR), topic(READ)),
        allowed=ErrorCode.INVALID_TXN_STATE,
        only_semel=True,
    ),
)
