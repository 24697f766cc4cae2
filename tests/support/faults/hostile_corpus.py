"""The corpus of hostile input. Each kind has a number, so that missing kinds are noticed.

Each input must end in a clean close or a proper error within about a second, cost bounded memory, and leave
the broker and every other connection as they were. Of the SASL exchanges (59), only requests to a listener
without SASL are here.
"""

import struct

from semel.wire.errors import ErrorCode
from semel.wire.messages import CreateTopicsRequest, JoinGroupRequest, MetadataRequest, OffsetCommitRequest
from semel.wire.messages.groups import JoinGroupRequestProtocol
from semel.wire.messages.metadata import MetadataRequestTopic
from semel.wire.messages.offsets import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from semel.wire.messages.topics import CreatableTopic
from support.faults.hostile_batches import batches, reads
from support.faults.hostile_transactions import transactions
from support.faults.hostile_words import (
    CLOSED,
    EITHER,
    INT_MAX,
    TOPIC,
    Hostile,
    answered,
    call,
    frame,
    header,
    request,
)

METADATA, CREATE_TOPICS, DELETE_TOPICS, PRODUCE, FETCH, API_VERSIONS = 3, 19, 20, 0, 1, 18


def _frames() -> list[Hostile]:
    size = struct.Struct(">i").pack
    client_hello = bytes.fromhex("1603010200010001fc0303") + bytes(505)
    return [
        Hostile(1, "length 0", size(0), CLOSED),
        *(Hostile(2, f"length {n}", frame(bytes(n)), CLOSED) for n in range(1, 8)),
        Hostile(3, "length -1", size(-1) + b"x" * 20, CLOSED),
        Hostile(3, "length of the smallest integer", size(-(2**31)), CLOSED),
        Hostile(4, "length of the largest integer", size(INT_MAX) + b"x" * 20, CLOSED),
        Hostile(5, "length one over the limit", size(104_857_601), CLOSED),
        Hostile(6, "a body that never comes", call(METADATA, 9, bytes(100))[:40], CLOSED),
        Hostile(6, "a large body that never comes", size(100_000_000) + bytes(1000), CLOSED),
        Hostile(7, "one byte at a time", call(METADATA, 9, bytes(100)), CLOSED, trickle_seconds=0.1),
        Hostile(8, "an HTTP GET", b"GET / HTTP/1.1\r\nHost: semel\r\n\r\n", CLOSED),
        Hostile(9, "an HTTP POST", b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", CLOSED),
        Hostile(10, "a TLS hello", client_hello, CLOSED),
        Hostile(11, "a TLS alert", bytes.fromhex("15030100020228"), CLOSED),
        Hostile(12, "an SSH banner", b"SSH-2.0-OpenSSH_9.6\r\n", CLOSED),
    ]


def _headers() -> list[Hostile]:
    many = b"\xff\xff\xff\xff\x07"
    return [
        *(Hostile(13, f"API {key}", call(key, 0, b""), CLOSED) for key in (32_767, -1, 4, 500)),
        *(Hostile(14, f"Metadata v{v}", call(METADATA, v, b""), CLOSED) for v in (32_767, -1, 14)),
        *(Hostile(14, f"Produce v{v}", call(PRODUCE, v, bytes(16)), CLOSED) for v in (0, 1, 2, 14)),
        Hostile(14, "InitProducerId v6, which is not stable", call(22, 6, bytes(30), b"\0"), CLOSED),
        *(
            Hostile(
                15,
                f"ApiVersions v{v}",
                call(API_VERSIONS, v, b"\xff" * 8),
                answered(API_VERSIONS, 0, ErrorCode.UNSUPPORTED_VERSION),
            )
            for v in (127, 32_767, -1)
        ),
        Hostile(16, "a header with 2^31 tagged fields", call(METADATA, 9, bytes(40), many), CLOSED),
        Hostile(17, "a tag that is larger than the rest", call(METADATA, 9, b"\0" * 9, b"\1\5\x7f"), CLOSED),
        Hostile(18, "the same tag twice", call(API_VERSIONS, 3, b"\2a\2b\0", b"\2\7\1x\7\1y"), EITHER),
        Hostile(19, "client id of length -2", frame(header(METADATA, 4, b"", -2) + b"\0\0\0\0\0"), EITHER),
        Hostile(19, "client id past the end", frame(header(METADATA, 4, b"", 32_767)), CLOSED),
        Hostile(
            19, "client id that is not UTF-8", frame(header(METADATA, 4, b"\xff\xfe") + bytes(5)), EITHER
        ),
        Hostile(20, "a varint without an end", call(METADATA, 9, b"\xff" * 10, b"\0"), CLOSED),
    ]


def _bodies() -> list[Hostile]:
    garbage = request(MetadataRequest(topics=[]), 9)[4:] + b"garbage" * 100
    topics = [MetadataRequestTopic(name=f"t{number}") for number in range(100_000)]
    many = topics[:40_000]
    return [
        Hostile(
            21,
            "compact array of 2^32 - 1",
            call(METADATA, 9, b"\xff\xff\xff\xff\x0f" + bytes(20), b"\0"),
            CLOSED,
        ),
        Hostile(
            21, "compact array of 2^28", call(METADATA, 9, b"\x80\x80\x80\x80\x01" + bytes(20), b"\0"), CLOSED
        ),
        Hostile(22, "array of INT_MAX, no body", call(METADATA, 4, struct.pack(">i", INT_MAX)), CLOSED),
        Hostile(
            22, "array of 10^8, little body", call(FETCH, 4, bytes(17) + struct.pack(">i", 10**8)), CLOSED
        ),
        # Where null is allowed, Kafka treats any negative length as null.
        Hostile(23, "array of length -2", call(METADATA, 4, struct.pack(">i", -2) + bytes(20)), EITHER),
        Hostile(23, "topics of length -2", call(CREATE_TOPICS, 2, struct.pack(">i", -2) + bytes(20)), CLOSED),
        Hostile(
            24, "null where an array is due", call(CREATE_TOPICS, 2, struct.pack(">i", -1) + bytes(5)), CLOSED
        ),
        Hostile(24, "null topics to delete", call(DELETE_TOPICS, 1, struct.pack(">ii", -1, 1000)), CLOSED),
        Hostile(
            25, "null where a string is due", call(METADATA, 4, struct.pack(">ih", 1, -1) + b"\0"), CLOSED
        ),
        Hostile(25, "string past the end", call(METADATA, 4, struct.pack(">ih", 1, 32_767) + b"x"), CLOSED),
        Hostile(
            26, "topic that is not UTF-8", call(METADATA, 4, struct.pack(">ih", 1, 2) + b"\xff\xfe\0"), CLOSED
        ),
        *(
            Hostile(
                27,
                f"topic named {name[:12]!r}",
                request(
                    CreateTopicsRequest(
                        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
                        timeout_ms=1000,
                    ),
                    5,
                ),
                answered(CREATE_TOPICS, 5, ErrorCode.INVALID_TOPIC_EXCEPTION),
            )
            for name in ("x" * 250, "..", ".", "a/b", "nul\0", "", "späße", "a b")
        ),
        Hostile(
            30,
            "40,000 topics",
            request(MetadataRequest(topics=many), 9),
            answered(METADATA, 9),
            is_work=True,
        ),
        # More than semel.request.elements.max.
        Hostile(30, "100,000 topics", request(MetadataRequest(topics=topics), 9), CLOSED),
        Hostile(31, "garbage behind a request", frame(garbage), answered(METADATA, 9)),
    ]


def _coordinators() -> list[Hostile]:
    def join(session: int, protocol: bytes = b"\xff" * 50) -> bytes:
        protocols = [JoinGroupRequestProtocol(name="range", metadata=protocol)]
        message = JoinGroupRequest(
            group_id="hostile",
            session_timeout_ms=session,
            rebalance_timeout_ms=1000,
            protocol_type="consumer",
            protocols=protocols,
        )
        return request(message, 5)

    commit = OffsetCommitRequest(
        group_id="hostile",
        generation_id_or_member_epoch=-1,
        topics=[
            OffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=1, committed_metadata="x" * 30_000
                    )
                ],
            )
        ],
    )
    too_large = answered(8, 8, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    bad_session = answered(11, 5, ErrorCode.INVALID_SESSION_TIMEOUT)
    return [
        Hostile(57, "30 kB of metadata with an offset", request(commit, 8), too_large),
        *(Hostile(58, f"a session of {s} ms", join(s), bad_session) for s in (0, -1, INT_MAX)),
        Hostile(58, "protocol metadata that is garbage", join(10_000), answered(11, 5)),
        Hostile(
            59,
            "SASL where there is none",
            call(17, 1, b"\0\5PLAIN"),
            answered(17, 1, ErrorCode.ILLEGAL_SASL_STATE),
        ),
        Hostile(59, "SaslAuthenticate of 100 MiB", call(36, 0, struct.pack(">i", 104_857_600)), CLOSED),
    ]


CORPUS: list[Hostile] = [
    *_frames(),
    *_headers(),
    *_bodies(),
    *batches(),
    *reads(),
    *_coordinators(),
    *transactions(),
]
