"""The part of the hostile corpus about records: invalid batches, and invalid requests to read them."""

import gzip

from semel.wire.compression import Codec, compress
from semel.wire.errors import ErrorCode
from semel.wire.messages import ListOffsetsRequest
from semel.wire.messages.fetch import ListOffsetsPartition, ListOffsetsTopic
from support.faults.hostile_words import (
    CLOSED,
    EITHER,
    INT_MAX,
    TOPIC,
    Hostile,
    answered,
    batch,
    fetch,
    produce,
    request,
)

PRODUCE, FETCH = 0, 1
LARGE_BOMB = compress(Codec.ZSTD, bytes(200_000_000))


def batches() -> list[Hostile]:
    invalid = answered(PRODUCE, 9, ErrorCode.INVALID_RECORD)
    corrupt = answered(PRODUCE, 9, ErrorCode.CORRUPT_MESSAGE)
    refused = answered(PRODUCE, 9)
    good = batch()
    bomb = gzip.compress(bytes(10_000_000))
    unknown = answered(PRODUCE, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return [
        *(Hostile(28, f"partition {p}", produce(good, partition=p), unknown) for p in (-1, INT_MAX)),
        Hostile(28, "a topic that is not there", produce(good, topic="nowhere"), unknown),
        Hostile(29, "the same partition twice", produce(good, times=2), EITHER),
        Hostile(32, "no records", produce(None), refused),
        Hostile(32, "records of no bytes", produce(b""), refused),
        *(
            Hostile(32, f"batch length {n}", produce(batch(length=n)), refused)
            for n in (-1, 0, 48, 10_000, INT_MAX)
        ),
        Hostile(32, "half a batch", produce(good[:40]), refused),
        *(Hostile(33, f"magic {m}", produce(batch(magic=m)), refused) for m in (0, 1, 3, 255)),
        Hostile(34, "a wrong checksum", produce(batch(is_sealed=False, crc=1)), corrupt),
        *(Hostile(35, f"{n} records", produce(batch(record_count=n)), invalid) for n in (-1, 0, 2, INT_MAX)),
        Hostile(36, "last offset delta is not count - 1", produce(batch(last_offset_delta=5)), invalid),
        Hostile(36, "last offset delta -1", produce(batch(last_offset_delta=-1)), invalid),
        Hostile(36, "last offset delta 2^31 - 1", produce(batch(last_offset_delta=INT_MAX)), invalid),
        Hostile(
            36, "100 records that are one", produce(batch(record_count=100, last_offset_delta=99)), invalid
        ),
        Hostile(37, "a record past the end", produce(batch(payload=b"\xfe\x7f" + bytes(6))), invalid),
        Hostile(
            38, "2^31 - 1 headers", produce(batch(payload=b"\x14\0\0\0\1\1\xfe\xff\xff\xff\x0f")), invalid
        ),
        Hostile(39, "key of length -2", produce(batch(payload=b"\x0e\0\0\0\3\1\0")), invalid),
        Hostile(
            40, "a producer without a sequence", produce(batch(producer_id=5, base_sequence=-1)), invalid
        ),
        Hostile(
            40, "sequence -2", produce(batch(producer_id=5, producer_epoch=0, base_sequence=-2)), invalid
        ),
        Hostile(
            40, "producer epoch -1", produce(batch(producer_id=5, producer_epoch=-1, base_sequence=0)), EITHER
        ),
        Hostile(41, "a control batch", produce(batch(attributes=0x20)), invalid),
        Hostile(
            41,
            "a control batch in a transaction",
            produce(batch(attributes=0x30)),
            answered(PRODUCE, 9, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ),
        Hostile(
            41,
            "a control batch in a transaction with an id",
            produce(batch(attributes=0x30), transactional_id="x"),
            invalid,
        ),
        Hostile(
            42,
            "a transaction without a producer",
            produce(batch(attributes=0x10), transactional_id="x"),
            answered(PRODUCE, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ),
        Hostile(
            42,
            "transactional without an id",
            produce(batch(attributes=0x10, producer_id=5, producer_epoch=0, base_sequence=0)),
            refused,
        ),
        Hostile(42, "an id without transactional", produce(good, transactional_id="x"), EITHER),
        Hostile(
            43, "two batches in one partition", produce(good + batch(producer_id=9, base_sequence=0)), invalid
        ),
        *(Hostile(44, f"codec {c}", produce(batch(attributes=c)), refused) for c in (5, 6, 7)),
        *(
            Hostile(45, f"bomb in codec {c}", produce(batch(attributes=c, payload=bomb)), invalid)
            for c in (1, 2, 3, 4)
        ),
        Hostile(45, "a bomb beyond the limit", produce(batch(attributes=4, payload=LARGE_BOMB)), invalid),
        Hostile(46, "snappy chunk of 2^32 - 1", produce(batch(attributes=2, payload=b"\xff" * 12)), invalid),
        Hostile(
            47,
            "lz4 with a wrong header",
            produce(batch(attributes=3, payload=b"\x04\x22\x4d\x18" + b"\xff" * 8)),
            invalid,
        ),
        Hostile(48, "a stream cut off", produce(batch(attributes=1, payload=bomb[:30])), invalid),
        Hostile(
            49,
            "timestamp 2^63 - 1",
            produce(batch(base_timestamp=2**63 - 1, max_timestamp=2**63 - 1)),
            EITHER,
        ),
        Hostile(
            49, "timestamp -2^63", produce(batch(base_timestamp=-(2**63), max_timestamp=-(2**63))), EITHER
        ),
        Hostile(
            50,
            "a batch that is too large",
            produce(batch(payload=bytes(1_100_000))),
            answered(PRODUCE, 9, ErrorCode.MESSAGE_TOO_LARGE),
        ),
        Hostile(50, "acks 2", produce(good, acks=2), answered(PRODUCE, 9, ErrorCode.INVALID_REQUIRED_ACKS)),
        Hostile(50, "acks 0 that fails", produce(good, acks=0, topic="nowhere"), CLOSED),
    ]


def reads() -> list[Hostile]:
    def list_offsets(timestamp: int, partition: int = 0) -> bytes:
        asked = [ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
        return request(ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)]), 7)

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    any_fetch = answered(FETCH, 12)
    return [
        Hostile(
            28, "fetch of partition -1", fetch(partition=-1), answered(FETCH, 12, ErrorCode.NONE, unknown)
        ),
        Hostile(
            28,
            "fetch of partition 2^31 - 1",
            fetch(partition=INT_MAX),
            answered(FETCH, 12, ErrorCode.NONE, unknown),
        ),
        Hostile(29, "fetch of the same partition often", fetch(partitions=1, version=12) * 3, any_fetch),
        Hostile(51, "max bytes -1", fetch(max_bytes=-1), any_fetch),
        Hostile(51, "max bytes 2^31 - 1", fetch(max_bytes=INT_MAX), any_fetch),
        Hostile(51, "min bytes 2^31 - 1", fetch(min_bytes=INT_MAX, max_wait_ms=50), any_fetch),
        Hostile(51, "min bytes -1, max wait -1", fetch(min_bytes=-1, max_wait_ms=-1), any_fetch),
        Hostile(51, "10,000 partitions", fetch(partitions=10_000), any_fetch),
        Hostile(
            51,
            "a session that is not there",
            fetch(session_id=12345, session_epoch=7),
            answered(FETCH, 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ),
        Hostile(
            51, "a session epoch out of nowhere", fetch(session_id=0, session_epoch=99), answered(FETCH, 12)
        ),
        Hostile(51, "an isolation level of 7", fetch(isolation_level=7), EITHER),
        Hostile(
            51,
            "offset -1",
            fetch(offset=-1),
            answered(FETCH, 12, ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE),
        ),
        Hostile(
            51,
            "offset 2^63 - 1",
            fetch(offset=2**63 - 1),
            answered(FETCH, 12, ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE),
        ),
        *(Hostile(52, f"offsets at {t}", list_offsets(t), EITHER) for t in (-5, -100, -(2**63), 2**63 - 1)),
        Hostile(52, "offsets of partition -1", list_offsets(-1, -1), answered(2, 7, unknown)),
    ]
