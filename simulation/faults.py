"""The faults of one history and their probabilities. Drawn from the seed, so some are calm and some wild."""

from dataclasses import dataclass, field
from random import Random
from typing import Final

KINDS: Final = (
    "lost request",
    "lost response",
    "held request",
    "repeated request",
    "cut connection",
    "paused client",
    "killed client",
    "killed broker",
    "lost power",
    "killed while starting",
    "broken write",
    "broken flush",
    "full",
    "clock jump",
)


@dataclass(slots=True)
class Faults:
    """The probability of each kind of fault, at every opportunity."""

    odds: dict[str, float] = field(default_factory=dict)
    flush_seconds_max: float = 0.003
    is_over: bool = False
    """Whether the history is in its second part, without faults."""
    counts: dict[str, int] = field(default_factory=dict)

    def happens(self, random: Random, kind: str) -> bool:
        """Whether the fault happens this time."""
        odds = self.odds.get(kind, 0.0)
        if self.is_over or not odds or random.random() >= odds:
            return False
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return True


_TYPICAL: Final = {
    "lost request": 0.02,
    "lost response": 0.03,
    "held request": 0.05,
    "repeated request": 0.05,
    "cut connection": 0.01,
    "paused client": 0.02,
    "killed client": 0.01,
    "killed broker": 0.15,
    "lost power": 0.05,
    "killed while starting": 0.2,
    "broken write": 0.002,
    "broken flush": 0.002,
    "full": 0.01,
    "clock jump": 0.05,
}


def draw(random: Random) -> Faults:
    """Make each kind absent, typical or frequent."""
    odds = {kind: _TYPICAL[kind] * random.choice((0, 0, 1, 1, 4)) for kind in KINDS}
    return Faults(odds, flush_seconds_max=random.choice((0.0005, 0.003, 0.05)))
