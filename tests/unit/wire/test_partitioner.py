"""Kafka's two hash rules, against the values that Kafka and Java themselves give."""

import warnings

import pytest

from semel.wire.partitioner import coordinator_partition, java_hash, murmur2, partition_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised by the import itself
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


def unsigned(value: int) -> int:
    return value & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        # From Kafka's own test of its murmur2; Java prints the hash as a signed number.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_kafkas_values(key: bytes, signed: int) -> None:
    assert murmur2(key) == unsigned(signed)


@pytest.mark.parametrize("length", range(20))
def test_murmur2_agrees_with_another_client_for_every_tail(length: int) -> None:
    key = bytes((41 * at + 7 * length + 128) % 256 for at in range(length))
    assert murmur2(key) == unsigned(kafka_python_murmur2(key))


def test_a_key_goes_to_the_hash_without_its_sign() -> None:
    assert partition_for(b"21", 50) == (-973932308 & 0x7FFFFFFF) % 50
    assert partition_for(b"abc", 1) == 0
    assert partition_for(b"", 7) == (murmur2(b"") & 0x7FFFFFFF) % 7


def test_no_key_leaves_the_choice_to_the_caller() -> None:
    assert partition_for(None, 3) is None


@pytest.mark.parametrize("count", [0, -1])
def test_a_topic_has_partitions(count: int) -> None:
    with pytest.raises(ValueError, match="partition"):
        partition_for(b"key", count)
    with pytest.raises(ValueError, match="partition"):
        coordinator_partition("group", count)


# What a Java program prints for String.hashCode, and the partition of 50.
IDS = [
    ("", 0, 0),
    ("a", 97, 47),
    ("Aa", 2112, 12),
    ("BB", 2112, 12),
    ("hello", 99162322, 22),
    ("my-transactional-id", -959806496, 46),
    ("consumer-group", -1738392088, 38),
    ("é", 233, 33),
    ("größe", 98762257, 7),
    ("日本語", 25921943, 43),
    ("\U0001f600", 1772899, 49),  # a surrogate pair is two units: 31 * 0xD83D + 0xDE00
    ("id-\U0001f680-ü", -988007164, 14),
    ("\ud800", 55296, 46),  # half a pair, which Java allows in a string
    ("polygenelubricants", -(2**31), 0),  # the absolute value does not fit
    ("GydZG_", -(2**31), 0),
]


@pytest.mark.parametrize(("text", "hashed", "partition"), IDS)
def test_coordinator_of_an_id(text: str, hashed: int, partition: int) -> None:
    assert java_hash(text) == hashed
    assert coordinator_partition(text, 50) == partition
    assert coordinator_partition(text, 1) == 0
