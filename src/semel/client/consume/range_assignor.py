"""The assignor that the client uses when it leads a classic group."""

from collections.abc import Iterable, Mapping


def assign_range(
    members: Mapping[str, Iterable[str]], partitions: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """Assign as Kafka's range assignor: each topic in ranges of equal length, to its subscribers in order."""
    shares: dict[str, dict[str, list[int]]] = {member: {} for member in members}
    for topic, count in sorted(partitions.items()):
        subscribers = sorted(member for member, topics in members.items() if topic in topics)
        if not subscribers:
            continue
        size, larger = divmod(count, len(subscribers))
        first = 0
        for place, member in enumerate(subscribers):
            length = size + (place < larger)
            if length:
                shares[member][topic] = list(range(first, first + length))
            first += length
    return shares
