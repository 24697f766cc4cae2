"""The faults of one history, with probabilities drawn from the seed: some histories are calm, some wild."""

from dataclasses import dataclass, field
from random import Random
from typing import Final


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

_TYPICAL_IN_CLUSTER: Final = {
    "lost request": 0.02,
    "lost response": 0.03,
    "held request": 0.03,
    "repeated request": 0.03,
    "cut connection": 0.01,
    "paused client": 0.02,
    "killed client": 0.01,
    "killed broker": 0.03,
    "killed while starting": 0.2,
    "stopped broker": 0.03,
    "joined broker": 0.1,
    "paused broker": 0.05,
    "cut from ledger": 0.03,
    "cut from clients": 0.02,
    "cut from a broker": 0.05,
    "crashed ledger": 0.01,
    "lost commit": 0.01,
    "lost commit answer": 0.01,
    "lost answer": 0.005,
    "lost notice": 0.05,
    "lost notice answer": 0.05,
    "held notice": 0.05,
    "repeated notice": 0.05,
    "full": 0.005,
}
"""A pause, or a cut, is often longer than a lease."""


def draw(random: Random, *, brokers: int = 1) -> Faults:
    """Make each kind absent, typical or frequent."""
    typical = _TYPICAL if brokers == 1 else _TYPICAL_IN_CLUSTER
    odds = {kind: typical[kind] * random.choice((0, 0, 1, 1, 4)) for kind in typical}
    return Faults(odds, flush_seconds_max=random.choice((0.0005, 0.003, 0.05)))
