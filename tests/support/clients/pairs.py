"""Producers of tests know the producer id and epoch that they were given, as one pair."""


class HasPair:
    """A producer with its pair."""

    pair: tuple[int, int]

    @property
    def producer_id(self) -> int:
        return self.pair[0]

    @property
    def epoch(self) -> int:
        return self.pair[1]
