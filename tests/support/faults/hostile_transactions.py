"""Hostile input to the transaction APIs: the part of the corpus with numbers 53 to 56."""

from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FeatureUpdateKey,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    UpdateFeaturesRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from semel.wire.messages.transactions import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic
from support.faults.hostile_words import CLOSED, EITHER, INT_MAX, TOPIC, Hostile, answered, call, request

INT_64_MAX = 2**63 - 1
ADD_PARTITIONS, ADD_OFFSETS, END, MARKERS, COMMIT = 24, 25, 26, 27, 28


def transactions() -> list[Hostile]:
    return [*_beginnings(), *_ends(), *_between_brokers(), *_planner()]


def _beginnings() -> list[Hostile]:
    def init(transactional_id: str | None, timeout: int, producer_id: int = -1, epoch: int = -1) -> bytes:
        message = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        return request(message, 4)

    bad_timeout = answered(22, 4, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    invalid = answered(22, 4, ErrorCode.INVALID_REQUEST)
    return [
        *(Hostile(53, f"a transaction timeout of {t}", init(None, t), EITHER) for t in (0, -1, INT_MAX)),
        *(Hostile(53, f"the same of {t} with an id", init("h", t), bad_timeout) for t in (0, -1, INT_MAX)),
        Hostile(53, "producer -1 with epoch 5", init(None, 1000, -1, 5), invalid),
        Hostile(53, "producer 5 with epoch -1", init("h", 1000, 5, -1), invalid),
        Hostile(53, "an empty transactional id", init("", 1000), invalid),
        Hostile(53, "a long transactional id", init("x" * 32_767, 1000), answered(22, 4)),
        Hostile(53, "the largest pair", init("h", 1000, INT_64_MAX, 32_767), answered(22, 4)),
    ]


def _ends() -> list[Hostile]:
    def end(transactional_id: str, producer_id: int = INT_64_MAX, epoch: int = 32_767) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True
        )

    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=-(2**63))
    commit = TxnOffsetCommitRequest(
        transactional_id="stranger",
        group_id="hostile",
        producer_id=-1,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[part])],
    )
    unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return [
        *(Hostile(54, f"API {key} without a body", call(key, 0, b""), CLOSED) for key in (24, 25, 26, 28)),
        *(Hostile(54, f"API {key} of zeros", call(key, 0, bytes(60)), EITHER) for key in (24, 25, 26, 28)),
        *(
            Hostile(54, f"{n} topics", call(ADD_PARTITIONS, 0, bytes(12) + n.to_bytes(4, "big")), CLOSED)
            for n in (INT_MAX, 2**32 - 2)
        ),
        *(
            Hostile(
                54, f"the end of a stranger in v{v}", request(end("stranger"), v), answered(END, v, unmapped)
            )
            for v in (0, 5)
        ),
        Hostile(54, "the end of nobody", request(end(""), 5), answered(END, 5, ErrorCode.INVALID_REQUEST)),
        Hostile(54, "offsets of a stranger", request(commit, 5), answered(COMMIT, 5, unmapped)),
        Hostile(
            54,
            "a group of a stranger",
            request(AddOffsetsToTxnRequest(transactional_id="stranger", group_id="g"), 3),
            answered(ADD_OFFSETS, 3, unmapped),
        ),
    ]


def _between_brokers() -> list[Hostile]:
    marker = WritableTxnMarker(
        producer_id=INT_64_MAX,
        producer_epoch=32_767,
        coordinator_epoch=INT_MAX,
        topics=[WritableTxnMarkerTopic(name="missing", partition_indexes=[0, -1, INT_MAX])],
    )
    strangers = [
        AddPartitionsToTxnTransaction(
            transactional_id=f"stranger-{index}",
            producer_id=1,
            verify_only=True,
            topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, -1, INT_MAX])],
        )
        for index in range(1_000)
    ]
    return [
        Hostile(
            55,
            "markers from a client",
            request(WriteTxnMarkersRequest(markers=[marker] * 100), 2),
            answered(MARKERS, 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ),
        Hostile(55, "markers that end too early", call(MARKERS, 1, b"\x7f", b"\0"), CLOSED),
        Hostile(
            56,
            "a thousand transactions of strangers",
            request(AddPartitionsToTxnRequest(transactions=strangers), 4),
            answered(ADD_PARTITIONS, 4),
            is_work=True,
        ),
        Hostile(56, "transactions that end too early", call(ADD_PARTITIONS, 5, b"\x7f", b"\0"), CLOSED),
    ]


def _planner() -> list[Hostile]:
    def listing(pattern: str) -> bytes:
        return request(ListTransactionsRequest(transactional_id_pattern=pattern), 2)

    update = FeatureUpdateKey(feature="x" * 30_000, max_version_level=32_767, upgrade_type=127)
    ids = DescribeTransactionsRequest(transactional_ids=[f"stranger-{index}" for index in range(10_000)])
    return [
        Hostile(56, "a pattern that backtracks", listing("(a+)+" * 100), answered(66, 2)),
        *(
            Hostile(56, f"the pattern {text}", listing(text), answered(66, 2, ErrorCode(128)))
            for text in ("(", "a{2000}", r"\1", "((a{99}){99}){99}")
        ),
        Hostile(
            56,
            "ten thousand ids that nobody has",
            request(ids, 0),
            answered(65, 0, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
            is_work=True,
        ),
        Hostile(
            56,
            "a feature that does not exist",
            request(UpdateFeaturesRequest(feature_updates=[update]), 1),
            answered(57, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ),
    ]
