"""The producer id and epoch of test producers, kept as one pair."""


class HasPair:
    """A producer with a producer id and epoch."""

    pair: tuple[int, int]

    @property
    def producer_id(self) -> int:
        return self.pair[0]

    @property
    def epoch(self) -> int:
        return self.pair[1]
