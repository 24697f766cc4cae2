"""Kafka's hash rules, bit for bit: the partition of a key, and the coordinator of an id.

A record's key is hashed with murmur2, so that producers in any language send a key to the same partition. A
group id or transactional id is hashed with Java's `String.hashCode`, so that every broker and tool names the
same coordinator. Neither rule may ever change: an id that moved would lose its state.
"""

_MASK_32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_SIGN_BIT = 0x80000000
_MURMUR_SEED = 0x9747B28C
_MURMUR_MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Return the 32 bit murmur2 hash of `data` as an unsigned number."""
    multiplier = _MURMUR_MULTIPLIER
    length = len(data)
    hashed = (_MURMUR_SEED ^ length) & _MASK_32
    whole = length & ~3
    for at in range(0, whole, 4):
        word = (int.from_bytes(data[at : at + 4], "little") * multiplier) & _MASK_32
        word = ((word ^ (word >> 24)) * multiplier) & _MASK_32
        hashed = ((hashed * multiplier) & _MASK_32) ^ word
    if whole < length:
        hashed = ((hashed ^ int.from_bytes(data[whole:], "little")) * multiplier) & _MASK_32
    hashed = ((hashed ^ (hashed >> 13)) * multiplier) & _MASK_32
    return hashed ^ (hashed >> 15)


def partition_for(key: bytes | None, partitions: int) -> int | None:
    """Return the partition of a record's key, or None if there is no key and any partition will do."""
    if partitions <= 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    if key is None:
        return None
    # Kafka clears the sign bit instead of taking the absolute value.
    return (murmur2(key) & _POSITIVE) % partitions


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: a polynomial over UTF-16 units, wrapped to a signed 32 bit number."""
    hashed = 0
    # A lone surrogate is a valid unit of a Java string.
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + (units[at] << 8 | units[at + 1])) & _MASK_32
    return hashed - (1 << 32) if hashed & _SIGN_BIT else hashed


def coordinator_partition(key: str, count: int) -> int:
    """Return the partition, of `count`, whose leader coordinates this group id or transactional id."""
    if count <= 0:
        raise ValueError(f"a topic has at least one partition, not {count}")
    hashed = java_hash(key)
    # The absolute value of the smallest integer does not fit 32 bits; Kafka takes zero.
    return 0 if hashed == -_SIGN_BIT else abs(hashed) % count
